"""Traces with the prompts themselves: what they share follows from their tokens, or from hashes of their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outside import OUTSIDE

import hermes
from hermes.cli import main
from hermes.core.block_hashes import HashedPrompt, TokenPrompt
from hermes.errors import InputError
from hermes.memory.replay import replay
from hermes.workload.importers import import_trace
from hermes.workload.traces import read_trace

RUNS = OUTSIDE / "data" / "vllm-runs"
ROW = {"arrival": 0.5, "tokens": [5, 6, 7], "output": 4}


def lines(folder: Path, rows: list[Any], name: str = "in.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        import_trace("tokens", path, **options)
    return str(caught.value).replace(str(path), "FILE")


def test_rows(tmp_path: Path) -> None:
    rows = [
        {"arrival": 2.5, "tokens": [1, 2, 3, 4, 5], "output": 7, "user": "a"},
        {"arrival": 3.0, "tokens": [1, 2, 3, 9, 5, 6], "output": [8, 8, 8], "user": {"b": 1}},
        {"arrival": 9, "tokens": [1, 2, 3, 4], "output": 1, "user": "a"},
        {"arrival": 9, "tokens": [1], "output": 1, "user": 3},
    ]
    frame = import_trace("tokens", lines(tmp_path, rows), block_tokens=2, session="user")
    assert frame.to_dict("list") == {
        "arrival_s": [0.0, 0.5, 6.5, 6.5], "prompt_tokens": [5, 6, 4, 1], "output_tokens": [7, 3, 1, 1],
        "session": [0, 1, 0, 2],
        # [1, 2], then [3, 4]; [3, 9], and [5, 6] behind it; the first two blocks once more; no whole block
        "hash_ids": [[0, 1], [0, 2, 3], [0, 1], []],
    }


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=8)


@given(prompts, st.integers(1, 6))
def test_two_prompts_share_the_whole_blocks_of_what_they_have_in_common(tmp_path_factory, prompts, block):
    path = lines(tmp_path_factory.mktemp("t"), [ROW | {"tokens": tokens} for tokens in prompts])
    found = import_trace("tokens", path, block_tokens=block)["hash_ids"].tolist()
    for a, ids in zip(prompts, found, strict=True):
        assert len(ids) == len(a) // block
        for b, others in zip(prompts, found, strict=True):
            same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            assert [x == y for x, y in zip(ids, others, strict=False)] == [
                (i + 1) * block <= same for i in range(min(len(ids), len(others)))]
    # in the simulator the trace's blocks are equal exactly where those of the tokens are
    hashed = [HashedPrompt(tuple(ids), block, len(tokens)) for ids, tokens in zip(found, prompts, strict=True)]
    known = [TokenPrompt(tokens) for tokens in prompts]
    for a in range(len(prompts)):
        for i in range(len(prompts[a]) // block):
            mine = hashed[a].block_key(i, block), known[a].block_key(i, block)
            assert [h.block_key(i, block) == mine[0] for h in hashed] == [t.block_key(i, block) == mine[1]
                                                                          for t in known]


@given(prompts, st.booleans())
def test_hashes_of_pieces_and_hashes_of_all_before_say_the_same(tmp_path_factory, prompts, as_text):
    """Pieces of two tokens, hashed alone or chained, are what the tokens say."""

    def rows(chained):
        out = []
        for tokens in prompts:
            pieces = [tuple(tokens[:end] if chained else tokens[end - 2:end]) for end in range(2, len(tokens) + 2, 2)]
            hashes = [hash((7, piece)) if not as_text else f"sha-{piece}" for piece in pieces]
            out.append({"arrival": 0, "hashes": hashes, "prompt_tokens": len(tokens), "output": 1})
        return out

    folder = tmp_path_factory.mktemp("t")
    plain = import_trace("tokens", lines(folder, [ROW | {"tokens": t} for t in prompts]), block_tokens=2)
    for chained in (False, True):
        found = import_trace("tokens", lines(folder, rows(chained)), block_tokens=2)
        assert found["hash_ids"].tolist() == plain["hash_ids"].tolist()
        assert found["prompt_tokens"].tolist() == plain["prompt_tokens"].tolist()


def test_without_a_length_every_piece_counts_as_whole(tmp_path: Path) -> None:
    frame = import_trace("tokens", lines(tmp_path, [{"arrival": 0, "hashes": ["x", "y"], "output": 1}]))
    assert (frame["prompt_tokens"].tolist(), frame["hash_ids"].tolist()) == ([32], [[0, 1]])


@pytest.mark.outside("data/vllm-runs")
def test_recorded_prompts_find_as_much_as_their_own_block_hashes_say(tmp_path: Path) -> None:
    """300 real prompts, known by vLLM's chained hashes of 16 tokens."""
    folder = next(RUNS.glob("rtx4090*"))
    theirs = import_trace("vllm-run", folder)
    hashes = [json.loads(line)["hash_ids"] for line in (folder / "prompt_blocks.jsonl").read_text().splitlines()]
    rows = [{"t": at, "hashes": ids, "prompt_tokens": int(n), "output": int(out)} for at, ids, n, out in zip(
        theirs["arrival_s"], hashes, theirs["prompt_tokens"], theirs["output_tokens"], strict=True)]
    ours = import_trace("tokens", lines(tmp_path, rows), arrival="t")
    assert replay(ours["hash_ids"]) == replay(theirs["hash_ids"])
    assert replay(ours["hash_ids"]).hits > 0


