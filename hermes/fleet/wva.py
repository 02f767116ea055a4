"""llm-d's Workload Variant Autoscaler (`kind: wva`): the number of replicas of each variant of a model, by saturation.

Every 60 s it looks at the KV memory and the queue of all replicas of all variants, and publishes a number of replicas
for each variant: at most one more (of the cheapest) or one fewer (of the dearest). A horizontal pod autoscaler acts on
the published number, with windows of its own. From no replica WVA acts itself, by polling the gateway's queue.

Source: llm-d/llm-d-workload-variant-autoscaler b08b1c7, the V1 analyser (`AnalyzeModelSaturation`,
`CalculateSaturationTargets`), the enforcer of scaling to zero, and the engine that scales from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from hermes.config import Duration
from hermes.errors import InputError, suggest
from hermes.fleet.autoscalers import AUTOSCALERS, Acts, AutoscalerView, Beats, GroupsAutoscaler
from hermes.fleet.hpa import ScaleDown, ScaleUp, Settling
from hermes.fleet.hpa_rules import replicas_by_average
from hermes.fleet.wva_rules import Replica, Thresholds, Variant, analyse, targets
from hermes.units import s_to_ns

__all__ = ["Wva"]


class _Seen:
    """Scraped values of the last minute, by replica: each as (time in ns, KV use, queue)."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._samples: dict[str, list[tuple[int, float, int]]] = {}

    def look(self, view: AutoscalerView) -> None:
        """Note what the last scrapes of a group's replicas have shown."""
        for pod in view.pods():
            if pod.sample is not None:
                known = self._samples.setdefault(pod.name, [])
                if not known or known[-1][0] != pod.sample.at_ns:
                    known.append((pod.sample.at_ns, pod.sample.kv_use, pod.sample.waiting))

    def replicas(self, view: AutoscalerView, now_ns: int) -> list[Replica]:
        """Return the largest values of each replica that reports."""
        found = []
        for pod in view.pods():
            if pod.sample is None:
                continue
            known = [one for one in self._samples[pod.name] if one[0] > now_ns - self._window_ns]
            self._samples[pod.name] = known
            if known:
                found.append(Replica(max(kv for _, kv, _ in known), max(queue for _, _, queue in known), view.name))
        return found

    def forget(self, views: Sequence[AutoscalerView]) -> None:
        """Drop what was seen of replicas that have gone or not been scraped since they started."""
        there = {pod.name for view in views for pod in view.pods() if pod.sample is not None}
        for name in self._samples.keys() - there:
            del self._samples[name]


