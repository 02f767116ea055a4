"""Kernel tables: measured times of matrix products, attention and all-reduces of one card.

A card has two files in `hw_profiles/kernels`: CARD.yaml (format `hermes-kernels/1`) says where the times come from,
CARD.npz holds them, one array a table:

    gemm/DTYPE                  [m, n, k]              a product of m x k by k x n; axes gemm/DTYPE/m, .../n, .../k
    prefill/HEAD_DIM/KV_DTYPE   [heads, length, batch] causal attention of `batch` new prompts of `length` tokens
    decode/HEAD_DIM/KV_DTYPE    [heads, length, batch] attention of `batch` decodes over `length` tokens each
    all_reduce/captured         [ranks, bytes]         inside a CUDA graph; all_reduce/launched: from the host
    experts/DTYPE/ROUTING       [shape, tokens]        products of one device's experts; axes experts/DTYPE/shape, ...
    all_gather/nccl             [ranks, bytes]         and reduce_scatter/nccl; axes nccl/ranks, nccl/bytes (of all)
    rows/OPERATOR/DTYPE         [rows, width]          norm, qk_norm, residual, rotary, activation, embedding, sampling

`.../heads` holds pairs (query heads, key-value heads), of one device. `.../shape` holds (hidden size, intermediate
size, experts per token, experts, devices that split each expert, devices that split the experts), of the whole model;
ROUTING says how tokens choose experts: all alike (`balanced`), or by a power law. A time is stored as int16, 1000 *
ln(nanoseconds) (steps of 0.1%); -1 stands where nothing was measured. Times here are nanoseconds, float64, nan where
not measured. Tables that `hermes fit` makes of measured terms are `cold`, and have `rows`; the shipped ones are
neither.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel, Name
from hermes.config.files import MAX_TABLE_BYTES, read_bytes
from hermes.config.tables import npz_arrays
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.files import find, names_in

__all__ = [
    "AttentionTable", "ExpertTable", "GemmTable", "KernelTables", "KernelsFile", "RowTable", "load_kernels",
    "shipped_kernels",
]

_SCALE = 1000.0


class KernelsFile(ConfigModel):
    """Description of a card's kernel tables."""

    format: Literal["hermes-kernels/1"]
    name: Name
    device: str
    engine: str
    """Engine and version that launched the kernels."""
    tables: Annotated[list[str], Field(min_length=1)]
    sha256: str
    """Of the .npz file; loading checks it."""
    cold: bool = False
    """Whether each launch read weights and KV that no cache held, and costs what it costs in a captured step. Tables
    without it hold warm caches and launches from the host, which the decodes' attention corrects for."""
    source: str
    license: str


class GemmTable(NamedTuple):
    """Times of matrix products in one precision."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    ns: FloatArray   # shape (m, n, k)


class AttentionTable(NamedTuple):
    """Times of attention with one head dimension and KV precision, of one layer."""

    heads: list[tuple[int, int]]   # query heads, key-value heads
    length: FloatArray
    batch: FloatArray
    ns: FloatArray                 # shape (heads, length, batch)


class RowTable(NamedTuple):
    """Times of an operator whose work is a number of rows of one width."""

    rows: FloatArray
    width: FloatArray
    ns: FloatArray                 # shape (rows, width)


class ExpertTable(NamedTuple):
    """Times of a mixture's experts in one precision, of one layer."""

    shapes: IntArray      # (shape, 6); see the module's docstring
    tokens: FloatArray    # of all devices that share the experts
    ns: FloatArray        # shape (shape, tokens)


class KernelTables:
    """The tables of one card. Tables are decoded when they are first asked for."""

    def __init__(self, file: KernelsFile, arrays: dict[str, np.ndarray]) -> None:
        self.file, self._arrays = file, arrays

    def gemm(self, dtype: str) -> GemmTable | None:
        """Matrix products of a precision (bf16, fp8, ...), or None."""
        key = f"gemm/{dtype}"
        if key not in self._arrays:
            return None
        m, n, k = (self._axis(f"{key}/{axis}") for axis in "mnk")
        return GemmTable(m, n, k, self._times(key))

    def attention(self, phase: Literal["prefill", "decode"], head_dim: int, kv_dtype: str) -> AttentionTable | None:
        """Attention of prompts or decodes, or None where this head dimension or precision was not measured."""
        key = f"{phase}/{head_dim}/{kv_dtype}"
        if key not in self._arrays:
            return None
        heads = [(int(q), int(kv)) for q, kv in self._arrays[f"{key}/heads"]]
        return AttentionTable(heads, self._axis(f"{key}/length"), self._axis(f"{key}/batch"), self._times(key))

    def rows(self, operator: str, dtype: str) -> RowTable | None:
        """An element-wise operator or the sampler, or None where it was not measured."""
        key = f"rows/{operator}/{dtype}"
        if key not in self._arrays:
            return None
        return RowTable(self._axis(f"{key}/rows"), self._axis(f"{key}/width"), self._times(key))

    def experts(self, dtype: str, routing: str) -> ExpertTable | None:
        """Experts of mixtures in a precision, or None where it was not measured."""
        key = f"experts/{dtype}"
        if f"{key}/{routing}" not in self._arrays:
            return None
        shapes = self._arrays[f"{key}/shape"].astype(np.int64)
        return ExpertTable(shapes, self._axis(f"{key}/tokens"), self._times(f"{key}/{routing}"))

    def collective(self, name: str, ranks: int) -> tuple[FloatArray, FloatArray] | None:
        """(bytes of the whole message, nanoseconds) of an `all_gather` or `reduce_scatter`, or None."""
        known = self._arrays.get("nccl/ranks")
        if known is None or f"{name}/nccl" not in self._arrays or ranks not in known:
            return None
        row = self._times(f"{name}/nccl")[known.tolist().index(ranks)]
        measured = ~np.isnan(row)
        return self._axis("nccl/bytes")[measured], row[measured]

    def head_dims(self, phase: str, kv_dtype: str) -> list[int]:
        """Head dimensions with a table, ascending."""
        found = [key.split("/") for key in self._arrays if key.startswith(f"{phase}/") and key.count("/") == 2]
        return sorted(int(parts[1]) for parts in found if parts[2] == kv_dtype)

    @cached_property
    def all_reduce_ranks(self) -> list[int]:
        """Numbers of ranks whose all-reduce was measured."""
        return [int(n) for n in self._arrays.get("all_reduce/ranks", np.zeros(0))]

    def all_reduce(self, ranks: int, captured: bool) -> tuple[FloatArray, FloatArray]:
        """(bytes, nanoseconds) of one all-reduce over `ranks` devices."""
        row = self._times(f"all_reduce/{'captured' if captured else 'launched'}")[self.all_reduce_ranks.index(ranks)]
        known = ~np.isnan(row)
        return self._axis("all_reduce/bytes")[known], row[known]

    def _axis(self, key: str) -> FloatArray:
        return self._arrays[key].astype(np.float64)

    def _times(self, key: str) -> FloatArray:
        logs = self._arrays[key]
        return np.where(logs < 0, np.nan, np.exp(logs / _SCALE))


