"""How long an engine takes to start, by phase: parameters of an engine's version, and what they give for a model.

The parameters lie in `hw_profiles/start_up`, each with its cause: bytes over what one process loads in a second, layers
to trace and compile, sizes to capture. Almost all of it is time of a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.hardware.descriptions.files import find
from hermes.sums import float_sum

__all__ = ["Elsewhere", "LayerTime", "Loading", "StartUpTimes", "Started", "Tokenizing", "load_start_up"]

Ends = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]


class LayerTime(ConfigModel):
    """A time that grows with the layers of a model."""

    fixed: Duration = 0.0
    per_layer: Duration = 0.0

    def of(self, layers: float) -> float:
        """Return the seconds for so many layers."""
        return self.fixed + self.per_layer * layers


class Tokenizing(ConfigModel):
    """Time to read a tokenizer."""

    fixed: Duration = 0.0
    per_word: Duration = 0.0
    """For each word of the vocabulary."""


class Loading(ConfigModel):
    """Loading of weights by the process of one device."""

    fixed: Duration = 0.0
    rate: Bandwidth
    """Bytes/s that a process moves to its device from files in the page cache. A slower link to storage limits it."""


class Capturing(ConfigModel):
    """Capture of CUDA graphs: each captured size is run once."""

    fixed: Duration = 0.0
    per_layer: Duration = 0.0
    """For each layer and captured size: the host's launches."""
    efficiency: Annotated[float, Field(gt=0, le=1)]
    """Share of the device's peak arithmetic with which a captured size runs."""

    def of(self, layers: int, flops_per_token: float, peak_flops: float, sizes: Sequence[int]) -> float:
        """Return the seconds. flops_per_token: Of one device in the captured layers. sizes: Tokens of the graphs."""
        launched = self.per_layer * layers * len(sizes)
        return self.fixed + launched + sum(sizes) * flops_per_token / (peak_flops * self.efficiency)


class Elsewhere(ConfigModel):
    """Whole starts on other hosts, over what the times say: lowest and highest."""

    warm: Ends = [1.0, 1.0]
    cold: Ends = [1.0, 1.0]
    known_warm: Ends = [1.0, 1.0]
    """The same, over the times multiplied by the factor of one warm start on that host."""
    known_cold: Ends = [1.0, 1.0]
    capture_first: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of `capture_first` that a host takes whose factor is known."""


class Started(NamedTuple):
    """What is started, as far as its start takes time.

    Attributes:
        layers, vocabulary: Of the model.
        weight_bytes: On each device.
        flops_per_token: Of one device, in the layers.
        peak_flops: Of one device.
        sizes: Tokens of the captured graphs; empty if the engine captures none.
    """

    layers: int
    vocabulary: int
    weight_bytes: int
    flops_per_token: float
    peak_flops: float
    sizes: tuple[int, ...]


class StartUpTimes(ConfigModel):
    """Times of an engine's start. "First" is what comes in addition while the compile cache is empty."""

    format: Literal["hermes-start-up/1"]
    name: Name
    engine: str
    """Engine and version that was measured."""
    device: str
    """Device that it was measured on. Of other devices the graph capture is scaled by the peak arithmetic; all else is
    time of the host."""
    process: Duration
    """Processes, imports, hand-shakes between processes, and the model without its weights."""
    tokenizer: Tokenizing
    weights: Loading
    trace: LayerTime
    """Tracing the model (Dynamo), whether or not it was compiled before."""
    load_compiled: LayerTime
    """Reading what was compiled before."""
    compile: LayerTime
    """Compiling, in place of reading."""
    profiling: LayerTime
    """The step that measures the memory for KV."""
    profiling_first: LayerTime
    capture: Capturing
    capture_first: LayerTime
    elsewhere: Elsewhere = Elsewhere()
    sources: list[str]

    def phases(self, of: Started, host: float | None = None) -> dict[str, tuple[float, float]]:
        """Return by phase the seconds with cold and with warm caches, of weights both from the page cache.

        host: What a start takes on another host, over one here; None on this one.
        """
        factor, first = (1.0, 1.0) if host is None else (host, self.elsewhere.capture_first)
        traced, layers = self.trace.of(of.layers), of.layers
        capture = self.capture.of(layers, of.flops_per_token, of.peak_flops, of.sizes) if of.sizes else 0.0
        profiling = self.profiling.of(layers)
        words = self.tokenizer.fixed + self.tokenizer.per_word * of.vocabulary
        weights = self.weights.fixed + of.weight_bytes / self.weights.rate
        found = {
            "process": (self.process, self.process),
            "tokenizer": (words, words),
            "weights": (weights, weights),
            "compile": (traced + self.compile.of(layers), traced + self.load_compiled.of(layers)),
            "profiling": (profiling + self.profiling_first.of(layers), profiling),
            "capture": (capture + first * self.capture_first.of(layers), capture) if of.sizes else (0.0, 0.0),
        }
        return {phase: (factor * cold, factor * warm) for phase, (cold, warm) in found.items()}

    def host_of(self, warm_s: float, of: Started) -> float:
        """Return the factor of a host on which a warm start took so long."""
        return warm_s / float_sum(warm for _, warm in self.phases(of).values())

    def spread(self, *, known: bool) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return lowest and highest of whole starts over `phases`: cold and warm."""
        other = self.elsewhere
        cold, warm = (other.known_cold, other.known_warm) if known else (other.cold, other.warm)
        return (cold[0], cold[1]), (warm[0], warm[1])


def load_start_up(name: str, base_dir: Path | None) -> StartUpTimes:
    """Return the times of a shipped file (`vllm-0.10`) or of one of the user's. Raises `InputError`."""
    return load(StartUpTimes, find(name, base_dir, "start_up", "times of an engine's start"))
