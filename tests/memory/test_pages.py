"""Hashes of pages, and what sharing them saves in the clients' pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hermes
from hermes.core.block_hashes import TokenPrompt
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.pages import page_hashes, shared_savings

TOKENS = st.lists(st.integers(0, 1), max_size=14)


class Holder:
    """What a pool needs to know of a sequence with known tokens."""

    def __init__(self, tokens):
        self.num_blocks = self.num_computed = 0
        self.num_tokens = self.prompt_tokens = len(tokens)
        self.common, self.grouped, self.block_key = None, False, TokenPrompt(tokens).block_key


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_hashes_are_equal_exactly_where_the_whole_prefix_is(a, b, page):
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    pairs = zip(page_hashes(a, page), page_hashes(b, page), strict=False)
    assert [x == y for x, y in pairs] == [(i + 1) * page <= same for i in range(min(len(a), len(b)) // page)]
    assert [TokenPrompt(a).block_key(i, page) for i in range(len(a) // page)] == [
        ("sha256", digest) for digest in page_hashes(a, page)]
    assert TokenPrompt(a).block_key(len(a) // page, page) is None


@pytest.mark.parametrize("page", [16, 512])
@pytest.mark.parametrize("prefix", [100, 200, 500, 800])
def test_savings_of_one_hundred_sequences(prefix, page):
    """Counted in blocks of the clients' prefix cache, they are the formula."""
    total, sequences = 1000, 100
    needed = -(-total // page)
    pool = PrefixBlockPool(sequences * needed, page)
    for seq in range(sequences):
        tokens = [*range(prefix), *([10_000 + seq] * (total - prefix))]
        holder = Holder(tokens)
        pool.admit(holder, total)
    used = pool.num_blocks - pool.free_blocks
    assert pool.shared_blocks == sequences * needed - used == pool.peak_shared_blocks
    assert 1 - used / (sequences * needed) == pytest.approx(shared_savings(prefix, total, sequences, page), abs=1e-12)
    if page == 512:
        assert (used == sequences * needed) == (prefix < 512)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=12), st.data())
def test_pools_count_what_they_save(prompts, data):
    """shared = references - blocks in use, whatever comes and goes."""
    pool, held = PrefixBlockPool(400, 2), []
    for length, group in prompts:
        holder = Holder([group] * length)
        pool.admit(holder, length)
        held.append(holder)
        if data.draw(st.booleans()):
            pool.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        assert pool.shared_blocks == sum(h.num_blocks for h in held) - (pool.num_blocks - pool.free_blocks)


@pytest.mark.parametrize("caching", [False, True])
def test_a_run_reports_what_branches_saved(caching):
    """Four branches of 100 prompt tokens in blocks of 16: six whole blocks shared thrice, the seventh copied thrice."""
    results = hermes.simulate({
        "workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "pipeline": "p",
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 20}},
        "pipelines": {"p": {"stages": {"answer": {"kind": "generate", "branches": 4}}}},
        "clients": [{"model": "llama-3.1-8b", "memory": {"num_blocks": 100, "prefix_caching": caching},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}],
    })
    found = results.summary["sharing"]
    assert found["saved_blocks"] == 3 * 6
    assert found["copied_blocks"] == 3
    assert found["saved_share"] == found["saved_blocks"] / (found["saved_blocks"] + found["used_blocks"])
    assert "KV shared" in results.to_text(verbose=True)


def test_nothing_is_reported_where_nothing_is_shared():
    pool = BlockPool(10, 4)
    assert (pool.shared_blocks, pool.peak_shared_blocks) == (0, 0)
