"""The replicas of a group of clients: each client is a slot, in which one replica after the other may run.

The clients of one engine, its ranks and the batches of its stages, are one slot: they start, drain and go together. A
replica is *starting* until it is *ready*; a ready one that is not wanted any more *drains*: it gets no new stages,
and is *gone* when its last one has ended, or its grace period (`drain`). Devices are held from starting
to gone. A new replica takes the lowest free slot. A replica that crashes is *down*, and starts again in its slot; one
that was draining is gone. Routers choose a crashed replica until a probe has noticed it, or it is ready again.
Of those that are not wanted, starting ones go before ready ones, and newer ones before older ones (Kubernetes).
A *spare* has started and is kept back (`hermes.fleet.spares`): the next one that is wanted is a spare, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from hermes.core.clock import AUTOSCALER, FAILURE, MEMBERSHIP, SETTLED, Clock, Tick
from hermes.core.reasons import CUT_OFF, ENDED
from hermes.core.record import CUT, DOWN, DRAINING, GONE, READY, RECLAIMED, SPARE, STARTING
from hermes.core.scraped import EngineLimits, EngineState, Sample, Scrapable, Scraper, Together, times_of
from hermes.errors import InputError, Verbatim
from hermes.fleet.autoscalers import Pod
from hermes.fleet.config import Drain, Restarts
from hermes.fleet.failure_times import FailureClock
from hermes.fleet.observations import Observations
from hermes.fleet.restarts import BackOff
from hermes.fleet.rolling import Update, moves
from hermes.fleet.spares import Waker
from hermes.fleet.start_ups import Starter, Starting
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["Engine", "Replica", "Replicas", "Slot"]


_WANTED = (STARTING, READY, DOWN)


class Replica(Protocol):
    """A client that can stop and start again."""

    index: int
    name: str
    num_assigned: int

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to start."""
        ...

    @property
    def free_at_ns(self) -> int:
        """When the step in flight ends; now without one."""
        ...

    def renew(self) -> None:
        """Start again with empty memory. Called while it is idle, without stages."""
        ...


class Engine(Replica, Protocol):
    """A replica whose steps and queue an autoscaler may see."""

    def watch_passes(self) -> None:
        """Keep the last step that has ended, for `engine_state`."""
        ...

    def engine_state(self) -> EngineState:
        """Return its last step and its queue as of now."""
        ...

    def engine_limits(self) -> EngineLimits:
        """Return its limits."""
        ...


class Slot:
    """The clients of one engine, and the state of their replica.

    Attributes:
        clients: Those clients. The replica has the name and the place of the first, `client`.
    """

    __slots__ = ("backoff", "chosen", "client", "clients", "clocks", "doomed", "give_up", "hangs", "held", "hung",
                 "incarnation", "lost", "outages", "since", "slowed", "spare", "stale", "state", "stays_ns", "up_ns",
                 "ups", "version")

    def __init__(self, clients: Sequence[Replica], restarts: Restarts) -> None:
        self.clients, self.client, self.incarnation, self.state = clients, clients[0], -1, GONE
        self.backoff = BackOff(restarts)
        self.clocks: list[FailureClock] = []   # of its failures at random times
        self.outages: dict[str, int] = {}   # what is down (a device, a node, a zone) -> number of the outage
        self.lost, self.doomed = 0, False   # outages so far; whether its node will not come back
        self.hung, self.hangs, self.slowed = False, 0, 0   # whether it hangs; how often it did, and was slow
        self.chosen = False   # whether routers choose it
        self.ups = 0          # how often it became ready
        self.since = 0   # number of the change that started the replica: newer ones have higher ones
        self.up_ns = 0   # when the replica became ready
        self.stays_ns = 0   # until when it stays at least while it drains
        self.held = False   # whether the replica has devices
        self.version = 0    # how many updates there had been when it was first started
        self.give_up: Callable[[], None] | None = None   # gives up the start that goes on
        self.spare = False   # whether the replica is kept back, or will be when it has started
        self.stale = False   # whether the engine still has what an earlier replica left

    @property
    def broken(self) -> bool:
        """Whether no replica can be here now."""
        return bool(self.outages)

    @property
    def assigned(self) -> bool:
        """Whether a client has a stage."""
        return any(client.num_assigned for client in self.clients)

    def hold(self, held: bool) -> None:
        """Note that the replica has devices from now on, or has not."""
        self.held = held
        for clock in self.clocks:
            clock.hold(held)

    def sample(self, scraper: Scraper) -> Sample | None:
        """Return the replica's last sample by a scraper; None before its first scrape."""
        if self.state in (STARTING, DOWN):
            return None
        sample = scraper.read()
        return None if sample is None or sample.at_ns < self.up_ns else sample


