"""Kernel tables: measured times of matrix products, attention and all-reduces of one card.

A card has two files in `hw_profiles/kernels` for each engine whose kernels were measured, CARD for vLLM, CARD-sglang,
CARD-trtllm: NAME.yaml (format `hermes-kernels/1`) says where the times come from, NAME.npz holds them, one array a
table:

    gemm/DTYPE                  [m, n, k]              a product of m x k by k x n; axes gemm/DTYPE/m, .../n, .../k
    prefill/HEAD_DIM/KV_DTYPE   [heads, length, batch] causal attention of `batch` new prompts of `length` tokens
    decode/HEAD_DIM/KV_DTYPE    [heads, length, batch] attention of `batch` decodes over `length` tokens each
    latent_prefill/KV_DTYPE     [heads, length, batch] and latent_decode/KV_DTYPE: latent attention, no projections
    all_reduce/captured         [ranks, bytes]         inside a CUDA graph; all_reduce/launched: from the host
    experts/DTYPE/ROUTING       [shape, tokens]        products of one device's experts; axes experts/DTYPE/shape, ...
    all_gather/nccl             [ranks, bytes]         and reduce_scatter/nccl; axes nccl/ranks, nccl/bytes (of all)
    rows/OPERATOR/DTYPE         [rows, width]          norm, qk_norm, residual, rotary, activation, embedding, sampling

`.../heads` holds pairs (query heads, key-value heads), of one device. `.../shape` holds (hidden size, intermediate
size, experts per token, experts, devices that split each expert, devices that split the experts), of the whole model;
ROUTING says how tokens choose experts: all alike (`balanced`), or by a power law. What one engine lacks is
borrowed from another's tables (`kernels_of`), and they say so (`KernelTables.said`). A time is stored as int16, 1000 *
ln(nanoseconds) (steps of 0.1%); -1 stands where nothing was measured. Times here are nanoseconds, float64, nan where
not measured. Tables that `hermes fit` makes of measured terms are `cold`, and have `rows`; shipped ones neither.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, IntArray, exp
from hermes.config import ConfigModel, Name
from hermes.config.files import MAX_TABLE_BYTES, read_bytes
from hermes.config.tables import npz_arrays
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.files import find, names_in

__all__ = [
    "BORROWED", "ENGINES", "AttentionTable", "ExpertTable", "GemmTable", "KernelTables", "KernelsFile", "RowTable",
    "kernels_of", "load_kernels", "shipped_kernels",
]

ENGINES = ("vllm", "sglang", "trtllm")
"""Engines whose kernels were measured, in the order in which one that has no table borrows."""
BORROWED = "borrowed from "

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
    notes: list[str] = Field(default_factory=list)
    """Times that are not the measured ones of this engine's version, each with its reason."""
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

    def __init__(self, file: KernelsFile, arrays: dict[str, np.ndarray], lenders: tuple[str, ...] = (),
                 stand_in: bool = False, decoded: dict[str, FloatArray] | None = None) -> None:
        """lenders: names of tables of the same card with other engines' kernels: of the first that has it, a table is
            borrowed that is not in `arrays`. They are read when that happens.
        stand_in: Whether these are another engine's too.
        decoded: Times of `arrays` decoded so far, which all tables of a file share.
        """
        self.file, self._arrays, self._lenders, self._stand_in = file, arrays, lenders, stand_in
        self._decoded = {} if decoded is None else decoded

    @property
    def of_others(self) -> bool:
        """Whether these stand in, or are not of vLLM, whose servers gave the range of *measured* tables."""
        return self._stand_in or self.file.engine.split()[0] in ENGINES[1:]

    def has(self, key: str) -> bool:
        """Whether a table is of these, not borrowed."""
        return key in self._arrays

    def _of(self, key: str) -> KernelTables | None:
        """Return the tables that have a table: these, or a lender's."""
        if key in self._arrays:
            return self
        return next((each for each in map(load_kernels, self._lenders) if each.has(key)), None)

    def said(self, key: str) -> str:
        """Return where a table comes from, in words."""
        found = self._of(key) or self
        borrowed = BORROWED if self._stand_in or found is not self else ""
        return f"kernel tables {found.file.name} ({borrowed}{found.file.engine})"

    def gemm(self, dtype: str) -> GemmTable | None:
        """Matrix products of a precision (bf16, fp8, fp8_block, ...), or None."""
        key = f"gemm/{dtype}"
        found = self._of(key)
        if found is None:
            return None
        m, n, k = (found._axis(f"{key}/{axis}") for axis in "mnk")
        return GemmTable(m, n, k, found._times(key))

    def attention(self, key: str) -> AttentionTable | None:
        """Attention of prompts or decodes by the table's name, or None where that was not measured."""
        found = self._of(key)
        if found is None:
            return None
        heads = [(int(q), int(kv)) for q, kv in found._arrays[f"{key}/heads"]]
        return AttentionTable(heads, found._axis(f"{key}/length"), found._axis(f"{key}/batch"), found._times(key))

    def rows(self, operator: str, dtype: str) -> RowTable | None:
        """An element-wise operator or the sampler, or None where it was not measured."""
        key = f"rows/{operator}/{dtype}"
        if key not in self._arrays:
            return None
        return RowTable(self._axis(f"{key}/rows"), self._axis(f"{key}/width"), self._times(key))

    def experts(self, dtype: str, routing: str) -> ExpertTable | None:
        """Experts of mixtures in a precision, or None where it was not measured."""
        key = f"experts/{dtype}"
        found = self._of(f"{key}/{routing}")
        if found is None:
            return None
        shapes = found._arrays[f"{key}/shape"].astype(np.int64)
        return ExpertTable(shapes, found._axis(f"{key}/tokens"), found._times(f"{key}/{routing}"))

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
        if key not in self._decoded:   # each building of a model asks for tens of thousands
            logs = self._arrays[key]
            self._decoded[key] = np.where(logs < 0, np.nan, exp(logs / _SCALE))
            self._decoded[key].flags.writeable = False
        return self._decoded[key]


