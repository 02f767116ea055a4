"""Migrations: how many calls went on at another client, why, and what was computed again or lost for it."""

from __future__ import annotations

import numpy as np

from hermes.core.record import ATTEMPT_OUTCOMES, CUT, DOWN, GONE, RunRecord
from hermes.results.figures.membership import CAUSES
from hermes.results.metrics import parts_of

__all__ = ["migrations_summary"]

_OF_REASONS = CAUSES | {CUT: "drained"}   # by the reason for which a replica was down or gone


def migrations_summary(record: RunRecord) -> dict[str, dict[str, object]]:
    """Return `migrations` of the attempts, empty where a gateway does not migrate:

        requests            requests that went on at another client
        migrated            attempts with whose tokens another one went on
        in_vain             those of them whose call failed in the end
        anew                attempts in whose place another one began before the user had a token
        recomputed_tokens   prompt tokens that an earlier attempt had computed, and that no cache held
        lost_tokens         tokens of attempts that migrated which their users never got
        causes              these but the first by cause: those for which fleets lose replicas, drained, idle (no token
                            came in time), other (no client was left to decode)
    """
    table = record.migrations
    if not table:
        return {}
    with_tokens = table["sent"] > 0
    kept = record.attempts["outcome"][table["attempt"]] == ATTEMPT_OUTCOMES.index("migrated")
    lost = dict.fromkeys(table["attempt"].tolist(), 0)
    for row, (_, steps) in parts_of(record).items():
        lost[int(record.stage_attempts[row])] += len(steps)
    names = _causes(record)
    columns = {"migrated": kept, "in_vain": with_tokens & ~kept, "anew": ~with_tokens,
               "recomputed_tokens": table["recomputed"],
               "lost_tokens": np.array([lost[attempt] for attempt in table["attempt"].tolist()], dtype=np.int64)}
    return {"migrations": {
        "requests": len(np.unique(record.attempts["request"][table["attempt"]])),
        **{key: int(column.sum()) for key, column in columns.items()},
        "causes": {name: {key: int(column[[one == name for one in names]].sum()) for key, column in columns.items()}
                   for name in sorted(set(names))},
    }}


def _causes(record: RunRecord) -> list[str]:
    """Return why each migration was made: what happened to its client, or to the one that was to take over."""
    down: dict[int, dict[int, str]] = {}
    for (client, _, time, state), reason in zip(record.membership.tolist(), record.membership_reasons, strict=True):
        if state in (DOWN, GONE) and reason in _OF_REASONS:
            down.setdefault(time, {})[client] = _OF_REASONS[reason]
    table, found = record.migrations, []
    for attempt, late in zip(table["attempt"].tolist(), table["late"].tolist(), strict=True):
        there = down.get(int(record.attempts["end_ns"][attempt]), {})
        found.append("idle" if late else there.get(int(record.attempts["client"][attempt])) or
                     next(iter(there.values()), "other"))
    return found
