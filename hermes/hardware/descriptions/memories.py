"""Memories outside the devices (`hw_profiles/memories`): rates of a KV tier, and what its bytes cost and draw.

A description (`hermes-memory/1`) has the figures of one kind of memory with their sources. A KV tier names it as its
`bandwidth`. Dollars and watts enter no simulation: studies multiply them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.hardware.descriptions.files import find

__all__ = ["MemoryDescription", "load_memory"]

Positive = Annotated[float, Field(ge=0, le=1e9)]


class MemoryDescription(ConfigModel):
    """A file of `hw_profiles/memories`."""

    format: Literal["hermes-memory/1"]
    name: Name
    bandwidth: Bandwidth
    """Bytes/s of all reads and writes of one store together."""
    port: Bandwidth | None = None
    """Bytes/s of one client's reads and writes. Left out, a client alone has all of `bandwidth`."""
    latency: Duration = 0.0
    """Time before the first byte of a read."""
    dollars_per_gb: Positive | None = None
    """Price of a gigabyte with what connects it. Left out, no public price is known."""
    watts_per_gb: Positive | None = None
    """Watts of a gigabyte with what connects it."""
    sources: Annotated[list[str], Field(min_length=1)]


def load_memory(name_or_path: str | Path, base_dir: Path | None = None) -> MemoryDescription:
    """Load a shipped memory (`host-ddr5`), or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(MemoryDescription, find(name_or_path, base_dir, "memories", "bytes/s or a memory outside the device"))
