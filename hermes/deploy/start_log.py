"""An engine's sum of its memory, term by term beside its own words, and the same figures in its start-up log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hermes.errors import InputError
from hermes.hardware.capacity import KvBudget
from hermes.hardware.engine_memory import CONNECTOR, MIB, Part
from hermes.sums import float_sum

__all__ = ["MemoryTerm", "differing", "memory_terms", "read_log"]

GIB = 2**30
TOKENS, FITS = "KV tokens", "longest at once"
KV = "KV"
_GIB = r"([\d.]+) ?Gi?B"
_WORDS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"card x share": "requested memory", "weights": "Model loading took", "activations": "torch peak memory",
             "libraries": "non-torch memory", "graphs": "Estimated CUDA graph memory", "captured": "non-torch memory",
             KV: "Available KV cache memory", TOKENS: "GPU KV cache size",
             FITS: "Maximum concurrency", "workspaces": "torch peak memory", "NCCL": "non-torch memory",
             "tables": "Model loading took"},
    "sglang": {"card x share": "mem_fraction_static", "weights": "Load weight end: mem usage",
               "before loading": "Load weight begin: avail mem", KV: "KV Cache is allocated: K size + V size",
               TOKENS: "max_total_num_tokens"},
    "trtllm": {"card x share": "free_gpu_memory_fraction", KV: "Allocated ... for max tokens in paged KV cache",
               TOKENS: "max tokens in paged KV cache"},
}
_LINES: tuple[tuple[str, str, float], ...] = (
    ("weights", rf"[Mm]odel loading took {_GIB}", GIB), ("weights", rf"model weights take {_GIB}", GIB),
    ("weights", rf"weights memory: {_GIB}", GIB), ("weights", rf"Load weight end.*mem usage={_GIB}", GIB),
    ("activations", rf"torch peak memory increase: {_GIB}", GIB),
    ("activations", rf"activation peak memory takes {_GIB}", GIB),
    ("libraries", rf"non-torch forward increase memory: {_GIB}", GIB),
    ("libraries", rf"non_torch_memory takes {_GIB}", GIB), ("graphs", rf"Estimated CUDA graph memory: {_GIB}", GIB),
    ("free before loading", rf"Load weight begin.*avail mem={_GIB}", GIB),
    (KV, rf"Available KV cache memory: {_GIB}", GIB), (KV, rf"reserved for KV Cache is {_GIB}", GIB),
    (KV, rf"Allocated {_GIB} for max tokens in paged KV cache", GIB),
    (TOKENS, r"GPU KV cache size: ([\d,]+) tokens", 1), (TOKENS, r"max_total_num_tokens=([\d,]+)", 1),
    (TOKENS, r"max tokens in paged KV cache \(([\d,]+)\)", 1),
    ("blocks", r"(?:# (?:GPU|cuda) blocks:|num_gpu_blocks(?: is)?[:=]?) ?([\d,]+)", 1),
    (FITS, r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", 1),
)
_HALVES = re.compile(rf"K size: {_GIB}, V size: {_GIB}")
_SUMMED = ("libraries", "captured", "NCCL", "workspaces", "activations")
"""Terms of which a log may have the sum alone: what is left beside weights and KV."""


class MemoryTerm(NamedTuple):
    """One figure of the sum: bytes of one device (tokens, requests), the engine's words for it, the log's figure."""

    name: str
    here: float
    low: float
    high: float
    words: str
    source: str
    log: float | None = None

    @property
    def unit(self) -> float:
        """By what figures are divided to be read."""
        return 1.0 if self.name in (TOKENS, FITS, "blocks") else GIB

    def text(self, value: float) -> str:
        """Return a figure as people read it."""
        if self.name in (TOKENS, "blocks"):
            return f"{value:,.0f}"
        return f"{value / self.unit:,.2f}"

    def range_text(self) -> str:
        """Return the range in words, "" for none."""
        return f"{self.text(self.low)} to {self.text(self.high)}" if self.low < self.high else ""

    @property
    def outside(self) -> bool:
        """Whether the log's figure is outside the range (its digits are two after the point)."""
        slack = 0.01 * self.unit
        return self.log is not None and not self.low - slack <= self.log <= self.high + slack


