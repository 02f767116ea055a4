"""KV memory that engines printed at start-up (`data/kv-lines.csv`), against the sum for the same flags.

A row names the card's memory as the engine saw it, which stands in for the device file's. Releases of vLLM before 0.15,
which no engine file describes, have the defaults of `vllm-0.15` and the memory rules of their own version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from evidence.accuracy.served import Case, Row
from hermes.clients.config import LLMClientConfig
from hermes.config.tables import csv_table
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import device_named_in, load_device
from hermes.hardware.descriptions.engines import vllm_engines
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.engine_memory import Around, memory_rules
from hermes.hardware.info import hardware_info

__all__ = ["FITTED", "Compared", "compared", "kv_lines", "summary"]

GIB = 2**30
FITTED = (4, 6, 8, 12, 32, 36, 46, 68, 70)   # rows on which terms were found; the others test
_ENGINES = {"vllm": "vllm-", "sglang": "sglang-", "tensorrt-llm": "trtllm-"}
_FIRST = 8   # minor version of vLLM whose default is the V1 engine
CLOSE, START = 0.08, 0.9   # share, and GiB a card that the same command differs by from start to start
_MODELS = ((r"r1-distill-qwen-14b", "qwen2.5-14b"), (r"r1-distill-qwen-1\.5b", "qwen2.5-1.5b"),
           (r"r1-distill-llama-8b", "llama-3.1-8b"), (r"r1-distill-llama-70b", "llama-3.1-70b"),
           (r"r1-distill-qwen-32b", "qwen2.5-32b"), (r"r1-distill-qwen-7b", "qwen2.5-7b"),
           (r"deepseek-(r1|v3)", "deepseek-v3"), (r"qwen3-vl-30b-a3b", "qwen3-30b-a3b"),
           (r"qwen3-vl-235b-a22b", "qwen3-235b-a22b"), (r"qwen2\.5-coder-(\d+b)", r"qwen2.5-\1"),
           (r"qwen3-coder-30b-a3b", "qwen3-30b-a3b"), (r"qwen-32b", "qwen2.5-32b"),
           (r"hermes-3-llama-3\.1-8b", "llama-3.1-8b"))
_DTYPES = {"awq-int4": "int4-awq", "gptq-int4": "int4-awq", "int4 experts": "auto", "mxfp4": "auto"}
_CARDS = (("4090", "rtx-4090"), ("3090", "rtx-4090"), ("24gb", "rtx-4090"), ("pro 6000", "rtx-pro-6000"),
          ("nvl", "h100-pcie"), ("a100-40", "a100-40gb"), ("a100", "a100-80gb"), ("a10", "l4"))


@dataclass
class Compared:
    """A row of the file with its sum. GiB of one card; `why`: why there is none."""

    row: str
    engine: str
    card: str
    model: str
    confidence: str
    printed: float = 0.0
    ours: float = 0.0
    low: float = 0.0
    high: float = 0.0
    tokens: str = ""
    why: str = ""
    terms: dict[str, float] = field(default_factory=dict)

    @property
    def fitted(self) -> bool:
        """Whether terms were found on the row."""
        return self.row.isdecimal() and int(self.row) in FITTED

    @property
    def error(self) -> float:
        return self.ours / self.printed - 1.0

    @property
    def inside(self) -> bool:
        """Whether the printed figure lies in the range."""
        return self.low <= self.printed <= self.high

    @property
    def close(self) -> bool:
        return abs(self.error) <= CLOSE or abs(self.ours - self.printed) <= START

    def line(self) -> str:
        what = f"{self.row:>4} {self.confidence:9} {self.engine:26} {self.card:20} {self.model[:36]:36}"
        if self.why:
            return f"{what} {self.why}"
        return (f"{what} printed {self.printed:7.2f} ours {self.ours:7.2f} ({self.low:.1f} to {self.high:.1f}) "
                f"{100 * self.error:+6.1f}%{'' if self.inside else ' outside'}{self.tokens}"
                f"{' fitted' if self.fitted else ''}")


class _Line(NamedTuple):
    """A row of the file, as text."""

    cells: dict[str, str]

    def text(self, name: str) -> str:
        return self.cells.get(name, "").strip()

    def number(self, name: str) -> float | None:
        try:
            return float(self.text(name))
        except ValueError:
            return None

    def count(self, name: str, default: int = 1) -> int:
        found = self.number(name)
        return default if found is None else int(found)


def _model(text: str) -> str:
    """Return the description of a row's model. Raises `InputError`."""
    lowered = text.lower().rpartition("/")[2]
    for pattern, name in _MODELS:
        if (found := re.search(pattern, lowered)) is not None:
            return found.expand(name)
    known = [name for name in names_in("models") if re.match(rf"(?:meta-)?{re.escape(name)}(?![\d.])", lowered)]
    known = known or [name for name in names_in("models") if lowered.endswith((name, f"{name}-instruct"))]
    return max(known, key=len) if known else load_model(text).name


