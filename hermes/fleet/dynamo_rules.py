"""The rules of Dynamo's planner, as functions of numbers: the load loop for each target, and the budget of devices.

A decision is a number of workers, or None where nothing should change or too little is known.

Source: ai-dynamo 1.6.1, dynamo/planner/core: load_scaling.py and budget.py; and ai-dynamo/dynamo 0c6da1ec, its
load_scaling.py and state_machine.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hermes.core.scraped import EngineState
from hermes.fleet.dynamo_models import AggModel, DecodeModel, PrefillModel

__all__ = ["Sla", "agg_load", "budgeted", "budgeted_pair", "by_threshold", "decode_load", "guarded_pair",
           "prefill_load", "uses"]

# target -> from where on any engine asks for one more, and below what all engines allow one fewer
_PREFILL = {"throughput": (1.0, 0.1), "latency": (0.1, 0.0)}   # queued prompt tokens / context length
_DECODE = {"throughput": (1.0, 0.6), "latency": (0.4, 0.1)}    # tokens that run or wait / KV capacity


class Sla(NamedTuple):
    """Limits, and how much of them may be used after one worker has gone. least: Fewest workers."""

    ttft_s: float = 0.5
    itl_s: float = 0.05
    sensitivity: float = 0.8
    least: int = 1


def uses(role: str, engines: Sequence[EngineState], context: int, kv_tokens: int) -> list[float]:
    """Return the use of each engine that the targets `throughput` and `latency` look at."""
    if role == "prefill":
        return [one.queued_prefill_tokens / context for one in engines]
    waits = [one.queued_prefill_tokens if role == "both" else 0 for one in engines]
    return [(one.latest.decode_tokens + one.queued_decode_tokens + more) / kv_tokens
            for one, more in zip(engines, waits, strict=True)]


def by_threshold(role: str, target: str, used: Sequence[float], workers: int, least: int, starting: int = 0, *,
                 holds: bool = True) -> int | None:
    """Decide for the targets `throughput` and `latency`: up if any engine is above a threshold, down if all are below.

    Args:
        starting: Workers that start besides.
        holds: Whether no worker goes whose load would drive the others to the upper threshold (1.6.1).
    """
    if not used or not workers:
        return None
    if role == "prefill":
        up, down = _PREFILL[target]
        rises = any(use >= up for use in used)
        falls = all(use <= down if target == "latency" else use < down for use in used)
    else:
        up, down = _DECODE[target]
        rises, falls = any(use > up for use in used), all(use < down for use in used)
    if rises:
        return workers + 1
    if not falls or workers + starting < 2:
        return None
    fewer = max(workers - 1, least)
    return workers if holds and 0 < fewer < workers and max(used) * workers / fewer >= up else fewer


def _by_estimates(estimates: Sequence[float], limit: float, workers: int, least: int, *, spare: bool) -> int | None:
    """Decide for the target `sla`: up if all estimates are above the limit, down if one worker can be spared."""
    if not estimates:
        return None
    if all(one > limit for one in estimates):
        return workers + 1
    return max(workers - 1, least) if spare else None


def prefill_load(model: PrefillModel, engines: Sequence[EngineState], workers: int, batched: int, sla: Sla,
                 starting: int = 0) -> int | None:
    """Decide for prefill workers and the target `sla`. One can be spared if what the queues of the others would add to
    the time of a request, n / (n - 1) times as long, stays within the share of what its own time leaves."""
    own = model.ttft_s(0, batched)
    if own is None or not workers:
        return None
    estimates, spare = [], workers + starting > 1
    room = (sla.ttft_s - own) * sla.sensitivity
    for one in engines:
        queued = one.queued_prefill_tokens
        estimates += [_known(model.ttft_s(queued, batched))]
        if spare:
            spare = room > 0 and _known(model.ttft_s(_after(queued, workers), batched)) - own < room
    return _by_estimates(estimates, sla.ttft_s, workers, sla.least, spare=spare)


def decode_load(model: DecodeModel, engines: Sequence[EngineState], workers: int, kv_tokens: int, sla: Sla,
                starting: int = 0) -> int | None:
    """Decide for decode workers and the target `sla`. One can be spared if the tokens of each, n / (n - 1) times as
    many, fit in memory and give an ITL within the share of the limit."""
    if not workers or not model.regression.ready():
        return None
    estimates, spare = [], workers + starting > 1
    for one in engines:
        tokens = one.latest.decode_tokens + one.queued_decode_tokens
        estimates += [_known(model.itl_s(tokens))]
        if spare:
            after = _after(tokens, workers)
            spare = after < kv_tokens and _known(model.itl_s(after)) < sla.itl_s * sla.sensitivity
    return _by_estimates(estimates, sla.itl_s, workers, sla.least, spare=spare)


def agg_load(model: AggModel, engines: Sequence[EngineState], workers: int, batched: int, kv_tokens: int, sla: Sla,
             starting: int = 0) -> int | None:
    """Decide for workers that do both and the target `sla`: up if TTFT or ITL asks for it, down if both allow it."""
    if not workers or not model.regression.ready():
        return None
    ttft, itl = [], []
    spare_first = spare_next = workers + starting > 1
    for one in engines:
        queued, decode = one.queued_prefill_tokens, one.latest.decode_tokens
        ttft += [_known(model.ttft_s(queued, batched, decode))]
        itl += [_known(model.itl_s(decode + one.queued_decode_tokens))]
        if spare_first:
            own = _known(model.ttft_s(0, batched, _after(decode, workers)))
            room = (sla.ttft_s - own) * sla.sensitivity
            then = _known(model.ttft_s(_after(queued, workers), batched, _after(decode, workers)))
            spare_first = room > 0 and then - own < room
        if spare_next:
            after = _after(decode + one.queued_decode_tokens + queued, workers)
            spare_next = after < kv_tokens and _known(model.itl_s(after)) < sla.itl_s * sla.sensitivity
    first = _by_estimates(ttft, sla.ttft_s, workers, sla.least, spare=spare_first)
    other = _by_estimates(itl, sla.itl_s, workers, sla.least, spare=spare_next)
    asked = [one for one in (first, other) if one is not None]
    if any(one > workers for one in asked):
        return workers + 1
    return max(asked) if len(asked) == 2 and max(asked) < workers + starting else None


def _known(seconds: float | None) -> float:
    assert seconds is not None   # the model is ready
    return seconds


def _after(tokens: int, workers: int) -> int:
    """Return the tokens of each worker after one of them has gone; the last one stays."""
    return int(tokens * workers / max(workers - 1, 1))


# -- the budget of devices -------------------------------------------------------------------------------------------


def budgeted(desired: int, devices: int, budget: int | None, least: int) -> int:
    """Return the workers within a budget of devices, at least `least`."""
    desired = max(desired, least)
    return desired if budget is None or desired * devices <= budget else max(least, budget // devices)


def budgeted_pair(prefill: int, decode: int, devices: tuple[int, int], budget: int | None,
                  least: int) -> tuple[int, int]:
    """Return the prefill and decode workers within a budget that they share: prefill shrinks in proportion, and decode
    has what is left."""
    prefill, decode = max(prefill, least), max(decode, least)
    total = prefill * devices[0] + decode * devices[1]
    if budget is None or total <= budget:
        return prefill, decode
    most = (budget - least * devices[1]) // devices[0]
    prefill = max(least, min(most, math.floor(prefill * (budget / total))))
    return prefill, max(least, (budget - prefill * devices[0]) // devices[1])


def guarded_pair(current: tuple[int, int], wanted: tuple[int, int], devices: tuple[int, int], budget: int | None,
                 least: int) -> tuple[int, int]:
    """Return the prefill and decode workers within a shared budget as 1.6.1 has them: neither moves against what was
    wanted of it, and at a full budget one grows only where the other shrinks, both or neither."""
    wanted = max(wanted[0], least), max(wanted[1], least)
    total = _devices(current, devices)
    if budget is None:
        return wanted
    if min(current) < least:
        return budgeted_pair(*wanted, devices, budget, least)
    if total > budget:   # recovers, whatever the load wants
        return budgeted_pair(*current, devices, budget, least)
    ups = [new > now for new, now in zip(wanted, current, strict=True)]
    downs = [new < now for new, now in zip(wanted, current, strict=True)]
    if total >= budget and any(ups):
        return _fitted(current, wanted, devices, budget) if any(downs) else current
    found = budgeted_pair(*wanted, devices, budget, least)
    kept = all(min(now, new) <= one <= max(now, new) for now, new, one in zip(current, wanted, found, strict=True))
    return found if kept and _devices(found, devices) <= budget else current


def _devices(workers: tuple[int, int], devices: tuple[int, int]) -> int:
    return workers[0] * devices[0] + workers[1] * devices[1]


def _fitted(current: tuple[int, int], wanted: tuple[int, int], devices: tuple[int, int],
            budget: int) -> tuple[int, int]:
    """Return what fits of a move of one role up and the other down that is nearest to it, or the present workers."""
    asked = abs(wanted[0] - current[0]), abs(wanted[1] - current[1])
    best = None
    for done in ((p, d) for p in range(1, asked[0] + 1) for d in range(1, asked[1] + 1)):
        one = (current[0] + (done[0] if wanted[0] > current[0] else -done[0]),
               current[1] + (done[1] if wanted[1] > current[1] else -done[1]))
        if _devices(one, devices) <= budget:
            skew = abs(done[0] * asked[1] - done[1] * asked[0])
            score = (sum(asked) - sum(done), skew, -sum(done), *one)
            best = min(best, (score, one)) if best else (score, one)
    return best[1] if best else current
