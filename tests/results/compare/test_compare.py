from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_records import by_hand, random_record

from hermes.api import simulate
from hermes.errors import InputError
from hermes.results.compare import compare
from hermes.results.compare.reference import ReferenceMapping, guess_mapping, load_reference, mapping_from_options
from hermes.results.files.export import write_results
from hermes.results.results import Results


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def ours_as_csv(path: Path, factor: float = 1.0) -> Path:
    """What by_hand answers, times `factor`, in splitwise-sim's columns."""
    rows = Results(by_hand()).requests.query("status == 'completed'")
    lines = ["request_id,arrival,response_times,ttft_times,tbt_times,token_sizes"]
    for row in rows.itertuples():
        tbt = (row.e2e_s - row.ttft_s) / row.output_tokens
        lines.append(f"{row.request},{row.arrival_s!r},{row.e2e_s * factor!r},{row.ttft_s * factor!r},"
                     f"{tbt * factor!r},{row.output_tokens}")
    return write(path, "\n".join(lines) + "\n")


def test_against_itself(tmp_path: Path) -> None:
    table = compare(Results(by_hand()), ours_as_csv(tmp_path / "ref.csv"), "splitwise")
    assert {row.metric for row in table.rows} == {"ttft", "tpot", "tbt", "e2e"}
    assert all(row.error == pytest.approx(0, abs=1e-12) for row in table.rows)
    assert (table.ours, table.reference, table.joined) == (4, 4, 4)
    assert all(entry.max == pytest.approx(0, abs=1e-12) for entry in table.per_request)


@pytest.mark.feature("Scenarios and commands", "`hermes compare` with a run or with measurements")
def test_errors_are_ours_over_theirs(tmp_path: Path) -> None:
    table = compare(Results(by_hand()), ours_as_csv(tmp_path / "ref.csv", factor=0.8))
    assert all(row.error == pytest.approx(0.25) for row in table.rows)
    assert table.error("ttft", "p99") == pytest.approx(0.25)
    e2e = next(entry for entry in table.per_request if entry.metric == "e2e")
    assert (e2e.count, e2e.mean_error, e2e.p50) == (4, pytest.approx(0.25), pytest.approx(0.25))
    tbt = next(entry for entry in table.per_request if entry.metric == "tbt")
    assert tbt.count == 3  # the single token has none
    for shown in (table.to_text(), table._repr_html_()):
        assert "+25.00%" in shown
        assert "TBT" in shown
    assert json.loads(json.dumps(table.to_dict(), allow_nan=False))["requests"]["joined"] == 4
    with pytest.raises(InputError, match="one of ttft mean"):
        table.error("nothing")


def test_a_folder_is_a_run(tmp_path: Path) -> None:
    write_results(Results(by_hand()), tmp_path / "run")
    table = compare(tmp_path / "run", ours_as_csv(tmp_path / "ref.csv"))
    assert table.error("tbt", "p90") == pytest.approx(0, abs=1e-12)


def test_tbt_is_splitwise_tbt(tmp_path: Path) -> None:
    file = write(tmp_path / "r.csv", "a,t,f,n\n1.0,1.5,3.5,4\n")
    mapping = ReferenceMapping(arrival="a", first_token="t", finish="f", output_tokens="n")
    columns = load_reference(file, mapping).columns
    assert {name: columns[name].tolist() for name in ("ttft", "e2e", "tpot", "tbt")} == {
        "ttft": [0.5], "e2e": [2.5], "tpot": [2.0 / 3], "tbt": [0.5],
    }


