"""The micro-batcher in a real event loop: everybody gets their own answer, batches keep to size and window."""

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.plugins.structures.micro_batcher import MicroBatcher


class Search:
    """Doubles numbers; takes `seconds` and notes its batches."""

    def __init__(self, seconds=0.0):
        self.seconds, self.seen, self.running, self.most = seconds, [], 0, 0
        self.threads = set()

    def __call__(self, queries):
        self.running += 1
        self.most = max(self.most, self.running)
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        self.seen.append((time.monotonic(), list(queries)))
        self.running -= 1
        return [2 * query for query in queries]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40), st.integers(1, 9), st.sampled_from([0.0, 0.002]),
       st.booleans())
def test_everybody_gets_their_own_answer_in_order_and_batches_are_never_too_large(queries, max_batch, window, pauses):
    search = Search()

    async def ask():
        batcher = MicroBatcher(search, max_batch, window)
        futures = []
        for i, query in enumerate(queries):
            futures.append(batcher.submit(query))
            if pauses and i % 5 == 4:
                await asyncio.sleep(0.001)
        return await asyncio.gather(*futures), batcher.batches

    answers, batches = asyncio.run(ask())
    assert answers == [2 * query for query in queries]
    assert [query for _, batch in search.seen for query in batch] == queries
    assert all(len(batch) <= max_batch for _, batch in search.seen)
    assert batches == len(search.seen)
    assert search.most == 1


def test_a_full_batch_does_not_wait_and_a_partial_one_waits_for_its_window():
    search, window = Search(), 0.2

    async def ask():
        batcher = MicroBatcher(search, 3, window)
        began = time.monotonic()
        full = [batcher.submit(i) for i in range(3)]
        await asyncio.gather(*full)
        first = time.monotonic() - began
        last = batcher.submit(7)
        began = time.monotonic()
        assert await last == 14
        return first, time.monotonic() - began

    first, last = asyncio.run(ask())
    assert first < window
    assert last >= 0.99 * window
    assert [batch for _, batch in search.seen] == [[0, 1, 2], [7]]


def test_what_arrives_while_a_batch_is_searched_forms_the_next():
    search = Search(0.05)

    async def ask():
        batcher = MicroBatcher(search, 8, 0.0)
        first = batcher.submit(1)
        await asyncio.sleep(0.01)
        rest = [batcher.submit(i) for i in (2, 3, 4)]
        await asyncio.gather(first, *rest)

    asyncio.run(ask())
    assert [batch for _, batch in search.seen] == [[1], [2, 3, 4]]
    assert threading.get_ident() not in search.threads


def test_an_error_and_a_wrong_count_reach_those_who_asked_and_nobody_else():
    def search(queries):
        if 0 in queries:
            raise ZeroDivisionError("none")
        return queries[:-1] if 13 in queries else queries

    async def ask():
        batcher = MicroBatcher(search, 2, 0.0)
        return await asyncio.gather(*(batcher.submit(q) for q in (1, 0, 5, 6, 13, 2)), return_exceptions=True)

    found = asyncio.run(ask())
    # a window of nothing: the first goes alone, the others in twos behind it
    assert found[0] == 1
    assert [type(x) for x in found[1:3]] == [ZeroDivisionError] * 2
    assert [type(x) for x in found[3:5]] == [ValueError] * 2
    assert found[5] == 2


def test_who_gave_up_holds_up_nobody():
    async def ask():
        batcher = MicroBatcher(Search(), 2, 0.01)
        gone, other = batcher.submit(1), batcher.submit(2)
        gone.cancel()
        return await other

    assert asyncio.run(ask()) == 4


@pytest.mark.parametrize(("max_batch", "window"), [(0, 0.0), (1, -1.0)])
def test_sizes_that_cannot_be(max_batch, window):
    with pytest.raises(ValueError, match="at least"):
        MicroBatcher(Search(), max_batch, window)
