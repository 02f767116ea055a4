"""The chart of a gateway's queues, and its section of the report page: they show what the record has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.results.charts import Panel
from hermes.results.charts.gateway_charts import LIMIT_COLOURS, gateway_panels
from hermes.results.charts.report_page import runs_page
from hermes.results.charts.run_charts import chart
from hermes.results.files.export import write_results
from hermes.results.plots import draw, image
from hermes.results.results import Results

CLASSES = {"gold": {"priority": 2}, "basic": {}, "batch": {"priority": -1, "ceiling": 0.5}}


def run(gateway: dict[str, Any], **workload: Any) -> Results:
    work = {"requests": 300, "arrivals": {"kind": "poisson", "rate": 40},
            "lengths": {"kind": "fixed", "prompt": 200, "output": 60}}
    return simulate({"name": "queues", "workload": work | workload, "gateway": gateway, "clients": [
        {"name": "llm", "memory": {"num_blocks": 4000},
         "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}]})


@pytest.fixture(scope="module")
def flow() -> Results:
    return run({"classes": CLASSES, "flow_control": {"detector": {"kind": "concurrency", "limit": 6}, "ttl": "1 h"}},
               classes={"values": list(CLASSES)})


def stacks(panel: Panel) -> dict[str, np.ndarray]:
    return {layer.frame["series"].iloc[0]: (layer.frame["y2"] - layer.frame["y"]).to_numpy()
            for layer in panel.layers if layer.mark == "stack"}


def test_what_waits_and_leaves_by_class(flow: Results) -> None:
    held, sent, limits = gateway_panels([("run", flow)])
    record = flow.record
    waits = stacks(held)
    assert list(waits) == ["gold", "basic", "batch"]   # the highest band first
    at = held.layers[0].frame["x"].to_numpy() * 1e9
    codes, names = record.labels["class"]
    for name, counts in waits.items():
        mine = codes[record.held["request"]] == names.index(name)
        asked, left = record.held["asked_ns"][mine], record.held["left_ns"][mine]
        by_hand = [(int(((asked <= time + 1e-3) & (left > time + 1e-3)).sum())) for time in at]
        assert counts.tolist() == by_hand
    times = np.unique(np.concatenate((record.held["asked_ns"], record.held["left_ns"])))
    most = max(int(((record.held["asked_ns"] <= time) & (record.held["left_ns"] > time)).sum()) for time in times)
    assert held.title == f"Held by flow control: at most {most:,}"
    edges = sent.layers[0].frame["x"].to_numpy()
    widths = np.diff(edges)[::2]
    left = sum(float((rates[::2] * widths).sum()) for rates in stacks(sent).values())
    assert left == pytest.approx(len(record.held["left_ns"]))
    shares = stacks(limits)
    assert set(shares) <= set(LIMIT_COLOURS)
    assert {"in flight", "ceiling"} <= set(shares)
    assert np.sum(list(shares.values()), axis=0).max() <= 1 + 1e-9
    whole = sum(float((part[::2] * np.diff(limits.layers[0].frame["x"])[::2]).sum()) for part in shares.values())
    assert whole == pytest.approx((record.halts["end_ns"] - record.halts["begin_ns"]).sum() / 1e9)


def test_the_wait_for_capacity_and_for_a_replica() -> None:
    hop = run({"capacity": 30.0})
    (panel,) = gateway_panels([("run", hop)])
    assert panel.title.startswith("Calls that wait for the gateway's capacity: at most ")
    title = chart([("run", hop)], "gateway").title
    share = hop.summary["breakdown"]["ttft"]["gateway_s"]["mean"] / hop.summary["latency"]["ttft_s"]["mean"]
    assert f"{share:.0%} in the gateway's hop" in title


def test_several_runs_are_lines(flow: Results) -> None:
    panels = gateway_panels([("one", flow), ("two", flow), ("none", run({"capacity": 9000.0}))])
    assert [layer.mark for panel in panels[:2] for layer in panel.layers] == ["line"] * 4
    assert [layer.frame["series"].iloc[0] for layer in panels[0].layers] == ["one", "two"]


def test_a_run_without_a_gateway_has_no_such_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = simulate({"workload": {"requests": 5, "arrivals": {"kind": "at_once"},
                                   "lengths": {"kind": "fixed", "prompt": 20, "output": 6}},
                      "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}]})
    assert gateway_panels([("plain", plain)]) == []
    with pytest.raises(InputError, match="nothing waits at a gateway in this run"):
        chart([("plain", plain)], "gateway")
    assert "<h2>Gateway</h2>" not in runs_page([("plain", plain)])
    write_results(plain, tmp_path / "plain")
    assert main(["plot", str(tmp_path / "plain"), "--kind", "gateway", "-o", str(tmp_path / "x.png")]) == 2
    assert "nothing waits at a gateway" in capsys.readouterr().err


@pytest.mark.long
def test_the_command_the_page_and_matplotlib_draw_it(tmp_path: Path, flow: Results) -> None:
    write_results(flow, tmp_path / "run")
    assert main(["plot", str(tmp_path / "run"), "--kind", "gateway", "-o", str(tmp_path / "gateway.png")]) == 0
    assert (tmp_path / "gateway.png").read_bytes().startswith(b"\x89PNG")
    made = chart([("run", flow)], "gateway")
    assert image(made, "png") == image(made, "png")
    assert len(draw(made).axes) == 3
    page = runs_page([("run", flow)])
    section = page[page.index("<h2>Gateway</h2>"):page.index("<h2>Charts</h2>")]
    assert "Held by flow control: at most" in section
    assert "What keeps them" in section
    assert "at the gateway" in section   # the table of classes, below
    assert page.count("<h2>Gateway") == 1
