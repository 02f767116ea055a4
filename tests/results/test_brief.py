"""The ten lines of a run: what stands in them, and that nothing is wider than 80 columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full
from synthetic_records import by_hand, random_record

import hermes
from hermes.cli import main
from hermes.results.brief import brief
from hermes.results.layout import Section, fitted, shortened, to_text
from hermes.results.results import Results
from hermes.results.slo import SloConfig

SCENARIO: dict[str, Any] = {
    "name": "a-name-that-goes-on-and-on-" * 5,
    "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 20.0},
                 "lengths": {"kind": "fixed", "prompt": 300, "output": 20}},
    "clients": [{"name": "a-client-whose-name-says-where-it-stands-and-what-it-serves-and-much-more", "count": 8,
                 "model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"prefix_caching": True},
                 "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}],
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}


def test_ten_lines() -> None:
    results = hermes.simulate(SCENARIO)
    results.meta["files"] = "runs/a; next: hermes plot runs/a -o a.png"
    lines = results.to_text().splitlines()
    first = [line[:9].strip() for line in lines]
    assert [word for word in first if word not in ("", "sources", "ranges", "assumes")] == [
        "requests", "rate", "TTFT", "TPOT", "E2E", "goodput", "binds", "KV", "cost", "files"]
    assert first.index("sources") == 9   # what the figures rest on comes after them
    assert first.index("assumes") > 9
    assert "all completed" in lines[0]
    assert "offered" in lines[1]
    assert "SLO met" in lines[5]
    assert "within TTFT <= 1 s, TPOT <= 50 ms" in lines[5]
    assert "GiB" in lines[7]
    assert "prefix hits 0.0% of prompts" in lines[7]
    assert "/M answer tokens, " in lines[8]
    assert "/M generated" in lines[8]


def test_where_compute_binds_the_option_that_work_waits_for_is_named() -> None:
    def binds(seqs: int) -> str:
        client = SCENARIO["clients"][0] | {"count": 1, "scheduler": {"kind": "chunked", "max_num_seqs": seqs}}
        load = {"requests": 400, "arrivals": {"kind": "poisson", "rate": 14.0},
                "lengths": {"kind": "fixed", "prompt": 3000, "output": 250}}
        results = hermes.simulate(SCENARIO | {"clients": [client], "workload": load})
        assert results.summary["binds"]["what"] == "compute"
        return " ".join(dict(brief(results.summary, results.meta))["binds"].split())

    assert re.search(r"work waits for it \d+% of the time, \d+% for slots \(max_num_seqs\)", binds(16))
    assert "max_num_seqs" not in binds(1024)


def test_eighty_columns_and_one_row_for_alike_clients() -> None:
    text = hermes.simulate(SCENARIO).to_text(verbose=True)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line for line in text.splitlines() if line.startswith("a-c")]
    assert all(" x 8" in row or "…" in row or row.split()[1] == "8" for row in rows)
    assert len([row for row in rows if "both" in row]) == 1
    assert " GB" not in text


@quick_and_full(8, 25)
@given(st.integers(0, 10**6))
def test_nothing_breaks_at_eighty_columns(seed: int) -> None:
    results = Results(random_record(seed)[0], {"name": "x" * 100}, SloConfig(ttft=1e-7, baseline_tpot=1e-8))
    assert max(map(len, results.to_text(verbose=True).splitlines())) <= 80
    html = results._repr_html_()
    assert html.count("<pre ") == html.count("</pre>") == 2   # the ten lines, and everything folded below
    assert all(title in html for title in ("the whole run", "latency", "clients"))


def test_what_is_missing_for_want_of_a_device_is_said() -> None:
    assert "no price and no power" not in Results(by_hand()).to_text()
    record = by_hand()
    for client in record.clients:
        client.idle_w = client.prefill_w = client.decode_w = 0.0
    assert "no price and no power: give the device, --set clients.0.device=NAME" in Results(record).to_text()


def test_all_rejected_says_why() -> None:
    small = {**SCENARIO["clients"][0], "memory": {"num_blocks": 2}}
    text = hermes.simulate({**SCENARIO, "clients": [small]}).to_text()
    assert ": 0 completed, 60 rejected" in text
    assert "nothing: no request was served" in text
    assert "\nrejected  60: " in text
    assert re.search(r"rejected 60: e\.g\. .*: needs \d+ KV blocks of 16 tokens ", " ".join(text.split()))


def test_long_names_are_cut_in_the_middle() -> None:
    assert shortened("prefill-rack-17-gpu-3", 11) == "prefi…gpu-3"
    assert shortened("short", 11) == "short"
    wide = Section("t", ("name", *("0123456789" for _ in range(9))), [("n" * 50, *("1" for _ in range(9)))], "note")
    parts = fitted(wide)
    assert [part.note for part in parts] == ["", "", "note"]
    assert [len(part.head) for part in parts] == [5, 5, 2]
    assert max(map(len, to_text(parts, 80).splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["-v"], []])
def test_the_command_line(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", "quickstart", "--set", "workload.requests=20", "-q", "-o", str(out), *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"hermes plot {out}" in " ".join(shown.split()).replace(" /", "/") or str(out)[:40] in shown
    assert ("KV capacity" in shown) is bool(arguments)
    assert max(map(len, shown.splitlines())) <= 80
