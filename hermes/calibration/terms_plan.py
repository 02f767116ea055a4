"""Plans of single operators for `hermes.calibration.collect.terms`: what the composed hardware model adds up.

A point is one operator at one size (`TermPoint`). Terms and their sizes:

    qkv, o_proj, gate_up, down, lm_head            rows x n x k          weights cold
    norm, qk_norm, residual, rotary, activation,
    embedding, sampling                            rows x width          input warm, as the operator before left it
    prefill                                        batch x new, past     new KV warm, the past cold
    decode                                         batch x context       KV cold
    beside                                         a prompt of `new` tokens beside `batch` decodes over `context`
    power                                          idle; loads of memory or arithmetic for a share of the time

Level 0 spans every range coarsely, level 1 refines it: a budget that ends early leaves coarse tables, but whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.measurements.model import Count, Request
from hermes.calibration.plan import KV_SHARE, PointPlan, between, check_dense, powers
from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import ModelDescription, precision

if TYPE_CHECKING:
    from hermes.calibration.measurements.terms import TermsMeasurement

__all__ = ["GEMMS", "HOLD_S", "ROW_OPERATORS", "SAMPLE_S", "Rank", "TermPoint", "TermsPlan",
           "terms_plan", "terms_table"]

GEMMS = ("qkv", "o_proj", "gate_up", "down", "lm_head")
ROW_OPERATORS = ("norm", "qk_norm", "residual", "rotary", "activation", "embedding", "sampling")
DTYPES = {"cpu": ("fp32",), "cuda": ("bf16", "fp16")}   # of numpy, and of vLLM's kernels

SAMPLE_S = 2e-3          # a repetition takes at least this long: short operators are repeated within it
GRAPH_S = 0.15           # recording a CUDA graph
FILL_BYTES_S = 2e9       # drawing operands
CACHE_BYTES = 128e6      # walked through where the plan leaves it to the device; for the estimate
LAUNCH_S = 10e-6
EFFICIENCY = 0.4         # of peak rates, for the estimate
POINT_S = 4e-3           # a point: its line in the journal, its first runs
HOLD_S = 4.0             # of each load whose watts are read
SHARES = {"memory": (0.25, 0.5, 1.0), "arithmetic": (0.5, 1.0)}

Size = Annotated[int, Field(ge=0, le=2**50)]
Point = dict[str, Any]


class TermPoint(ConfigModel):
    """One operator at one size; sizes that the term does not have are 0."""

    name: str
    level: Annotated[int, Field(ge=0, le=9)] = 0
    estimate_s: Annotated[float, Field(ge=0)] = 0.0
    term: Literal[
        "qkv", "o_proj", "gate_up", "down", "lm_head", "norm", "qk_norm", "residual", "rotary", "activation",
        "embedding", "sampling", "prefill", "decode", "beside", "power",
    ]
    rows: Size = 0
    n: Size = 0
    """Columns of the result of a product."""
    k: Size = 0
    """Columns of its input."""
    width: Size = 0
    """Values of a row."""
    batch: Size = 0
    """Prompts, or decodes."""
    new: Size = 0
    """New tokens of each prompt."""
    past: Size = 0
    context: Size = 0
    """Tokens that each decode attends to, its own included."""
    heads: Size = 0
    kv_heads: Size = 0
    head_dim: Size = 0
    load: Literal["", "idle", "memory", "arithmetic"] = ""
    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the time that the load runs."""


class TermsPlan(PointPlan):
    """Operators of one model on one kind of device."""

    row_columns: ClassVar[dict[str, str]] = {
        "repetition": "int64", "time_s": "float64", "cpu_time_s": "float64", "waited_s": "float64",
        "power_w": "float64", "rate": "float64",
    }
    point: ClassVar[type[ConfigModel] | None] = TermPoint

    engine: Literal["terms"] = "terms"
    collector: str = "hermes.calibration.collect.terms"
    backend: Literal["torch", "numpy"]
    model: ModelDescription
    device: Literal["cpu", "cuda"]
    hardware: str = ""
    description: DeviceDescription
    """What `hardware` names; fits need its peak rates."""
    dtype: str
    tensor_parallel: list[Count]
    repetitions: Annotated[int, Field(ge=2, le=1000)]
    threads: Count = 1
    cache_bytes: Size = 0
    """Bytes of operands that repetitions walk through where they have to be cold; 0: twice the device's cache."""
    sample_s: Annotated[float, Field(gt=0, le=10)] = SAMPLE_S
    """Least time of a repetition."""
    hold_s: Annotated[float, Field(gt=0, le=600)] = HOLD_S
    reference: dict[str, Any] | None = None
    reference_every_s: Annotated[float, Field(ge=0, le=1e6)] = 60.0


