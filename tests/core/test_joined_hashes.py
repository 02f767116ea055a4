"""Joined hashes (`hermes.core.joined_hashes`): the pieces, and results that are the same bytes without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import count, quick_and_full
from outcomes import digest, run

from hermes.config.data_files import resource_dir
from hermes.core import joined_hashes
from hermes.core.block_hashes import JoinedPrompt, name_runs
from hermes.core.int_lists import IntLists
from hermes.core.joined_hashes import hashed_prompt, join_hashes
from hermes.core.request_table import RequestTable
from hermes.workload.traces import describe, read_trace, write_trace

SEEDS = 2_000
Texts = list[tuple[int, ...]]


def table_of(ids: Texts, prompts: Sequence[int], unit: int = 4, tokens: Texts | None = None) -> RequestTable:
    n = len(ids)
    return RequestTable(np.array(prompts), np.ones(n, dtype=np.int64), arrival_ns=np.zeros(n, dtype=np.int64),
                        hash_ids=ids, hash_block_tokens=unit, hash_tokens=tokens)


def joined(table: RequestTable) -> list[JoinedPrompt]:
    assert table.joined is not None
    found = table.joined.contents(table, slice(0, len(table)))
    assert all(isinstance(content, JoinedPrompt) for content in found)
    return found  # type: ignore[return-value]


def pieces(*texts: Texts, unit: int = 4) -> list[list[list[int]]]:
    """The first ids of the pieces of each prompt of some tables."""
    tables = [table_of(ids, [unit * len(row) or 1 for row in ids], unit) for ids in texts]
    join_hashes(tables)
    return [[[name[1] for name, _ in name_runs(content, 1)] for content in joined(table)] for table in tables]


def test_ids_that_always_follow_one_another_are_one_piece() -> None:
    assert pieces([(1, 2, 3), (1, 2, 3)]) == [[[1], [1]]]
    assert pieces([(1, 2, 3, 4), (1, 2, 5, 6)]) == [[[1, 3], [1, 5]]], "2 has two successors"
    assert pieces([(1, 2, 3, 4), (5, 2, 3, 4)]) == [[[1, 2], [5, 2]]], "2 has two predecessors"


def test_the_end_of_a_prompt_ends_a_piece() -> None:
    assert pieces([(1, 2), (1, 2, 3, 4)]) == [[[1], [1, 3]]]
    assert pieces([(), (1,), (1, 2, 3)]) == [[[], [1], [1, 2]]]


def test_the_beginning_of_a_prompt_begins_a_piece() -> None:
    assert pieces([(1, 2, 3), (2, 3)]) == [[[1, 2, 3], [2, 3]]], "2 and 3 have two places each"


def test_an_id_with_two_places_is_a_piece_of_its_own() -> None:
    assert pieces([(1, 2, 2, 3)]) == [[[1, 2, 2, 3]]]
    assert pieces([(1, 2, 3, 4, 5), (6, 1, 2, 3, 4, 5)]) == [[[1, 2, 3, 4, 5], [6, 1, 2, 3, 4, 5]]]


def test_all_workloads_have_the_same_pieces() -> None:
    assert pieces([(1, 2, 3, 4)], [(1, 2)], [(7, 8), (3, 9)]) == [[[1, 3, 4]], [[1]], [[7], [3, 9]]]


def test_unequal_pieces_with_a_shorter_end() -> None:
    table = table_of([(1, 2, 3), (1, 2, 3, 4)], [17, 30], tokens=[(5, 6, 4), (5, 6, 10, 7)])
    join_hashes([table])
    whole, longer = joined(table)
    assert list(name_runs(whole, 1)) == [(("hash", 1), 15)]
    assert list(name_runs(longer, 1)) == [(("hash", 1), 21), (("hash", 4), 28)]
    assert list(name_runs(longer, 8)) == [(("hash", 1), 2), (("hash", 4), 3)]


def test_ids_far_apart() -> None:
    far = 2**61
    assert pieces([(far, 5, far + 1), (far, 5, 9)]) == [[[far, far + 1], [far, 9]]]
    assert pieces([(-7, 5, 3)]) == [[[-7]]]


def test_what_cannot_be_joined_keeps_its_names() -> None:
    table = table_of([(2**70, 2)], [8])
    join_hashes([table])
    assert table.joined is None
    table = table_of([(1, 2, 3)], [2**40], unit=2**38)
    join_hashes([table])
    assert table.joined is None


# -- any prompts -------------------------------------------------------------------------------------------------------


def rule(prompts: list[list[tuple[int, int]]]) -> set[int]:
    """The ids that begin a piece, by the words of the module. prompts: (id, start) of each."""
    after: dict[int, set[int | None]] = {}
    before: dict[int, set[int | None]] = {}
    starts: dict[int, set[int]] = {}
    for prompt in prompts:
        ids = [number for number, _ in prompt]
        for (number, start), one, other in zip(prompt, [None, *ids], [*ids[1:], None], strict=False):
            starts.setdefault(number, set()).add(start)
            before.setdefault(number, set()).add(one)
            after.setdefault(number, set()).add(other)
    found = set()
    for number, (one, *more) in ((number, tuple(ones)) for number, ones in before.items()):
        goes_on = not more and one is not None and len(after[one]) == 1 and len(starts[number]) == 1
        if not goes_on:
            found.add(number)
    return found


@st.composite
def random_tables(draw: st.DrawFn) -> list[RequestTable]:
    """Prompts of few ids, chained or not, with partial ends, missing and superfluous ids, of one or two workloads."""
    tables = []
    top = draw(st.sampled_from([4, 12, 60]))
    spread = draw(st.sampled_from([1, 1, 10**12]))
    for _ in range(draw(st.integers(1, 2))):
        chained = draw(st.booleans())
        unit = draw(st.sampled_from([1, 3, 4, 16]))
        by_pieces = draw(st.booleans())
        ids: Texts = []
        tokens: Texts = []
        prompts = []
        for _ in range(draw(st.integers(0, 12))):
            texts = draw(st.lists(st.integers(0, 3 if chained else top), max_size=7))
            if chained:   # hash of the texts so far
                chain = list(accumulate((text + 1) * 5**i for i, text in enumerate(texts)))
            else:
                chain = texts
            ids.append(tuple(spread * number for number in chain))
            lengths = [1 + number % 5 if draw(st.integers(0, 9)) else draw(st.integers(1, 6)) for number in chain]
            if lengths and draw(st.booleans()):
                lengths[-1] = draw(st.integers(1, lengths[-1]))
            tokens.append(tuple(lengths))
            most = sum(lengths) if by_pieces else unit * len(chain)
            prompts.append(draw(st.integers(1, most + 9)) if draw(st.booleans()) else most + 1)
        tables.append(table_of(ids, prompts, unit, tokens if by_pieces else None))
    return tables


@quick_and_full(50, 500, thorough=5000)
@given(random_tables(), st.sampled_from([1, 3, 8, 1 << 15]))
def test_two_blocks_have_one_name_if_they_have_one_key(tables: list[RequestTable], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_hashes, "_CHUNK", chunk)   # large traces are read in many
        join_hashes(tables)
    prompts = []
    for table in tables:
        assert table.hash_ids is not None
        for row, ids in enumerate(table.hash_ids):
            lengths = [table.hash_block_tokens] * len(ids) if table.hash_tokens is None else table.hash_tokens[row]
            prompts.append(list(zip(ids, accumulate(lengths, initial=0), strict=False)))
    begins = rule(prompts)
    for size in (1, 3, 16):
        keys: dict[object, object] = {}   # name and index -> key
        names: dict[object, object] = {}
        for table in tables:
            for row, content in enumerate(joined(table)):
                plain = hashed_prompt(table, row)
                runs = list(name_runs(content, size))
                assert [name for name, _ in runs] == [("hash", number) for number in plain.ids if number in begins]
                assert content.num_tokens == plain.num_tokens
                last, plain_last = (max((end for _, end in some), default=0) for some in (runs, name_runs(plain, size)))
                assert last == plain_last
                index = 0
                for name, end in runs:
                    while index < end:
                        key = content.block_key(index, size)
                        assert key == plain.block_key(index, size) is not None
                        assert keys.setdefault((name, index), key) == key, "two contents under one name"
                        assert names.setdefault(key, (name, index)) == (name, index), "one content under two names"
                        index += 1
                assert content.block_key(index, size) is None


# -- any simulation ----------------------------------------------------------------------------------------------------


def prompts_of(rng: random.Random, rows: int, numbers: dict[Any, int], unit: int) -> tuple[Texts, list[int]]:
    """Chained ids of prompts put together from few texts: shared beginnings, repeats, branches, ends in the middle of
    a text, partial last blocks. Now and then ids that are not chained."""
    texts = [[rng.randrange(10**6) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(2, 6))]
    ids: Texts = []
    prompts = []
    for _ in range(rows):
        words = [word for _ in range(rng.randint(1, 4)) for word in rng.choice(texts)]
        if rng.random() < 0.4:
            words = words[: rng.randint(1, len(words))]
        if rng.random() < 0.4:
            words.append(rng.randrange(10**6))
        words = words[:40]
        before, chain = 0, []
        for place, word in enumerate(words):
            key = (before, word) if rng.random() < 0.997 else (rng.randrange(3), place % 4)
            before = numbers.setdefault(key, 1 + len(numbers))
            chain.append(before)
        tokens = unit * len(words) - (rng.randrange(unit) if rng.random() < 0.5 else 0)
        if tokens % unit and rng.random() < 0.5:
            chain.pop()   # the hash of a partial block may be missing
        elif tokens % unit:
            chain[-1] = numbers.setdefault((before, "part", tokens % unit), 1 + len(numbers))
        if rng.random() < 0.1:
            chain, tokens = [], rng.randint(1, 60)
        ids.append(tuple(chain))
        prompts.append(tokens)
    return ids, prompts


def random_trace(rng: random.Random, path: Path, rows: int, numbers: dict[Any, int]) -> None:
    unit = rng.choice([1, 2, 4, 4, 5, 8])
    ids, prompts = prompts_of(rng, rows, numbers, unit)
    frame = pd.DataFrame({
        "arrival_s": np.cumsum([rng.choice([0, 0, 1e-6, 2e-6, 5e-6, 3e-5]) for _ in range(rows)]),
        "prompt_tokens": prompts, "output_tokens": [rng.randint(1, 12) for _ in range(rows)],
        "priority": [rng.randint(0, 2) for _ in range(rows)], "session": [rng.randint(-1, 3) for _ in range(rows)],
        "hash_ids": list(map(list, ids)),
    })
    if rng.random() < 0.4:   # pieces of unequal lengths
        lengths: dict[int, int] = {}
        tokens = [[lengths.setdefault(number, rng.randint(1, 7)) for number in row] for row in ids]
        frame["hash_tokens"] = tokens
        frame["prompt_tokens"] = [sum(row) + rng.choice([0, 0, 1, 3]) or 1 for row in tokens]
    write_trace(frame, path, source="test", hash_block_tokens=unit)


def random_scenario(rng: random.Random, folder: Path) -> dict[str, Any]:
    """A scenario of one or two hashed traces, in most cases with less memory than their prompts would take."""
    numbers: dict[Any, int] = {}
    workloads = []
    for name in ("one", "two")[: rng.choice([1, 1, 2])]:
        rows = rng.randint(4, 30)
        path = folder / f"{name}.parquet"
        random_trace(rng, path, rows, numbers if rng.random() < 0.7 else {})
        trace = {"kind": "trace", "path": str(path)}
        data: dict[str, Any] = {"name": name, "lengths": trace, "arrivals": trace}
        if rng.random() < 0.3:
            data |= {"requests": rng.randint(1, 2 * rows), "lengths": {**trace, "repeat": True},
                     "arrivals": rng.choice([{"kind": "at_once"}, {"kind": "poisson", "rate": 2e5},
                                             {"kind": "closed_loop", "users": 3, "think": 1e-6}])}
        if rng.random() < 0.2:
            data["max_total_tokens"] = rng.randint(10, 80)
        if rng.random() < 0.15:
            data["branches"] = rng.choice([2, 3])
        workloads.append(data)
    kinds = [*rng.choices(["plain", "evict", "host", "tiers", "pd", "sglang", "adapters"], [6, 2, 2, 2, 2, 2, 1])]
    size = rng.choice([1, 2, 4, 4, 8, 16])
    memory: dict[str, Any] = {
        "block_size": size, "num_blocks": max(2, rng.choice([70, 100, 140, 200, 300, 900, 10_000]) // size),
        "prefix_caching": True, "kv_bytes_per_token": 1.0,
    }
    client: dict[str, Any] = {
        "name": "a", "count": rng.choice([1, 1, 2, 3]), "memory": memory,
        "hardware": {"kind": "test_ticks", "per_token": rng.choice([3, 8, 1000]), "per_ctx": rng.choice([20, 200])},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": rng.choice([8, 20, 64, 512]),
                      "max_num_seqs": rng.choice([2, 5, 256]), "async_scheduling": rng.random() < 0.3,
                      "policy": rng.choice(["fcfs", "fcfs", "priority"])},
        "engine": rng.choice(["vllm-0.32", "vllm-0.32", "vllm-0.19"]),
    }
    router = rng.choice(["round_robin", "least_loaded", "power_of_two", "session", "locality"])
    stepping = "every_step" if rng.random() < 0.15 else "runs"
    found: dict[str, Any] = {
        "seed": rng.randrange(100), "stepping": stepping, "workload": workloads, "clients": [client],
        "router": {"kind": router} | ({} if router == "round_robin" else {"load": "kv_tokens"}),
    }
    if "evict" in kinds:
        memory["prefix_eviction"] = rng.choice(["tamm", "gdsf", "lfu", "fifo"])
    elif "host" in kinds:
        del client["engine"]
        client["scheduler"]["async_scheduling"] = False
        for workload in workloads:
            workload.pop("branches", None)
        memory["kv_offload"] = {"cpu_bytes_to_use": rng.choice([20_000, 60_000, 10**6]), "bandwidth": 1e9,
                                "blocks_per_chunk": rng.choice([1, 2]), "eviction_policy": rng.choice(["lru", "arc"])}
    elif "tiers" in kinds:
        client["tiers"] = {"levels": [{"name": "host", "capacity": rng.choice([100, 400, 5000]), "bandwidth": 1e7,
                                       "eviction": rng.choice(["lru", "lfu", "gdsf"]),
                                       "admission": rng.choice(["all", "frequency"])}]}
    elif "pd" in kinds:
        found["clients"] = [client | {"name": "p", "role": "prefill"}, client | {"name": "d", "role": "decode"}]
    elif "sglang" in kinds:
        del client["engine"]
        client["scheduler"] = {"kind": "sglang"}
        memory["block_size"] = rng.choice([1, 1, 4])
        memory["num_blocks"] = rng.choice([300, 600, 2000]) // memory["block_size"]
        for workload in workloads:
            workload.pop("branches", None)
    elif "adapters" in kinds:
        workloads[0]["adapters"] = {"count": 2, "fraction": 0.7}
        client["scheduler"]["max_loras"] = 1
        client["engine"] = "vllm-0.32"
    return found


def both(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, bool]:
    """Return the digest of a scenario's record with joined hashes, that without, and whether anything was joined."""
    with_pieces = run(data, data["stepping"])
    tables = [stream.table for stream in with_pieces.simulation.streams]
    shorter = any(table.joined is not None and isinstance(table.hash_ids, IntLists)
                  and int((table.joined.names.ends - table.joined.names.begins).sum())
                  < int((table.hash_ids.ends - table.hash_ids.begins).sum()) for table in tables)
    with monkeypatch.context() as patch:
        patch.setattr(joined_hashes, "join_hashes", lambda tables: None)
        without = run(data, data["stepping"])
    assert all(stream.table.joined is None for stream in without.simulation.streams)
    return digest(with_pieces.record), digest(without.record), shorter


