"""Attempts of a gateway: how many there were, what became of them, and what those that came to nothing cost."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from hermes.core.record import ATTEMPT_OUTCOMES, FATES, GATEWAY_WAIT, RunRecord
from hermes.core.statuses import status_of
from hermes.results.figures.energy import Attribution
from hermes.results.figures.migrations import migrations_summary

__all__ = ["attempts_summary"]

_ALWAYS = 4   # fates that are shown without a request, too


def attempts_summary(record: RunRecord, attributed: Attribution | None) -> dict[str, Any]:
    """Return `attempts` of the summary, empty without a gateway; attributed: Joules of stages, None without watts.

        started         attempts that began, those without a client included
        completed, failed, timed_out, cancelled, running   what became of them; revoked with flow control, migrated with
                        migration
        retried         calls with several attempts
        retried_attempts   attempts after the first one of their call
        requests        requests that the gateway answered with an error: failed, timed_out, expired, unavailable,
                        and where there are any, limited, overloaded, shed and revoked
        statuses        requests that ended with an error, by HTTP status (`hermes.core.statuses`)
        client_retries  where clients offer requests again: how often they did, for how many requests
        wait_s          mean, p99 and max of the time that requests waited for the capacity of gateways, where it is
                        limited
        migrations      `hermes.results.figures.migrations`
        wasted          by outcome: attempts that a client had, prompt_tokens and output_tokens that it computed for
                        them, and energy_j; of attempts that were not completed
    """
    table = record.attempts
    if not table:
        return {}
    outcomes, names = table["outcome"], [_key(name) for name in ATTEMPT_OUTCOMES]
    fates = record.fates[:, 1] if len(record.fates) else np.empty(0, dtype=np.int64)
    return {"attempts": {
        "started": len(outcomes),
        **{name: int((outcomes == code).sum()) for code, name in enumerate(names)
           if (name != "revoked" or record.held) and (name != "migrated" or record.migrations)},
        "retried": len(np.unique(table["call"][table["number"] > 1])),
        "retried_attempts": int((table["number"] > 1).sum()),
        "requests": {_key(name): int((fates == code).sum()) for code, name in enumerate(FATES)
                     if code < _ALWAYS or (fates == code).any()},
        "statuses": dict(sorted(Counter(str(status_of(text)) for text in record.reject_reasons.values()).items())),
        **_offered_again(record),
        **_waited(record),
        **migrations_summary(record),
        "wasted": _wasted(record, attributed),
    }}


def _offered_again(record: RunRecord) -> dict[str, Any]:
    noted = record.notes.get("client_tries")
    if noted is None:
        return {}
    again = noted[~np.isnan(noted)]
    return {"client_retries": {"requests": len(again), "offers": int((again - 1).sum())}}


def _waited(record: RunRecord) -> dict[str, Any]:
    noted = record.notes.get(GATEWAY_WAIT)
    if noted is None:
        return {}
    waits = noted[~np.isnan(noted)]
    return {"wait_s": {"mean": float(waits.mean()), "p99": float(np.percentile(waits, 99)), "max": float(waits.max())}}


def _wasted(record: RunRecord, attributed: Attribution | None) -> dict[str, Any]:
    table, rows = record.attempts, record.stage_attempts
    tokens = record.stages["output_tokens"]
    found = {}
    for name in ("failed", "timed out", "cancelled", "revoked"):
        lost = table["outcome"] == ATTEMPT_OUTCOMES.index(name)
        mine = np.append(lost, False)[rows]
        if lost.any():
            found[_key(name)] = {
                "attempts": len(np.unique(rows[mine])), "prompt_tokens": int(table["computed"][lost].sum()),
                "output_tokens": int(tokens[mine].sum()),
                "energy_j": None if attributed is None else math.fsum(attributed.stage_j[mine]),
            }
    return found


def _key(name: str) -> str:
    return name.replace(" ", "_")
