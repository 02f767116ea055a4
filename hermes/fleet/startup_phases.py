"""Start-up by phases: what a scenario says of each, and what follows from the engine for those that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from hermes.config import Bandwidth, Bytes, ConfigModel, Duration, Name, NameOrFile
from hermes.errors import InputError, Verbatim
from hermes.fleet.start_ups import START_UPS, EngineStart, FindsStart, PhaseRow, Place, Starter, StartUp, WarmStart
from hermes.fleet.startup_times import ColdWarm, Phase, Spread, Time, form, seconds, text

__all__ = ["OF_ENGINE", "PHASES", "Phases", "Pool", "Pull", "StockOut", "Storage"]

OF_ENGINE = ("process", "tokenizer", "weights", "compile", "profiling", "capture")
"""Phases that are derived from the engine where they are left out."""
PHASES = ("node", "image", *OF_ENGINE, "probe", "first_request")
"""All phases in their order; each start draws one number for each, in this order."""
MEDIAN = 0.5

Cache = Literal["image", "weights", "compile"]


class Pull(ConfigModel):
    """A container image that a node pulls unless it has it."""

    size: Bytes
    """Bytes that move."""
    bandwidth: Bandwidth
    """Bytes/s of the node's link to the registry, which pulls of several images share."""


class Storage(ConfigModel):
    """Where a node reads weights from that are not in its page cache."""

    bandwidth: Bandwidth
    """Bytes/s of the node's link to its storage, a disk or a remote one. All starters on the node that read share it;
    each takes as many bytes/s as it can load at most."""


def _form_of_weights(value: object) -> str:
    said = form(value)
    keys = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Storage) else ()
    return "storage" if said == "mapping" and "bandwidth" in keys else said


class StockOut(ConfigModel):
    """A time without new nodes."""

    at: Duration = Field(ge=0)
    """When it begins, in simulated time."""
    length: Duration = Field(gt=0)
    """How long it lasts."""


class Pool(ConfigModel):
    """Nodes that a group takes and gives back, as many as a replica needs (`nodes`)."""

    name: Name | None = None
    """Groups whose pools have one name, and say the same of it, share its nodes: a budget of devices. Left out, the
    group has nodes of its own."""
    nodes: int = Field(default=0, ge=0, le=100_000)
    """Empty nodes at the start, besides those of the replicas that are ready then."""
    provisioning: Time
    """Time from an order until a node has joined. Devices are held in this time."""
    most: int | None = Field(default=None, ge=1, le=100_000)
    """Most nodes at a time: the provider's stock, or a quota. Left out, there is no limit."""
    stock_out: list[StockOut] = []
    """Times in which the provider has no node. Orders wait until the end; devices are not held."""
    keep: Duration = 600.0
    """How long an empty node stays, with its caches."""


Image = Annotated[Annotated[Duration, Tag("time")] | Annotated[Spread, Tag("spread")]
                  | Annotated[Pull, Tag("mapping")], Discriminator(form)]
Weights = Annotated[Annotated[Duration, Tag("time")] | Annotated[Spread, Tag("spread")]
                    | Annotated[ColdWarm, Tag("mapping")] | Annotated[Storage, Tag("storage")],
                    Discriminator(_form_of_weights)]


