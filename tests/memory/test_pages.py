"""Shared pages against sequences that own what they hold; the theorems; the clients' pools count the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import hermes
from hermes.core.block_hashes import TokenPrompt
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.pages import SharedPages, page_hashes, shared_savings

TOKENS = st.lists(st.integers(0, 1), max_size=14)
PAGE = 3


class Holder:
    """What a pool needs to know of a sequence with known tokens."""

    def __init__(self, tokens):
        self.num_blocks = self.num_computed = 0
        self.num_tokens = self.prompt_tokens = len(tokens)
        self.common, self.grouped, self.block_key = None, False, TokenPrompt(tokens).block_key


class PagesHoldWhatIsWritten(RuleBasedStateMachine):
    """Whatever is forked, written and freed: each sequence reads what it wrote, and no page is lost or kept."""

    def __init__(self):
        super().__init__()
        self.pages, self.model, self.count = SharedPages(PAGE, num_pages=24), {}, 0

    def attempt(self, act, *args):
        before = self.pages.used_pages, self.pages.saved_pages
        try:
            act(*args)
        except MemoryError:
            assert (self.pages.used_pages, self.pages.saved_pages) == before
            return False
        return True

    def pick(self, which):
        return sorted(self.model)[which % len(self.model)]

    @rule(tokens=TOKENS)
    def add(self, tokens):
        self.count += 1
        if self.attempt(self.pages.add, self.count, tokens):
            self.model[self.count] = list(tokens)

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 50))
    def fork(self, which):
        self.count += 1
        seq = self.pick(which)
        self.pages.fork(seq, self.count)
        self.model[self.count] = list(self.model[seq])

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 50), tokens=TOKENS)
    def append(self, which, tokens):
        seq = self.pick(which)
        if self.attempt(self.pages.append, seq, tokens):
            self.model[seq] += tokens

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 50), at=st.integers(0, 50), tokens=TOKENS)
    def rewrite(self, which, at, tokens):
        seq = self.pick(which)
        at %= len(self.model[seq]) + 1
        if self.attempt(self.pages.rewrite, seq, at, tokens):
            self.model[seq][at:] = tokens

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 50))
    def free(self, which):
        seq = self.pick(which)
        self.pages.free(seq)
        del self.model[seq]

    @invariant()
    def everybody_reads_what_they_wrote(self):
        for seq, tokens in self.model.items():
            assert self.pages.tokens(seq) == tokens

    @invariant()
    def pages_are_counted(self):
        alone = sum(-(-len(tokens) // PAGE) for tokens in self.model.values())
        assert self.pages.used_pages + self.pages.saved_pages == alone
        assert 0 <= self.pages.used_pages <= 24
        whole = {tuple(tokens[:end]) for tokens in self.model.values() for end in range(PAGE, len(tokens) + 1, PAGE)}
        assert self.pages.used_pages >= len(whole)   # a page never stands for two prefixes


TestPages = PagesHoldWhatIsWritten.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


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


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 8))
def test_sharing_a_prefix_saves_all_but_one_of_its_copies(sequences, whole_pages, page):
    """(N - 1) / N of the shared part."""
    shared = [7] * (whole_pages * page)
    pages = SharedPages(page)
    for seq in range(sequences):
        pages.add(seq, [*shared, *([100 + seq] * page)])
    assert pages.saved_pages == whole_pages * (sequences - 1)
    assert pages.saved_pages / (whole_pages * sequences) == pytest.approx((sequences - 1) / sequences)


@settings(max_examples=30)
@given(st.integers(2, 30), st.integers(1, 10), st.data())
def test_writers_pay_for_what_they_write(sequences, whole_pages, data):
    """L_s + K L_m, in pages: K of N sequences that share L_s tokens change the last L_m of them."""
    writers = data.draw(st.integers(0, sequences - 1))
    changed = data.draw(st.integers(1, whole_pages))
    pages, page = SharedPages(4), 4
    pages.add(0, list(range(whole_pages * page)))
    for seq in range(1, sequences):
        pages.fork(0, seq)
    for seq in range(1, writers + 1):
        pages.rewrite(seq, (whole_pages - changed) * page, [-seq] * (changed * page))
    assert pages.used_pages == whole_pages + writers * changed
    assert pages.copies == 0    # whole pages are written anew, none is copied first


def test_a_fork_copies_the_partial_page_when_it_writes():
    pages = SharedPages(4)
    pages.add("a", [1, 2, 3, 4, 5, 6])
    pages.fork("a", "b")
    assert pages.used_pages == 2
    pages.append("b", [7])
    assert (pages.used_pages, pages.copies, pages.tokens("a"), pages.tokens("b")) == (
        3, 1, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    pages.append("a", [8])     # nobody else holds it now
    assert (pages.used_pages, pages.copies) == (3, 1)


@pytest.mark.parametrize("page", [16, 512])
@pytest.mark.parametrize("prefix", [100, 200, 500, 800])
def test_savings_of_one_hundred_sequences(prefix, page):
    """Counted in blocks of the clients' prefix cache and in pages of tokens; both are the formula."""
    total, sequences = 1000, 100
    needed = -(-total // page)
    pool, pages = PrefixBlockPool(sequences * needed, page), SharedPages(page)
    for seq in range(sequences):
        tokens = [*range(prefix), *([10_000 + seq] * (total - prefix))]
        holder = Holder(tokens)
        pool.admit(holder, total)
        pages.add(seq, tokens)
    used = pool.num_blocks - pool.free_blocks
    assert used == pages.used_pages
    assert pool.shared_blocks == pages.saved_pages == pool.peak_shared_blocks
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
