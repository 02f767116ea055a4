"""The rules case by case, the best fit against brute force, and what a choice promises about memory."""

from __future__ import annotations

import ast
import http.server
import importlib.util
import math
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.plugins.metis import decision
from hermes.plugins.metis.decision import (
    METHODS,
    Box,
    Configuration,
    Lengths,
    Profile,
    Reading,
    SpaceHistory,
    choose,
    configurations,
    prune,
    summary_tokens,
)

LENGTHS = Lengths(chunk=1000, question=24, answer=40)


@pytest.mark.parametrize(("joint", "hard", "expected"), [
    (False, False, [("map_rerank", (0, 0))]),
    (False, True, [("map_rerank", (0, 0))]),
    (True, False, [("stuff", (0, 0))]),
    (True, True, [("stuff", (0, 0)), ("map_reduce", (50, 90))]),
])
def test_methods_follow_from_joint_reasoning_and_complexity(joint, hard, expected):
    assert [(box.method, box.words) for box in prune(Profile(joint, hard, 3, (50, 90)))] == expected


@pytest.mark.parametrize("pieces", range(1, 11))
def test_chunks_from_n_to_3n(pieces):
    for box in prune(Profile(True, True, pieces, (30, 200))):
        assert box.chunks == (pieces, 3 * pieces)


def test_pruning_leaves_a_fiftieth_to_a_hundredth():
    whole = 35 + 35 + 35 * 300
    assert whole / len(list(configurations(prune(Profile(True, True, 4, (50, 65)))))) > 50


@pytest.mark.parametrize(("changes", "message"), [
    ({"pieces": 0}, "1 to 10, found 0"), ({"pieces": 11}, "found 11"), ({"summary_words": (20, 60)}, "found 20 to 60"),
    ({"summary_words": (90, 80)}, "found 90 to 80"), ({"confidence": 1.5}, "found 1.5"),
])
def test_a_profile_that_is_none(changes, message):
    with pytest.raises(ValueError, match=message):
        Profile(**{"joint": True, "complex": True, "pieces": 3, "summary_words": (30, 60)} | changes)


@pytest.mark.parametrize("config", [("stuff", 0), ("stuff", 36), ("stuff", 3, 50), ("map_reduce", 3), ("guess", 3)])
def test_a_configuration_that_is_none(config):
    with pytest.raises(ValueError, match="expected"):
        Configuration(*config)


def test_calls_of_each_method():
    assert LENGTHS.mapper(Configuration("map_rerank", 5)) == (1024, 40)
    assert LENGTHS.last(Configuration("map_rerank", 5)) == (0, 0)
    assert LENGTHS.mapper(Configuration("stuff", 5)) == (0, 0)
    assert LENGTHS.last(Configuration("stuff", 5)) == (5024, 40)
    assert LENGTHS.mapper(Configuration("map_reduce", 5, 60)) == (1024, 80)
    assert LENGTHS.last(Configuration("map_reduce", 5, 60)) == (5 * 80 + 24, 40)


# -- need, best fit ------------------------------------------------------------------------------------------------


def reading(tokens, **more):
    return Reading(**{"free_bytes": tokens * 2.0, "bytes_per_token": 2.0, "block_tokens": 1} | more)


def test_need_counts_the_mappers_in_memory_at_once():
    free = reading(10**6)
    assert free.need(Configuration("stuff", 5), LENGTHS) == (1, 2.0 * 5064)
    assert free.need(Configuration("map_rerank", 5), LENGTHS) == (5, 2.0 * 5 * 1064)
    # the reducer can be larger than the mappers
    assert reading(10**6, free_seqs=1).need(Configuration("map_reduce", 30, 150), LENGTHS) == (1, 2.0 * 6064)
    # slots and the budget of a step limit them: answers of 1 token are gone before many more prompts are in
    assert reading(10**6, free_seqs=3).need(Configuration("map_rerank", 20), LENGTHS)[0] == 3
    short = Lengths(1000, 24, 1)
    assert reading(10**6, batched_tokens=512).need(Configuration("map_rerank", 20), short)[0] == 3
    assert reading(10**6, batched_tokens=8192).need(Configuration("map_rerank", 20), short)[0] == 17


def test_the_buffer_of_two_percent():
    config, space = Configuration("stuff", 1), (Box("stuff", (1, 1)),)
    need = 1064
    assert choose(space, LENGTHS, reading(math.ceil(need * 1.02)), joint=True).how == "fits"
    queued = choose(space, LENGTHS, reading(math.floor(need * 1.02)), joint=True)
    assert (queued.how, queued.configuration) == ("queued", config)


