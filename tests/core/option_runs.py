"""Runs of a base with a set of options: whether each option acts, whether blocks are conserved, why one is refused."""

from __future__ import annotations

from functools import cache

from engine_options import Base, Option
from outcomes import Outcome, digest, run

from hermes.engine.compatibility import ROWS
from hermes.errors import InputError


@cache
def digest_with(base: Base, options: tuple[Option, ...], load: int) -> str:
    """Return the digest of the run with these options, "" if they are refused."""
    try:
        return digest(run(base.scenario_with(*options, load=base.loads[load])).record)
    except InputError:
        return ""


def idle(base: Base, outcome: Outcome, options: tuple[Option, ...], load: int) -> list[str]:
    """Return what did not act in a run: options, or the base's own."""
    found = base.idle(outcome, options)
    if base.excuse(options):
        return []
    for option in options:
        others = tuple(other for other in options if other is not option)
        acted = option.acted(outcome) if option.acted else digest(outcome.record) != digest_with(base, others, load)
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


def assert_explained(error: InputError, options: tuple[Option, ...]) -> None:
    """A refusal names a key of the options, for the reason of exactly one row."""
    text = str(error)
    assert any(name.rsplit(".", 1)[-1] in text for option in options for name in option.names), (
        f"the refusal names none of their keys: {text}")
    rows = [row for row in ROWS if row.explains(text)]
    assert len(rows) == 1, f"{len(rows)} rows explain the refusal: {text}"


def words_of(error: Exception) -> str:
    """Return an error in one line."""
    text = str(error).splitlines()[0] if str(error) else "the two stepping modes differ"
    return f"{type(error).__name__}: {text}"