@AUTOSCALERS.register("wva")
class Wva(GroupsAutoscaler):
    """llm-d's Workload Variant Autoscaler, V1 analyser, acting through a horizontal pod autoscaler."""

    kind: Literal["wva"] = "wva"
    costs: dict[str, float] = Field(default_factory=dict)
    """Cost of a replica of each group (`variantCost`). Left out, dollars per hour."""
    kv_threshold: float = Field(default=0.8, gt=0, le=1)
    """A replica is saturated from this share of KV blocks in use on (`kvCacheThreshold`)."""
    queue_threshold: float = Field(default=5.0, gt=0, le=1e6)
    """A replica is saturated from this many sequences in its queue on (`queueLengthThreshold`)."""
    kv_spare: float = Field(default=0.1, ge=0, le=1)
    """Mean spare KV of the replicas that are not saturated, below which one more is wanted (`kvSpareTrigger`)."""
    queue_spare: float = Field(default=3.0, ge=0, le=1e6)
    """Mean spare queue of the replicas that are not saturated, below which one more is wanted (`queueSpareTrigger`)."""
    interval: Duration = Field(default=60.0, gt=0)
    """Time between two rounds, the first one at the start."""
    window: Duration = Field(default=60.0, gt=0)
    """A replica's values are the largest of so long."""
    scrape: Duration = Field(default=15.0, gt=0)
    """Time between two scrapes of a replica. When in it a replica is scraped is drawn once for each."""
    scale_to_zero: bool = False
    """Whether all variants go to no replica when no request has ended for `retention`. It needs a queue at the gateway.
    """
    retention: Duration = Field(default=600.0, gt=0)
    """Time without an ended request after which all variants go to no replica."""
    poll: Duration = Field(default=0.1, gt=0)
    """Time between two looks at the gateway's queue while a variant has no replica."""
    max: int | None = Field(default=None, ge=1, le=100_000)
    """Most replicas of each group. Left out, the group's `count`."""
    sync: Duration = Field(default=15.0, gt=0)
    """Time between two decisions of the horizontal pod autoscaler, the first one at the start."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """The horizontal pod autoscaler changes nothing if the published number is as near to the present one."""
    scale_up: ScaleUp = ScaleUp(window=240.0, pods=10, period=150.0)
    """How fast replicas may rise."""
    scale_down: ScaleDown = ScaleDown(window=240.0, pods=10, period=150.0)
    """How fast replicas may fall."""

    def check(self, most: int) -> None:
        if self.max is not None and self.max > most:
            raise InputError(f"at most {most} replicas, the group's count", self.max, field="max")

    def check_groups(self, views: Sequence[AutoscalerView]) -> None:
        names = [view.name for view in views]
        for name in self.costs:
            if name not in names:
                raise InputError(f"one of its groups: {', '.join(names)}", name, field="costs",
                                 suggestion=suggest(name, names))

    def to_zero(self) -> str:
        return "scale_to_zero" if self.scale_to_zero else ""

    def run_groups(self, views: Sequence[AutoscalerView]) -> Acts:
        least = 0 if self.scale_to_zero else 1
        settling = {view.name: Settling(self, view.most, least) for view in views}
        published: dict[str, int] = {}
        served: list[tuple[int, int]] = []   # time, requests that had ended
        seen, beats = _Seen(s_to_ns(self.window)), Beats(views[0])
        for view in views:
            view.watch(self.scrape)
        while True:
            now = beats.now_ns
            if beats.due(self.scrape) or beats.due(self.interval):
                for view in views:
                    seen.look(view)
            if self.scale_to_zero:
                for view in views:
                    if not view.wanted and view.queued:
                        published[view.name] = 1
                        view.scale(1, "requests wait at the gateway")
            if beats.due(self.interval):
                found = self._round(views, published, seen, now)
                if self.scale_to_zero:
                    served.append((now, sum(view.traffic().requests for view in views)))
                    if self._unused(served, now):
                        found = dict.fromkeys(found, 0)
                published |= found
            if beats.due(self.sync):
                for view in views:
                    self._act(view, settling[view.name], published, now)
            polled = (self.poll,) if self.scale_to_zero and not all(view.wanted for view in views) else ()
            yield beats.next(self.scrape, self.interval, self.sync, *polled)

    def _round(self, views: Sequence[AutoscalerView], published: Mapping[str, int], seen: _Seen,
               now_ns: int) -> dict[str, int]:
        """Return the number of replicas of each variant that has one; nothing while no replica reports."""
        seen.forget(views)
        variants, replicas = [], []
        for view in views:
            if view.wanted:
                reporting = seen.replicas(view, now_ns)
                cost = self.costs.get(view.name)
                variants.append(Variant(view.name, view.dollars_per_hour if cost is None else cost, view.wanted,
                                        published.get(view.name), len(reporting), view.wanted - view.ready))
                replicas += reporting
        if not replicas:
            return {}
        limits = Thresholds(self.kv_threshold, self.queue_threshold, self.kv_spare, self.queue_spare)
        found = targets(analyse(replicas, limits), variants)
        return {view.name: min(found[view.name], self.max or view.most) for view in views if view.name in found}

    def _unused(self, served: list[tuple[int, int]], now_ns: int) -> bool:
        """Whether no request has ended for `retention`."""
        since = now_ns - s_to_ns(self.retention)
        while len(served) > 1 and served[1][0] <= since:
            served.pop(0)
        return served[0][0] <= since and served[0][1] == served[-1][1]

    def _act(self, view: AutoscalerView, settling: Settling, published: Mapping[str, int], now_ns: int) -> None:
        """Let the horizontal pod autoscaler move a group towards the published number."""
        current, desired = view.wanted, published.get(view.name)
        if not current and not desired:
            return
        asked = None if desired is None else replicas_by_average(desired * 1000, 1000, current, self.tolerance)
        replicas, _ = settling.settle(now_ns, current, [(asked, "wva")], view.done)
        view.asks(settling.asked)
        if replicas != current:
            view.scale(replicas, "saturated" if replicas > current else "spare capacity")
