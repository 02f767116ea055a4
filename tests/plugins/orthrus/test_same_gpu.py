"""Readings of serving both kinds from one queue without mixing them (`batches`), step by step."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.memory import BlockPool
from hermes.plugins.orthrus import HeterogeneousConfig
from hermes.testing.schedulers import Request, ServedSteps, serve


def served(arrivals: list[Request], *, places: int = 4, blocks: int = 1000, **options: Any) -> ServedSteps:
    config = HeterogeneousConfig(max_num_seqs=places, max_num_batched_tokens=64, **options)
    return serve(config.build(BlockPool(blocks, 1), every_step=True), arrivals, longest_run=1)


def generation(step: int, output: int) -> Request:
    return Request(step, 2, output)


def embedding(step: int) -> Request:
    return Request(step, 2, 1, embed=True)


@pytest.mark.parametrize(("batches", "steps"), [
    ("mixed", [0, 1, 2, 3, 4]),
    ("alternate", [0, 1, 3, 5, 6]),   # every second step while embeddings wait
    ("oldest", [0, 1, 4, 5, 6]),      # none while embeddings wait
    ("drain", [0, 1, 2, 3, 4]),       # the embeddings wait for the end of the generation
])
def test_decodes_pause_as_the_reading_says(batches: str, steps: list[int]) -> None:
    arrivals = [generation(0, 5), embedding(2), embedding(3)]
    found = served(arrivals, batches=batches)
    assert found.tokens[0] == steps


def test_a_step_starts_the_oldest_up_to_the_first_of_the_other_kind() -> None:
    arrivals = [embedding(0), embedding(0), generation(0, 2), embedding(0), generation(0, 1)]
    found = served(arrivals, places=8, batches="oldest")
    assert [sorted(number for number, _ in step) for step in found.prefills] == [[0, 1], [2], [3], [4]]
    assert found.tokens[2] == [1, 3]    # its second token comes in the step of the generation behind the embedding


def test_an_embedding_without_a_place_lets_the_generations_run() -> None:
    """Otherwise the generations that hold all places would pause for ever."""
    found = served([generation(0, 3), generation(0, 3), embedding(0)], places=2, batches="oldest")
    assert found.tokens[0] == [0, 1, 2]
    assert [number for _, number in sorted(found.finished)][-1] == 2


def test_an_embedding_without_memory_lets_the_generations_run() -> None:
    found = served([Request(0, 6, 3), Request(0, 5, 1, embed=True)], blocks=10, batches="oldest")
    assert found.tokens[0] == [0, 1, 2]
    assert len(found.finished) == 2
