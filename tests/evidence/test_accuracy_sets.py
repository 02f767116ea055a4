"""Readers of reference sets, on small made-up data, and on the recorded ones where they are."""

import json
from pathlib import Path

import pandas as pd
import pytest
from outside import OUTSIDE
from scripts_loaded import load

from evidence.accuracy import table
from evidence.accuracy.llm_d import all_reduce_of_one_user, client_of, closed_loop, figures, served
from evidence.accuracy.recorded import cpu_runs
from hermes.cli import main
from hermes.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
DATA = OUTSIDE / "data"
BARS = ROOT / "tests" / "golden" / "accuracy-bars.yaml"
needs_data = pytest.mark.outside("data")
LINK = {"latency": 40e-6, "bandwidth": 150e9}
HEAD = "arrival_s,prompt_len,output_len,first_token_s,finish_s,mnbt,mns\n"


def deployment(users, **changes):
    """A row of a made-up server whose all-reduce takes 40 us + bytes / 150 GB/s."""
    row = pd.Series({
        "config": "a TP2", "pd": "Aggregated", "gpus": 2, "tp": 2, "concurrency": users, "input_tokens": 600,
        "output_tokens": 20, "num_prompts": 2 * users, "ttft_p50_ms": 0.0, "tpot_mean_ms": 0.0} | changes)
    found = figures(row, served(row, client_of(row, LINK)))
    times = {f"{name}_{stat}_ms": 1e3 * found[name, stat] for name in ("ttft", "e2e") for stat in ("mean", "p50")}
    if users == 1:   # the first of two prompts is cached
        more = pd.Series(row.to_dict() | {"num_prompts": 7})
        times["ttft_p50_ms"] = 1e3 * figures(more, served(more, client_of(row, LINK)))["ttft", "p50"]
    return row.to_dict() | times | {"tpot_mean_ms": 1e3 * found["tpot", "mean"],
                                    "total_tokens_per_s": found["tokens/s", "mean"]}


@pytest.fixture
def closed(tmp_path):
    folder = tmp_path / "h100" / "llm-d-prism"
    folder.mkdir(parents=True)

    def write(rows):
        pd.DataFrame(rows).to_csv(folder / "measured.csv", index=False)
        return tmp_path

    return write


def test_the_all_reduce_is_found_on_one_user_and_tested_on_the_others(closed):
    rows = [deployment(1), deployment(3)]
    found = all_reduce_of_one_user(pd.Series(rows[0]))
    assert found["latency"] == pytest.approx(40e-6, rel=0.01)
    assert found["bandwidth"] == pytest.approx(150e9, rel=0.01)
    errors = {(row.case.set, row.case.case, row.metric, row.stat): row.error for row in closed_loop(closed(rows))}
    tested = {key: error for key, error in errors.items() if key[0] == "llm-d, 1 user"}
    assert {key[1] for key in tested} == {"a TP2, 3 users"}, "the row it was found on is no test"
    assert max(map(abs, tested.values())) < 0.002
    assert errors["llm-d, tables", "a TP2, 1 users", "tpot", "mean"] < -0.1


def test_several_servers_are_a_pool(closed):
    pool = {"pd": "1:1", "gpus": 4, "config": "two TP2"}
    rows = list(closed_loop(closed([deployment(1, **pool), deployment(4, **pool)])))
    assert {row.case.set for row in rows} == {"llm-d x2, tables", "llm-d x2, NCCL", "llm-d x2, 1 user"}
    assert max(abs(row.error) for row in rows if "1 user" in row.case.set) < 0.01


def test_a_deployment_without_a_single_user_is_one_line(closed):
    with pytest.raises(InputError, match=r"measured.csv: a TP2: expected one row of a single user"):
        list(closed_loop(closed([deployment(2)])))
    with pytest.raises(InputError, match="expected a column total_tokens_per_s"):
        list(closed_loop(closed([{k: v for k, v in deployment(1).items() if k != "total_tokens_per_s"}])))


def test_an_online_run_of_any_rate_is_replayed(tmp_path):
    (tmp_path / "vllm-cpu").mkdir()
    with pytest.raises(InputError, match="an online run of the engine"):
        list(cpu_runs(tmp_path))
    file = tmp_path / "vllm-cpu" / "online-fast.csv"
    file.write_text(HEAD + "0.5,20,1,0.55,0.55,64,4\n0.1,100,3,0.2,0.26,64,4\n")
    rows = {(row.metric, row.stat): row for row in cpu_runs(tmp_path)}
    assert rows["ttft", "mean"].case.case == "fast"
    assert rows["ttft", "mean"].measured == pytest.approx((0.1 + 0.05) / 2)
    assert rows["tpot", "mean"].measured == pytest.approx(0.03), "an answer of one token has no time between tokens"
    assert 0.02 < rows["tpot", "mean"].predicted < 0.04
    file.write_text(HEAD + "0.5,20,1,soon,0.55,64,4\n")
    with pytest.raises(InputError, match=r"online-fast.csv:2: first_token_s"):
        list(cpu_runs(tmp_path))


def test_splitwise_sim_lies_in_the_data_or_beside_it(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    chosen = table.SETS["splitwise"]
    assert table.measure(data, "splitwise") is None
    assert chosen.absent(data) == f"no reference/splitwise in {data} or beside it"
    (tmp_path / "reference" / "splitwise").mkdir(parents=True)
    assert chosen.root(data) == tmp_path
    assert not chosen.absent(data)
    with pytest.raises(InputError, match="splitwise-sim's trace or answers"):
        table.measure(data, "splitwise")


@pytest.mark.thorough   # test_accuracy.py has all sets
@needs_data
def test_recorded_sets_keep_their_bars_but_for_one(capsys):
    names = [word for name in ("splitwise", "cpu", "llm-d") for word in ("--only", name)]
    assert main(["accuracy", "--data", str(DATA), *names, "--bars", str(BARS), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    missed = {(miss["set"], miss["metric"]) for miss in found["missed"]}
    assert missed == {("llm-d, 1 user", "tokens/s")}, "TP4 and TP8: one user does not show the all-reduce of eight"
    assert found["left_out"] == []


def test_single_assumptions_are_varied(closed, tmp_path, capsys):
    script = load("scripts/llm_d_causes.py")
    assert script.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    script.CHANGES = {"as it is": {}, "no room": {"memory": {"utilization": 0.3}}}
    assert script.main([str(closed([deployment(1), deployment(8)]))]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("a TP2: 40.")
    assert [line.split()[-1] for line in out[1:4]] == ["8", "+0.0%", "-"]
    (shown,) = (line for line in out if "latency that meets the TPOT" in line)
    assert float(shown.split()[-1]) == pytest.approx(40, abs=1), "the latency that its other row shows"
