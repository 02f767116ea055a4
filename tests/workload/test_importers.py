"""Trace importers: each format's example, its options, and its malformed variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hermes.errors import InputError
from hermes.workload.importers import TRACE_IMPORTERS, import_trace
from hermes.workload.traces import read_trace, write_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
MOONCAKE = {"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [0, 7]}

BAILIAN = {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
           "type": "text", "turn": 2, "hash_ids": list(range(33))}
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def file(folder: Path, text: str, name: str = "in.csv") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


def refused(kind: str, path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        import_trace(kind, path, **options)
    return str(caught.value).replace(str(path), "FILE")


class TestAzure:
    @pytest.mark.feature("Workloads", (
        "`hermes trace import` of `azure`, `bailian`, `burstgpt`, `mooncake`, `ragpulse`, `tokens`, "
        "`vllm-bench`, `vllm-run`, `csv`, `parquet`; `hermes trace describe`, `hermes trace cache`"))
    def test_rows(self, tmp_path: Path) -> None:
        rows = "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
        frame = import_trace("azure", file(tmp_path, AZURE + rows))
        assert frame["arrival_s"].tolist() == [0.0, 4.314579]
        assert frame["prompt_tokens"].tolist() == [374, 396]
        assert frame["output_tokens"].tolist() == [44, 109]

    def test_time_zones(self, tmp_path: Path) -> None:
        rows = "2024-05-10 00:00:00.009930+00:00,1,1\n2024-05-10 01:00:00.5+01:00,1,1\n"
        assert import_trace("azure", file(tmp_path, AZURE + rows))["arrival_s"].tolist() == [0.0, 0.49007]

    def test_zero_tokens(self, tmp_path: Path) -> None:
        rows = "2023-11-16 18:15:46,374,0\n2023-11-16 18:15:50,396,109\n2023-11-16 18:15:51,0,9\n"
        path = file(tmp_path, AZURE + rows)
        assert refused("azure", path).startswith("FILE:4: ContextTokens: expected an integer from 1 to")
        dropped = import_trace("azure", path, zero_tokens="drop")
        assert dropped["arrival_s"].tolist() == [0.0]
        assert dropped["output_tokens"].tolist() == [109]
        one = import_trace("azure", path, zero_tokens="one")
        assert one["output_tokens"].tolist() == [1, 109, 9]
        assert one["prompt_tokens"].tolist() == [374, 396, 1]

    def test_order(self, tmp_path: Path) -> None:
        rows = "2023-11-16 18:15:50,1,1\n2023-11-16 18:15:46,2,2\n2023-11-16 18:15:50,3,3\n"
        path = file(tmp_path, AZURE + rows)
        text = refused("azure", path)
        assert text.startswith("FILE:3: TIMESTAMP: expected an arrival not before the previous row's (4.0")
        frame = import_trace("azure", path, sort=True)
        assert frame["prompt_tokens"].tolist() == [2, 1, 3]
        assert frame["arrival_s"].tolist() == [0.0, 4.0, 4.0]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("TIMESTAMP,Context,GeneratedTokens\n", "FILE: expected a column ContextTokens, found columns TIMESTAMP"),
            (AZURE + "yesterday,1,1\n", "FILE:2: TIMESTAMP: expected an ISO 8601 date and time, found 'yesterday'"),
            (AZURE + "99999-01-01,1,1\n", "FILE:2: TIMESTAMP: expected an ISO 8601 date and time"),
            (AZURE + "0001-01-01,1,1\n", "FILE"),
            (AZURE + ",1,1\n", "FILE:2: TIMESTAMP: expected an ISO 8601 date and time, found ''"),
            (AZURE + "2023-11-16 18:15:46,1,x\n", "FILE:2: GeneratedTokens: expected a number, found 'x'"),
            (AZURE + "2023-11-16 18:15:46,-1,1\n", "FILE:2: ContextTokens: expected an integer from 1 to"),
        ],
    )
    def test_malformed(self, tmp_path: Path, text: str, message: str) -> None:
        assert refused("azure", file(tmp_path, text)).startswith(message)

    def test_no_rows(self, tmp_path: Path) -> None:
        assert len(import_trace("azure", file(tmp_path, AZURE))) == 0


class TestMooncake:
    def test_rows_survive_a_round_trip(self, tmp_path: Path) -> None:
        lines = [MOONCAKE, MOONCAKE | {"timestamp": 1500, "hash_ids": []}]
        path = file(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n", "in.jsonl")
        write_trace(import_trace("mooncake", path), tmp_path / "t.parquet", source="test")
        table = read_trace(tmp_path / "t.parquet")
        assert table.arrival_ns is not None
        assert table.arrival_ns.tolist() == [0, 500_000_000]
        assert table.hash_ids == [(0, 7), ()]
        assert table.hash_block_tokens == 512

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "FILE:1:2: expected valid JSON (Expecting property name"),
            ("[1]", "FILE:1: expected a JSON object, found [1]"),
            ("[" * 100_000, "FILE:1: expected valid JSON (RecursionError)"),
            ("\n{}", "FILE:2: timestamp: expected a value, found none"),
            (json.dumps(MOONCAKE | {"timestamp": "x"}), "FILE:1: timestamp: expected a number, found 'x'"),
            (json.dumps(MOONCAKE | {"timestamp": None}), "FILE:1: timestamp: expected a"),
            (json.dumps(MOONCAKE | {"input_length": 10**400}), "FILE:1: input_length: expected a number"),
            (json.dumps(MOONCAKE | {"input_length": [1]}), "FILE:1: input_length: expected a number"),
            (json.dumps(MOONCAKE | {"input_length": {}}), "FILE:1: input_length: expected a number"),
            (json.dumps(MOONCAKE | {"hash_ids": [1.5]}), "FILE:1: hash_ids: expected a list of integers"),
            (json.dumps(MOONCAKE | {"hash_ids": 3}), "FILE:1: hash_ids: expected a list of integers"),
        ],
    )
    def test_malformed(self, tmp_path: Path, text: str, message: str) -> None:
        assert refused("mooncake", file(tmp_path, text)).startswith(message)

    def test_not_text(self, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(b"\xff\xfe")
        assert "UTF-8" in refused("mooncake", tmp_path / "in")
        assert "no such file" in refused("mooncake", tmp_path / "no")


    def test_a_file_of_other_blocks_is_refused(self, tmp_path: Path) -> None:
        """Bailian's files have the same keys, but seconds and blocks of 16: a thousand times too fast."""
        path = file(tmp_path, json.dumps(BAILIAN), "in.jsonl")
        text = refused("mooncake", path)
        assert text.startswith("FILE:1: hash_ids: expected a hash for each 512 of 521 prompt tokens (blocks of 16")
        assert text.endswith("import it as `bailian`), found 33 hashes")
        few = file(tmp_path, json.dumps(MOONCAKE | {"input_length": 5000}), "few.jsonl")
        assert "expected a hash for each 512 of 5000 prompt tokens" in refused("mooncake", few)


