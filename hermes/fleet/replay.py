"""A dump of metrics, and the view of an autoscaler that replays it.

Each row is a scrape of a replica. A row holds until the replica's next one, if that comes within `GAP` intervals of the
dump, and for one interval otherwise; then the replica has gone. The interval is the median time between two rows of a
replica.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.clock import AUTOSCALER, Clock
from hermes.core.scraped import SCRAPED, EngineLimits, EngineState, Sample
from hermes.errors import inside
from hermes.fleet.advice import Advice, Noted, act, advice, refused
from hermes.fleet.autoscalers import Autoscaler, Pod, Traffic
from hermes.units import s_to_ns

__all__ = ["Dump", "Replay", "Rows", "replay"]

GAP = 5
_WORDS = {"waiting": "the sequences in the queue (`waiting`)", "running": "the sequences in the batch (`running`)",
          "kv_use": "the share of KV blocks in use (`kv_use`)"}


class Rows(NamedTuple):
    """Rows of a replica, in order of time.

    Attributes:
        time_ns: Since the first row of the dump.
        ready: Whether it takes requests.
        values: By name of `SCRAPED`; NaN where there is none.
    """

    time_ns: IntArray
    ready: BoolArray
    values: Mapping[str, FloatArray]


class Dump:
    """Metrics of a group's replicas. start_s: Time of the first row, in the dump's own count."""

    def __init__(self, replicas: Mapping[str, Rows], metrics: set[str], start_s: float) -> None:
        self.replicas, self.metrics, self.start_s = dict(sorted(replicas.items())), metrics, start_s
        self.end_ns = max((int(rows.time_ns[-1]) for rows in self.replicas.values()), default=0)
        gaps = [np.diff(rows.time_ns) for rows in self.replicas.values()]
        every = np.concatenate(gaps) if gaps else np.empty(0, dtype=np.int64)
        self.interval_ns = int(np.median(every)) if len(every) else 0
        self.until = {name: self._until(rows.time_ns) for name, rows in self.replicas.items()}

    def _until(self, time_ns: IntArray) -> IntArray:
        """Return until when each row holds."""
        follows = np.append(time_ns[1:], np.iinfo(np.int64).max)
        return np.where(follows - time_ns <= GAP * self.interval_ns, follows, time_ns + max(self.interval_ns, 1))

    def means(self) -> dict[str, float | None]:
        """Return the mean of all values of each metric, None without one, and the share of rows that are ready."""
        found: dict[str, float | None] = {
            "ready": float(np.concatenate([rows.ready for rows in self.replicas.values()]).mean())}
        for metric in SCRAPED:
            if metric in self.metrics:
                values = np.concatenate([rows.values[metric] for rows in self.replicas.values()])
                values = values[~np.isnan(values)]
                found[metric] = float(values.mean()) if len(values) else None
        return found

    def counts(self) -> list[tuple[int, int]]:
        """Return times, and the replicas that are there from then on; the first time is 0."""
        begins = np.concatenate([rows.time_ns for rows in self.replicas.values()])
        ends = np.concatenate(list(self.until.values()))
        times: npt.NDArray[Any] = np.concatenate([begins, ends])
        changes = np.concatenate([np.ones(len(begins), dtype=np.int64), -np.ones(len(ends), dtype=np.int64)])
        at, inverse = np.unique(times, return_inverse=True)
        counts = np.cumsum(np.bincount(inverse, weights=changes).astype(np.int64))
        found: list[tuple[int, int]] = []
        for time, count in zip(at.tolist(), counts.tolist(), strict=True):
            if time <= self.end_ns and (not found or found[-1][1] != count):
                found.append((time, count))
        return found


class Replay(Noted):
    """The view that replays a dump. most: Most replicas that can be asked for."""

    role, devices, dollars_per_hour = "both", 1, 0.0

    def __init__(self, env: Clock, dump: Dump, name: str, most: int) -> None:
        super().__init__(name, 0)
        self._env, self._dump, self.most = env, dump, most
        self._sample = _partly(dump.metrics)
        self._counts = dump.counts()
        self._times = {name: rows.time_ns.tolist() for name, rows in dump.replicas.items()}

    @property
    def now_ns(self) -> int:
        return int(self._env._now)

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods())

    @property
    def recorded(self) -> int:
        return len(self.pods())

    @property
    def limits(self) -> EngineLimits:
        raise refused("the engines' limits")

    @property
    def queued(self) -> int:
        raise refused("the gateway's queue")

    def traffic(self) -> Traffic:
        raise refused("what the group has served")

    def watch(self, period_s: float, offset_s: float | None = None) -> None:
        """The rows are the scrapes, whatever the period."""

    def watch_engines(self) -> None:
        raise refused("each step of the engines")

    def engines(self) -> list[EngineState]:
        raise refused("each step of the engines")

    def done(self, time_ns: int, replicas: int) -> bool:
        return any(time_ns < time <= self.now_ns and count == replicas for time, count in self._counts)

    def pods(self) -> list[Pod]:
        now, found = self.now_ns, []
        for name, rows in self._dump.replicas.items():
            row = bisect_right(self._times[name], now) - 1
            if row < 0 or self._dump.until[name][row] <= now:
                continue
            ready = bool(rows.ready[row])
            values = {metric: float(rows.values[metric][row]) for metric in self._dump.metrics}
            whole = ready and not any(value != value for value in values.values())
            found.append(Pod(name, ready, sample=self._sample(self._times[name][row], values) if whole else None))
        return found

    def moment(self, seconds: float) -> Any:   # Any: a SimPy event
        at = max(s_to_ns(seconds), self.now_ns)
        return self._env.pending() if at > self._dump.end_ns else self._env.moment(at, AUTOSCALER)


def _partly(metrics: set[str]) -> Any:   # Any: a function of a time and values that returns a `Sample`
    """Return what makes samples that refuse a metric beside these."""
    def refusing(name: str) -> property:
        def refuse(sample: Sample) -> Any:
            raise refused(_WORDS[name])
        return property(refuse)

    kind: Any = type("_Sample", (Sample,), {"__slots__": (), **{
        name: refusing(name) for name in SCRAPED if name not in metrics}})

    def sample(at_ns: int, values: dict[str, float]) -> Sample:
        waiting, running, kv_use = (values.get(name, 0.0) for name in SCRAPED)
        found: Sample = kind(at_ns, waiting, running, kv_use)
        return found

    return sample


def replay(dump: Dump, autoscaler: Autoscaler, name: str, most: int) -> Advice:
    """Return what an autoscaler would have done, as a dump of metrics shows it.

    Raises `InputError` if it asks for what the dump does not have.
    """
    env = Clock()
    view = Replay(env, dump, name, most)
    with inside("autoscaler"):
        autoscaler.check(most)
    act(env, autoscaler, [view])
    env.drain()
    view.end_look()
    return advice(view, dump.counts(), dump.end_ns)
