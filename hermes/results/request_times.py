"""Where the time of one request went: stage by stage, waiting by its cause, tokens by the company they had."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hermes.arrays import FloatArray
from hermes.core.record import STATUS_COMPLETED
from hermes.errors import InputError
from hermes.results.figures.gateway_times import AtGateway, asked_ns, offered_ns
from hermes.results.results import Results
from hermes.units import NS_PER_S

__all__ = ["Part", "request_times"]

NOTHING_S = 1e-9
STEP_IN_FLIGHT = "front end, and until the step in flight ended"
PLANNED = "the next step was planned before it came"
SLOTS, BLOCKS, BUDGET = "all slots of the batch were taken", "KV blocks were taken", "the steps were full of other work"
STOPPED = {   # by the recorded `Reason`
    "slots": SLOTS, "KV memory": BLOCKS,
    "adapter slots": "the adapter slots were taken", "token budget": BUDGET,
    "batch in flight": "the batch in flight had to end", "host loads": "KV was on its way from host memory",
}
IDLE = "front end, or nothing ran"


class Part(NamedTuple):
    """A part of a request's time."""

    stage: str
    client: str
    part: str
    """queue, prompt, decode, service, moved or after; with a gateway also gateway, held and lost."""
    seconds: float
    steps: int
    cause: str


def request_times(results: Results, request: int) -> list[Part]:
    """Return the parts of a request's time in order; those of branches that run at the same time overlap.

    Raises `InputError` for a request that does not exist or was rejected.
    """
    stages = results.stages[results.stages["request"] == request].sort_values("assigned_s", kind="stable")
    if not len(stages):
        count = len(results.requests)
        raise InputError(f"a request that was served, 0 to {count - 1}", request)
    out: list[Part] = []
    record = results.record
    by_gateway = bool(record.calls) and record.status[request] == STATUS_COMPLETED
    if by_gateway:
        offered = asked_ns(record) >= offered_ns(record)[request]
        stages = stages[(record.kept & offered)[stages.index]]   # others came to nothing
        if lost := int(offered_ns(record)[request] - record.arrival_ns[request]):
            out.append(Part("", "", "lost", lost / NS_PER_S, 0, "until its client offered it for the last time"))
    at = AtGateway.of(record)
    before = (("gateway", at.hop_wait, "for its capacity"), ("gateway", at.hop, "its service and delay"),
              ("held", at.held, "flow control" if record.held else "no client was ready"),
              ("lost", at.lost, "attempts that came to nothing, and their back-off")) if by_gateway else ()
    for row, stage in zip(stages.index, stages.to_dict("records"), strict=True):
        out += [Part(str(stage["kind"]), "gateway", part, int(column[row]) / NS_PER_S, 0, cause)
                for part, column, cause in before if column[row]]
        out += _stage(results, stage)
    row = results.requests[results.requests["request"] == request].iloc[0]
    after = float(row["finish_s"] - stages["end_s"].max())
    if after > 0:
        out.append(Part("", "", "after", after, 0, "front end, after the last stage"))
    return out


def _stage(results: Results, stage: Mapping[Hashable, Any]) -> Iterator[Part]:
    kind, client, moved = str(stage["kind"]), str(stage["client"]), float(stage["communication_s"])
    asked, start, first, end = (float(stage[f"{name}_s"]) for name in ("assigned", "start", "first_token", "end"))
    if not np.isfinite(start):
        yield Part(kind, client, "queue", end - asked, 0, "until its client gave up")
        return
    runs = results.runs[results.runs["client"] == client]
    if not len(runs) or not np.isfinite(first):
        if start > asked:
            yield Part(kind, client, "queue", start - asked, 0, "for its turn")
        yield Part(kind, client, "service", end - start - moved, 0, "")
    else:
        for cause, seconds, steps in _waiting(runs, asked, start):
            yield Part(kind, client, "queue", seconds, 0 if cause == STEP_IN_FLIGHT else steps, cause)
        if first > start:
            inside = _between(runs, start, first)
            others = int(inside["prefill_seqs"].max()) - 1 if len(inside) else 0
            beside = f"up to {others} other prompts in its steps" if others > 0 else "alone, or beside decodes"
            yield Part(kind, client, "prompt", first - start, int(inside["num_steps"].sum()), beside)
        again = f"; preempted {stage['preemptions']} times" if stage["preemptions"] else ""
        for cause, seconds, steps in _tokens(_between(runs, first, end), first, end):
            yield Part(kind, client, "decode", seconds, steps, cause + again)
    if moved > 0:
        yield Part(kind, client, "moved", moved, 0, "transfer of its data")


def _between(runs: pd.DataFrame, begin: float, end: float) -> pd.DataFrame:
    """Runs of steps that overlap an interval."""
    return runs[(runs["end_s"] > begin + 1e-12) & (runs["start_s"] < end - 1e-12)]


def _inside(runs: pd.DataFrame, begin: float, end: float) -> FloatArray:
    """Seconds of each run inside an interval."""
    return np.asarray(np.minimum(runs["end_s"].to_numpy(), end) - np.maximum(runs["start_s"].to_numpy(), begin))


def _waiting(runs: pd.DataFrame, asked: float, start: float) -> Iterator[tuple[str, float, int]]:
    """(cause, seconds, steps) of waiting, by the reasons that the steps which ran meanwhile recorded."""
    if start <= asked:
        return
    meanwhile = _between(runs, asked, start)
    seconds, steps = _inside(meanwhile, asked, start), meanwhile["num_steps"].to_numpy()
    stopped = meanwhile["stopped"].astype(str)
    lacks = (   # the first that holds
        (STEP_IN_FLIGHT, (meanwhile["start_s"] < asked) & (meanwhile["end_s"] - meanwhile["stopped_s"] >= asked)),
        (PLANNED, stopped == "none"),
        *((text, stopped == reason) for reason, text in STOPPED.items()),
    )
    left = np.ones(len(meanwhile), dtype=bool)
    for cause, holds in lacks:
        here = left & holds.to_numpy()
        left &= ~here
        if here.any():
            yield cause, float(seconds[here].sum()), int(steps[here].sum())
    rest = start - asked - float(seconds.sum())
    if rest > NOTHING_S:
        yield IDLE, rest, 0


def _tokens(runs: pd.DataFrame, first: float, end: float) -> Iterator[tuple[str, float, int]]:
    """(cause, seconds, steps) of the tokens after the first: steps without prompts of other requests, and with."""
    if end <= first:
        return
    seconds = _inside(runs, first, end)
    steps = np.rint(seconds / (runs["end_s"] - runs["start_s"]).to_numpy() * runs["num_steps"].to_numpy())
    beside = runs["prefill_tokens"].to_numpy() > 0
    for here, cause in ((~beside, "no prompt in these steps"), (beside, "prompts of others in these steps")):
        if here.any():
            yield cause, float(seconds[here].sum()), int(steps[here].sum())
    rest = end - first - float(seconds.sum())
    if rest > NOTHING_S:
        yield "between steps", rest, 0
