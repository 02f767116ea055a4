"""The table of a sweep: what `hermes sweep` prints, now and when its folder is opened again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hermes
from hermes.cli import main
from hermes.explore.sweep.table import point_table

SWEEP = """
name: rates
scenario:
  workload: {requests: 400, arrivals: {kind: poisson, rate: 5.0}, lengths: {kind: fixed, prompt: 100, output: 2}}
  clients:
    - {name: llm, hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8},
       memory: {num_blocks: 5000}, scheduler: {kind: chunked, max_num_seqs: 1}, price_per_hour: 2.0}
  slo: {ttft: 1 s}
grid: {workload.arrivals.rate: [5, 60]}
columns: {workload.arrivals.rate: requests per second}
"""


def test_a_sweep_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.yaml").write_text(SWEEP)
    folder = tmp_path / "out"
    assert main(["sweep", str(tmp_path / "rates.yaml"), "-o", str(folder), "--workers", "0", "-q"]) == 0
    shown = capsys.readouterr().out
    table = hermes.open_sweep(folder).to_text()
    assert shown.startswith(table)
    lines = table.splitlines()
    assert "TTFT, ms" in lines[0]
    for head in ("requests per", "offered", "served", "p50", "p99", "/s", "vices", "answer"):
        assert head in lines[1]
    steady, grows = (line.split() for line in lines[2:4])
    assert steady[0] == "5"
    assert float(steady[1]) == pytest.approx(5, rel=0.2)
    assert float(steady[2]) == pytest.approx(float(steady[1]), rel=0.1)
    assert float(steady[7]) == pytest.approx(float(steady[2]), rel=0.01)   # goodput: all within a second
    assert steady[8] == "8"
    assert float(steady[9]) > 0
    assert (grows[0], grows[2], grows[7], grows[9]) == ("60", "grows", "-", "-")
    assert max(map(len, lines)) <= 80
    assert main(["sweep", str(folder)]) == 0
    assert capsys.readouterr().out == table


def test_a_queue_that_an_outage_filled_does_not_grow(tmp_path: Path) -> None:
    """Of one seed and of the mean of two alike."""
    outage = {"status": "ok", "headline.stable": False, "headline.changes": True, "headline.served_per_s": 4.0}
    for number in (1, 2):
        points = [{"settings": {"rate": 5}, "seed": seed} for seed in range(number)]
        results = SimpleNamespace(manifest={"points": points}, outcome=lambda _: outage, path=tmp_path)
        line = point_table(cast(Any, results)).splitlines()[2]
        assert line.split()[:3] == ["5", "-", "4"]