@START_UPS.register("phases")
class Phases(StartUp):
    """A start in phases, one after the other. Each is a time or a distribution, or is derived from model, device and
    engine where it is left out. The first start on a node is cold, later ones find what it has left there."""

    kind: Literal["phases"] = "phases"
    times: NameOrFile = "vllm-0.10"
    """Times of the engine's phases that are left out: a shipped name, or a file that `hermes calibrate start-up` has
    written."""
    host: Annotated[Annotated[float, Field(gt=0, le=100), Tag("time")] | Annotated[WarmStart, Tag("mapping")],
                    Discriminator(form)] | None = None
    """What a start takes on this host over one on the host of `times`: the factor, or a warm start from which it
    follows. It multiplies the phases that are left out."""
    node: Literal["platform", "own"] = "platform"
    """Which replicas share a node, with its caches and links: those of one `platform` (each its own without one), or
    none. Nodes of a `pool` have one replica each."""
    keeps: list[Cache] = ["image", "weights", "compile"]
    """What stays on a node when a start has got it: the image, the weights in the page cache, what was compiled. A
    compile cache inside the container does not stay."""
    prepared: list[Cache] = []
    """What every node has from the beginning: an image pulled ahead, a compile cache that all share."""
    pool: Pool | None = None
    """Nodes that have to be provisioned. Left out, every slot has its node."""
    image: Image = 0.0
    """Pull of the container image. A second start meanwhile waits for the same pull. Nothing on a node that has it."""
    process: Time | None = None
    """Processes, imports, hand-shakes, the model without its weights."""
    tokenizer: Time | None = None
    """Reading the tokenizer."""
    weights: Weights | None = None
    """Loading the weights to the devices. `cold` is from storage, `warm` from the page cache; a single time is both.
    With a `bandwidth` the cold one takes the bytes over that link. Left out, they are in the page cache."""
    compile: Phase | None = None
    """Tracing the model, and compiling it (`cold`) or reading what was compiled (`warm`)."""
    profiling: Phase | None = None
    """The step that measures the memory for KV; `cold` when the engine has just compiled."""
    capture: Phase | None = None
    """Capture of CUDA graphs; `cold` when the engine has just compiled."""
    probe: Time | None = None
    """Until the readiness probe has passed and routers know. Left out, the next one of the group's `probe`, and its
    `delay`."""
    first_request: Time = 0.0
    """How much longer the first step of a replica takes after its start."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("keeps", "prepared"):
            given = getattr(self, name)
            if len(set(given)) != len(given):
                raise InputError("each cache once", Verbatim(", ".join(given)), field=name)
        return self

    @property
    def derived(self) -> bool:
        """Whether the engine's times are needed."""
        return isinstance(self.weights, Storage) or any(getattr(self, name) is None for name in OF_ENGINE)

    def build(self, place: Place) -> Starter:
        from hermes.fleet.startup import PhaseStarter  # explanations do not start anything

        if self.first_request and place.slow_first is None:
            raise InputError(Verbatim("these clients are no LLM engines and take no steps; leave it out"),
                             field="first_request")

        return PhaseStarter(self, place, place.engine(self.times, self.host) if self.derived else None)

    def seconds_of(self, phase: str, engine: EngineStart | None, share: float, *, cold: bool) -> float:
        """Return the seconds of a phase of `OF_ENGINE`, cold or warm, at a quantile if it is a distribution. Cold
        weights are those of the page cache where storage is a link: the caller moves the bytes."""
        given = getattr(self, phase)
        if given is None or isinstance(given, Storage):
            assert engine is not None
            return (engine.cold if cold else engine.warm)[phase]
        if isinstance(given, ColdWarm):
            given = given.cold if cold else given.warm
        return seconds(given, share)

    def rows(self, engine: FindsStart, probe: PhaseRow) -> Iterator[PhaseRow]:
        if self.pool is not None:
            yield PhaseRow("node", *_both(self.pool.provisioning, cold_only=True), text(self.pool.provisioning))
        if isinstance(self.image, Pull):
            yield PhaseRow("image", self.image.size / self.image.bandwidth, 0.0,
                           f"{self.image.size / 1e9:.3g} GB at {self.image.bandwidth / 1e9:.3g} GB/s, alone")
        elif self.image:
            yield PhaseRow("image", *_both(self.image, cold_only=True), text(self.image))
        found = engine(self.times, self.host) if self.derived else None
        for phase in OF_ENGINE:
            yield self._row(phase, found)
        yield probe if self.probe is None else PhaseRow("probe", *_both(self.probe), text(self.probe))
        if self.first_request:
            yield PhaseRow("first request", *_both(self.first_request),
                           f"{text(self.first_request)}; in the first step, after the replica is ready")

    def _row(self, phase: str, engine: EngineStart | None) -> PhaseRow:
        """Return the row of a phase of `OF_ENGINE`."""
        given = getattr(self, phase)
        cold, warm = (self.seconds_of(phase, engine, MEDIAN, cold=each) for each in (True, False))
        if isinstance(given, ColdWarm):
            return PhaseRow(phase, cold, warm, f"cold {text(given.cold)}, warm {text(given.warm)}")
        if engine is None or not (given is None or isinstance(given, Storage)):
            return PhaseRow(phase, cold, warm, text(given))
        if phase != "weights":
            return PhaseRow(phase, cold, warm, engine.source, engine.spread)
        spread = engine.spread
        said = f"{engine.weight_bytes / 1e9:.3g} GB at {engine.load_rate / 1e9:.3g} GB/s from the page cache"
        if given is not None:
            rate = min(given.bandwidth, engine.load_rate)
            cold = engine.load_fixed_s + engine.weight_bytes / rate
            said += f", cold at {rate / 1e9:.3g} GB/s, alone"
            spread = ((1.0, 1.0), engine.spread[1])   # a disk is what it is
        return PhaseRow(phase, cold, warm, f"{said}; {engine.source}", spread)


def _both(time: float | Spread, *, cold_only: bool = False) -> tuple[float, float]:
    """Return the median of a time, as cold and warm seconds."""
    median = seconds(time, MEDIAN)
    return median, 0.0 if cold_only else median
