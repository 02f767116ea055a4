"""What the composed hardware model takes from outside its tables: host time, parameters of terms, a user's changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from hermes.arrays import FloatArray
from hermes.config import ConfigModel, Duration

if TYPE_CHECKING:
    from hermes.hardware.composed.all_to_all import AllToAll
    from hermes.hardware.composed.boxes import AssumedLink
    from hermes.hardware.trust import Trust

__all__ = ["GROUPED_DTYPE", "SKEW", "Backend", "Exchange", "HostTime", "Reduces", "Sources", "TermOverride", "Times"]

GROUPED_DTYPE = "fp8-block"   # the precision whose grouped products are published (`hermes.hardware.composed.grouped`)
SKEW = 1.01   # of the experts that tokens choose (`hermes.hardware.composed.experts`)

Times = tuple[FloatArray, FloatArray]   # (bytes, nanoseconds): linear between the points, in proportion beyond them


Backend = Literal["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"]
"""Exchange between devices that have whole experts (`hermes.hardware.composed.all_to_all`)."""


class Reduces(NamedTuple):
    """All-reduces inside a CUDA graph, and launched from the host.

    measured_bytes: Where the measured sizes end; 0 for formulas.
    trust: How far to trust them; None where their source alone says it.
    """

    captured: Times
    launched: Times
    source: str
    measured_bytes: float = 0.0
    trust: Trust | None = None


class Exchange(NamedTuple):
    """All-gathers and reduce-scatters between data-parallel ranks, over bytes of all of them."""

    gather: Times
    scatter: Times
    source: str
    trust: Trust | None = None


class TermOverride(ConfigModel):
    """One term of every step that has it, changed: scale * term + fixed + per_row * rows."""

    scale: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Factor; 0 leaves the term out, for one of your own."""
    fixed: Duration = 0.0
    """Added, all layers together."""
    per_row: Duration = 0.0
    """Added for each row that the term computes: new tokens of the step; for `lm_head` and `sampling` the sampled ones,
    for attention of decodes (alone or beside a prompt) the decodes."""

    def text(self) -> str:
        """In words, for a list of sources."""
        parts = [f"times {self.scale:g}"] if self.scale != 1.0 else []
        parts += [f"plus {self.fixed * 1e6:g} us"] if self.fixed else []
        parts += [f"plus {self.per_row * 1e6:g} us a row"] if self.per_row else []
        return f"{', '.join(parts) or 'as it is'} (given)"


@dataclass(frozen=True)
class HostTime:
    """Host time of a step, in nanoseconds: fixed, and for each sequence of the batch."""

    fixed_ns: float = 0.0
    per_seq_ns: float = 0.0
    asynchronous: bool = True


@dataclass(frozen=True)
class Sources:
    """Parameters of the terms that neither tables nor roofline give.

    capture_sizes: batch sizes of the engine's CUDA graphs, ascending; empty if the engine captures none
    exposed_ns, exposed_seq_ns: the engine's own time that every step waits for, fixed and for each sampled row
    idle_ns: of the first step after idleness
    uncaptured_ns: the same in steps beyond the largest captured size
    beside: what decodes cost in one attention launch with a prompt, all layers and heads: nanoseconds of each decode,
        of each decode and token of the prompt, and over the time to read the KV at the memory's peak rate
    apart: whether decodes have a launch of their own beside a prompt
    tile_rows: rows of a tile of queries, where the query heads that share a KV head are packed into one: each decode
        then costs what a tile of a prompt does. 0: not packed, `beside` counts
    sampling_ns: of the sampler, for each sampled row
    engine: where the engine's times come from
    routing_skew: how unevenly tokens choose experts (`hermes.hardware.composed.experts`)
    whole_experts: whether a device has whole experts (expert parallelism), instead of a part of each
    reduces: all-reduces of a tensor-parallel group; None for the kernel tables', or else the roofline's
    exchange: collectives around the experts of data-parallel ranks; None with one rank
    all_to_all: DeepEP's exchange instead of those collectives; None: the collectives
    grouped: whether the experts are grouped products instead of the kernel tables' (`hermes.hardware.composed.grouped`)
    hops, hop_text, hop_trust: (bytes, nanoseconds) of sending activations to each further pipeline stage, their source,
        and how far to trust them
    assumed: links that nobody named
    skew: share of the way from decodes of equal context to decodes that all have the longest one
    terms: terms that the scenario changes, by name
    """

    capture_sizes: tuple[int, ...] = ()
    exposed_ns: float = 0.0
    uncaptured_ns: float = 0.0
    exposed_seq_ns: float = 0.0
    beside: tuple[float, float, float] = (0.0, 0.0, 1.0)
    tile_rows: int = 0
    apart: bool = False
    sampling_ns: float = 0.0
    idle_ns: float = 0.0
    engine: str = ""
    routing_skew: float = SKEW
    whole_experts: bool = False
    reduces: Reduces | None = None
    exchange: Exchange | None = None
    all_to_all: AllToAll | None = None
    grouped: bool = False
    hops: tuple[Times, ...] = ()
    hop_text: str = ""
    hop_trust: Trust | None = None
    assumed: tuple[AssumedLink, ...] = ()
    skew: float = 0.058
    terms: dict[str, TermOverride] = field(default_factory=dict)

    @property
    def links(self) -> dict[str, Trust]:
        """How far to trust the terms of links, where more is known than their source."""
        of_reduces, of_exchange = (None if one is None else one.trust for one in (self.reduces, self.exchange))
        found = {"all_reduce": of_reduces, "dispatch": of_exchange, "combine": of_exchange, "hops": self.hop_trust}
        return {name: trust for name, trust in found.items() if trust is not None}
