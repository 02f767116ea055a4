"""Fitted profiles: the YAML format `hermes-profile/1`, its validation, loading and writing.

A profile holds, per phase, a polynomial of batch statistics with coefficients in seconds, its measured range, its error
and its source. `prefill` is for steps without decodes, `decode` for steps without prefill, `mixed` (optional) for steps
with both. `hermes.hardware.fitted.polynomial` evaluates them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hermes.config import ConfigModel, Name
from hermes.config.validation import load
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, suggest
from hermes.hardware.descriptions.files import find
from hermes.hardware.fitted.terms import FEATURES, parse_term

__all__ = [
    "FitError", "GroupError", "Noise", "PhaseProfile", "Profile", "ProfileMemory", "ProfilePower", "ProfileTerm",
    "Provenance", "dump_yaml", "load_profile",
]


class Provenance(ConfigModel):
    """Source of the numbers, in enough detail to find and repeat the measurement."""

    source: str
    """File, data set or program that the measurements come from, with its licence."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Hash of the source file."""
    hardware: str
    engine: str
    model: str
    """Name of the model description (`hw_profiles/models`), or free text."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    dtype: str
    date: datetime.date | str
    """Date of the measurement."""
    fitted_by: str = ""
    """Command that wrote the profile."""
    excluded: list[str] = Field(default_factory=list)
    """Parts of the source that were left out, and why."""
    notes: list[str] = Field(default_factory=list)
    """Limits of the data, and other facts that a reader must know."""

    def contains(self) -> str:
        """Return what a fit to whole steps has in its one term."""
        link = f", the link between {self.tensor_parallel} devices" if self.tensor_parallel > 1 else ""
        return (f"whole steps of {self.engine}: its kernels{link} and what was measured of its own time are in one "
                "term; limits: hermes profile show")


class GroupError(ConfigModel):
    """Held-out error of one configuration."""

    configuration: str
    points: Annotated[int, Field(ge=1)]
    mape: Annotated[float, Field(ge=0)]
    """Mean absolute relative error, a fraction (0.02 = 2%)."""


class FitError(ConfigModel):
    """Errors on points that the coefficients were not fitted on."""

    method: str
    """Method of holding points out."""
    mape: Annotated[float, Field(ge=0)]
    """Mean absolute relative error, a fraction; every configuration counts once."""
    fixed_features_mape: Annotated[float, Field(ge=0)] | None = None
    """The same with the feature set chosen once, on all points. The difference to `mape` is the cost of choosing it
    without the held-out points."""
    mse_s2: Annotated[float, Field(ge=0)]
    """Mean squared error in seconds squared."""
    worst: Annotated[float, Field(ge=0)]
    """Largest absolute relative error, a fraction."""
    in_sample_mape: Annotated[float, Field(ge=0)]
    """Mean absolute relative error on the fitted points, for comparison."""
    configurations: Annotated[int, Field(ge=0)] = 0
    by_configuration: list[GroupError] = Field(default_factory=list)
    """The worst configurations, worst first."""
    candidates: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Held-out MAPE of the feature sets that were tried; the fit chose among them by these figures."""


class Noise(ConfigModel):
    """Spread of repeated measurements of the same step; classes as in `hermes.core.noise`."""

    median_cv: Annotated[float, Field(ge=0)]
    """Coefficient of variation (standard deviation / mean), median over repeated steps."""
    max_cv: Annotated[float, Field(ge=0)]
    median_ci95: Annotated[float, Field(ge=0)]
    """Half width of the 95% interval of a step's mean, relative, median over repeated steps."""
    classes: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """Number of steps that are excellent, good, flaky, rejected, or measured once (single)."""
    flaky: list[str] = Field(default_factory=list)
    """Flaky and rejected steps, worst first, at most ten."""


class ProfileTerm(ConfigModel):
    """One summand: `seconds` times a product of features."""

    term: str
    """E.g. `1`, `prefill_tokens^2`, `decode_seqs*decode_ctx`, `max(prefill_tokens-512,0)`."""
    seconds: Annotated[float, Field(ge=-1e3, le=1e3)]

    @field_validator("term")
    @classmethod
    def _parses(cls, term: str) -> str:
        parse_term(term)
        return term