def test_a_stuff_query_that_would_queue_becomes_map_reduce():
    """The motivation: stuff needs all its memory at once, mappers can start with what there is."""
    space = prune(Profile(True, True, 6, (50, 80)))
    assert choose(space, LENGTHS, reading(6 * 1000 - 1), joint=True).configuration.method == "map_reduce"
    part = choose(space, LENGTHS, reading(4 * 1200), joint=True)
    assert (part.how, part.at_once, part.configuration.num_chunks) == ("partial", 4, 6)
    # all mappers or nothing: outside the range, as much of stuff as fits
    whole = choose(space, LENGTHS, reading(4 * 1200), joint=True, partial=1)
    assert (whole.how, whole.configuration) == ("fallback", Configuration("stuff", 4))


def test_less_than_half_of_the_mappers_is_no_start():
    space = prune(Profile(True, True, 6, (50, 80)))
    assert choose(space, LENGTHS, reading(3 * 1200), joint=True).at_once == 3
    less = choose(space, LENGTHS, reading(2 * 1200), joint=True)
    assert (less.how, less.configuration) == ("fallback", Configuration("stuff", 2))


def test_nothing_fits():
    rerank = prune(Profile(False, False, 8, (30, 60)))
    found = choose(rerank, LENGTHS, reading(3 * 1100), joint=False)
    assert (found.how, found.configuration) == ("fallback", Configuration("map_rerank", 3))
    for joint, method in ((True, "stuff"), (False, "map_rerank")):
        found = choose(rerank, LENGTHS, reading(10), joint=joint)
        assert (found.how, found.configuration) == ("queued", Configuration(method, 1))
    assert choose(rerank, LENGTHS, reading(10**6, free_seqs=0), joint=False).how == "queued"


def test_what_queues_where_not_even_one_chunk_fits():
    space = prune(Profile(True, True, 3, (40, 60)))
    one, least = (choose(space, LENGTHS, reading(10), joint=True, full=full) for full in ("one", "space"))
    assert (one.how, one.configuration) == ("queued", Configuration("stuff", 1))
    assert least.how == "queued"
    needs = {c: reading(10).need(c, LENGTHS)[1] for c in configurations(space)}
    assert needs[least.configuration] == min(needs.values())
    with pytest.raises(ValueError, match="found two"):
        choose(space, LENGTHS, reading(10), joint=True, full="two")


def test_low_confidence_takes_the_spaces_of_the_last_ten():
    history = SpaceHistory()
    unsure = Profile(True, False, 3, (30, 60), confidence=0.89)
    assert history.space(unsure) == (prune(unsure), False)   # nothing known yet
    sure = [Profile(False, False, n % 10 + 1, (30, 60), confidence=0.9) for n in range(12)]
    for profile in sure:
        assert history.space(profile) == (prune(profile), True)
    space, trusted = history.space(unsure)
    assert not trusted
    assert set(configurations(space)) == {c for p in sure[2:] for c in configurations(prune(p))}
    assert history.space(unsure)[0] == space   # who is not trusted leaves no trace