@dataclass(frozen=True)
class Rank:
    """Shapes of one rank."""

    model: ModelDescription
    tp: int

    @property
    def heads(self) -> int:
        return self.model.num_heads // self.tp

    @property
    def kv_heads(self) -> int:
        return max(self.model.num_kv_heads // self.tp, 1)

    def gemms(self) -> dict[str, tuple[int, int]]:
        """Return (n, k) by term."""
        model, dim = self.model, self.model.head_dim
        inner = model.intermediate_size // self.tp
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * dim, model.hidden_size),
            "o_proj": (model.hidden_size, self.heads * dim), "gate_up": (2 * inner, model.hidden_size),
            "down": (model.hidden_size, inner), "lm_head": (model.vocab_size // self.tp, model.hidden_size),
        }

    def widths(self) -> dict[str, int]:
        """Return the values of a row by operator."""
        model = self.model
        turned = (self.heads + self.kv_heads) * model.head_dim
        found = {"norm": model.hidden_size, "residual": model.hidden_size, "embedding": model.hidden_size,
                 "rotary": turned, "activation": model.intermediate_size // self.tp, "sampling": model.vocab_size}
        return found | ({"qk_norm": turned} if model.qk_norm else {})

    def shape(self) -> Point:
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.model.head_dim}


def terms_plan(request: Request[TermsMeasurement]) -> TermsPlan:
    """Return the plan of a measurement. Raises `InputError` naming the key."""
    _check(request)
    asked = request.asked
    ranks = sorted(set(asked.ranks))
    points = list(_points(request, ranks))
    cost = _Cost(request)
    for point in points:
        point["estimate_s"] = round(cost.seconds(point), 4)
    middle = [point for point in points if point["term"] == "o_proj"]
    return validate(TermsPlan, {
        "backend": "numpy" if asked.device == "cpu" else "torch", "device": asked.device,
        "model": request.model.model_dump(), "hardware": request.hardware_name,
        "description": request.hardware.model_dump(), "dtype": request.dtype,
        "clock": request.clock, "warmup_s": asked.warmup_s, "tensor_parallel": ranks,
        "repetitions": asked.repetitions, "threads": asked.threads, "cache_bytes": asked.cache,
        "sample_s": asked.sample_s, "hold_s": asked.hold_s, "points": points,
        "reference": middle[len(middle) // 2] | {"name": "reference"},
    })


def _check(request: Request[TermsMeasurement]) -> None:
    model, asked = request.model, request.asked
    check_dense(model)
    if request.dtype not in DTYPES[asked.device]:
        raise InputError(f"one of {', '.join(DTYPES[asked.device])} (device: {asked.device})", request.dtype,
                         field="dtype")
    for tp in asked.ranks:
        model.check_tp(tp)
        if model.intermediate_size % tp or model.vocab_size % tp:
            raise InputError(f"divisors of the inner width {model.intermediate_size} and the vocabulary "
                             f"{model.vocab_size}", tp, field="ranks")
    if asked.max_num_batched_tokens < 256 or asked.max_context < 256:
        raise InputError("at least 256 tokens", min(asked.max_num_batched_tokens, asked.max_context),
                         field="max_num_batched_tokens")


# -- points ------------------------------------------------------------------------------------------------------------


def _points(request: Request[TermsMeasurement], ranks: list[int]) -> Iterator[Point]:
    """Yield the points, without duplicates: of a size that both levels have, the coarse one."""
    seen: set[str] = set()
    for level in (0, 1):
        for tp in ranks:
            for point in _of_rank(request, Rank(request.model, tp), level):
                sizes = " ".join(f"{key}={value}" for key, value in point.items() if key != "term")
                name = f"{point['term']} {sizes}"
                if name not in seen:
                    seen.add(name)
                    yield {"name": name, "level": level, **point}


def _of_rank(request: Request[TermsMeasurement], rank: Rank, level: int) -> Iterator[Point]:
    yield from _rows(request, rank, level)
    yield from _attention(request, rank, level)
    if level == 0:
        yield {"term": "power", "load": "idle"}
    for load, shares in SHARES.items():
        for share in shares if level else (1.0,):
            yield {"term": "power", "load": load, "share": share}


def _rows(request: Request[TermsMeasurement], rank: Rank, level: int) -> Iterator[Point]:
    tokens = powers(1, request.asked.max_num_batched_tokens, 2 if level else 8)
    sampled = powers(1, request.asked.max_num_seqs, 2 if level else 8)
    for term, (n, k) in rank.gemms().items():
        for rows in sampled if term == "lm_head" else between(tokens) if level else tokens:
            yield {"term": term, "rows": rows, "n": n, "k": k}
    for term, width in rank.widths().items():
        for rows in sampled if term == "sampling" else tokens:
            yield {"term": term, "rows": rows, "width": width}


def _attention(request: Request[TermsMeasurement], rank: Rank, level: int) -> Iterator[Point]:
    shape, step = rank.shape(), 2 if level else 8
    tokens, longest, seqs = request.asked.max_num_batched_tokens, request.asked.max_context, request.asked.max_num_seqs
    most = _kv_tokens(request)
    lengths = sorted({*powers(16, min(tokens, longest), step), 128})
    for batch in powers(1, max(min(seqs, tokens // 128), 2), 2 if level else 4):
        for new in lengths:
            if batch * new <= max(tokens, 2 * new):
                yield {"term": "prefill", "batch": batch, "new": new, "past": 0, **shape}
    for new in powers(128, min(tokens, longest), 8 if level else 64):
        for past in powers(512, longest - new, 4) if longest - new >= 512 and level else ():
            yield {"term": "prefill", "batch": 1, "new": new, "past": past, **shape}
    contexts = powers(16, longest, 4 if level else 16)
    for batch in powers(1, seqs, step):
        for context in contexts:
            if batch * context <= most:
                yield {"term": "decode", "batch": batch, "context": context, **shape}
    for new in (64, 512, 2048, tokens) if level else (256,):
        for batch in (1, 8, 32, 128) if level else (8,):
            for context in (128, 1024, 8192) if level else (256,):
                fits = new <= longest and context <= longest and new + batch <= tokens + 256 and batch <= seqs
                if fits and batch * context + new <= most:
                    yield {"term": "beside", "batch": batch, "new": new, "context": context, **shape}


def _kv_tokens(request: Request[TermsMeasurement]) -> int:
    """Return the most tokens of one layer's KV that a point may read: a quarter of the memory, and on a CPU 1 GB."""
    width = precision(request.dtype).other_bytes
    layer = request.model.kv_bytes_per_token(width) / request.model.num_layers
    memory = request.hardware.memory * KV_SHARE / 4
    return int((min(memory, 1e9) if request.asked.device == "cpu" else memory) // layer)


# -- estimates ---------------------------------------------------------------------------------------------------------


class _Cost:
    """Seconds of a point: a roofline at a share of the peak, and what the collector does around it."""

    def __init__(self, request: Request[TermsMeasurement]) -> None:
        kind, asked = precision(request.dtype), request.asked
        self.width, self.cuda = kind.other_bytes, request.asked.device == "cuda"
        self.flops = EFFICIENCY * request.hardware.peak(kind.compute)
        self.bandwidth = EFFICIENCY * request.hardware.memory_bandwidth
        self.samples, self.sample_s, self.hold_s = request.asked.repetitions + 2, asked.sample_s, asked.hold_s
        self.cache = float(asked.cache or CACHE_BYTES)

    def seconds(self, point: Point) -> float:
        if point["term"] == "power":
            return self.hold_s if self.cuda else 0.0
        flops, moved = self._work(point)
        once = max(flops / self.flops, moved / self.bandwidth) + LAUNCH_S
        operands = moved if point["term"] in ROW_OPERATORS else max(moved, self.cache)
        walked = operands / self.bandwidth if point["term"] in (*GEMMS, "decode") and self.cuda else 0.0
        around = POINT_S + operands / FILL_BYTES_S + GRAPH_S * self.cuda
        return self.samples * float(max(once, self.sample_s, walked)) + around

    def _work(self, point: Point) -> tuple[float, float]:
        """Return (flops, bytes)."""
        width, term = self.width, point["term"]
        if term in GEMMS:
            rows, n, k = point["rows"], point["n"], point["k"]
            return 2.0 * rows * n * k, width * (n * k + rows * (n + k))
        if term in ROW_OPERATORS:
            values = point["rows"] * point["width"]
            return (100.0 if term == "sampling" else 10.0) * values, 4 * width * values
        batch, heads, dim = point["batch"], point["heads"], point["head_dim"]
        new, past, context = point.get("new", 0), point.get("past", 0), point.get("context", 0)
        prompts = 1 if term == "beside" else batch if term == "prefill" else 0
        decodes = batch if term != "prefill" else 0
        pairs = prompts * new * (past + new) + decodes * context
        read = prompts * (past + new) + decodes * context
        return 4.0 * pairs * heads * dim, 2.0 * width * dim * (
            read * point["kv_heads"] + (prompts * new + decodes) * heads)


def terms_table(plan: TermsPlan) -> list[list[Any]]:
    """Return rows of (term, points, range, minutes) in the order of the plan."""
    groups: dict[str, list[Point]] = {}
    for point in plan.points:
        groups.setdefault(point["term"], []).append(point)
    size = dict.fromkeys((*GEMMS, *ROW_OPERATORS), "rows") | {
        "prefill": "new", "decode": "context", "beside": "batch"}
    out = []
    for term, found in groups.items():
        axis = size.get(term, "")
        values = [point[axis] for point in found] if axis else []
        loads = ", ".join(dict.fromkeys(point["load"] for point in found if "load" in point))
        span = f"{axis} {min(values)} to {max(values)}" if values else loads
        out.append([term, len(found), span, round(sum(p["estimate_s"] for p in found) / 60, 2)])
    return out