class TestBailian:
    def test_rows(self, tmp_path: Path) -> None:
        rows = [
            BAILIAN | {"chat_id": 1, "parent_chat_id": -1, "timestamp": 60.0},
            BAILIAN | {"chat_id": 2, "parent_chat_id": 55},   # what came before is not in the file
            BAILIAN | {"chat_id": 3, "parent_chat_id": 1, "hash_ids": list(range(32))},   # the partly filled one is not
            BAILIAN | {"chat_id": 4, "parent_chat_id": 55}, BAILIAN | {"chat_id": 5, "parent_chat_id": 3},
        ]
        frame = import_trace("bailian", file(tmp_path, "\n".join(map(json.dumps, rows))))
        assert frame["arrival_s"].round(9).tolist() == [0.0, 1.114, 1.114, 1.114, 1.114]
        assert frame["session"].tolist() == [0, 1, 0, 1, 0]
        assert frame["hash_ids"].map(len).tolist() == [33, 33, 32, 33, 33]
        assert TRACE_IMPORTERS.get("bailian")().hash_block_tokens == 16

    @pytest.mark.parametrize(("change", "message"), [
        ({"hash_ids": [1, 2]}, "FILE:1: hash_ids: expected a hash for each 16 of 521 prompt tokens"),
        ({"chat_id": "a"}, "FILE:1: chat_id: expected an integer, found 'a'"),
        ({"output_length": 0}, "FILE:1: output_length: expected an integer from 1"),
    ])
    def test_malformed(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        assert refused("bailian", file(tmp_path, json.dumps(BAILIAN | change))).startswith(message)

    def test_chats_that_go_round_in_circles(self, tmp_path: Path) -> None:
        rows = [BAILIAN | {"chat_id": a, "parent_chat_id": b} for a, b in ((1, 2), (2, 1), (3, 3), (4, 1))]
        frame = import_trace("bailian", file(tmp_path, "\n".join(map(json.dumps, rows))))
        assert frame["session"].tolist() == [0, 0, 1, 0]


class TestBurstGpt:
    ROWS = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"

    def test_failed_requests_are_dropped_and_counted(self, tmp_path: Path) -> None:
        path = file(tmp_path, BURSTGPT + self.ROWS)
        frame = import_trace("burstgpt", path)
        assert frame["arrival_s"].tolist() == [0.0, 113.0]
        assert frame["prompt_tokens"].tolist() == [472, 417]
        assert frame["output_tokens"].tolist() == [18, 276]
        assert frame.attrs == {"rows_dropped": 1}
        assert import_trace("burstgpt", path, zero_tokens="one")["output_tokens"].tolist() == [18, 1, 276]
        assert refused("burstgpt", path, zero_tokens="refuse").startswith("FILE:3: Response tokens: expected an")

    def test_a_part_of_it(self, tmp_path: Path) -> None:
        path = file(tmp_path, BURSTGPT + self.ROWS)
        assert import_trace("burstgpt", path, model="GPT-4")["prompt_tokens"].tolist() == [417]
        assert import_trace("burstgpt", path, log="Conversation log")["prompt_tokens"].tolist() == [472]
        assert "expected one of ChatGPT, GPT-4, found 'GPT4' (did you mean 'GPT-4'?)" in refused(
            "burstgpt", path, model="GPT4")

    def test_sessions_of_the_second_version(self, tmp_path: Path) -> None:
        text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        rows = "1,b,2.5,GPT-4,10,5,15,Chat\n2,,1,GPT-4,8,1,9,API log\n9,b,3,GPT-4,30,5,35,Chat\n"
        assert import_trace("burstgpt", file(tmp_path, text + rows))["session"].tolist() == [0, -1, 0]


class TestMapped:
    TEXT = "t;in;out;user;prio\n1700000000500;5;6;bob;1\n1700000001000;7;8;amy;0\n1700000002500;9;10;bob;0\n"
    OPTIONS: dict[str, Any] = {
        "arrival": "t", "arrival_unit": "ms", "prompt": "in", "output": "out", "session": "user", "priority": "prio",
    }

    def test_csv(self, tmp_path: Path) -> None:
        frame = import_trace("csv", file(tmp_path, self.TEXT), delimiter=";", **self.OPTIONS)
        assert frame.to_dict("list") == {
            "arrival_s": [0.0, 0.5, 2.0], "prompt_tokens": [5, 7, 9], "output_tokens": [6, 8, 10],
            "priority": [1, 0, 0], "session": [0, 1, 0],
        }

    def test_parquet(self, tmp_path: Path) -> None:
        frame = pd.read_csv(file(tmp_path, self.TEXT), sep=";")
        frame.to_parquet(tmp_path / "in.parquet")
        got = import_trace("parquet", tmp_path / "in.parquet", **self.OPTIONS)
        assert got["arrival_s"].tolist() == [0.0, 0.5, 2.0]
        assert got["session"].tolist() == [0, 1, 0]
        frame["t"] = pd.to_datetime(frame["t"], unit="ms")
        frame.to_parquet(tmp_path / "in.parquet")
        got = import_trace("parquet", tmp_path / "in.parquet", **self.OPTIONS | {"arrival_unit": "timestamp"})
        assert got["arrival_s"].tolist() == [0.0, 0.5, 2.0]
        assert "expected a column of numbers" in refused("parquet", tmp_path / "in.parquet", **self.OPTIONS)

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "timestamp"])
    def test_units(self, tmp_path: Path, unit: str) -> None:
        per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(unit)
        times = ["2024-01-01T00:00:00Z", "2024-01-01T00:00:02Z"] if per_s is None else [str(5 * per_s), str(7 * per_s)]
        text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},1,1\n" for at in times)
        assert import_trace("csv", file(tmp_path, text), arrival_unit=unit)["arrival_s"].tolist() == [0.0, 2.0]

    def test_errors_use_the_file_s_own_names(self, tmp_path: Path) -> None:
        path = file(tmp_path, self.TEXT.replace("5;6", "x;6"))
        text = refused("csv", path, delimiter=";", **self.OPTIONS)
        assert text.startswith("FILE:2: in: expected a number, found 'x'")
        text = refused("csv", path, delimiter=";", **self.OPTIONS | {"prompt": "inn"})
        assert text == "FILE: expected a column inn, found columns t, in, out, user, prio (did you mean 'in'?)"
        pd.DataFrame({"t": [1.0], "in": [0], "out": [1]}).to_parquet(tmp_path / "in.parquet")
        text = refused("parquet", tmp_path / "in.parquet", arrival="t", prompt="in", output="out")
        assert text.startswith("FILE: in[0]: expected an integer from 1 to")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("azur", {}, "did you mean 'azure'"), ("azure", {"sorted": True}, "did you mean 'sort'"),
        ("csv", {"delimiter": "ab"}, "delimiter: expected"), ("csv", {"arrival_unit": "min"}, "arrival_unit: expected"),
        ("azure", {"sort": "yes"}, "sort: expected true or false"),
    ],
)
def test_options(tmp_path: Path, kind: str, options: dict[str, Any], message: str) -> None:
    assert message in refused(kind, file(tmp_path, AZURE), **options)


def test_kinds() -> None:
    assert set(TRACE_IMPORTERS.names()) >= {"azure", "csv", "mooncake", "parquet"}


def test_blocks_of_a_request_stand_once(tmp_path: Path) -> None:
    row = {"request_id": "r", "arrival_time": 0.5, "input_toks": 32, "output_toks": 2}
    path = file(tmp_path, json.dumps(row), "requests.jsonl")
    file(tmp_path, (json.dumps({"request_id": "r", "hash_ids": [1, 2]}) + "\n") * 2, "prompt_blocks.jsonl")
    assert "prompt_blocks.jsonl:2: request_id: expected each request once, found 'r'" in refused("vllm-run", path)
