"""Request overhead: time of the serving stack per request beside the steps (parsing, tokenizing, copies, Python).

One thread spends a fixed time per request, by kind of stage. `serial`: it is the engine's own thread, so the step in
which a request first runs starts that much later. `overlapped`: it is a separate thread, first come first served, that
works while the accelerator runs; a request waits for it before the scheduler sees it. Ranks and batches of one engine
share it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.files import find
from hermes.units import s_to_ns

__all__ = ["OverheadProfile", "PerKind", "RequestOverhead", "load_overhead"]

Mode = Literal["serial", "overlapped"]


class PerKind(ConfigModel):
    """Seconds per request, by kind of stage."""

    generate: Duration = 0.0
    embed: Duration = 0.0


class OverheadProfile(ConfigModel):
    """Fitted overheads, format `hermes-overhead/1`. Both modes explain the same measured rates."""

    format: Literal["hermes-overhead/1"]
    name: Name
    serial: PerKind
    overlapped: PerKind
    provenance: Annotated[list[str], Field(min_length=1)]


def load_overhead(name_or_path: str | Path, base_dir: Path | None = None) -> OverheadProfile:
    """Load a shipped profile by name, or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(OverheadProfile, find(name_or_path, base_dir, "overhead", "an overhead profile"))


class RequestOverhead(ConfigModel):
    """Time of the serving stack for each request."""

    mode: Mode = "serial"
    """Whether the time adds to the accelerator's (one thread for both) or overlaps with it; ranks and batches of one
    engine share the latter's thread."""
    profile: Annotated[str, Field(max_length=4096)] = ""
    """Fitted overheads: a shipped name (`hw_profiles/overhead/NAME.yaml`) or a file. Excludes the figures below."""
    generate: Duration = 0.0
    """Time per generation."""
    embed: Duration = 0.0
    """Time per embedding."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.profile and (self.generate or self.embed):
            raise InputError(Verbatim("a profile and figures exclude each other; give one"), field="profile")
        return self

    def times_ns(self, base_dir: Path | None) -> dict[str, int]:
        """Return nanoseconds by kind of stage; kinds that cost nothing are left out. Raises `InputError`."""
        per_kind = PerKind(generate=self.generate, embed=self.embed)
        if self.profile:
            with inside("profile"):
                per_kind = getattr(load_overhead(self.profile, base_dir), self.mode)
        times = {"generate": s_to_ns(per_kind.generate), "embed": s_to_ns(per_kind.embed)}
        return {kind: ns for kind, ns in times.items() if ns}