def test_the_command_and_a_run_of_what_it_wrote(tmp_path: Path, monkeypatch, capsys) -> None:
    """Ten prompts of 64 tokens with 40 in common, in blocks of 16: two blocks of each but the first are found."""
    monkeypatch.chdir(tmp_path)
    lines(tmp_path, [{"at": 1000 * i, "ids": [*range(40), *([100 + i] * 24)], "out": 4} for i in range(10)])
    assert main(["trace", "import", "tokens", "in.jsonl", "-o", "t.parquet", "--set", "arrival=at", "--set",
                 "arrival_unit=ms", "--set", "tokens=ids", "--set", "output=out"]) == 0
    assert "10" in capsys.readouterr().out
    assert read_trace("t.parquet").hash_block_tokens == 16
    assert main(["trace", "cache", "t.parquet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["blocks"], found["distinct"], found["caches"][0]["hits"]) == (40, 22, 18)
    trace = {"kind": "trace", "path": str(tmp_path / "t.parquet")}
    results = hermes.simulate({
        "workload": {"arrivals": trace, "lengths": trace},
        "clients": [{"model": "llama-3.1-8b", "memory": {"num_blocks": 1000, "prefix_caching": True},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}],
    })
    assert results.record.stages["cached_tokens"].tolist() == [0, *[32] * 9]


@pytest.mark.parametrize(("row", "message"), [
    ({"arrival": 0, "output": 1}, "FILE:2: expected either tokens or hashes, found neither"),
    ({"arrival": 0, "output": 1, "token": [1]}, "either tokens or hashes, found neither (did you mean 'token'"),
    (ROW | {"hashes": []}, "FILE:2: expected either tokens or hashes, found both"),
    (ROW | {"tokens": "abc"}, "FILE:2: tokens: expected a list of token ids, integers of at least 0, found 'abc'"),
    (ROW | {"tokens": [1, 2.5]}, "FILE:2: tokens[1]: expected token ids, integers of at least 0, found 2.5"),
    (ROW | {"tokens": [1, -1]}, "FILE:2: tokens[1]: expected"),
    (ROW | {"tokens": [True]}, "FILE:2: tokens[0]: expected"),
    (ROW | {"tokens": []}, "FILE:2: prompt_tokens: expected an integer from 1"),
    (ROW | {"prompt_tokens": 4}, "FILE:2: prompt_tokens: expected the number of tokens (3), found 4"),
    (ROW | {"output": "x"}, "FILE:2: output: expected a number, found 'x'"),
    (ROW | {"output": []}, "FILE:2: output: expected an integer from 1"),
    (ROW | {"arrival": "noon"}, "FILE:2: arrival: expected a number, found 'noon'"),
    ({"tokens": [1], "output": 1}, "FILE:2: arrival: expected a value, found none"),
    ({"arrival": 0, "hashes": ["a", None], "output": 1}, "FILE:2: hashes[1]: expected hashes, text or integers, found"),
    ({"arrival": 0, "hashes": ["a"], "prompt_tokens": 40, "output": 1},
     "FILE:2: hashes: expected a hash for each 16 of 40 prompt tokens, found 1 hashes"),
    ({"arrival": 0, "hashes": ["a"], "prompt_tokens": "x", "output": 1}, "FILE:2: prompt_tokens: expected a number"),
    ([1], "FILE:2: expected a JSON object, found [1]"),
])
def test_malformed(tmp_path: Path, row: Any, message: str) -> None:
    assert message in refused(lines(tmp_path, [ROW | {"arrival": 0}, row]))


def test_the_example_of_the_page(tmp_path: Path) -> None:
    """docs/how-to/traces.md shows two prompts with one block of four in common."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "traces.md").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in page.splitlines() if line.startswith('{"arrival"')]
    frame = import_trace("tokens", lines(tmp_path, rows), block_tokens=4)
    assert frame["hash_ids"].tolist() == [[0, 1], [0, 2]]
    assert frame["output_tokens"].tolist() == [120, 4]


def test_options_are_checked(tmp_path: Path) -> None:
    path = lines(tmp_path, [ROW])
    assert "block_tokens" in refused(path, block_tokens=0)
    assert "did you mean 'tokens'" in refused(path, token="ids")
    assert "user: expected a value, found none" in refused(path, session="user")
