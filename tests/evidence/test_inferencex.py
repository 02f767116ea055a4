"""The readers of InferenceX's closed loops, on made-up rows and on the recorded ones where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from outside import OUTSIDE
from scripts_loaded import load

from evidence.accuracy.inferencex import (
    MINIMAX,
    MORE,
    SGLANG,
    inferencex,
    inferencex_minimax,
    inferencex_more,
    parallel_of,
    sweep,
)
from evidence.accuracy.peers import Setting, peer_errors, read_peers
from evidence.accuracy.served import Row
from hermes.errors import InputError

Reader = Callable[[Path], Iterator[Row]]
LARGE = "steps of 32,768 tokens"
DATA = OUTSIDE / "data"
HEAD = ("card,tp,ep,input_tokens,output_tokens,concurrency,image,median_ttft_s,p99_ttft_s,median_tpot_s,p99_tpot_s,"
        "median_e2e_s,output_tokens_per_s_per_gpu\n")
MORE_HEAD = ("card,engine,precision,tp,ep,input_tokens,output_tokens,concurrency,date,median_ttft_ms,median_tpot_ms,"
             "median_e2e_ms,tokens_per_s_per_gpu\n")
MINIMAX_HEAD = ("layout,input_tokens,concurrency,mean_input_tokens,ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,tpot_p99_ms,"
                "e2e_p50_ms,output_tokens_per_s\n")
SMALL = {"model": "llama-3.1-8b", "device": "h100-sxm", "engine": "vllm-0.15"}


def write(folder: Path, rows: str, name: str = SGLANG, head: str = HEAD) -> Path:
    (folder / "inferencex").mkdir()
    (folder / "inferencex" / f"{name}.csv").write_text(head + rows)
    return folder


def test_a_row_is_a_closed_loop_of_ten_prompts_a_user(tmp_path: Path) -> None:
    rows = list(inferencex(write(tmp_path, "h200,8,1,512,64,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20\n")))
    found = {(row.metric, row.stat): row for row in rows}
    assert set(found) == {("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p50"),
                          ("output tokens/s", "mean")}
    case = found["e2e", "p50"].case
    assert (case.engine, case.card, case.case) == ("sglang v0.5.12", "h200 tp8", "512 in, 64 out, 2 users")
    assert case.trust is not None
    assert case.trust.kind == "guess", "latent attention, and another engine's host times"
    assert found["output tokens/s", "mean"].measured == 160.0
    e2e = found["e2e", "p50"].predicted
    assert found["output tokens/s", "mean"].predicted == pytest.approx(2 * 0.9 * 64 / e2e, rel=0.15), "Little's law"


def test_watts_are_scored_in_rows_that_have_them(tmp_path: Path) -> None:
    folder = write(tmp_path, "h200,8,1,512,64,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20,\n"
                             "h200,8,1,512,96,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20,400\n")
    path = folder / "inferencex" / f"{SGLANG}.csv"
    path.write_text(path.read_text().replace("_per_gpu\n", "_per_gpu,watts_per_gpu\n", 1))
    (found,) = [row for row in inferencex(folder) if row.metric == "watts"]
    assert (found.case.case, found.measured) == ("512 in, 96 out, 2 users", 3200.0)
    idle_w, limit_w = 8 * 75, 8 * 700
    assert idle_w < found.predicted < limit_w


def test_engines_precisions_and_whole_experts_by_row(tmp_path: Path) -> None:
    rows = list(inferencex_more(write(
        tmp_path, "h200,trt,fp8,8,8,512,64,2,2026-05-18,80,10,600,40\n"
                  "b200,sglang,fp4,4,1,512,64,2,2025-11-10,80,10,600,40\n"
                  "mi355x,sglang,fp4,4,1,512,64,2,2026-06-11,80,10,600,40\n", MORE, MORE_HEAD)))
    cases = list(dict.fromkeys((row.case.set, row.case.engine, row.case.card) for row in rows))
    assert cases == [("InferenceX, trt fp8", "trtllm-1.2", "h200 tp8 ep8"),
                     ("InferenceX, sglang fp4", "sglang", "b200 tp4"),
                     ("InferenceX, sglang fp4", "sglang", "mi355x tp4")]
    total = [row for row in rows if row.metric == "tokens/s"]
    assert [row.measured for row in total] == [320.0, 160.0, 160.0], "of all cards"
    for row in total:
        (e2e,) = (other.predicted for other in rows if other.case == row.case and other.metric == "e2e")
        assert row.predicted == pytest.approx(2 * 0.9 * (512 + 64) / e2e, rel=0.15), "prompts count too"
    assert all(row.case.trust is not None and row.case.trust.kind == "guess" for row in rows)


def test_prompts_of_an_earlier_run_are_in_the_prefix_cache_until_they_are_evicted() -> None:
    def cached(memory: dict[str, int], before: list[int]) -> float:
        requests = sweep({**SMALL, "memory": memory}, 1024, 4, before, output=8)[0].requests.iloc[-40:]
        return float(requests["cached_tokens"].sum() / requests["prompt_tokens"].sum())

    roomy, tight = {"num_blocks": 4000}, {"num_blocks": 1000}   # 62 and 15 prompts of 64 blocks
    assert cached(roomy, []) == 0.0
    assert cached(roomy, [2]) == pytest.approx(0.5, abs=0.01), "20 of the 40; the last block of each is computed again"
    assert cached(tight, [2]) == 0.0, "the run evicts each prompt just before it asks for it"


def test_runs_of_a_length_follow_each_other_from_few_users_to_many(tmp_path: Path) -> None:
    rows = list(inferencex_minimax(write(
        tmp_path, "tep8,8192,4,8192.0,477,861,13,19,2412,212\ntep8,8192,2,8192.0,477,861,13,19,2412,212\n", MINIMAX,
        MINIMAX_HEAD)))
    assert len({row.case.case for row in rows}) == 2
    assert len(rows) == 2 * 6
    assert {(row.case.card, row.case.engine, row.case.model) for row in rows} == {
        ("h200 tep8", "vllm-0.15", "minimax-m2.5")}
    two, four = (next(row.predicted for row in rows if row.case.case.endswith(f"{users} users") and row.metric == "ttft"
                      and row.stat == "p50") for users in (2, 4))
    assert four < two, "half of the prompts of four users were asked by two before"


@pytest.mark.parametrize(("layout", "parallel"), [
    ("tp8", {"tp": 8}), ("tep8", {"tp": 8, "ep": 8}), ("dep4", {"dp": 4, "ep": 4}), ("tep1", {"tp": 1})])
def test_layouts(layout: str, parallel: dict[str, int]) -> None:
    assert parallel_of(layout, Path("rows.csv")) == parallel


@pytest.mark.parametrize(("rows", "name", "head", "reader", "what"), [
    ("h200,8,1,many,64,2,v0.5.12,0.08,0.8,0.01,0.011,0.6,20\n", SGLANG, HEAD, inferencex, "input_tokens"),
    ("h200,vllm,fp8,8,8,512,64,2,2026-05-18,80,10,600,40\n", MORE, MORE_HEAD, inferencex_more,
     "engine: expected one of sglang, trt"),
    ("h200,trt,int3,8,8,512,64,2,2026-05-18,80,10,600,40\n", MORE, MORE_HEAD, inferencex_more,
     "precision: expected one of fp8, fp4"),
    ("pp8,1024,4,1024.0,477,861,13,19,2412,212\n", MINIMAX, MINIMAX_HEAD, inferencex_minimax,
     "layout: expected a layout: tpN, tepN or depN"),
])
def test_a_malformed_file_is_one_line(tmp_path: Path, rows: str, name: str, head: str, reader: Reader,
                                      what: str) -> None:
    with pytest.raises(InputError, match=f"{name}.csv.*{what}"):
        list(reader(write(tmp_path, rows, name, head)))


def test_the_best_of_other_simulators_is_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "peers.csv"
    head = "set,card,engine,precision,tp,ep,input_tokens,output_tokens,concurrency,metric,stat,predicted\n"
    row = "a,h200,trt,fp8,8,1,512,64,2,{},p50,{}\n"
    path.write_text(head + row.format("ttft", 0.5) + row.format("ttft", 1.2) + row.format("tpot", 3.0))
    peers, setting = read_peers(path), Setting("a", "h200", "trt", "fp8", 8, 1, 512, 64, 2)
    assert peer_errors(setting, {("ttft", "p50"): 1.0, ("e2e", "p50"): 1.0}, peers) == {
        ("ttft", "p50"): pytest.approx(0.2)}
    assert peer_errors(setting._replace(ep=8), {("ttft", "p50"): 1.0}, peers) == {}
    path.write_text(head + row.format("ttft", "fast"))
    with pytest.raises(InputError, match=r"peers\.csv:2: predicted"):
        read_peers(path)


@pytest.mark.long
@pytest.mark.outside("data")
@pytest.mark.parametrize(("name", "reader"), [
    (SGLANG, inferencex), (MORE, inferencex_more), (MINIMAX, inferencex_minimax)])
def test_every_recorded_row_is_scored(name: str, reader: Reader) -> None:
    lines = (DATA / "inferencex" / f"{name}.csv").read_text().splitlines()
    assert len({(row.case.set, row.case.card, row.case.case) for row in reader(DATA)}) == len(lines) - 1


@pytest.mark.long
def test_the_causes_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = load("scripts/closed_loop_causes.py")
    assert script.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    folder = write(tmp_path, "tep8,1024,4,1024.0,477,861,13,19,2412,212\n"
                             "tep8,1024,48,1024.0,800,1500,24,66,3860,1162\n", MINIMAX, MINIMAX_HEAD)
    monkeypatch.setattr(script, "CHANGES", {name: script.CHANGES[name] for name in ("as it is", LARGE)})
    assert script.main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert "front end 30.5 us a prompt token" in out, "1.5 s for 48 prompts of 1,024 tokens"
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in out.splitlines() if line.startswith("| ")}
    assert len(rows["1024"]) == 10
    found = {name: float(rows[f"{name}: as it is"][2].split("(")[1].rstrip(") ")) for name in
             ("alone", "stretched, alone")}
    assert found["alone"] < -20 < found["stretched, alone"], "TPOT p50 of two runs, one of which it is stretched to"


@pytest.mark.long
@pytest.mark.outside("data/inferencex")
def test_the_throughput_falls_where_the_prompts_of_the_run_before_no_longer_fit() -> None:
    """MiniMax-M2.5 at 8,192 tokens: 64 users get fewer tokens/s than 48, as recorded."""
    rate = {row.case.case.split(", ")[2]: row for row in inferencex_minimax(DATA)
            if row.case.case.startswith("8192 in") and row.metric == "output tokens/s"}
    few, many = rate["48 users"], rate["64 users"]
    assert many.measured / few.measured == pytest.approx(0.62, abs=0.01)
    assert many.predicted / few.predicted < 0.8
