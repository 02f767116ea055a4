"""What stops at a found limit: `capacity` and `size` print the latency nearest its limit and its parts."""

from __future__ import annotations

from typing import Any

import pytest

import hermes
from hermes.results.figures.limit_parts import limit_of_row, limit_text

SCENARIO: dict[str, Any] = {
    "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 6.0},
                 "lengths": {"kind": "fixed", "prompt": 300, "output": 30}},
    "clients": [{"name": "a.b", "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
                 "memory": {"num_blocks": 50_000}, "scheduler": {"kind": "chunked", "max_num_seqs": 6}}],
    "slo": {"ttft": 1.0, "tpot": 0.1},
}


def test_the_line_of_a_flat_row_is_that_of_the_summary() -> None:
    results = hermes.simulate(SCENARIO)
    nearest = results.summary["nearest_limit"]
    row = {"nearest_limit.metric": nearest["metric"], "nearest_limit.percentile": nearest["percentile"],
           "nearest_limit.share": nearest["share"],
           **{f"nearest_limit.parts.{name}": share for name, share in nearest["parts"].items()}}
    assert limit_of_row(row) == limit_text(nearest)
    assert limit_text(nearest).startswith(f"TTFT p99 at {nearest['share']:.0%} of its limit: queue a.b ")
    assert limit_of_row({}) is None


@pytest.mark.long
def test_capacity_says_what_stops(capsys: Any, tmp_path: Any) -> None:
    from hermes.cli import main
    from hermes.config import to_yaml

    path = tmp_path / "scenario.yaml"
    path.write_text(to_yaml(SCENARIO | {"name": "stops"}))
    assert main(["capacity", str(path), "--runs", "8", "--seeds", "1", "-o", str(tmp_path / "runs")]) in (0, 1)
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("stops"))
    assert "of its limit" in line
    assert "queue a.b" in text
