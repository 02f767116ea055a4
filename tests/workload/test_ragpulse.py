"""RAGPulse's trace and traces with `hash_tokens`: import, checks, simulation, and the day that ships with HERMES."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hermes.cli import main
from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.results.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.testing.workload import TraceImporterContract
from hermes.workload import WorkloadConfig
from hermes.workload.importers import import_trace
from hermes.workload.ragpulse import RagPulseTrace
from hermes.workload.traces import read_trace, write_trace

FIXTURE = Path(__file__).resolve().parents[1] / "data" / "ragpulse"
TRACE = "0_trace.jsonl"


class TestContract(TraceImporterContract):
    text = "".join(
        json.dumps({"timestamp": t, "input_length": 600, "output_length": 5, "session_id": "a", "hash_ids": {
            "sys_prompt": [], "passages_ids": [], "history": [], "web_search": [], "user_input": []}}) + "\n"
        for t in ("3", "4"))

    def make(self) -> RagPulseTrace:
        return RagPulseTrace()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "ragpulse"))


def edit(folder: Path, name: str, change: Callable[[list[Any]], Any]) -> None:
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines() if line]
    change(rows)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        import_trace("ragpulse", folder)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(folder) + "/", "")


def test_rows_are_sorted_and_their_lengths_leave_the_request_some_tokens() -> None:
    frame = import_trace("ragpulse", FIXTURE)
    assert len(frame) == 28   # the blank line is none
    assert frame["arrival_s"].iloc[0] == 0
    assert (np.diff(frame["arrival_s"]) >= 0).all()
    own = frame["prompt_tokens"] - frame["hash_tokens"].map(sum)
    assert own.between(6, 12).all()
    by_file = import_trace("ragpulse", FIXTURE / TRACE)
    pd.testing.assert_frame_equal(frame, by_file)
    with pytest.raises(InputError, match="arrival not before the previous"):
        import_trace("ragpulse", FIXTURE, sort=False)


def test_prompts_share_what_stands_at_the_same_place(folder: Path) -> None:
    """A text behind another text has another hash; the same chain has the same hashes."""
    def chains(rows: list[Any]) -> None:
        web = {"web_search": [], "history": [], "user_input": []}
        system, other = rows[0]["hash_ids"]["sys_prompt"][:2]
        a, b = next(row["hash_ids"]["passages_ids"] for row in rows if row["hash_ids"]["passages_ids"])[:2]
        del rows[3:]
        for row, texts in zip(rows, ([a, b], [b, a], [a, b]), strict=True):
            row["hash_ids"] = {"sys_prompt": [system], "passages_ids": texts, **web}
            row["input_length"] = 2000
        rows[2]["hash_ids"]["sys_prompt"] = [system, other]

    edit(folder, TRACE, chains)
    assert import_trace("ragpulse", folder)["hash_ids"].tolist() == [[0, 1, 2], [0, 3, 4], [0, 5, 6, 7]]


def test_the_order_of_the_keys_is_the_order_of_the_texts(folder: Path) -> None:
    before = import_trace("ragpulse", folder)["hash_tokens"][0]
    edit(folder, TRACE, lambda rows: [row.update(hash_ids=dict(reversed(row["hash_ids"].items()))) for row in rows])
    after = import_trace("ragpulse", folder)["hash_tokens"][0]
    assert sorted(before) == sorted(after)
    assert before != after


@pytest.mark.parametrize(("change", "message"), [
    (lambda r: r.update(timestamp=82), f'{TRACE}:2: timestamp: expected seconds from 0 to 31622400 as text ("82")'),
    (lambda r: r.update(timestamp="604453000"), f"{TRACE}:2: timestamp: expected seconds from 0"),
    (lambda r: r.update(timestamp="noon"), f"{TRACE}:2: timestamp: expected seconds"),
    (lambda r: r.pop("session_id"), f"{TRACE}:2: session_id: expected a value, found none"),
    (lambda r: r.update(hash_ids=[1]), f"{TRACE}:2: hash_ids: expected lists of numbers under sys_prompt, "),
    (lambda r: r["hash_ids"].pop("history"), f"{TRACE}:2: hash_ids: expected lists of numbers under"),
    (lambda r: r["hash_ids"].update(history=["x"]), f"{TRACE}:2: hash_ids.history: expected a list of integers"),
    (lambda r: r["hash_ids"].update(history=[-7]), f"{TRACE}:2: hash_ids.history: expected a text of 3_history.jsonl"),
    (lambda r: r.update(input_length=20),
     f"{TRACE}:2: hash_ids: expected pieces of at most the row's prompt_tokens (20)"),
])
def test_malformed_rows(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    edit(folder, TRACE, lambda rows: change(rows[1]))
    assert refused(folder).startswith(message)


@pytest.mark.parametrize(("change", "message"), [
    (lambda rows: rows[0].update(token_length=0),
     "2_passages.jsonl:1: token_length: expected an integer of at least 1"),
    (lambda rows: rows[1].update(rows[0]),
     "2_passages.jsonl:2: passage_id: expected an integer that no other line has"),
    (lambda rows: rows[0].pop("passage_id"), "2_passages.jsonl:1: passage_id: expected a value, found none"),
])
def test_malformed_lengths(folder: Path, change: Callable[[list[Any]], Any], message: str) -> None:
    edit(folder, "2_passages.jsonl", change)
    assert refused(folder).startswith(message)


def test_a_missing_file_of_lengths(folder: Path) -> None:
    (folder / "3_history.jsonl").unlink()
    assert refused(folder).startswith("3_history.jsonl: expected")


# -- hash_tokens in any trace --------------------------------------------------------------------------------------

ROWS = {"arrival_s": [0.0, 1.0], "prompt_tokens": [50, 40], "output_tokens": [4, 4], "hash_ids": [[0, 1], [0, 2]],
        "hash_tokens": [[20, 25], [20, 20]]}


@pytest.mark.parametrize(("column", "values", "message"), [
    ("hash_tokens", [[20], [20, 20]], r"hash_tokens\[0\]: expected a number for each of the row's 2 hash_ids"),
    ("hash_tokens", [[20, 25], [20, 21]],
     r"hash_tokens\[1\]: expected pieces of at most the row's prompt_tokens \(40\)"),
    ("hash_tokens", [[20, 0], [20, 20]], r"hash_tokens\[0\]: expected a list of integers of at least 1"),
    ("hash_ids", None, "expected a column hash_ids"),
])
def test_checks(tmp_path: Path, column: str, values: Any, message: str) -> None:
    rows = ROWS | {column: values}
    with pytest.raises(InputError, match=message):
        write_trace(pd.DataFrame({k: v for k, v in rows.items() if v is not None}), tmp_path / "t.parquet", source="t")


def test_kept_truncated_and_replaced(tmp_path: Path) -> None:
    write_trace(pd.DataFrame(ROWS), tmp_path / "t.parquet", source="test")
    part = {"kind": "trace", "path": "t.parquet"}

    def draw(**options: Any) -> Any:
        config = {"arrivals": part, "lengths": part} | options
        return WorkloadConfig.model_validate(config).draw(1, tmp_path)

    assert draw().hash_tokens == [(20, 25), (20, 20)]
    cut = draw(max_total_tokens=31)
    assert (cut.hash_ids, cut.hash_tokens) == ([(0, 1), (0, 2)], [(20, 10), (20, 10)])
    cut = draw(max_total_tokens=21)
    assert (cut.hash_ids, cut.hash_tokens) == ([(0,), (0,)], [(20,), (20,)])
    assert draw(prefixes={"groups": 1, "tokens": 5}).hash_tokens is None


def rows_of(trace: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    part = {"kind": "trace", "path": str(trace)}
    scenario = load_scenario({
        "workload": {"arrivals": part | {"rate": 20}, "lengths": part},
        "clients": [{"count": 2, "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
                     "memory": {"num_blocks": 400, "block_size": 16, "prefix_caching": True}}],
    })
    record = build(scenario).run()
    return record.stages, Results(record, {}, scenario.slo).summary


@pytest.mark.parametrize("unit", [16, 40])
def test_equal_lengths_give_the_results_of_hash_block_tokens(tmp_path: Path, unit: int) -> None:
    rng = np.random.default_rng(unit)
    prompts = rng.integers(30, 900, 150)
    ids = [[int(100 * (i % 3) + b) if b < 8 else 1000 * (i + 1) + b for b in range(-(-n // unit))]
           for i, n in enumerate(prompts.tolist())]
    frame = pd.DataFrame({"arrival_s": np.sort(rng.random(150) * 10), "prompt_tokens": prompts,
                          "output_tokens": rng.integers(1, 60, 150), "hash_ids": ids})
    write_trace(frame, tmp_path / "blocks.parquet", source="test", hash_block_tokens=unit)
    frame["hash_tokens"] = [[min(unit, n - unit * b) for b in range(len(each))]
                            for n, each in zip(prompts.tolist(), ids, strict=True)]
    write_trace(frame, tmp_path / "pieces.parquet", source="test")
    (blocks, summary), (pieces, other) = (rows_of(tmp_path / f"{name}.parquet") for name in ("blocks", "pieces"))
    assert summary == other
    assert blocks["cached_tokens"].sum() > 0
    for name, column in blocks.items():
        np.testing.assert_array_equal(column, pieces[name], err_msg=name)


def test_trace_cache_cuts_pieces_into_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(pd.DataFrame(ROWS), tmp_path / "t.parquet", source="test")
    assert main(["trace", "cache", str(tmp_path / "t.parquet"), "--block-tokens", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["blocks"], found["block_tokens"], found["caches"][0]["hits"]) == (8, 10, 2)


def test_the_day_that_ships() -> None:
    table = read_trace(resource_dir("traces") / "ragpulse-day.parquet")
    assert len(table) == 937
    assert table.hash_tokens is not None
    own = table.prompt_tokens - np.array([sum(tokens) for tokens in table.hash_tokens])
    assert (own.min(), own.max()) == (6, 12)
    assert table.hash_ids is not None
    assert table.hash_ids[0][0] == 0