def shipped_kernels() -> list[str]:
    """Names of the tables that ship."""
    return names_in("kernels")


def kernels_of(device: str, engine: str) -> KernelTables | None:
    """The tables of a card as an engine launches its kernels; what it lacks is borrowed from others. None without any.

    engine: one of `ENGINES`
    """
    names = set(shipped_kernels())
    found = [name for each in sorted(ENGINES, key=lambda one: one != engine)
             if (name := device if each == ENGINES[0] else f"{device}-{each}") in names]
    if not found:
        return None
    first = load_kernels(found[0])
    return KernelTables(first.file, first._arrays, tuple(found[1:]), first.file.engine.split()[0] != engine,
                        first._decoded)


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
    arrays, decoded = _unpacked(raw, str(times))
    missing = [name for name in file.tables if name not in arrays]
    if missing:
        raise InputError(f"the table {missing[0]}, which {path.name} names", file=str(times))
    return KernelTables(file, arrays, decoded=decoded)


@lru_cache(maxsize=12)   # groups of clients and the points of a sweep read the same tables
def _unpacked(raw: bytes, file: str) -> tuple[dict[str, np.ndarray], dict[str, FloatArray]]:
    """Return the checked arrays of an `.npz` file's bytes, read-only, and no decoded ones yet."""
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
    return arrays, {}


def _axes_of(name: str) -> list[str]:
    """Return the axes of a table of times; none for an array that is an axis. `InputError` for an unknown table."""
    kind, *rest = name.split("/")
    if kind == "gemm" and len(rest) == 1:
        return [f"{name}/{axis}" for axis in "mnk"]
    if kind in ("latent_prefill", "latent_decode") and len(rest) == 1:
        return [f"{name}/{axis}" for axis in ("heads", "length", "batch")]
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
