"""Options of an LLM client compose: every pair runs, conserves its blocks and is the same in both stepping modes, or is
refused by the name of one of its keys, for the reason of exactly one row of `hermes.engine.compatibility`.

    python tests/core/test_option_pairs.py [OPTION ...]     prints what becomes of every pair that has these options

A pair in which an option does not act is a failure, not a pass.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from engine_options import COMPLETED, LOADS, NO_EFFECT, OPTIONS, Option, apart, completed, scenario_with
from outcomes import Outcome, assert_same, digest, in_steps, run, simulated

from hermes.engine.compatibility import ROWS
from hermes.errors import InputError
from hermes.scenario import load_scenario

PARTS = 12   # tests that the pairs are dealt to
PAIRS = [pair for pair in combinations(OPTIONS, 2) if apart(*pair)]
FROZEN = Path(__file__).parents[1] / "frozen" / "refusals.txt"   # written by `python tests/test_frozen.py`
REFUSALS = {(names[0], names[2]): text for line in FROZEN.read_text().splitlines()
            for head, _, text in [line.partition(": ")] for names in [head.split()]}


@cache
def alone(option: Option, load: int) -> str:
    """Return the digest of an option's run without the other one."""
    return digest(run(scenario_with(option, load=LOADS[load])).record)


def idle(outcome: Outcome, pair: tuple[Option, ...], load: int) -> list[str]:
    """Return the options of a pair that did not act in its run."""
    if frozenset(option.name for option in pair) in NO_EFFECT:
        return []
    found = []
    for option, other in zip(pair, reversed(pair), strict=True):
        acted = option.acted(outcome) if option.acted else digest(outcome.record) != alone(other, load)
        if not acted:
            found.append(option.name)
    return found


def assert_conserved(outcome: Outcome) -> None:
    for client in outcome.simulation.clients:
        pool = client.scheduler.pool
        client.scheduler.plan(1)   # an asynchronous engine gives blocks back with its next plan
        assert pool.free_blocks == pool.num_blocks, f"{client.name}: blocks are held after the last request"
        assert not client.scheduler.running, client.name
        assert not client.scheduler.num_waiting, client.name


def what_becomes_of(pair: tuple[Option, ...]) -> str:
    """Return "runs", or "refused". Raises `AssertionError` for anything else, an untested pair included."""
    names, shortfall = " + ".join(option.name for option in pair), []
    for load, settings in enumerate(LOADS):
        try:
            scenario = load_scenario(scenario_with(*pair, load=settings))
            outcome = simulated(scenario)
        except InputError as error:
            text = str(error)
            assert any(name.rsplit(".", 1)[-1] in text for option in pair for name in option.names), (
                f"{names}: the refusal names none of their keys: {text}")
            rows = [row for row in ROWS if row.explains(text)]
            assert len(rows) == 1, f"{names}: {len(rows)} rows explain the refusal: {text}"
            if pair in PAIRS:
                assert REFUSALS.get((pair[0].name, pair[1].name)) == text, f"{names}: not the frozen refusal: {text}"
            return "refused"
        assert tuple(option.name for option in pair) not in REFUSALS, f"{names}: runs, and is frozen as refused"
        assert_conserved(outcome)
        idles, done = idle(outcome, pair, load), completed(outcome)
        if idles or done < COMPLETED:
            shortfall.append(f"{idles or 'few requests'}: {done} completed")
            continue
        assert_same(outcome, in_steps(scenario))
        return "runs"
    raise AssertionError(f"{names}: untested: {shortfall}")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_runs_or_is_refused(part: int) -> None:
    wrong = list(_wrong(PAIRS[part::PARTS]))
    assert not wrong, "\n".join(wrong)


def test_frozen_refusals_are_of_pairs_that_there_are() -> None:
    assert set(REFUSALS) <= {(a.name, b.name) for a, b in PAIRS}


def test_no_pair_is_exempt_without_need() -> None:
    names = {option.name for option in OPTIONS}
    assert all(pair <= names for pair in NO_EFFECT)


def _wrong(pairs: list[tuple[Option, Option]], counts: Counter[str] | None = None) -> Iterator[str]:
    for pair in pairs:
        try:
            found = what_becomes_of(pair)
        except Exception as error:   # any crash is a finding
            text = str(error).splitlines()[0] if str(error) else "the two stepping modes differ"
            found = "wrong"
            yield f"{pair[0].name} + {pair[1].name}: {type(error).__name__}: {text}"
        if counts is not None:
            counts[found] += 1


if __name__ == "__main__":
    totals: Counter[str] = Counter()
    chosen = [pair for pair in PAIRS if {option.name for option in pair} >= set(sys.argv[1:])]
    for line in _wrong(chosen, totals):
        print(line, flush=True)
    print(dict(totals))
    sys.exit(bool(totals["wrong"]))
