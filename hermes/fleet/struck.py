"""What failures do to the slots of a group: crashes, hangs, slow steps, nodes that are taken back or go down."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.core.clock import FAILURE, MEMBERSHIP, Clock, Tick
from hermes.core.record import AWAY, DOWN, DRAINING, HEARTBEAT, LIVENESS, MENDED, NOTICE, PROBE, READY
from hermes.fleet.failure_times import FailureClock
from hermes.fleet.failures import Engines, Failure
from hermes.fleet.incidents import IncidentLog
from hermes.fleet.places import SlotPlace
from hermes.fleet.probing import Probing
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.fleet.replicas import Replicas, Slot

__all__ = ["StruckSlot"]


class StruckSlot:
    """One slot, as failures see it (`hermes.fleet.failures.Struck`).

    Args:
        engines: What can go wrong within its engine; None where it is no LLM client.
        place: Where it is.
        everywhere: All slots of the simulation, this one included when failures strike.
        log: Of incidents.
    """

    def __init__(self, env: Clock, replicas: Replicas, number: int, probing: Probing, engines: Engines | None,
                 place: SlotPlace, everywhere: list[StruckSlot], log: IncidentLog) -> None:
        self._env, self._replicas, self._probing, self._everywhere = env, replicas, probing, everywhere
        self._engines, self.place, self._log = engines, place, log
        self._slot: Slot = replicas.slot(number)

    @property
    def client(self) -> Any:   # Any: of any kind
        """The first client of the slot."""
        return self._slot.client

    def _later(self, time_ns: int, priority: int, then: Callable[[], None], *, always: bool = False) -> None:
        """Call a function at a time, if the replica's process is the same then, and the run goes on unless `always`."""
        incarnation = self._slot.incarnation

        def due(tick: Tick) -> None:
            if self._slot.incarnation == incarnation and (always or self._replicas.goes_on):
                then()

        self._env.tick_at(time_ns, priority, due)

    def clock(self, failure: Failure, devices: int | None, rng: np.random.Generator) -> FailureClock:
        """Return the clock of a failure at random times, drawn from a stream of its own. devices: As many as the
        replica's where left out."""
        every = failure.every
        assert every is not None
        if devices is None:
            devices = 1 if self._engines is None else self._replicas.facts().devices
        return FailureClock(self._env, devices, lambda: every.draw_ns(rng),
                            lambda: self._log.strike(failure.kind, lambda: failure.strikes(self)),
                            lambda: self._replicas.goes_on)

    def hears(self, clock: FailureClock) -> None:
        """Let a clock run while the replica's devices are held."""
        self._slot.clocks.append(clock)

    def crash(self) -> None:
        """End the process; it starts again on its node."""
        if self._replicas.can_crash(self._slot):
            self._log.hit(self.client)
            self._ends("crashed")

    def _ends(self, reason: str) -> None:
        self._replicas.crash(self._slot, reason, self._noticed_ns, self._probed)

    def _noticed_ns(self) -> int:
        """Return when routers know of a process that ends now."""
        now = self._env._now
        return self._probing.deleted_ns(now) if self._replicas.recreates else self._probing.down_ns(
            self.client.name, now)

    def _probed(self) -> None:
        """Note that readiness probes have failed, and routers know it now."""
        self._log.note(self.client, PROBE, self._probing.delay_ns)
        self._log.note(self.client, AWAY)

    # -- within the engine -------------------------------------------------------------------------------------------

    def hang(self, lasts_s: float | None, *, answers_probes: bool) -> None:
        """Let the engine hang; None until it is killed."""
        slot, now, name = self._slot, self._env._now, self.client.name
        if slot.state not in (READY, DRAINING) or slot.hung or self._engines is None:
            return
        slot.hung = True
        self._log.hit(self.client)
        for client in slot.clients:
            self._engines.hang(client)
        if lasts_s is not None:
            # after the last request, too: the engine ends what nobody waits for
            self._later(now + s_to_ns(lasts_s), FAILURE, self._goes_on, always=True)
        if answers_probes:
            return
        hang = slot.hangs = slot.hangs + 1
        if slot.state == READY:
            self._later(self._probing.silent_ns(name, now), MEMBERSHIP, partial(self._silent, hang))
        killed = self._probing.killed_ns(name, now)
        if killed is not None:
            self._later(killed[0], FAILURE, partial(self._condemned, hang, killed[1]))

    def _silent(self, hang: int) -> None:
        if self._slot.hung and self._slot.hangs == hang and self._slot.state == READY:
            self._replicas.choose(self._slot, False)
            self._probed()

    def _condemned(self, hang: int, time_ns: int) -> None:
        if self._slot.hung and self._slot.hangs == hang:
            self._log.note(self.client, LIVENESS)
            self._later(time_ns, FAILURE, self._killed)

    def _killed(self) -> None:
        if self._replicas.can_crash(self._slot):
            self._ends("hung")

    def _goes_on(self) -> None:
        """End a hang. Routers choose the replica again when a probe has passed."""
        slot = self._slot
        if slot.hung and slot.state in (READY, DRAINING):
            slot.hung = False
            self._log.note(self.client, MENDED)
            assert self._engines is not None
            for client in slot.clients:
                self._engines.go_on(client)
            self._replicas.check(self.client)
            self._later(self._probing.ready_ns(self.client.name, self._env._now), MEMBERSHIP, self._answers)

    def _answers(self) -> None:
        slot = self._slot
        if slot.state == READY and not slot.hung and not slot.chosen:
            self._replicas.choose(slot, True)

    def slow(self, factor: float, lasts_s: float | None) -> None:
        """Let steps take longer; None until the process ends."""
        if self._slot.state not in (READY, DRAINING) or self._engines is None:
            return
        self._slot.slowed += 1
        self._log.hit(self.client)
        self._slows(factor)
        if lasts_s is not None:
            self._later(self._env._now + s_to_ns(lasts_s), FAILURE, partial(self._fast, self._slot.slowed))

    def _fast(self, number: int) -> None:
        if self._slot.slowed == number:
            self._log.note(self.client, MENDED)
            self._slows(1.0)

    def _slows(self, factor: float) -> None:
        for client in self._slot.clients:
            assert self._engines is not None
            self._engines.slow(client, factor)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def reclaim(self, notice_s: float) -> None:
        """Take the node away after a notice; another replica is wanted at once."""
        if self._replicas.reclaim(self._slot, s_to_ns(notice_s)):
            self._log.hit(self.client)
            self._log.note(self.client, NOTICE)
            self._log.note(self.client, AWAY)

    def lose_device(self, repair_s: float) -> None:
        """Let a device go down with the whole replica."""
        self.down("device", s_to_ns(repair_s), self._noticed_ns, 0 if self._replicas.recreates else None)

    def lose_node(self, repair_s: float, notice_s: float, evict_s: float | None) -> None:
        """Let the node go down with all replicas on it."""
        self._all_down("node", [one for one in self._everywhere if one is self or (
            self.place.shared and one.place.shared and one.place.node == self.place.node)], repair_s, notice_s, evict_s)

    def lose_zone(self, repair_s: float, notice_s: float, evict_s: float | None) -> None:
        """Let all nodes of the slot's zone go down."""
        self._all_down("zone", [one for one in self._everywhere if one.place.zone == self.place.zone],
                       repair_s, notice_s, evict_s)

    def _all_down(self, what: str, slots: list[StruckSlot], repair_s: float, notice_s: float,
                  evict_s: float | None) -> None:
        known_ns = self._env._now + s_to_ns(notice_s)
        for one in slots:
            one.down(what, s_to_ns(repair_s), lambda: known_ns, None if evict_s is None else s_to_ns(evict_s))

    def down(self, what: str, repair_ns: int, noticed_ns: Callable[[], int], evict_ns: int | None) -> None:
        """Go down with a device, a node or a zone."""
        slot, now = self._slot, self._env._now
        if what in slot.outages or (what != "zone" and (slot.outages or not (slot.held or self.place.shared))):
            return   # down by now, or without a node
        slot.outages[what] = number = slot.lost = slot.lost + 1
        if self._replicas.can_crash(slot):
            self._log.hit(self.client)
            self._replicas.crash(slot, f"{what} down", noticed_ns, self._probed if what == "device" else self._missed)
        if evict_ns is not None and evict_ns < repair_ns:
            if evict_ns:
                self._later(now + evict_ns, MEMBERSHIP, partial(self._replaced, "evicted"))
            else:
                self._replaced("recreated")
        self._env.tick_at(now + repair_ns, MEMBERSHIP, partial(self._repaired, what, number))

    def _missed(self) -> None:
        """Note that the node's heartbeats were missed, and routers know it now."""
        self._log.note(self.client, HEARTBEAT)
        self._log.note(self.client, AWAY)

    def _replaced(self, reason: str) -> None:
        if self._slot.state == DOWN:
            self._replicas.replace(self._slot, reason)

    def _repaired(self, what: str, number: int, tick: Tick) -> None:
        slot = self._slot
        if slot.outages.get(what) == number:   # otherwise a new node has taken its place
            del slot.outages[what]
            if self._replicas.goes_on and not slot.outages:
                self._replicas.repaired(slot)