def _card(text: str) -> str:
    """Return the device of a row, or of the nearest card. Raises `InputError`."""
    lowered = text.lower().replace("-", " ")
    found = next((name for part, name in _CARDS if part.replace("-", " ") in lowered), None)
    if found is not None:
        return found
    if (device := device_named_in(text)) is not None:
        return device.name
    if lowered.startswith(("h100", "h200", "h20", "l40s", "l4", "mi300x", "mi325x", "mi355x", "b200", "b300", "gb200")):
        word = re.split(r"\W", lowered)[0]
        return "h100-sxm" if word == "h100" else word
    raise InputError("a card", text, field="gpu")


def _engine(name: str, version: str) -> tuple[str, str]:
    """Return the engine file that stands in, and the row's own version."""
    if name not in _ENGINES:
        raise InputError(f"an engine: {', '.join(_ENGINES)}", name, field="engine")
    if name != "vllm":
        return next(one for one in names_in("engines") if one.startswith(_ENGINES[name])), version
    if (found := re.search(r"(\d+)\.(\d+)", version)) is None or int(found[2]) < _FIRST:
        raise InputError("a release of the V1 engine", version, field="version")
    nearest = min(vllm_engines(), key=lambda one: abs(int(one.rpartition(".")[2]) - int(found[2])))
    return nearest, found[0]


def compared(path: Path) -> Iterator[Compared]:
    """Yield each row of the file with its sum. Raises `InputError` for a file without the columns."""
    table = csv_table(path)
    table.need(("id", "engine", "version", "model", "gpu", "gpu_gib", "utilization", "available_kv_gib", "confidence"))
    columns = {str(name): list(values) for name, values in table.columns.items()}
    for at in range(len(table)):
        row = {name: values[at] for name, values in columns.items()}
        yield _compared(_Line({name: "" if one is None or one != one else str(one) for name, one in row.items()}))


def _compared(line: _Line) -> Compared:
    found = Compared(line.text("id"), f"{line.text('engine')} {line.text('version')}",
                     f"{line.text('gpu')} x {line.count('tp') * line.count('pp')}", line.text("model"),
                     line.text("confidence"))
    capacity, share, printed = (line.number(name) for name in ("gpu_gib", "utilization", "available_kv_gib"))
    if capacity is None or share is None or printed is None:
        found.why = "without " + ", ".join(name for name, value in (
            ("card", capacity), ("utilisation", share), ("KV", printed)) if value is None)
        return found
    try:
        _sum(line, found, round(capacity * GIB), share)
    except InputError as error:
        found.why = str(error)
    found.printed = printed
    return found