def memory_terms(budget: KvBudget, longest: int | None) -> Iterator[MemoryTerm]:
    """Yield the terms of a client's memory."""
    words = _WORDS[budget.rules.sums]

    def term(name: str, part: Part) -> MemoryTerm:
        return MemoryTerm(name, part.bytes, *part.ends, words.get(name, ""), part.source)

    if budget.source == "computed":
        share = round(budget.capacity.bytes * budget.utilization)
        yield term("card x share", Part(share, f"{budget.utilization:g} of {budget.capacity.bytes / GIB:.2f} GiB, "
                                               f"{budget.capacity.source}"))
        yield term("weights", budget.weights)
        if budget.rules.counts_activations:
            yield term("activations", budget.activations)
        for name, part in (budget.terms or {"engine": budget.engine}).items():
            yield term(name, part)
        if budget.terms and "connector" not in budget.terms and budget.rules.sums == "vllm":
            most = (CONNECTOR.high or 0) / GIB
            yield MemoryTerm("connector", 0, 0, 0, "", f"none; one would take 0 to {most:.1f} GiB more")
    low, high = budget.range
    each = budget.device_bytes
    yield MemoryTerm(KV, each, low, high, words.get(KV, ""), "what is left; one command differs from start to start")
    blocks = budget.num_blocks
    yield MemoryTerm("blocks", blocks, *_scaled(blocks, budget), "", f"of {budget.block_size} tokens")
    tokens = budget.printed(longest)
    yield MemoryTerm(TOKENS, tokens, *_scaled(tokens, budget), words.get(TOKENS, ""), "")
    if longest is not None:
        fits = budget.fits(longest)
        yield MemoryTerm(FITS, fits, *_scaled(fits, budget), words.get(FITS, ""), f"requests of {longest:,} tokens")


def _scaled(value: float, budget: KvBudget) -> tuple[float, float]:
    low, high = budget.range
    each = max(budget.device_bytes, 1)
    return value * low / each, value * high / each


def read_log(text: str, file: str = "") -> dict[str, float]:
    """Return the figures of a start-up log of vLLM, SGLang or TensorRT-LLM by term, the last of each (of devices: those
    of the last line). Raises `InputError` for a text without any."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        for name, pattern, unit in _LINES:
            if (match := re.search(pattern, line)) is not None:
                found[name] = float(match[1].replace(",", "")) * unit
        if (halves := _HALVES.search(line)) is not None:
            found[KV] = (float(halves[1]) + float(halves[2])) * GIB
    if not found:
        raise InputError("lines such as `Available KV cache memory: 8.99 GiB`, `GPU KV cache size: 130,960 tokens`, "
                         "`Model loading took ...`, `KV Cache is allocated ...`", "none of them", file=file)
    return found


def differing(budget: KvBudget, longest: int | None, log: Mapping[str, float]) -> list[MemoryTerm]:
    """Return the terms with the figures of a log. What a log prints no term of, but weights and KV, is their rest."""
    rows = [term._replace(log=log.get(term.name)) for term in memory_terms(budget, longest)]
    if budget.source != "computed" or not {"weights", KV} <= log.keys() or budget.rules.sums != "vllm":
        return rows
    ours = [term for term in rows if term.name not in ("card x share", "weights", KV, "blocks", TOKENS, FITS)]
    rest = budget.capacity.bytes * budget.utilization - log["weights"] - log[KV]
    here = float_sum(term.here for term in ours)
    more, less = float_sum(term.high - term.here for term in ours), float_sum(term.here - term.low for term in ours)
    place = next(number for number, term in enumerate(rows) if term.name == KV)
    rows.insert(place, MemoryTerm("all but weights", here, here - less - 10 * MIB, here + more + 10 * MIB, "",
                                  "in the log: card x share - weights - KV", rest))
    return rows