@pytest.mark.thorough
@pytest.mark.long(quick=15)
def test_results_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = count(15, SEEDS // 10, SEEDS)
    shorter = 0
    for seed in range(n):
        data = random_scenario(random.Random(f"joined {seed}"), tmp_path)
        ours, theirs, pieces_found = both(data, monkeypatch)
        assert ours == theirs, f"seed {seed}: {data}"
        shorter += pieces_found
    assert shorter > 0.8 * n, f"ids were joined in {shorter} of {n} scenarios only"


TRACES = [path for path in sorted(resource_dir("traces").glob("*.parquet")) if read_trace(path).hash_ids is not None]


@pytest.mark.long
@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.stem)
def test_traces_that_ship_give_the_same_bytes(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"kind": "trace", "path": str(trace)}
    for size, blocks in ((16, 1500), (64, 200)):
        ours, theirs, shorter = both({
            "stepping": "runs", "workload": {"arrivals": part | {"scale": 100}, "lengths": part},
            "clients": [{"count": 2, "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
                         "memory": {"num_blocks": blocks, "block_size": size, "prefix_caching": True}}],
        }, monkeypatch)
        assert ours == theirs
        assert shorter


# -- what still sees the ids -------------------------------------------------------------------------------------------


def test_the_trace_keeps_its_ids(tmp_path: Path) -> None:
    rows = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [50, 40, 16], "output_tokens": [4, 4, 4],
            "hash_ids": [[7, 1, 2], [7, 1, 2], [7]]}
    write_trace(pd.DataFrame(rows), tmp_path / "t.parquet", source="test", hash_block_tokens=16)
    table = read_trace(tmp_path / "t.parquet")
    join_hashes([table])
    assert table.hash_ids == [(7, 1, 2), (7, 1, 2), (7,)]
    first, second, _ = joined(table)
    assert list(name_runs(first, 16)) == [(("hash", 7), 1), (("hash", 1), 3)]
    assert first.original.ids == (7, 1, 2)
    assert [second.block_key(i, 16) for i in range(3)] == [("hash", 7, 0), ("hash", 1, 1), None]
    assert describe(tmp_path / "t.parquet")["columns"] == [*rows]


