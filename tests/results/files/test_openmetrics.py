"""A run as OpenMetrics: totals by hand from the stages, and every scrape read by Prometheus's own parser."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.fleet.dump import read_dump
from hermes.results.files.export import write_results
from hermes.results.files.openmetrics import FAMILIES, engines_of, instant, interval, metric_lines
from hermes.results.files.stored import open_run
from hermes.scenario import load_scenario

SAMPLE = re.compile(r'([\w:]+)\{(.*)\} (\S+) (\S+)')
Series = dict[tuple[str, str], dict[float, float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two vLLM engines that share prompts, and an SGLang engine for another model."""
    lengths = {"kind": "fixed", "prompt": 300, "output": 20}
    results = simulate({
        "workload": [{"name": name, "model": model, "requests": 12, "arrivals": {"kind": "poisson", "rate": 8},
                      "prefixes": {"groups": 2, "tokens": 128}, "lengths": lengths}
                     for name, model in (("a", "llama-3.1-8b"), ("b", "qwen3-8b"))],
        "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm", "engine": "vllm-0.33"},
                    {"name": "sg", "model": "qwen3-8b", "device": "h100-sxm", "engine": "sglang-0.5"}]})
    folder = tmp_path_factory.mktemp("openmetrics") / "run"
    write_results(results, folder)
    return open_run(folder)


def read(lines: list[str]) -> Series:
    found: Series = defaultdict(dict)
    for line in lines:
        if not line.startswith("#"):
            name, labels, value, stamp = SAMPLE.fullmatch(line).groups()   # type: ignore[union-attr]
            found[name, labels][float(stamp)] = float(value)
    return found


def of(found: Series, name: str, pod: str, **labels: str) -> dict[float, float]:
    """Return the one series of a name and these labels."""
    wanted = {f'{key}="{value}"' for key, value in {"pod": pod, **labels}.items()}
    one, = (series for (own, text), series in found.items() if own == name and wanted <= set(text.split(",")))
    return one


@pytest.mark.feature("Results, sweeps, studies", "`hermes export metrics`: a run as Prometheus would have scraped it")
def test_totals_are_those_of_the_stages(run: Any) -> None:
    found, stages = read(list(metric_lines(run.record, engines_of(run), 0.5, 100.0))), run.record.stages
    for client, (pod, engine) in enumerate((("llm-0", "vllm"), ("llm-1", "vllm"), ("sg", "sglang"))):
        mine = {name: column[stages["client"] == client] for name, column in stages.items()}
        last = max(of(found, f"{engine}:prompt_tokens_total", pod))
        totals = {name: of(found, f"{engine}:{name}", pod)[last] for name in (
            "prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count",
            "time_to_first_token_seconds_sum", "e2e_request_latency_seconds_sum", "inter_token_latency_seconds_count",
            "inter_token_latency_seconds_sum")}
        count = len(mine["client"])
        first, end, assigned = (mine[name].sum() / 1e9 for name in ("first_token_ns", "end_ns", "assigned_ns"))
        assert list(totals.values()) == pytest.approx(
            [300 * count, 20 * count, count, first - assigned, end - assigned, 19 * count, end - first])
        hits = "vllm:prefix_cache_hits_total" if engine == "vllm" else "sglang:cached_tokens_total"
        assert of(found, hits, pod)[last] == mine["cached_tokens"].sum() > 0
        buckets = [of(found, f"{engine}:e2e_request_latency_seconds_bucket", pod, le=limit)[last]
                   for limit in ("0.3", "1.0", "+Inf")]
        assert buckets == [((mine["end_ns"] - mine["assigned_ns"]) <= limit).sum() for limit in (3e8, 1e9, np.inf)]


@pytest.mark.parametrize("scenario", ["batching/disaggregated", "batching/continuous"])
def test_tokens_are_those_of_the_run(scenario: str) -> None:
    """Where a prefill client gives no token, and where a stage's tokens come from some of the steps."""
    record = simulate(load_scenario(scenario, ["workload.requests=8"])).record
    found = read(list(metric_lines(record, {}, 60.0, 0.0)))
    generated = sum(series[max(series)] for (name, _), series in found.items()
                    if name == "vllm:generation_tokens_total")
    assert generated == record.stages["output_tokens"].sum() == record.output_tokens.sum()


def test_levels_are_counted_at_each_time(run: Any) -> None:
    found, stages = read(list(metric_lines(run.record, engines_of(run), 0.25, 0.0))), run.record.stages
    mine = stages["client"] == 0
    for second, value in of(found, "vllm:num_requests_running", "llm-0").items():
        assert value == ((stages["start_ns"][mine] <= second * 1e9) & (stages["end_ns"][mine] > second * 1e9)).sum()
    assert max(of(found, "vllm:num_requests_running", "llm-0").values()) > 0
    assert max(of(found, "sglang:num_running_reqs", "sg").values()) > 0
    use = of(found, "vllm:kv_cache_usage_perc", "llm-0")
    blocks = run.record.clients[0].num_blocks
    assert 0 < max(use.values()) <= run.record.runs["used_blocks"][run.record.runs["client"] == 0].max() / blocks
    assert use[max(use)] == 0, "nothing runs at the end"