def test_json_lines_units_and_nested_keys(tmp_path: Path) -> None:
    rows = [{"request_id": f"bench-{i}", "m": {"ttft": 10.0 * (i + 1)}, "e2e": 0.5, "x": None} for i in range(3)]
    file = write(tmp_path / "r.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    mapping = mapping_from_options(["ttft=m.ttft:ms", "e2e=e2e", "id=request_id", "tpot=x"])
    reference = load_reference(file, mapping)
    assert reference.columns["ttft"].tolist() == [0.010, 0.020, 0.030]
    assert reference.columns["e2e"].tolist() == [0.5] * 3
    assert np.isnan(reference.columns["tpot"]).all()
    assert reference.ids is not None
    assert reference.ids.tolist() == [0, 1, 2]
    assert load_reference(file, mapping_from_options(["unit=us", "e2e=e2e"])).columns["e2e"][0] == 0.5 / 1e6


@pytest.mark.parametrize("times", ["100;110;135", "[100, 110, 135]"])
def test_token_times(tmp_path: Path, times: str) -> None:
    file = write(tmp_path / "r.csv", f'tt\n"{times}"\n7\n""\n')
    mapping = mapping_from_options(["token_times=tt:ms"])
    itl = load_reference(file, mapping).itl_s
    assert itl is not None
    np.testing.assert_allclose(itl, [0.010, 0.025])
    with pytest.raises(InputError, match=r"the run has 6 requests \(4 completed\), the reference 3"):
        compare(Results(by_hand()), file, mapping)
    table = compare(Results(by_hand()), file, mapping, allow_different_requests=True)
    assert [row.metric for row in table.rows] == ["itl"] * 4
    assert table.joined is None


def test_mapping_file_and_options(tmp_path: Path) -> None:
    file = write(tmp_path / "m.yaml", "unit: ms\nttft: a\ne2e: {column: b, unit: s}\n")
    mapping = mapping_from_options(["ttft=c"], file)
    assert mapping.column("ttft") == ("c", 1e3)
    assert mapping.column("e2e") == ("b", 1.0)
    assert mapping.column("tpot") is None
    with pytest.raises(InputError, match=r"m.yaml:2:1: tttf: .*did you mean 'ttft'"):
        mapping_from_options([], write(tmp_path / "m.yaml", "unit: ms\ntttf: a\n"))


@pytest.mark.parametrize(("option", "message"), [
    ("ttft", "field=column"), ("ttft=", "field=column"), ("tttf=a", "did you mean 'ttft'"), ("unit=h", "unit"),
])
def test_bad_options(option: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mapping_from_options([option])


def test_guessing(tmp_path: Path) -> None:
    assert guess_mapping(ours_as_csv(tmp_path / "a.csv")).column("e2e") == ("response_times", 1.0)
    file = write(tmp_path / "b.csv", "request,ttft_ms,e2e_s,output_tokens,other\n0,10,0.03,3,x\n")
    mapping = guess_mapping(file)
    assert (mapping.id, mapping.column("ttft"), mapping.column("e2e")) == ("request", ("ttft_ms", 1e3), ("e2e_s", 1.0))
    table = compare(Results(by_hand()), file, allow_different_requests=True)
    ttft = next(entry for entry in table.per_request if entry.metric == "ttft")
    assert ttft.mean == pytest.approx(0, abs=1e-9)


def test_join_by_order(tmp_path: Path) -> None:
    file = write(tmp_path / "r.csv", "ttft\n0.010\n0.080\n0.035\n1\n1\n0.115\n")
    table = compare(Results(by_hand()), file, mapping_from_options(["ttft=ttft", "join=order"]))
    assert (table.joined, table.per_request[0].count) == (4, 4)
    assert table.per_request[0].max == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("text", "options", "message"), [
    ("", ["ttft=t"], r"r.csv:1: expected a header line with distinct column names"),
    ("t\n", ["ttft=t"], r"r.csv: expected at least one request"),
    ("t,u\n1,2\n3\n", ["ttft=t"], r"r.csv:3: expected 2 fields, found 1"),
    ("t\n1\nx\n", ["ttft=t"], r"r.csv:3: t: expected a number, found 'x'"),
    ("t\n1\ninf\n", ["ttft=t"], r"r.csv:3: t: expected a finite number"),
    ("t\n1\n-1\n", ["ttft=t"], r"r.csv:3: ttft: expected a number of at least 0, found -1"),
    ("tt\n1\n", ["ttft=t"], r"r.csv: expected a column t, found columns tt"),
    ("i,t\n1,1\n2,1\n1,1\n", ["ttft=t", "id=i"],
     r"r.csv:4: i: expected each request once, found 1 again \(first in line 2\)"),
    ("i,t\nx,1\n", ["ttft=t", "id=i"], r"r.csv:2: i: expected a request number, found 'x'"),
    *((f"i,t\n{text},1\n", ["ttft=t", "id=i"], r"r.csv:2: i: expected a request number, found")
      for text in ("2**3", "-3", "1.5", "1e3", "0x10", "1_000", "\u0663", "a\u0663")),
    ("t\n1_000\n", ["ttft=t"], r"r.csv:2: t: expected a number, found '1_000'"),
    ("t\n\u0661\n", ["ttft=t"], r"r.csv:2: t: expected a number"),
    (f"t\n{'[' * 100_000}\n", ["token_times=t"], r"r.csv:2: t: expected a list of times"),
    ("t\n1;x\n", ["token_times=t"], r"r.csv:2: t: expected a list of times"),
    ("t\n{}\n", ["token_times=t"], r"r.csv:2: t: expected a list of times"),
    ("t\n1\n", ["ttft=t", "join=id"], "a mapping of id"),
    ("t\n1\n", ["join=order"], "a mapping of at least one of"),
    ("t\n1\n", ["arrival=t"], "at least one of ttft, tpot, tbt, e2e"),
    ("t\n\"1\n", ["ttft=t"], r"r.csv:\d: expected a CSV file"),
])
def test_malformed(tmp_path: Path, text: str, options: list[str], message: str) -> None:
    file = write(tmp_path / "r.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        compare(Results(by_hand()), file, mapping_from_options(options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ('{"t": 1}\n{"t": ', r"r.jsonl:2:7: expected valid JSON"),
    ("[1]\n", r"r.jsonl:1: expected a JSON object"),
    ('{"t": 1}\n{"t": true}\n', r"r.jsonl:2: t: expected a number, found true"),
    ('{"t": 1}\n{"t": [1]}\n', r"r.jsonl:2: t: expected a number"),
    ('{"t": 1}\n{"u": 1}\n', r"r.jsonl:2: t: expected a value, found none"), ("[" * 100_000, "r.jsonl:1: "),
    ('{"t": 1' + "0" * 400 + "}", "r.jsonl:1: t: "),
])
def test_malformed_json_lines(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "r.jsonl", text)
    with pytest.raises(InputError, match=message):
        compare(Results(by_hand()), file, mapping_from_options(["ttft=t"]))


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a CSV file, found no such file"):
        compare(Results(by_hand()), tmp_path / "none.csv", "splitwise")
    (tmp_path / "r.csv").write_bytes(b"t\n\xff\n")
    with pytest.raises(InputError, match="a CSV file in UTF-8"):
        compare(Results(by_hand()), tmp_path / "r.csv", mapping_from_options(["ttft=t"]))
    with pytest.raises(InputError, match="one of splitwise"):
        compare(Results(by_hand()), tmp_path / "r.csv", "nobody")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.sampled_from(["csv", "jsonl"]))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes, suffix: str) -> None:
    file = tmp_path_factory.mktemp("fuzz") / f"r.{suffix}"
    file.write_bytes(raw)
    with suppress(InputError):
        load_reference(file, ReferenceMapping(ttft="t"))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_statistics_scale(tmp_path_factory: pytest.TempPathFactory, seed: int, factor: float) -> None:
    results = Results(random_record(seed)[0])
    done: Any = results.requests.query("status == 'completed'")
    if done.empty:
        return
    file = tmp_path_factory.mktemp("scale") / "r.csv"
    write(file, "id,e2e\n" + "".join(f"{r.request},{r.e2e_s * factor!r}\n" for r in done.itertuples()))
    table = compare(results, file, ReferenceMapping(id="id", e2e="e2e"))
    assert table.joined == len(done)
    for row in table.rows:
        assert row.error == pytest.approx(1 / factor - 1, rel=1e-6, abs=1e-9)
    size = abs(1 / factor - 1)
    assert not math.isnan(size)
    assert table.per_request[0].max == pytest.approx(size, rel=1e-6, abs=1e-9)


