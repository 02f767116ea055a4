"""The file of `hermes optimize`: which keys of a scenario to vary, and what is better."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Name
from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node, load_yaml
from hermes.errors import InputError, Verbatim
from hermes.explore.sweep.config import Sweep, load_sweep
from hermes.scenario.document import Overrides

__all__ = ["Dimension", "Fidelity", "Limit", "Space", "SpaceConfig", "load_space"]

MOST_COMBINATIONS = 100_000   # that are counted; a larger space is never tried whole


class Dimension(ConfigModel):
    """Values of one key: a list of choices, or a range."""

    choices: Annotated[list[Any], Field(min_length=1, max_length=10_000)] | None = None
    """Values of any kind; give these, or `min` and `max`."""
    min: float | None = None
    """Smallest value of a range."""
    max: float | None = None
    """Largest value of a range."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Distance of neighbouring values. Left out, any number between."""
    log: bool = False
    """Whether small values are tried as often as large ones, by ratio."""
    integer: bool = False
    """Whether values are whole numbers."""
    unit: Annotated[str, Field(max_length=20)] = ""
    """Unit that is written behind a number: `ms`, `/s`, `GB`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.min, self.max
        if (self.choices is None) == (low is None and high is None):
            raise InputError(Verbatim("give choices, or min and max"), field="choices")
        if self.choices is not None:
            return self
        if low is None or high is None or low > high:
            raise InputError(Verbatim("give min and max, min first"), field="max")
        if self.log and (low <= 0 or self.step is not None):
            raise InputError(Verbatim("a range by ratio begins above 0 and has no step"), field="log")
        if self.integer and not (low.is_integer() and high.is_integer() and float(self.step or 1).is_integer()):
            raise InputError(Verbatim("whole numbers need whole bounds and a whole step"), field="integer")
        return self

    def values(self) -> list[Any] | None:
        """All values; None if they cannot be listed."""
        if self.choices is not None:
            return self.choices
        assert self.min is not None
        assert self.max is not None
        step = self.step or (1.0 if self.integer else None)
        if step is None:
            return [self.written(self.min)] if self.min == self.max else None
        count = math.floor((self.max - self.min) / step + 1e-9) + 1
        return None if count > MOST_COMBINATIONS else [self.written(self.min + n * step) for n in range(count)]

    def written(self, value: float) -> Any:
        """A number as it is put into the scenario."""
        number: int | float = round(value) if self.integer else float(f"{value:.12g}")
        return f"{number} {self.unit}" if self.unit else number


class Limit(ConfigModel):
    """Bounds of one figure."""

    at_most: float | None = None
    """Largest value allowed."""
    at_least: float | None = None
    """Smallest value allowed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.at_most is None and self.at_least is None:
            raise InputError(Verbatim("give at_most or at_least"), field="at_most")
        return self

    def excess(self, value: float) -> float:
        """How far a figure is outside; at most 0 inside."""
        sides = [value - self.at_most] if self.at_most is not None else []
        sides += [self.at_least - value] if self.at_least is not None else []
        return max(sides)


class Fidelity(ConfigModel):
    """Short simulations first; long ones for those that did best."""

    set: Annotated[dict[str, Any], Field(min_length=1)]
    """Keys of the short simulations, such as `{workload.requests: 300}`. The scenario itself is the long one."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the tried settings that get a long simulation, by fronts, and at least the first front."""


class SpaceConfig(ConfigModel):
    """Keys to vary, figures to improve, figures to keep within limits."""

    name: Name = "optimize"
    """Name of the search."""
    scenario: str | dict[str, Any]
    """Scenario to vary: a file (relative to this one), a built-in name, or the scenario itself."""
    space: Annotated[dict[str, Dimension], Field(min_length=1, max_length=100)]
    """Keys of the scenario by dotted path (`clients.0.count`), each with its values."""
    objectives: Annotated[dict[str, Literal["minimize", "maximize"]], Field(min_length=1, max_length=8)]
    """Figures of the summary by dotted path (`latency.ttft_s.p99`, `cost.dollars_per_hour`), and which way is
    better."""
    constraints: dict[str, Limit] = Field(default_factory=dict)
    """Figures that must stay within limits."""
    trials: Annotated[int, Field(ge=1, le=100_000)] = 60
    """Settings to try. A space with no more settings is tried whole."""
    batch: Annotated[int, Field(ge=1, le=1000)] = 8
    """Settings that are chosen together, and simulated side by side. The search depends on it, not on the number of
    workers."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Seed of the search; each simulation has the scenario's."""
    fidelity: Fidelity | None = None
    """Short simulations first. Left out, all are as long as the scenario."""


@dataclass(frozen=True)
class Space:
    """A file that was read. sweep: the scenario as a sweep of one point, with `--set` applied."""

    config: SpaceConfig
    sweep: Sweep

    def combinations(self) -> Iterator[dict[str, Any]] | None:
        """All settings, if there are no more than `trials`."""
        listed = [dimension.values() for dimension in self.config.space.values()]
        if any(values is None for values in listed) or math.prod(len(v or ()) for v in listed) > self.config.trials:
            return None
        return (dict(zip(self.config.space, values, strict=True))
                for values in itertools.product(*(values or [] for values in listed)))


def load_space(source: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Space:
    """Load a file, or a dict, of `hermes optimize`. Raises `InputError` with the first mistake.

    overrides: Settings of the scenario, such as `"workload.requests=100"`.
    """
    node: Node
    if isinstance(source, Mapping):
        node, folder = as_node(dict(source)), Path()
    else:
        path = Path(source)
        node, folder = load_yaml(path), path.parent
    if not isinstance(node.value, dict):
        raise node.mark.error("a mapping with the keys of a search", Verbatim("something else"))
    config = validate(SpaceConfig, node)
    said = config.scenario
    if isinstance(said, str) and (folder / said).is_file():
        said = str((folder / said).resolve())
    try:
        sweep = load_sweep({"name": config.name, "scenario": said}, overrides)
    except InputError as error:
        raise (node.value["scenario"].mark.error(error.expected, error.found, field="scenario")
               if error.file is None else error) from None
    return Space(config, sweep)