class PhaseProfile(ConfigModel):
    """The polynomial of one kind of step."""

    terms: Annotated[list[ProfileTerm], Field(min_length=1, max_length=64)]
    range: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """Measured range [lowest, highest] per feature. Steps outside are computed too, and counted as out of range."""
    floor_s: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Shortest time. Fits write half of the smallest measured time: no measurement is near it, and extrapolations below
    it are not plausible."""
    points: Annotated[int, Field(ge=0)] = 0
    """Number of measured steps in the fit."""
    weights: str = ""
    """Weight of each point's squared error."""
    error: FitError | None = None
    noise: Noise | None = None

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, (low, high) in value.items():
            if name not in FEATURES:
                raise InputError(f"a feature among {', '.join(FEATURES)}", name, suggestion=suggest(name, FEATURES))
            if not 0 <= low <= high:
                raise InputError("0 <= lowest <= highest", [low, high], field=name)
        return value

    def scaled(self, factor: float) -> list[tuple[float, Any]]:
        """Return `(coefficient * factor, parsed term)` pairs."""
        return [(entry.seconds * factor, parse_term(entry.term)) for entry in self.terms]


_ALLOWED = {
    "prefill": {"prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "sampled", "tokens", "seqs"},
    "decode": {"decode_seqs", "decode_ctx", "decode_ctx_max", "sampled", "tokens", "seqs"},
    "mixed": set(FEATURES),
}


class Phases(ConfigModel):
    """The polynomials of a profile."""

    prefill: PhaseProfile
    decode: PhaseProfile
    mixed: PhaseProfile | None = None

    @model_validator(mode="after")
    def _features_of_the_phase(self) -> Phases:
        for phase, allowed in _ALLOWED.items():
            part: PhaseProfile | None = getattr(self, phase)
            for index, entry in enumerate(part.terms if part else []):
                for factor in parse_term(entry.term):
                    if factor.feature not in allowed:
                        raise InputError(
                            f"features of a {phase} step ({', '.join(sorted(allowed))})", factor.feature,
                            field=f"{phase}.terms.{index}.term",
                        )
        return self


class ProfilePower(ConfigModel):
    """Watts of one device by state."""

    idle_w: Annotated[float, Field(ge=0, le=1e6)]
    prefill_w: Annotated[float, Field(ge=0, le=1e6)]
    """In steps that compute prompt tokens."""
    decode_w: Annotated[float, Field(ge=0, le=1e6)]
    """In steps that only decode."""
    source: str
    """Measured (how), or estimated (which formula)."""


class ProfileMemory(ConfigModel):
    """Memory of the engine besides KV blocks, per device, from which the KV capacity is computed."""

    capacity_bytes: Annotated[int, Field(ge=0)]
    """Memory of one device that a process can use."""
    weights_bytes: Annotated[int, Field(ge=0)]
    activation_bytes: Annotated[int, Field(ge=0)]
    """Peak of activations, buffers and the engine itself."""
    kv_bytes_per_token: Annotated[float, Field(gt=0)]
    """KV bytes of one token on one device."""
    source: str
    """Measured (how), or computed."""


class Profile(ConfigModel):
    """A fitted hardware profile, format `hermes-profile/1`."""

    format: Literal["hermes-profile/1"]
    name: Name
    provenance: Provenance
    phases: Phases
    overhead_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    """The engine's own time per step (scheduling, launching), added to every step. 0 where the phases contain it."""
    power: ProfilePower | None = None
    memory: ProfileMemory | None = None


def load_profile(name_or_path: str | Path, base_dir: Path | None = None) -> Profile:
    """Load a shipped profile by name, or a profile file by path (relative to `base_dir`).

    Raises `InputError` that names the file and the field for any other file.
    """
    path = find(name_or_path, base_dir, "", "a hardware profile")
    return load(Profile, path)


def _tidy(value: Any) -> Any:
    """Round floats to nine significant digits (more than the fit's accuracy), and drop empty parts."""
    if isinstance(value, float):
        return value if value == 0 or not math.isfinite(value) else float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: _tidy(item) for key, item in value.items() if item not in (None, "", [], {})}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


def dump_yaml(model: ConfigModel, path: Path, comment: str) -> None:
    """Write a profile or table to `path`, with `comment` as its first lines. Loading it gives an equal object, up to
    nine significant digits."""
    from hermes.config.writing import write_text

    write_text(path, to_yaml(_tidy(model.model_dump()), comment, compact=True))