def shipped_kernels() -> list[str]:
    """Names of the cards whose tables ship."""
    return names_in("kernels")


def load_kernels(name_or_path: str | Path, base_dir: Path | None = None) -> KernelTables:
    """The tables of a card by name (`h100-sxm`), or of a file by path. Raises `InputError`."""
    path = find(name_or_path, base_dir, "kernels", "kernel tables")
    file = load(KernelsFile, path)
    times = path.with_suffix(".npz")
    raw = read_bytes(times, MAX_TABLE_BYTES, "a readable file of kernel times")
    digest = hashlib.sha256(raw).hexdigest()
    if digest != file.sha256:
        raise InputError(f"the bytes whose SHA-256 {path} states, {file.sha256 or 'none'} (restore both files, or make "
                         "them anew with hermes fit)", Verbatim(digest), file=str(times))
    arrays = _unpacked(raw, str(times))
    missing = [name for name in file.tables if name not in arrays]
    if missing:
        raise InputError(f"the table {missing[0]}, which {path.name} names", file=str(times))
    return KernelTables(file, arrays)


@lru_cache(maxsize=4)   # groups of clients and the points of a sweep read the same tables
def _unpacked(raw: bytes, file: str) -> dict[str, np.ndarray]:
    """Return the checked arrays of an `.npz` file's bytes, read-only."""
    arrays = npz_arrays(raw, file, "a readable file of kernel times")
    for name in arrays:
        axes = _axes_of(name)
        if axes:
            for axis in axes:
                _check_axis(arrays, axis, file)
            shape = tuple(len(arrays[axis]) for axis in axes)
            if arrays[name].shape != shape or arrays[name].dtype != np.int16:
                raise InputError(f"int16 of shape {shape}, as its axes say",
                                 Verbatim(f"{arrays[name].dtype} of shape {arrays[name].shape}"), file=file, field=name)
    return arrays


def _axes_of(name: str) -> list[str]:
    """Return the axes of a table of times; none for an array that is an axis. `InputError` for an unknown table."""
    kind, *rest = name.split("/")
    if kind == "gemm" and len(rest) == 1:
        return [f"{name}/{axis}" for axis in "mnk"]
    if kind in ("prefill", "decode") and len(rest) == 2 and rest[0].isdecimal():
        return [f"{name}/{axis}" for axis in ("heads", "length", "batch")]
    if kind == "rows" and len(rest) == 2:
        return [f"{name}/rows", f"{name}/width"]
    if kind == "experts" and len(rest) == 2 and rest[1] not in ("shape", "tokens"):
        return [f"experts/{rest[0]}/shape", f"experts/{rest[0]}/tokens"]
    if kind in ("all_reduce", "all_gather", "reduce_scatter") and rest in (["captured"], ["launched"], ["nccl"]):
        group = "nccl" if rest == ["nccl"] else kind
        return [f"{group}/ranks", f"{group}/bytes"]
    return []


def _check_axis(arrays: dict[str, np.ndarray], name: str, file: str) -> None:
    """Raise `InputError` unless an axis exists and has ascending numbers, or rows of as many whole ones as it must."""
    values = arrays.get(name)
    if values is None:
        raise InputError(f"the axis {name}", Verbatim("none"), file=file)
    columns = {"heads": 2, "shape": 6}.get(name.rsplit("/", 1)[1])
    numbers = values.dtype.kind in "iuf" and len(values.shape) == (2 if columns else 1) and values.size > 0
    if not numbers or not np.isfinite(values).all() or (values < 0).any() or (
            values.shape[1] != columns if columns else (np.diff(values.astype(np.float64)) <= 0).any()):
        raise InputError(f"rows of {columns} integers" if columns else "ascending numbers of at least 0",
                         Verbatim(f"{values.dtype} of shape {values.shape}"), file=file, field=name)
