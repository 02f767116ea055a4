"""Summaries of load drivers: means and percentiles of a whole benchmark, without single requests.

| tool | file | units |
| --- | --- | --- |
| vLLM bench serve, SGLang bench_serving, InferenceMAX | result without details: `p99_ttft_ms` | ms |
| InferenceMAX | agg_NAME.json: `p99_ttft`, `tput_per_gpu` | s |
| GuideLLM | benchmarks.json without `requests`, benchmarks.yaml | ms, E2E in s |
| AIPerf, GenAI-Perf | profile_export_aiperf.json, profile_export_genai_perf.json, and .csv | each states its own |
| inference-perf | summary_lifecycle_metrics.json, stage_N_lifecycle_metrics.json | s |
| LLMPerf | NAME_summary.json | s |
| llm-d-benchmark | report, versions 0.1 and 0.2 (JSON or YAML) | each metric states its own |

Tools give one name to different things. `tpot` here is (E2E - TTFT) / (output tokens - 1) of a request, which AIPerf
calls inter-token latency; `itl` is the gap between two tokens, of all requests. LLMPerf's inter-token latency and the
normalized time per output token are E2E / output tokens, and not compared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from hermes.config.bench_results import JSON, one_of, results_in
from hermes.config.files import text_lines
from hermes.config.yaml_document import parse_yaml, read_text
from hermes.errors import InputError

__all__ = ["Summary", "read_summary"]

_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
_FLAT = re.compile(rf"(mean|median|p[0-9]{{1,2}}(?:\.[0-9]+)?)_({'|'.join(_METRICS)})(_ms)?")
_NAMED = {"time_to_first_token": "ttft", "request_latency": "e2e"}
_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s/token": 1.0, "ms/token": 1e-3}
_TITLE = re.compile(r"([A-Za-z ]+)\(([a-z]+)\)")
_STAT = re.compile(r"p([0-9]{1,2})(?:[.p]([0-9]+))?")


@dataclass
class Summary:
    """Statistics of a benchmark.

    Attributes:
        tool: Its name.
        stats: Seconds by metric (`ttft`, `tpot`, `itl`, `e2e`) and statistic (`mean`, `p50`, `p99.9`).
        requests: Completed requests; None if unknown.
        prompt_tokens, output_tokens: Of them all; None if unknown.
    """

    tool: str
    stats: dict[str, dict[str, float]] = field(default_factory=dict)
    requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def add(self, metric: str, stat: str, value: Any, per_s: float) -> None:
        """Note a statistic; values that are no numbers are left out: tools write null for what they did not measure."""
        name = "p50" if stat == "median" else "mean" if stat == "avg" else stat
        found = _STAT.fullmatch(name)
        if found is not None:
            name = f"p{found[1]}" + (f".{found[2]}" if found[2] else "")
        elif name != "mean":
            return
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            self.stats.setdefault(metric, {})[name] = value * per_s


def read_summary(path: Path, part: int | None = None) -> Summary | None:
    """Return the summary in a file; None for other files. part: Which of several, from 0."""
    found = [(one, reader) for one in _documents(path) for reader in _READERS if _known(reader, one)]
    if not found:
        return None
    chosen = one_of([one for one, _ in found], part, path)
    reader = next(reader for one, reader in found if one is chosen)
    summary = _READERS[reader](chosen)
    return summary if summary.stats else None


def _known(reader: str, one: Mapping[str, Any]) -> bool:
    return bool(_READERS[reader](one).stats)


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that may be summaries; of GuideLLM, one for each benchmark."""
    suffix, found = path.suffix.lower(), list[dict[str, Any]]()
    if suffix in (".yaml", ".yml"):
        plain = parse_yaml(read_text(path), str(path)).plain()
        found = [plain] if isinstance(plain, dict) else []
    elif suffix in JSON:
        found = results_in(path)
    elif suffix == ".csv":
        found = [_metric_rows(path)]
    for one in found:
        if isinstance(one.get("benchmarks"), list):
            yield from (each for each in one["benchmarks"] if isinstance(each, dict))
        else:
            yield one


def _metric_rows(path: Path) -> dict[str, Any]:
    """Return the metrics of a CSV file of AIPerf or GenAI-Perf: `Time to First Token (ms)` and its statistics."""
    found: dict[str, Any] = {}
    head: list[str] = []
    lines = text_lines(path, "a CSV file")
    if not (first := next(lines, "")).startswith("Metric,"):
        return found   # a table of requests
    for cells in _cells(chain([first], lines), path):
        if cells[:1] == ["Metric"]:
            head = cells
        elif head and len(cells) == len(head) and (name := _TITLE.fullmatch(cells[0])) is not None:
            key = name[1].strip().lower().replace(" ", "_")
            found[key] = {"unit": name[2]} | {stat: _cell(cell) for stat, cell in zip(head[1:], cells[1:], strict=True)}
    return found