def test_every_scrape_is_read_by_prometheus(run: Any) -> None:
    """Its parser drops histograms of several times in one file, so that each time is read alone."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus_client is not installed")
    scrapes: dict[str, list[str]] = defaultdict(list)
    heads: list[str] = []
    for line in metric_lines(run.record, engines_of(run), 1.0, 1.7e9):
        if line.startswith("#"):
            heads = [line] if line.startswith("# TYPE") else [*heads, line]
            for lines in scrapes.values():
                lines.append(line)
        else:
            stamp = line.rsplit(" ", 1)[1]
            scrapes.setdefault(stamp, list(heads)).append(line)
    assert len(scrapes) > 2
    families = [list(parser.text_string_to_metric_families("\n".join(lines) + "\n")) for lines in scrapes.values()]
    assert {len(one) for one in families} == {25}
    assert {one.type for one in families[-1]} == {"gauge", "counter", "histogram"}


@pytest.mark.parametrize(("text", "seconds"), [
    ("0", 0), ("1700000000.5", 1700000000.5), ("2026-01-31T08:00:00Z", 1769846400), ("2026-01-31T08:00", 1769846400)])
def test_an_instant(text: str, seconds: float) -> None:
    assert instant(text) == seconds


def test_mistakes(run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for text in ("0 s", "-1", "soon"):
        with pytest.raises(InputError, match="--every"):
            interval(text)
    with pytest.raises(InputError, match="--start: expected seconds since 1970, or a date"):
        instant("yesterday")
    with pytest.raises(InputError, match=r"--every: expected at least .* s, for at most 20,000,000 lines"):
        list(metric_lines(run.record, {}, 1e-7, 0))
    assert main(["export", "metrics", str(run.folder), "--every", "1 s", "-o", str(tmp_path / "run.om")]) == 0
    assert "promtool tsdb create-blocks-from openmetrics" in capsys.readouterr().out
    assert (tmp_path / "run.om").read_text().endswith("# EOF\n")
    assert main(["export", "metrics", str(tmp_path)]) == 2


def test_an_autoscaler_reads_what_was_exported(run: Any, tmp_path: Path) -> None:
    """`hermes advise` sees in the file what the stages say, of vLLM's names and SGLang's."""
    file = tmp_path / "run.om"
    file.write_text("\n".join(metric_lines(run.record, engines_of(run), 0.25, 1.7e9)))
    dump = read_dump([str(file)], "pod")
    assert set(dump.replicas) == {"llm-0", "llm-1", "sg"}
    assert (dump.interval_ns, dump.start_s) == (250_000_000, 1.7e9)
    stages = run.record.stages
    for client, pod in enumerate(dump.replicas):
        mine, rows = stages["client"] == client, dump.replicas[pod]
        begin, end = stages["start_ns"][mine], stages["end_ns"][mine]
        running = [((begin <= time) & (end > time)).sum() for time in rows.time_ns]
        assert rows.values["running"].tolist() == running
        assert max(running) > 0
    file.write_text('vllm:num_requests_running{pod="a"} 3\n')
    with pytest.raises(InputError, match=r"run\.om:1: a sample without a time is one scrape"):
        read_dump([str(file)], "pod")


def test_the_board_shows_metrics_that_are_written() -> None:
    """docs/dashboards/vllm.json, which Grafana imports."""
    board = json.loads((Path(__file__).parents[3] / "docs" / "dashboards" / "vllm.json").read_text())
    shown = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"vllm:\w+", target["expr"])}
    ends = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket",)}
    written = {f"{family.names['vllm']}{end}" for family in FAMILIES if "vllm" in family.names
               for end in ends[family.kind]}
    assert shown <= written
    assert written - shown == {   # a mean of each request, and a part of TTFT
        "vllm:request_time_per_output_token_seconds_bucket", "vllm:request_queue_time_seconds_bucket"}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_slots_without_a_replica_have_no_samples() -> None:
    """One replica from the start; a second from 0.5 + 0.25 s until it is taken away at 1.5 s and has drained."""
    results = simulate({
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 20},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 8}},
        "clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm", "fleet": {
            "start": 1, "start_up": {"total": "250ms"}, "autoscaler": {"kind": "schedule", "changes": [
                {"at": "500ms", "replicas": 2}, {"at": "1.5s", "replicas": 1}]}}}]})
    found = read(list(metric_lines(results.record, {"llm": "vllm"}, 0.25, 0.0)))
    for name in ("vllm:num_requests_running", "vllm:prompt_tokens_total"):
        pods = {re.search(r'pod="(.*?)"', labels)[1]: sorted(series) for (own, labels), series in found.items()   # type: ignore[index]
                if own == name}
        assert set(pods) == {"llm-0", "llm-1"}
        assert pods["llm-0"][0] == 0.0
        assert pods["llm-1"][0] in (0.75, 1.0)
        assert pods["llm-1"][-1] < 2.0 < pods["llm-0"][-1]
