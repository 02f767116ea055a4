"""Options of an LLM client compose: every pair runs, conserves its blocks and is the same in both stepping modes, or is
refused by the name of one of its keys, for the reason of exactly one row of `hermes.engine.compatibility`.

    python tests/core/test_option_pairs.py [--on BASE] [OPTION ...]     prints what becomes of pairs with these options

A pair in which an option does not act is a failure, not a pass. `make test` runs a twelfth of the pairs on a dense
model with little memory, drawn by the commit; `make test-all` runs all of them, and `make nightly` those on a mixture
of experts, on a model with sliding windows and with enough memory.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # where this file is run as a script
from engine_options import BASES, COMPLETED, OPTIONS, Base, Option, apart, completed, scenario_with
from option_runs import assert_conserved, assert_explained, idle, words_of
from outcomes import assert_same, in_steps, simulated

from hermes.core.record import STATUS_UNFINISHED
from hermes.errors import InputError
from hermes.scenario import load_scenario

Pair = tuple[Option, Option]
PARTS = 24   # tests that the pairs are dealt to
PAIRS: list[Pair] = [pair for pair in combinations(OPTIONS, 2) if apart(*pair)]
FROZEN = Path(__file__).parents[1] / "frozen" / "refusals.txt"   # written by `python tests/test_frozen.py`
REFUSALS = {(names[0], names[2]): text for line in FROZEN.read_text().splitlines()
            for head, _, text in [line.partition(": ")] for names in [head.split()]}


def pairs_on(base: Base) -> list[Pair]:
    return [pair for pair in combinations(base.options, 2) if apart(*pair)]


def what_becomes_of(pair: Pair, base: Base) -> str:
    """Return "runs", or "refused". Raises `AssertionError` for anything else, an untested pair included."""
    names, shortfall = (pair[0].name, pair[1].name), []
    frozen = REFUSALS if base is BASES["dense"] else {}
    for load, settings in enumerate(base.loads):
        try:
            scenario = load_scenario(base.scenario_with(*pair, load=settings))
            outcome = simulated(scenario)
        except InputError as error:
            assert_explained(error, pair)
            assert not frozen or frozen.get(names) == str(error), f"not the frozen refusal: {error}"
            return "refused"
        assert names not in frozen, "runs, and is frozen as refused"
        assert_conserved(outcome)
        idles, done = idle(base, outcome, pair, load), completed(outcome)
        if idles or done < COMPLETED:
            shortfall.append(f"{idles or 'few requests'}: {done} completed")
            continue
        assert_same(outcome, in_steps(scenario))
        return "runs"
    raise AssertionError(f"untested: {shortfall}")


@pytest.mark.drawn(one_of=12)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_runs_or_is_refused(part: int) -> None:
    wrong = list(_wrong(PAIRS[part::PARTS], BASES["dense"]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("base", [base for base in BASES.values() if base.name != "dense"], ids=lambda base: base.name)
def test_every_pair_runs_or_is_refused_elsewhere(base: Base, part: int) -> None:
    wrong = list(_wrong(pairs_on(base)[part::PARTS], base))
    assert not wrong, "\n".join(wrong)


FAR_APART = {"workload.arrivals": {"kind": "poisson", "rate": 2}, "workload.requests": 9}


@pytest.mark.long
def test_no_option_leaves_a_lone_request_waiting() -> None:
    """Requests far apart: nothing but the option itself goes on with one that it makes wait. The other loads have
    enough events around each request to hide that."""
    for option in OPTIONS:
        outcome = simulated(load_scenario(scenario_with(option, load=FAR_APART)))
        waiting = int((outcome.record.status == STATUS_UNFINISHED).sum())
        assert not waiting, f"{option.name}: {waiting} requests wait for ever"
        assert_conserved(outcome)


def test_frozen_refusals_are_of_pairs_that_there_are() -> None:
    assert set(REFUSALS) <= {(a.name, b.name) for a, b in PAIRS}


def test_no_pair_is_exempt_without_need() -> None:
    names = {option.name for base in BASES.values() for option in base.options}
    assert all(pair <= names for base in BASES.values() for pair in base.no_effect)


def _wrong(pairs: list[Pair], base: Base, counts: Counter[str] | None = None) -> Iterator[str]:
    for pair in pairs:
        try:
            found = what_becomes_of(pair, base)
        except Exception as error:   # any crash is a finding
            found = "wrong"
            yield f"{pair[0].name} + {pair[1].name}: {words_of(error)}"
        if counts is not None:
            counts[found] += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print what becomes of every pair that has these options.")
    parser.add_argument("options", nargs="*")
    parser.add_argument("--on", choices=BASES, default="dense")
    asked = parser.parse_args()
    totals: Counter[str] = Counter()
    names = {option.name for option in BASES[asked.on].options}
    if unknown := {*asked.options} - names:
        sys.exit(f"no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    chosen = [pair for pair in pairs_on(BASES[asked.on])
              if {option.name for option in pair} >= set(asked.options)]
    for line in _wrong(chosen, BASES[asked.on], totals):
        print(line, flush=True)
    print(dict(totals))
    sys.exit(bool(totals["wrong"]))
