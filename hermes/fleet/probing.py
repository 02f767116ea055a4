"""Probes of replicas: when a readiness probe has routers know, and when a liveness probe has a replica killed."""

from __future__ import annotations

from hermes.config.streams import stream as random_stream
from hermes.fleet.config import Liveness, Probe
from hermes.units import s_to_ns

__all__ = ["Probing"]


class Probing:
    """The probes of one group. Clients go by their names; times in ns."""

    def __init__(self, probe: Probe, liveness: Liveness | None, seed: int) -> None:
        self._probe, self._liveness, self._seed = probe, liveness, seed

    @property
    def delay_ns(self) -> int:
        """Time until routers know what the readiness probes have found."""
        return s_to_ns(self._probe.delay)

    def ready_ns(self, name: str, since_ns: int) -> int:
        """Return when routers know that a client is ready that is so from a time on: a probe has passed."""
        return self._probed_ns(self._probe, "probe", name, since_ns) + s_to_ns(self._probe.delay)

    def down_ns(self, name: str, since_ns: int) -> int:
        """Return when routers know that a client is down: it refuses connections, and all probes have failed."""
        last = (self._probe.failures - 1) * s_to_ns(self._probe.period) + s_to_ns(self._probe.delay)
        return self._probed_ns(self._probe, "probe", name, since_ns) + last

    def deleted_ns(self, since_ns: int) -> int:
        """Return when routers know that the pods of a client are deleted."""
        return since_ns + s_to_ns(self._probe.delay)

    def silent_ns(self, name: str, since_ns: int) -> int:
        """Return when routers know that a client does not answer: all probes have timed out."""
        return self.down_ns(name, since_ns) + s_to_ns(self._probe.timeout)

    def killed_ns(self, name: str, since_ns: int) -> tuple[int, int] | None:
        """Return when the last liveness probe of a client without answers has failed, and when the client is killed;
        None without such probes."""
        own = self._liveness
        if own is None:
            return None
        failed = self._probed_ns(own, "liveness", name, since_ns) + (own.failures - 1) * s_to_ns(own.period)
        failed += s_to_ns(own.timeout)
        return failed, failed + s_to_ns(own.grace)

    def _probed_ns(self, probe: Probe | Liveness, kind: str, name: str, since_ns: int) -> int:
        """Return when the first probe of a client is at or after a time."""
        period_ns = s_to_ns(probe.period)
        offset_ns = int(random_stream(self._seed, f"views/{kind}/{name}").random() * period_ns)
        if probe.offset is not None:
            offset_ns = s_to_ns(probe.offset)
        return offset_ns + max(-(-(since_ns - offset_ns) // period_ns), 0) * period_ns
