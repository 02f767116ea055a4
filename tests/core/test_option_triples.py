"""Random triples of options of an LLM client, on every base: each one runs, conserves its blocks and is the same in
both stepping modes, or is refused by the name of one of its keys, for the reason of exactly one row of
`hermes.engine.compatibility`.

    python tests/core/test_option_triples.py [N] [--seed S]     prints what became of N triples

Options that do not act are counted: with three of them and one load, some are in each other's way.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple

import pytest
from engine_options import BASES, Base, Option, apart
from long_runs import count
from option_runs import assert_conserved, assert_explained, idle, words_of
from outcomes import assert_same, in_steps, simulated

from hermes.errors import InputError
from hermes.scenario import load_scenario

PARTS = 10   # tests that the triples are dealt to
OFTEN = 1    # of them, that CI runs
TRIPLES, FEW = 2000, 1000   # of a thorough and of a long run
SEED = 33
DRAWN = 6    # options drawn together, of which every triple is run: those share the runs that show what one option does
ACTING = 0.65
"""Least share, of a part's triples that run, in which all three options act. Measured: 0.87 of all; 0.73 in the least
part, whose options come from ten draws."""


class Triple(NamedTuple):
    base: Base
    load: int
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        return f"{' + '.join(option.name for option in self.options)} on {self.base.name}, load {self.load}"


def drawn(count: int, seed: int) -> list[list[Triple]]:
    """Return so many triples, by the base, load and options that were drawn together."""
    rng, sets, size = random.Random(seed), [], comb(DRAWN, 3)
    while len(sets) * size < count:
        base = rng.choice(list(BASES.values()))
        options = rng.sample(base.options, DRAWN)
        if not apart(*options):
            continue
        load = rng.randrange(len(base.loads))
        sets.append([Triple(base, load, three) for three in combinations(options, 3)])
    sets[-1] = sets[-1][:count - (len(sets) - 1) * size]
    return sets


def what_becomes_of(triple: Triple, counts: Counter[str]) -> None:
    """Count what becomes of a triple. Raises whatever goes wrong."""
    base, load, options = triple
    try:
        scenario = load_scenario(base.scenario_with(*options, load=base.loads[load]))
        outcome = simulated(scenario)
    except InputError as error:
        assert_explained(error, options)
        counts["refused"] += 1
        return
    assert_conserved(outcome)
    assert_same(outcome, in_steps(scenario))
    counts["runs"] += 1
    found = idle(base, outcome, options, load)
    counts["all three act"] += not found
    counts.update(f"idle: {name}" for name in found)


def wrong(triples: list[Triple], counts: Counter[str]) -> Iterator[str]:
    for triple in triples:
        try:
            what_becomes_of(triple, counts)
        except Exception as error:   # any crash is a finding
            counts["wrong"] += 1
            yield f"{triple.name}: {words_of(error)}"


FOUND = (
    # KV that came from another client held no blocks for windows, and all of it together no room for them
    ("windows", 9, "hybrid", "ranks", "roles"), ("windows", 9, "hybrid", "branches", "roles"),
    # an answer that a stop token ends is still in the decode group when its blocks go to the tiers
    ("windows", 0, "conversations", "stop_token", "tiers"),
    # an attempt that was given up while it waited after a preemption, with its last token in flight when it began
    ("mixture", 2, "eagle", "retrying", "roles"),
)
"""Base, load and options of triples that went wrong once."""


@pytest.mark.long
def test_triples_that_went_wrong_once() -> None:
    for name, load, *options in FOUND:
        base = BASES[name]
        by_name = {option.name: option for option in base.options}
        counts: Counter[str] = Counter()
        what_becomes_of(Triple(base, load, tuple(by_name[option] for option in options)), counts)
        assert counts["runs"] == 1, options


@pytest.mark.thorough
@pytest.mark.parametrize("part", [
    pytest.param(part, marks=[pytest.mark.long] if part < OFTEN else []) for part in range(PARTS)])
def test_every_triple_runs_or_is_refused(part: int) -> None:
    counts: Counter[str] = Counter()
    triples = drawn(count(FEW, FEW, thorough=TRIPLES), SEED)
    lines = [line for together in triples[part::PARTS] for line in wrong(together, counts)]
    assert not lines, "\n".join(lines)
    assert counts["all three act"] >= ACTING * counts["runs"], counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print what becomes of random triples of options.")
    parser.add_argument("count", nargs="?", type=int, default=TRIPLES)
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    totals: Counter[str] = Counter()
    for together in drawn(asked.count, asked.seed):
        for line in wrong(together, totals):
            print(line, flush=True)
    print(dict(totals.most_common()))
    sys.exit(bool(totals["wrong"]))