class Replicas(Observations):
    """Slots of one group. It is the `AutoscalerView` of the group's autoscaler.

    Args:
        clients: Of each slot.
        start: Replicas that are ready at the start.
        starter: Starts new replicas.
        changed: Called when the replicas that routers choose have changed.
        down: Called with a client that goes down, and why, or that can be reached again ("").
        drain: How replicas end.
        restarts: When processes that ended start again.
        holds: Whether KV of a client is still to move.
        left: Returns whether the run goes on: the requests that have not ended, or 1 before the last `duration` ends.
        log: Rows of the record's table `membership`: client, incarnation, time in ns, state, reason.
        seed: The scenario's, for the times of scrapes.

    Attributes:
        recreates: Whether all pods of a replica are made anew when one of them restarts.
        decided: Every change of the wanted number: time in ns, number before and after it, reason. None if nobody asks.
    """

    def __init__(self, env: Clock, clients: Sequence[list[Any]], start: int, starter: Starter,
                 changed: Callable[[], None], holds: Callable[[Any], bool], left: Callable[[], int],
                 log: list[tuple[int, int, int, int, str]], seed: int,
                 down: Callable[[Any, str], None],   # Any: a `Replica` that is a `Client`
                 drain: Drain, restarts: Restarts) -> None:
        super().__init__()
        self._env, self._starter, self._changed, self._holds, self._left = env, starter, changed, holds, left
        self._down, self._drain = down, drain
        self._waker: Waker | None = None
        self._slots, self._restarts = [Slot(mine, restarts) for mine in clients], restarts
        self._by_index = {client.index: slot for slot in self._slots for client in slot.clients}
        self._log, self._started, self._owed, self._seed = log, 0, 0, seed
        self.recreates = False
        self._update: Update | None = None   # that goes on; its version, and the replicas wanted meanwhile
        self._version = self._desired = 0
        self._scrapers: list[Scraper] | None = None
        self.decided: list[tuple[int, int, int, str]] | None = None
        for number, slot in enumerate(self._slots):
            if number < start:
                self._begin(slot)
                self._enter(slot, READY, "start")
                slot.chosen = slot.held = True   # its clocks are set when the run starts
                starter.is_ready(slot.client)
            else:
                self._enter(slot, GONE, "free slot")

    def keep_spares(self, waker: Waker) -> None:
        """Keep started replicas back, from the start on. Called at most once, before the simulation starts."""
        self._waker = waker
        for slot in [slot for slot in self._slots if slot.state == GONE][:waker.count]:
            self._begin(slot)
            slot.spare = slot.held = True
            self._enter(slot, SPARE, "start")
            self._starter.is_ready(slot.client)

    # -- for the autoscaler ----------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._env._now / NS_PER_S

    @property
    def ready(self) -> int:
        return sum(slot.state == READY for slot in self._slots)

    @property
    def wanted(self) -> int:
        if self._update is not None:
            return self._desired   # some more, or less, for the update
        return sum(slot.state in _WANTED and not slot.spare for slot in self._slots) + self._owed

    @property
    def most(self) -> int:
        return len(self._slots)

    def watch(self, period_s: float, offset_s: float | None = None) -> None:
        self._scrapers = self.scrapers(period_s, offset_s)

    def scrapers(self, period_s: float, offset_s: float | None = None) -> list[Scraper]:
        """Return a scraper of each slot, as `watch` of an autoscaler takes them."""
        found: list[Scraper] = []
        for slot in self._slots:
            parts = []
            for client in slot.clients:
                if not isinstance(client, Scrapable):
                    raise InputError(Verbatim("it looks at the metrics of LLM engines, which these clients have not; "
                                              "take `schedule`"), field="autoscaler")
                if offset_s is None:
                    period_ns, offset_ns = times_of(slot.client.name, self._seed, "autoscaler", period_s)
                else:
                    period_ns, offset_ns = max(1, s_to_ns(period_s)), s_to_ns(offset_s)
                parts.append(client.scraper(period_ns, offset_ns))
            found.append(parts[0] if len(parts) == 1 else Together(parts))
        return found

    def serving(self) -> list[Engine]:
        return [cast(Engine, slot.client) for slot in self._slots if slot.state in (READY, DRAINING)]

    def pods(self) -> list[Pod]:
        return self.pods_by(self._scrapers)

    def pods_by(self, scrapers: list[Scraper] | None) -> list[Pod]:
        """Return the replicas as these scrapers see them, one of each slot; None: without samples."""
        found = [Pod(slot.client.name, slot.state == READY, False, slot.state == DRAINING,
                     None if scrapers is None else slot.sample(scrapers[number]))
                 for number, slot in enumerate(self._slots) if slot.state != GONE and not slot.spare]
        return found + [Pod("", False, pending=True)] * self._owed

    @property
    def goes_on(self) -> bool:
        """Whether a request, or a `duration`, has not ended."""
        return bool(self._left())

    def until(self, seconds: float) -> Tick:
        return self.moment(seconds, AUTOSCALER)

    def moment(self, seconds: float, priority: int) -> Tick:
        """Return the event of a time, at a place among others of its instant. See `until`."""
        if not self._left():
            return self._env.pending()   # never happens: the simulation is at its end
        return self._env.moment(max(s_to_ns(seconds), self._env._now), priority)

    def asks(self, replicas: int | None) -> None:
        """Nobody notes it in a run; `hermes.fleet.advice` does."""

    def scale(self, replicas: int, reason: str) -> None:
        if not self._left():
            return
        replicas = min(max(replicas, self.least), len(self._slots))
        if self.decided is not None and replicas != self.wanted:
            self.decided.append((self._env._now, self.wanted, replicas, reason))
        if self._update is not None:
            self._desired = replicas
            self._roll(reason)
        else:
            self._adjust(replicas - self.wanted, reason)

    def _adjust(self, more: int, reason: str) -> None:
        """Let so many more replicas be wanted, or fewer."""
        if more > 0:
            self._owed += more - self._wake(more, reason)
            self._fill(reason)
            return
        spared = min(self._owed, -more)   # those that wait for a slot go first
        self._owed -= spared
        going = sorted((slot for slot in self._slots if slot.state in _WANTED and not slot.spare),
                       key=lambda slot: (slot.state == READY, -slot.since))
        for slot in going[:-more - spared]:
            self._let_go(slot, reason)

    # -- updates -----------------------------------------------------------------------------------------------------

    def update_at(self, update: Update) -> None:
        """Replace all replicas at the time of an update. One that goes on still ends with this one."""
        self._env.tick_at(s_to_ns(update.at), MEMBERSHIP, partial(self._begin_update, update))

    def _begin_update(self, update: Update, tick: Tick) -> None:
        if self._left():
            self._desired, self._update = self.wanted, update
            self._version += 1
            for slot in self._slots:
                if slot.spare:
                    self._go(slot, "update")
            self._roll("update")
            self._fill("update")

    def _roll(self, reason: str) -> None:
        """Start and let go what the update that goes on allows."""
        while self._update is not None:
            alive = [slot for slot in self._slots if slot.state in _WANTED and not slot.spare]
            old = sorted((slot for slot in alive if slot.version < self._version),
                         key=lambda slot: (slot.state == READY, -slot.since))
            ready = [slot for slot in alive if slot.state == READY]
            old_ready = sum(slot.version < self._version for slot in ready)
            new = len(alive) - len(old) + self._owed
            if not old and new >= self._desired:
                wanted, self._update = self._desired, None
                self._adjust(wanted - self.wanted, reason)   # fewer may be wanted by now
                self._fill(reason)           # spares, which have waited for the slots
                return
            found = moves(self._desired, *self._update.limits(self._desired), new=new, new_ready=len(ready) - old_ready,
                          old=len(old), old_ready=old_ready)
            gone = old[:found.not_ready] + old[len(old) - old_ready:][:found.ready]
            if not found.start and not gone:
                return
            self._owed += found.start - self._wake(found.start, reason)
            for slot in gone:
                self._let_go(slot, reason)
            self._fill(reason)

    def done(self, time_ns: int, replicas: int) -> bool:
        return True

    # -- slots -----------------------------------------------------------------------------------------------------

    def is_ready(self, client: Any) -> bool:   # Any: see above
        """Whether routers choose a client."""
        return self._by_index[client.index].chosen

    def _choose(self, slot: Slot, chosen: bool) -> None:
        if slot.chosen != chosen:
            slot.chosen = chosen
            self._changed()

    def _let_go(self, slot: Slot, reason: str) -> None:
        """Let a replica drain, or be gone if it is not ready."""
        if slot.state == READY:
            self._drains(slot, reason)
            self.check(slot.client)
        elif self._lacks_spare() and slot.version == self._version:
            slot.spare = True   # it goes on starting
        else:
            self._go(slot, reason)
        self._choose(slot, False)

    def _drains(self, slot: Slot, reason: str) -> None:
        self._enter(slot, DRAINING, reason)
        slot.stays_ns = self._env._now + s_to_ns(self._drain.pre_stop)
        if self._drain.grace is not None:
            self._cut_after(slot, s_to_ns(self._drain.grace), CUT)

    def _cut_after(self, slot: Slot, time_ns: int, reason: str) -> None:
        """Let a draining replica end after a time."""
        self._env.tick_at(self._env._now + time_ns, FAILURE, partial(self._cut, slot, slot.incarnation, reason))

    def has(self, client: Any) -> bool:   # Any: see above
        return client.index in self._by_index

    def check(self, client: Any) -> None:   # Any: see above
        """Note that a stage of a client has ended, or moved: if it drains, it may be done."""
        slot = self._by_index[client.index]
        if slot.state == DRAINING and not slot.assigned:
            self._env.tick_at(self._env._now, SETTLED, partial(self._look, slot, slot.incarnation))

    def _look(self, slot: Slot, incarnation: int, tick: Tick) -> None:
        """Let a draining replica go if it has nothing left to do."""
        if (slot.state != DRAINING or slot.incarnation != incarnation or slot.hung or slot.assigned
                or any(map(self._holds, slot.clients))):
            return
        busy = [client.free_at_ns for client in slot.clients if not client.idle]
        if busy:   # an engine that plans ahead computes a step after its last answer
            self._env.tick_at(max(busy), SETTLED, partial(self._look, slot, incarnation))
            return
        if self._env._now < slot.stays_ns:
            self._env.tick_at(slot.stays_ns, SETTLED, partial(self._look, slot, incarnation))
            return
        if self._waker is not None and self._lacks_spare() and slot.version == self._version and not slot.doomed:
            slot.spare, slot.stale = True, self._waker.forgets
            self._enter(slot, SPARE, "drained")
        else:
            self._go(slot, "drained")
        self._fill("slot free")

    def _cut(self, slot: Slot, incarnation: int, reason: str, tick: Tick) -> None:
        """End a replica whose grace period is over, or whose node is gone, with all that it has."""
        if slot.state == DRAINING and slot.incarnation == incarnation and self._left():
            self._kill_draining(slot, reason, ENDED if self._drain.end == "cancel" else CUT_OFF)

    def _kill_draining(self, slot: Slot, reason: str, why: str) -> None:
        self._go(slot, reason)
        self._tell(slot, why)
        self._tell(slot, "")   # no router chooses it
        self._fill("slot free")

    def _go(self, slot: Slot, reason: str) -> None:
        """Let a replica be gone, ready or not."""
        self._stop_starting(slot)
        self._enter(slot, GONE, reason)
        (self._starter.lost if slot.broken or slot.doomed else self._starter.gone)(slot.client)
        slot.spare = slot.hung = slot.doomed = False
        slot.hold(False)

    def _stop_starting(self, slot: Slot) -> None:
        if slot.give_up is not None:
            slot.give_up()
            slot.give_up = None

    def _fill(self, reason: str) -> None:
        """Start replicas that are wanted, then spares, in the lowest free slots."""
        for slot in self._slots:
            if not self._owed and not self._lacks_spare():
                return
            if slot.state == GONE and not slot.broken:
                slot.version, slot.backoff = self._version, BackOff(self._restarts)
                self._begin(slot)
                slot.spare = not self._owed
                self._owed -= self._owed > 0
                self._start_up(slot, "spare" if slot.spare else reason)

    # -- spares ----------------------------------------------------------------------------------------------------

    def _lacks_spare(self) -> bool:
        """Whether there are too few spares. Those of an old version are gone; new ones wait until the update ends."""
        return (self._waker is not None and self._update is None
                and sum(slot.spare for slot in self._slots) < self._waker.count)

    def _wake(self, most: int, reason: str) -> int:
        """Let up to `most` spares take requests, those that are up before those that start; return how many."""
        if self._waker is None:
            return 0
        chosen = sorted((slot for slot in self._slots if slot.spare),
                        key=lambda slot: (slot.state != SPARE, slot.since))[:most]
        for slot in chosen:
            slot.spare = False
            if slot.state == SPARE:
                self._started += 1
                slot.since = self._started
                self._enter(slot, STARTING, reason)
                self._env.tick_at(self._env._now + self._waker.ns(slot.client.name, slot.ups), MEMBERSHIP,
                                  partial(self._woken, slot, slot.incarnation))
        return len(chosen)

    def _woken(self, slot: Slot, incarnation: int, tick: Tick) -> None:
        self._up(slot, incarnation, "woken")

    def _start_up(self, slot: Slot, reason: str, *, restart: bool = False) -> None:
        slot.state, number = STARTING, slot.incarnation

        def held() -> None:
            slot.hold(True)
            self._enter(slot, STARTING, reason)

        def phase(name: str) -> None:
            if self._left():
                self._enter(slot, STARTING, name)

        slot.give_up = self._starter.start(Starting(
            slot.client, number, restart, held, phase, partial(self._up, slot, number)))

    def _begin(self, slot: Slot) -> None:
        slot.incarnation += 1
        slot.stale = slot.incarnation > 0
        self._started += 1
        slot.since = self._started

    def _up(self, slot: Slot, incarnation: int, reason: str) -> None:
        if slot.state != STARTING or slot.incarnation != incarnation or not self._left():
            return
        slot.give_up = None
        if slot.stale:
            for client in slot.clients:
                client.renew()
            slot.stale = False
        if slot.spare:
            self._enter(slot, SPARE, reason)
            return
        self._enter(slot, READY, reason)
        slot.ups += 1
        self._tell(slot, "")
        self._choose(slot, True)
        self._roll("update")

    # -- failures ----------------------------------------------------------------------------------------------------

    def slot(self, number: int) -> Slot:
        """Return a slot by its number."""
        return self._slots[number]

    def begin_clocks(self) -> None:
        """Let the clocks of failures at random times run. Called once, when the run starts."""
        for slot in self._slots:
            slot.hold(slot.held)

    def can_crash(self, slot: Slot) -> bool:
        """Whether a slot has a process that may end."""
        return slot.state not in (GONE, DOWN) and slot.held and self.goes_on

    def crash(self, slot: Slot, reason: str, noticed_ns: Callable[[], int], noticed: Callable[[], None]) -> None:
        """End the process of a slot's replica, which `can_crash`; it starts again there, as soon as the node is up and
        its back-off over. noticed_ns: Returns when routers know it. noticed: Called then, if they chose it so long."""
        slot.hung = False
        if slot.state == DRAINING:
            self._kill_draining(slot, reason, "went down")
            return
        serving = slot.state == READY
        if serving:
            self._env.tick_at(noticed_ns(), MEMBERSHIP, partial(self._noticed, slot, slot.ups, noticed))
        self._stop_starting(slot)
        self._enter(slot, DOWN, reason)
        if serving:
            self._tell(slot, "went down")
        wait_ns = 0 if self.recreates else slot.backoff.wait_ns(self._env._now)
        if wait_ns or slot.broken:
            self._roll("update")
            self._env.tick_at(self._env._now + wait_ns, MEMBERSHIP, partial(self._restart, slot, slot.incarnation))
        else:
            self._restart(slot, slot.incarnation)

    def _restart(self, slot: Slot, incarnation: int, tick: Tick | None = None) -> None:
        if slot.state != DOWN or slot.incarnation != incarnation or slot.broken or not self._left():
            return
        slot.backoff.restarted(self._env._now)
        self._begin(slot)
        self._start_up(slot, "recreated" if self.recreates else "restart", restart=not self.recreates)
        self._roll("update")

    def repaired(self, slot: Slot) -> None:
        """Use a slot again whose node is back."""
        self._restart(slot, slot.incarnation)
        self._fill("node repaired")

    def replace(self, slot: Slot, reason: str) -> None:
        """Let a replica that is down be gone, and another one take its place."""
        wanted = not slot.spare
        self._go(slot, reason)
        if self._starter.pooled:   # another node can take its place, in the same zone
            slot.outages = {what: number for what, number in slot.outages.items() if what == "zone"}
        self._owed += wanted
        self._roll(reason)
        self._fill(reason)

    def reclaim(self, slot: Slot, notice_ns: int) -> bool:
        """Let a replica drain whose node is gone after a notice, and another one take its place; return whether there
        is one."""
        if slot.state == GONE or not slot.held or not self._left():
            return False
        slot.doomed = True
        if slot.state == DRAINING:
            self._cut_after(slot, notice_ns, RECLAIMED)
        elif slot.state != READY:
            self.replace(slot, RECLAIMED)
        else:
            self._drains(slot, RECLAIMED)
            self._cut_after(slot, notice_ns, RECLAIMED)
            self._choose(slot, False)
            self._owed += 1
            self._fill(RECLAIMED)
            self._roll(RECLAIMED)
            self.check(slot.client)
        return True

    def choose(self, slot: Slot, chosen: bool) -> None:
        """Let routers choose a slot's replica, or not."""
        self._choose(slot, chosen)

    def _noticed(self, slot: Slot, ups: int, noticed: Callable[[], None], tick: Tick) -> None:
        """Let routers choose a crashed replica no longer, if it has not been ready since."""
        if slot.ups == ups and slot.chosen:
            self._choose(slot, False)
            noticed()

    def _tell(self, slot: Slot, why: str) -> None:
        """Let the clients of a slot go down at this instant, or be reached again ("")."""
        for client in slot.clients:
            self._down(client, why)

    def _enter(self, slot: Slot, state: int, reason: str) -> None:
        slot.state = state
        if state == READY:
            slot.up_ns = self._env._now
        for client in slot.clients:
            self._log.append((client.index, slot.incarnation, self._env._now, state, reason))