def brute_force(space, lengths, free, joint, partial):
    """Every configuration, by the definitions alone."""
    def size(prompt, output):
        return -(-(prompt + output) // free.block_tokens) * free.block_tokens * free.bytes_per_token

    whole, parts = [], []
    for box in space:
        for k in range(box.chunks[0], box.chunks[1] + 1):
            for w in range(box.words[0], box.words[1] + 1):
                s = summary_tokens(w) if box.method == "map_reduce" else lengths.answer
                last = {"map_rerank": 0, "stuff": size(k * lengths.chunk + lengths.question, lengths.answer),
                        "map_reduce": size(k * s + lengths.question, lengths.answer)}[box.method]
                each = size(lengths.chunk + lengths.question, s)
                wave = 0
                if box.method != "stuff":
                    prompt = lengths.chunk + lengths.question
                    steps = math.ceil(prompt / free.batched_tokens) + s
                    wave = min(k, free.free_seqs, math.ceil(steps * free.batched_tokens / prompt) + 1)
                need = max(wave * each, last)
                rank = (-k, -METHODS.index(box.method), w)
                if need * 1.02 <= free.free_bytes and free.free_seqs:
                    whole.append((need, *rank, box.method, "fits"))
                part = min(wave, math.floor(free.free_bytes / (each * 1.02)))
                if (box.method != "stuff" and part >= max(2, math.ceil(partial * wave)) and partial < 1
                        and max(last, part * each) * 1.02 <= free.free_bytes):
                    parts.append((part * each, *rank, box.method, "partial"))
    best = max(whole or parts, default=None)
    if best is not None:
        return Configuration(best[4], -best[1], best[3]), best[5]
    return None


sizes = st.builds(Lengths, st.integers(50, 1500), st.integers(5, 60), st.integers(1, 80))
profiles = st.builds(
    lambda joint, hard, pieces, low, more: Profile(joint, hard, pieces, (low, min(200, low + more))),
    st.booleans(), st.booleans(), st.integers(1, 10), st.integers(30, 150), st.integers(0, 12))
readings = st.builds(
    lambda tokens, block, seqs, budget: Reading(tokens * 3.0, 3.0, block, seqs, budget),
    st.integers(0, 60_000), st.sampled_from([1, 16, 64]), st.integers(0, 40), st.sampled_from([256, 2048, 8192]))


@quick_and_full(37, 150)
@given(st.lists(profiles, min_size=1, max_size=2), sizes, readings, st.sampled_from([0.0, 0.5, 1.0]))
def test_best_fit_is_that_of_brute_force(known, lengths, free, partial):
    space = tuple(dict.fromkeys(box for profile in known for box in prune(profile)))
    joint = known[0].joint
    choice = choose(space, lengths, free, joint=joint, partial=partial)
    found = brute_force(space, lengths, free, joint, partial)
    if found is None:
        assert choice.how in ("fallback", "queued")
        assert choice.configuration.method == ("stuff" if joint else "map_rerank")
        if choice.how == "fallback" and choice.configuration.num_chunks < max(box.chunks[1] for box in space):
            more = Configuration(choice.configuration.method, choice.configuration.num_chunks + 1)
            assert not free.holds(free.need(more, lengths)[1])
    else:
        assert (choice.configuration, choice.how) == found


@quick_and_full(50, 200)
@given(profiles, sizes, readings, st.floats(0, 1))
def test_what_is_chosen_fits_or_is_the_documented_fallback(profile, lengths, free, partial):
    space = prune(profile)
    choice = choose(space, lengths, free, joint=profile.joint, partial=partial)
    inside = any(choice.configuration in box for box in space)
    if choice.how == "queued":
        assert choice.configuration.num_chunks == 1
        assert not free.holds(free.need(choice.configuration, lengths)[1])
        return
    assert choice.need_bytes * 1.02 <= free.free_bytes
    assert 1 <= choice.at_once <= max(1, free.free_seqs)
    assert inside or choice.how == "fallback"
    if choice.how == "partial":
        assert 2 <= choice.at_once < free.need(choice.configuration, lengths)[0] or (
            free.need(choice.configuration, lengths)[1] * 1.02 > free.free_bytes)
        assert not any(free.holds(free.need(one, lengths)[1]) for one in configurations(space))


# -- a library of its own ------------------------------------------------------------------------------------------


def test_it_needs_the_standard_library_only():
    path = Path(decision.__file__)
    imported = {(node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
                for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names)
    spec = importlib.util.spec_from_file_location("alone", path)
    alone = importlib.util.module_from_spec(spec)
    sys.modules["alone"] = alone   # dataclasses look there
    spec.loader.exec_module(alone)
    space = alone.prune(alone.Profile(True, False, 2, (30, 60)))
    chosen = alone.choose(space, alone.Lengths(500, 20, 20), alone.Reading(1e9, 131072.0), joint=True)
    assert chosen.configuration.method == "stuff"


def test_the_example_reads_real_memory():
    script = Path(__file__).parents[3] / "scripts" / "choose_rag_configuration.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GB free" in done.stdout
    assert "chunks" in done.stdout


METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000",swap_space="4"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_requests_running{engine="0",model_name="m"} 6.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
"""


def test_the_example_reads_a_vllm_server():
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        script = Path(__file__).parents[3] / "scripts" / "choose_rag_configuration.py"
        done = subprocess.run(
            [sys.executable, script, "--vllm", f"http://127.0.0.1:{server.server_port}/",
             "--kv-bytes-per-token", "1e5"], capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "1.20 GB free, 12,000 tokens of KV" in done.stdout   # three quarters of 1,000 blocks of 16 tokens
    assert "joint, complex, 5 pieces, 0.1% of it: stuff, 1 chunks (queued" in done.stdout


def test_the_page_shows_what_its_example_prints(capsys):
    page = (Path(__file__).parents[3] / "studies" / "metis" / "details.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(code, "details.md", "exec"), {})
    assert capsys.readouterr().out == shown