def _sum(line: _Line, found: Compared, capacity: int, share: float) -> None:
    """Fill in our sum of a row. Raises `InputError`."""
    engine, version = _engine(line.text("engine"), line.text("version"))
    model, card = _model(line.text("model")), _card(line.text("gpu"))
    limits = {key: line.count(name, 0) for key, name in (
        ("max_num_batched_tokens", "batched_tokens"), ("max_num_seqs", "max_seqs")) if line.count(name, 0)}
    sglang = engine.startswith("sglang")
    scheduler = {"kind": "sglang"} if sglang else {"kind": "chunked", **limits}
    kv = line.text("kv_dtype").rstrip("?")
    tp, pp, dp, ep = (line.count(name) for name in ("tp", "pp", "dp", "ep"))
    client = LLMClientConfig.model_validate({
        "model": model, "device": card, **({} if sglang else {"engine": engine}),
        "parallel": {"tp": tp, "pp": pp, "dp": dp, "ep": ep if ep == tp * dp else 1},
        "hardware": {"kind": "composed", "dtype": _DTYPES.get(line.text("precision"), line.text("precision") or "auto"),
                     **({"kv_dtype": "fp8"} if kv == "fp8" else {})},
        "scheduler": scheduler, "memory": {"utilization": share, "block_size": line.count("block_size", 16)},
        **({"max_model_len": line.count("max_model_len", 0)} if line.count("max_model_len", 0) else {}),
        "allow_mismatch": True})
    filled, hardware = client.completed(None)
    info = hardware_info(hardware)
    device = load_device(card).model_copy(update={"memory": capacity})
    rules = memory_rules(engine, version)
    flags = line.text("other_flags").lower()
    budget = filled.memory.ruled(rules).budget(
        model, info.tp * info.pp, info, device, filled.scheduler.options, None,
        Around("lmcache" in flags or "connector" in flags, filled.max_model_len,
               2 if "2 nodes" in flags + line.text("note") else None))
    found.ours, (found.low, found.high) = budget.device_bytes / GIB, (end / GIB for end in budget.range)
    found.terms = {"card x share": capacity * share / GIB, "weights": budget.weights.bytes / GIB,
                   "activations": budget.activations.bytes / GIB,
                   **{name: part.bytes / GIB for name, part in budget.terms.items()}}
    if (held := line.number("weights_gib")) is not None:
        found.terms["weights printed"] = held
    if (tokens := line.number("kv_tokens")) is not None:
        found.tokens = f" tokens {tokens:,.0f}, ours {budget.printed(filled.max_model_len):,}"


def _scored(rows: Sequence[Compared], confidence: str = "complete", *, sglang: bool = False) -> list[Compared]:
    """Return the rows with a sum: those of so much confidence, or all of SGLang."""
    return [row for row in rows if not row.why and row.engine.startswith("sglang") == sglang and (
        sglang or row.confidence == confidence)]


def summary(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the figures of each group of rows."""
    scored = _scored(rows)
    groups = {"complete": scored, "complete, fitted": [row for row in scored if row.fitted],
              "complete, not fitted": [row for row in scored if not row.fitted],
              "assumed": _scored(rows, "assumed"), "SGLang": _scored(rows, sglang=True)}
    for name, of in groups.items():
        if of:
            yield (f"{name}: {len(of)} rows, median error {100 * median(abs(row.error) for row in of):.1f}%, worst "
                   f"{100 * max((row.error for row in of), key=abs):+.1f}%; within {CLOSE:.0%} or {START} GiB a card "
                   f"{sum(row.close for row in of)}; in the range {sum(row.inside for row in of)}")


def kv_lines(data: Path) -> Iterator[Row]:
    """KV GiB a card of each complete row, and of SGLang's; the shares of rows that are close and in the range."""
    rows = list(compared(data / "kv-lines.csv"))
    for name, of in (("KV lines", _scored(rows)), ("KV lines, sglang", _scored(rows, sglang=True))):
        for row in of:
            yield Row(Case(name, row.row, row.engine, row.card, row.model), "KV GiB", "start", row.printed, row.ours)
        for what, inside in (("close", [row.close for row in of]), ("in range", [row.inside for row in of])):
            case = Case(name, "all", "", "", "")
            yield Row(case, what, "count", float(len(of)), float(sum(inside)))
