"""How a replica starts: registry, the base of its configurations, and the one with a given time.

`start_up` of a group is one of `START_UPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from hermes.config import ConfigModel, Duration, Name, Registry
from hermes.core.clock import MEMBERSHIP, Clock
from hermes.units import s_to_ns

__all__ = ["START_UPS", "EngineStart", "FindsStart", "Host", "PhaseRow", "Place", "StartUp", "Starter", "Starting",
           "WarmStart"]


class EngineStart(NamedTuple):
    """What an engine needs to start, derived from its model, device and version.

    Attributes:
        cold, warm: Seconds by phase, with empty and with filled caches. Weights come from the page cache in both.
        weight_bytes: Of all devices.
        load_rate: Most bytes/s that all devices load.
        load_fixed_s: Of the loading, whatever the bytes.
        host_rate: Bytes/s that copies between all devices and their hosts reach.
        image, weights, compiled: What a node keeps, by name: equal names are the same thing.
        source: Of the times.
        spread: Lowest and highest of whole starts over these, as factors: cold and warm.
    """

    cold: Mapping[str, float]
    warm: Mapping[str, float]
    weight_bytes: float
    load_rate: float
    load_fixed_s: float
    host_rate: float
    image: str
    weights: str
    compiled: str
    source: str
    spread: tuple[tuple[float, float], tuple[float, float]]


class WarmStart(ConfigModel):
    """A warm start of any model on this host, with the group's device, parallelism and precision: from the start of the
    process until the server answers."""

    warm: Duration = Field(gt=0)
    """How long it took."""
    model: Name | None = None
    """Its model. Left out, the group's."""


Host = float | WarmStart | None
"""What is known of a host: its factor, a warm start, or nothing."""


class FindsStart(Protocol):
    """Finds what the engine needs, by the name of its times; raises `InputError` if that is not known."""

    def __call__(self, times: str, host: Host = None, /) -> EngineStart: ...


class Starting(NamedTuple):
    """A replica that starts.

    Attributes:
        client: Its client.
        number: How many replicas its slot had before.
        restart: Whether its process starts again where it crashed.
        held: To be called once, when its devices are held.
        phase: To be called with the name of each phase that begins.
        ready: To be called once, with the reason for the table `membership`, when it takes requests.
    """

    client: Any   # of any kind
    number: int
    restart: bool
    held: Callable[[], None]
    phase: Callable[[str], None]
    ready: Callable[[str], None]


class Starter:
    """Starts the replicas of one group. Derive from it and write `start`.

    Attributes:
        pooled: Whether each start takes a node of a pool: a slot is free when its node is down.
    """

    pooled = False

    def is_ready(self, client: Any) -> None:
        """Note a replica that is ready when the simulation starts. Called once for each of them, before any start."""

    def start(self, one: Starting) -> Callable[[], None]:
        """Start a replica: call `held`, perhaps `phase`s, then `ready` after this returned.

        Return what gives the start up. It is called at most once, before `ready` was, when the replica is not wanted
        any more or crashes; none of the three may be called after it.
        """
        raise NotImplementedError

    def gone(self, client: Any) -> None:
        """Note that a replica that was ready, or whose start was given up, has left for good."""

    def lost(self, client: Any) -> None:
        """Note the same of a replica whose node is down."""
        self.gone(client)


class Place(NamedTuple):
    """What a starter is made for.

    Attributes:
        env: The clock.
        clients: The group's.
        engine: Finds what the engine needs.
        slow_first: Makes the first step of a client longer by so many ns; None for clients that are no LLM engines.
        ready_ns: Returns when routers know that a client is ready, by its name and the time from which it is.
        seed: Of the scenario.
        shares: Share of a replica's devices on each of its nodes.
    """

    env: Clock
    clients: list[Any]
    engine: FindsStart
    slow_first: Callable[[Any, int], None] | None
    ready_ns: Callable[[str, int], int]
    seed: int
    shares: tuple[float, ...] = (1.0,)

    def after(self, time_s: float, then: Callable[[], None]) -> None:
        """Call a function after a time, in the order of equal times in which replicas become ready."""
        self.env.tick_at(self.env._now + s_to_ns(time_s), MEMBERSHIP, lambda tick: then())


class PhaseRow(NamedTuple):
    """A phase for a table: seconds without and with what an earlier start has left, and where they come from.

    spread: Lowest and highest over these, as factors: cold and warm.
    """

    phase: str
    cold_s: float
    warm_s: float
    source: str
    spread: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 1.0), (1.0, 1.0))


class StartUp(ConfigModel):
    """Base of start-ups. Derive from it, give `kind` and fields, write `build`, and register the class."""

    def build(self, place: Place) -> Starter:
        """Return what starts the replicas of a group. Called once for each simulation. Raises `InputError`."""
        raise NotImplementedError

    def rows(self, engine: FindsStart, probe: PhaseRow) -> Iterator[PhaseRow]:
        """Yield the phases for `hermes explain`, distributions with their median; nothing by default.

        Args:
            engine: See `Place`.
            probe: The readiness probe of the group.
        """
        return iter(())


START_UPS: Registry[StartUp] = Registry("start_ups", "a start-up", {"phases": "hermes.fleet.startup_phases:Phases"},
                                        base=StartUp)


@START_UPS.register("fixed")
class Fixed(StartUp):
    """A given time from the decision for a replica until it takes requests."""

    kind: Literal["fixed"] = "fixed"
    total: Duration = Field(ge=0)
    """The whole time, devices held. The replica starts with empty caches."""
    restart: Duration | None = Field(default=None, ge=0)
    """Time of a process that starts again on its node. Left out, `total`."""

    def build(self, place: Place) -> Starter:
        return _AfterTotal(place, self.total, self.total if self.restart is None else self.restart)

    def rows(self, engine: FindsStart, probe: PhaseRow) -> Iterator[PhaseRow]:
        yield PhaseRow("total", self.total, self.total, "given")


class _AfterTotal(Starter):
    """Starts each replica in the same time, and again on its node in another one."""

    def __init__(self, place: Place, total_s: float, restart_s: float) -> None:
        self._place, self._total_s, self._restart_s = place, total_s, restart_s

    def start(self, one: Starting) -> Callable[[], None]:
        going = [True]

        def up() -> None:
            if going:
                one.ready("started")

        one.held()
        self._place.after(self._restart_s if one.restart else self._total_s, up)
        return going.clear