def _cells(lines: Iterable[str], path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise InputError(f"a CSV file ({error})", file=str(path)) from None


def _cell(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _at(row: Any, *keys: str) -> Any:
    for key in keys:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _flat(row: Mapping[str, Any]) -> Summary:
    """vLLM, SGLang and InferenceMAX: `p99_ttft_ms`, or in seconds `p99_ttft`."""
    in_s = "tput_per_gpu" in row
    found = Summary("InferenceMAX" if in_s else "vllm bench serve or SGLang's bench_serving",
                    requests=_whole(row.get("completed")), prompt_tokens=_whole(row.get("total_input_tokens")),
                    output_tokens=_whole(row.get("total_output_tokens")))
    for key, value in row.items():
        name = _FLAT.fullmatch(key)
        if name is not None and bool(name[3]) != in_s:
            found.add(_METRICS[name[2]], name[1], value, 1.0 if in_s else 1e-3)
    return found


def _guidellm(row: Mapping[str, Any]) -> Summary:
    """GuideLLM: E2E in seconds. Its gaps are weighted by tokens: the mean is that of all gaps."""
    metrics = row.get("metrics")
    found = Summary("GuideLLM", requests=_whole(_at(metrics, "request_totals", "successful")))
    for name, metric, per_s in (("time_to_first_token_ms", "ttft", 1e-3), ("request_latency", "e2e", 1.0),
                                ("inter_token_latency_ms", "itl", 1e-3)):
        stats = _at(metrics, name, "successful")
        if not isinstance(stats, Mapping) or "percentiles" not in stats:
            continue
        found.add(metric, "mean", stats.get("mean"), per_s)
        for stat, value in (_at(stats, "percentiles") or {}).items() if metric != "itl" else ():
            found.add(metric, "p99.9" if stat == "p999" else stat, value, per_s)
    return found


def _aiperf(row: Mapping[str, Any]) -> Summary:
    """AIPerf and GenAI-Perf: an object per metric with its unit."""
    metrics = row["records"] if isinstance(row.get("records"), Mapping) else row
    found = Summary("AIPerf or GenAI-Perf", requests=_whole(_at(metrics, "request_count", "avg")))
    for name, metric in (_NAMED | {"inter_token_latency": "tpot"}).items():
        stats = metrics.get(name)
        if isinstance(stats, Mapping) and stats.get("unit") in _UNITS and "avg" in stats:
            for stat, value in stats.items():
                found.add(metric, stat, value, _UNITS[stats["unit"]])
    return found


def _inference_perf(row: Mapping[str, Any]) -> Summary:
    done = row.get("successes")
    found = Summary("inference-perf", requests=_whole(_at(done, "count")))
    for name, metric in (_NAMED | {"time_per_output_token": "tpot", "inter_token_latency": "itl"}).items():
        for stat, value in (_at(done, "latency", name) or {}).items():
            found.add(metric, stat, value, 1.0)
    return found


def _llmperf(row: Mapping[str, Any]) -> Summary:
    found = Summary("LLMPerf", requests=_whole(row.get("results_num_completed_requests")))
    for name, metric in (("results_ttft_s", "ttft"), ("results_end_to_end_latency_s", "e2e")):
        for key, value in row.items():
            if key.startswith(name + "_"):
                found.add(metric, key.removeprefix(name + "_").removeprefix("quantiles_"), value, 1.0)
    return found


def _llm_d_benchmark(row: Mapping[str, Any]) -> Summary:
    """llm-d-benchmark: gaps are what the driver calls so, so that only their mean is compared."""
    whole = _at(row, "results", "request_performance", "aggregate") or row.get("metrics")
    total, failed = (_whole(_at(whole, "requests", name)) for name in ("total", "failures"))
    found = Summary("llm-d-benchmark", requests=None if total is None else total - (failed or 0))
    for name, metric in (_NAMED | {"time_per_output_token": "tpot", "inter_token_latency": "itl"}).items():
        stats = _at(whole, "latency", name)
        if isinstance(stats, Mapping) and stats.get("units") in _UNITS:
            for stat, value in stats.items():
                if metric != "itl" or stat == "mean":
                    found.add(metric, stat, value, _UNITS[stats["units"]])
    return found


_READERS: dict[str, Callable[[Mapping[str, Any]], Summary]] = {
    "flat": _flat, "guidellm": _guidellm, "aiperf": _aiperf, "inference-perf": _inference_perf, "llmperf": _llmperf,
    "llm-d-benchmark": _llm_d_benchmark}