# -- the same requests -------------------------------------------------------------------------------------------------


def scenario(rate: float, **changes: Any) -> Results:
    data = {
        "seed": 3, "clients": [{"hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                                "memory": {"num_blocks": 999}}],
        "workload": {"requests": 12, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 200, "output": 3}, **changes},
        "slo": {"ttft": "1 s"},
    }
    return simulate(data)


@pytest.fixture(scope="module")
def slow() -> Results:
    return scenario(1.5)


@pytest.mark.parametrize("kind", ["folder", "parquet", "csv", "without ids"])
def test_a_reference_at_half_the_rate_is_refused(slow: Results, tmp_path: Path, kind: str) -> None:
    """It used to print an error of the latencies that was the load's."""
    fast, reference = scenario(3), tmp_path / "slow"
    write_results(slow, reference)
    if kind != "folder":
        reference /= "requests.parquet"
    if kind in ("csv", "without ids"):
        reference = tmp_path / "slow.csv"
        slow.requests.drop(columns=["request"] if kind == "without ids" else []).to_csv(reference, index=False)
    found = r"not the same requests: request \d+ (in order )?arrives 0\.\d+ s after the first in"
    with pytest.raises(InputError, match=found) as caught:
        compare(fast, reference)
    assert "--allow-different-requests" in str(caught.value)
    table = compare(fast, reference, allow_different_requests=True)
    for shown in (table.to_text(), table._repr_html_()):
        assert "NOT the same requests: request" in shown
    assert "arrives" in table.to_dict()["different_requests"]
    same = compare(slow, reference)
    assert same.different_requests is None
    assert ("ids" in same.checked) == (kind != "without ids")
    assert {"arrivals", "prompt tokens", "output tokens"} <= set(same.checked)
    assert all(row.error == pytest.approx(0, abs=1e-9) for row in same.rows if row.error is not None)


@pytest.mark.parametrize(("change", "said"), [
    ({"output_tokens": 4}, "request 7 has 3 output tokens in the run, 4 in the reference"),
    ({"prompt_tokens": 1999}, "request 7 has 200 prompt tokens in the run, 1,999 in the reference"),
    ({"request": 12}, r"request 12 of the reference does not exist in the run \(0 to 11\)"),
    ({"arrival_s": 99.0}, "request 7 arrives .* s after the first in the run, .* s after it in the reference"),
    (None, "request 7 of the run is not in the reference"),
])
def test_the_first_difference_is_named(slow: Results, tmp_path: Path, change: dict[str, float] | None, said: str
                                       ) -> None:
    frame = slow.requests
    frame = frame.drop(index=7) if change is None else frame.astype({"arrival_s": float})
    for name, value in (change or {}).items():
        frame.loc[7, name] = value
    frame.to_csv(tmp_path / "r.csv", index=False)
    with pytest.raises(InputError, match=said) as caught:
        compare(slow, tmp_path / "r.csv")
    assert "\n" not in str(caught.value)


def test_clocks_may_differ_and_drivers_may_be_late(slow: Results, tmp_path: Path) -> None:
    frame = slow.requests.astype({"arrival_s": float})
    frame["arrival_s"] += 1e9 + np.linspace(0, 0.09, len(frame))
    frame.to_csv(tmp_path / "r.csv", index=False)
    assert "arrivals" in compare(slow, tmp_path / "r.csv").checked


def test_lengths_without_ids(slow: Results, tmp_path: Path) -> None:
    lines = ["ttft_s,output_tokens", *(f"{0.1 * n},{3 + (n == 5)}" for n in range(12))]
    file = write(tmp_path / "r.csv", "\n".join(lines))
    with pytest.raises(InputError, match="request 11 in order by output tokens has 3 output tokens in the run, 4 in"):
        compare(slow, file)


def test_arrivals_of_a_closed_loop_are_results(tmp_path: Path) -> None:
    """Of a faster system the next request comes earlier: the workload is still the same."""
    loop = {"arrivals": {"kind": "closed_loop", "users": 2, "think": "1 s"}}
    first, second = scenario(1, **loop), scenario(1, **loop, lengths={"kind": "fixed", "prompt": 200, "output": 90})
    with pytest.raises(InputError, match="request 0 has 3 output tokens in the first, 90 in the second"):
        compare(first, second)
    second.record.output_tokens[:] = 3
    assert compare(first, second).checked == ["ids", "prompt tokens", "output tokens"]


def test_run_against_run(slow: Results, tmp_path: Path) -> None:
    write_results(slow, tmp_path / "x" / "one")
    twice = scenario(1.5)
    twice.record.stages["first_token_ns"] = twice.record.stages["first_token_ns"] + 10**6
    write_results(twice, tmp_path / "x" / "two")
    table = compare(tmp_path / "x" / "two", tmp_path / "x" / "one")
    assert (table.names, table.joined) == (("two", "one"), 12)
    assert {row.metric for row in table.rows} == {"ttft", "tpot", "itl", "e2e", "queue"}
    totals = {row.name: row.error for row in table.totals}
    assert totals["headline.served_per_s"] == pytest.approx(0)
    assert {"headline.goodput_share", "energy.total_j", "cost.dollars_per_hour"} <= set(totals)
    assert "difference" in table.to_text()
    assert json.loads(json.dumps(table.to_dict(), allow_nan=False))["totals"]
    with pytest.raises(InputError, match="a run needs no mapping"):
        compare(slow, tmp_path / "x" / "one", "splitwise")
    with pytest.raises(InputError, match="finished results"):
        compare(slow, tmp_path)


def test_an_interrupted_run_is_said(slow: Results, tmp_path: Path) -> None:
    write_results(Results(slow.record, {**slow.meta, "interrupted": True}), tmp_path / "cut")
    write_results(slow, tmp_path / "whole")
    for pair, who in (((tmp_path / "cut", tmp_path / "whole"), "cut"), ((tmp_path / "whole", tmp_path / "cut"), "cut"),
                      ((tmp_path / "cut", tmp_path / "whole" / "requests.parquet"), "ours")):
        table = compare(*pair)
        assert f"{who} was interrupted" in table.to_text()
        assert table.to_dict()["interrupted"] == [who]
    assert not compare(slow, tmp_path / "whole").interrupted


def test_parquet_has_the_columns_of_csv(tmp_path: Path) -> None:
    rows = [{"id": i, "m": {"ttft": 10.0 * (i + 1)}, "tt": [100.0, 110.0], "n": None} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    mapping = mapping_from_options(["ttft=m.ttft:ms", "token_times=tt:ms", "id=id"])
    reference = load_reference(tmp_path / "r.parquet", mapping)
    assert reference.columns["ttft"].tolist() == [0.010, 0.020, 0.030]
    assert reference.ids is not None
    assert reference.itl_s is not None
    np.testing.assert_allclose(reference.itl_s, [0.010] * 3)
    with pytest.raises(InputError, match=r"r.parquet: expected a column x, found columns id, m, tt, n"):
        load_reference(tmp_path / "r.parquet", mapping_from_options(["ttft=x"]))
    write(tmp_path / "no.parquet", "PAR1 no")
    with pytest.raises(InputError, match="expected a Parquet file"):
        compare(Results(by_hand()), tmp_path / "no.parquet", mapping)
    with pytest.raises(InputError, match="no such file"):
        compare(Results(by_hand()), tmp_path / "none.parquet", mapping)