def test_int_lists_are_a_sequence_of_tuples() -> None:
    column = IntLists.of([(1, 2), (), (3,), (1, 2)])
    assert list(column) == [(1, 2), (), (3,), (1, 2)] == [column[i] for i in range(4)]
    assert column[1:] == [(), (3,), (1, 2)]
    assert column == [(1, 2), (), (3,), (1, 2)]
    assert column != [(1, 2)]
    assert len(column.values) == 3, "equal rows are stored once"
    assert column.take(np.array([2, 0])) == [(3,), (1, 2)]
    assert column.heads(np.array([1, 1, 9, 0])) == [(1,), (), (3,), ()]
    assert column.sums().tolist() == [3, 0, 3, 3]
    lists = column.lists()
    assert lists == [[1, 2], [], [3], [1, 2]]
    assert lists[0] is lists[3]


def test_rows_of_a_parquet_file_in_many_batches(tmp_path: Path) -> None:
    rng = random.Random(4)
    ids = [[rng.randrange(2**40) for _ in range(rng.randrange(4))] for _ in range(700)]
    rows = [rng.randrange(700) for _ in range(10_000)]
    frame = pd.DataFrame({"arrival_s": np.arange(10_000) / 10, "prompt_tokens": 4, "output_tokens": 1,
                          "hash_ids": [ids[row] for row in rows]})
    write_trace(frame, tmp_path / "t.parquet", source="test", hash_block_tokens=1)
    found = read_trace(tmp_path / "t.parquet").hash_ids
    assert found == [tuple(ids[row]) for row in rows]
    assert isinstance(found, IntLists)
    assert len(found.values) <= sum(map(len, ids))
