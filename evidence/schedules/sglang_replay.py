"""Replay of schedules recorded from SGLang's scheduler through the simulator's (`hermes conform`).

A recorded file (format: docs/background/sglang.md) has the settings under SGLang's names, the requests by the number of
batches before their arrival, and one line per batch: [kind, scheduled, retracted, free tokens, evictable tokens,
new-token ratio]. The replay drives the scheduler itself, batch by batch (`every_step`) or in runs that end where the
next request arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.config.yaml_document import as_node
from hermes.core.block_hashes import GroupPrefix
from hermes.core.generation import Generation
from hermes.errors import InputError, Verbatim, shown
from hermes.hardware.descriptions.files import read_json
from hermes.memory import BlockPool
from hermes.memory.radix import RadixPool
from hermes.schedulers.base import AT_REST, IN_STEP, RESULTS, run_order
from hermes.schedulers.plan import Plan
from hermes.schedulers.sglang import SglangScheduler
from hermes.schedulers.sglang_config import SglangConfig
from hermes.schedulers.sglang_overlap import OverlapSglangScheduler

__all__ = ["RecordedBatches", "batches_of", "both_schedules", "load_batches", "replay_batches"]

DIGITS = 9   # of recorded ratios
COLUMNS = ("kind", "scheduled", "retracted", "free_tokens", "evictable_tokens", "new_token_ratio")
Row = list[Any]   # Any: JSON
Batch = dict[str, Any]   # Any: JSON
Count = Field(ge=0, le=2**31)


def _is_batch(step: list[Any], *, first: bool) -> bool:
    """Return whether a recorded batch has its parts; 0 in place of what is scheduled continues the batch before."""
    if len(step) != len(COLUMNS):
        return False
    kind, scheduled, retracted, free, evictable, ratio = step
    listed = isinstance(scheduled, list) and all(
        isinstance(row, list) and len(row) == 3 and all(type(number) is int for number in row) for row in scheduled)
    return (isinstance(kind, str) and (listed or (type(scheduled) is int and scheduled == 0 and not first))
            and isinstance(retracted, list) and all(type(number) is int for number in retracted)
            and type(free) is type(evictable) is int and type(ratio) in (int, float))


class RecordedRequest(ConfigModel):
    """One request. `max_new_tokens`: what it asked for, if more than it got."""

    id: int
    arrival_step: int = Count
    prompt_tokens: int = Field(ge=1, le=2**31)
    output_tokens: int = Field(ge=1, le=2**31)
    abort_step: int | None = Field(default=None, ge=0, le=2**31)
    """Batches before its client gives it up."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=2**31)
    prefix_group: int | None = None
    prefix_tokens: int = Field(default=0, ge=0, le=2**31)


class RecordedSettings(ConfigModel):
    """Options of the server, under SGLang's names."""

    page_size: int = Field(ge=1)
    max_total_num_tokens: int = Field(ge=1)
    max_running_requests: int = Field(ge=1)
    chunked_prefill_size: int | None
    max_prefill_tokens: int = Field(ge=1)
    schedule_policy: str
    schedule_conservativeness: float
    enable_mixed_chunk: bool
    disable_overlap_schedule: bool = True
    disable_radix_cache: bool
    ignore_eos: bool


class RecordedBatches(ConfigModel):
    """A recorded file; see the module's docstring."""

    model_config = ConfigModel.model_config | {"extra": "ignore"}

    engine_version: str
    settings: RecordedSettings
    requests: list[RecordedRequest]
    steps: list[list[Any]]

    @model_validator(mode="after")
    def _batches(self) -> Self:
        for number, step in enumerate(self.steps):
            if not _is_batch(step, first=number == 0):
                raise InputError(f"[{', '.join(COLUMNS)}]", Verbatim(shown(step)), field=f"steps.{number}")
        return self

    def rows(self) -> list[Row]:
        """Return the batches in full."""
        rows: list[Row] = []
        before: list[list[int]] = []
        for kind, scheduled, *rest in self.steps:
            if scheduled == 0:
                scheduled = [[number, 1, past + 1] for number, _, past in before]
            rows.append([kind, scheduled, *rest])
            before = scheduled
        return rows


class _Asking(SglangScheduler):
    """A scheduler whose requests ask for different numbers of tokens."""

    asked_by: dict[Generation, int]

    def max_new_tokens(self, seq: Generation) -> int:
        return min(self.asked_by[seq], self._most_new_tokens(seq))


class _AskingAhead(OverlapSglangScheduler):
    """The same, with overlap scheduling."""

    asked_by: dict[Generation, int]

    def max_new_tokens(self, seq: Generation) -> int:
        return min(self.asked_by[seq], self._most_new_tokens(seq))


def load_batches(path: Path) -> RecordedBatches:
    """Read a recorded file. `InputError` names file and field."""
    return _batches_in(read_json(path), path)


def both_schedules(data: Any, path: Path, *, every_step: bool) -> tuple[list[Batch], list[Batch]]:   # Any: JSON
    """Return a recorded file's batches and the simulator's, with names."""
    recorded = _batches_in(data, path)
    found = recorded.rows(), replay_batches(recorded, every_step=every_step)
    theirs, ours = ([dict(zip(COLUMNS, row, strict=True)) for row in rows] for rows in found)
    return theirs, ours


def _batches_in(data: Any, path: Path) -> RecordedBatches:   # Any: JSON
    try:
        return RecordedBatches.model_validate(data)
    except (ValidationError, RecursionError):   # find the place, which takes longer than a plain read
        return validate(RecordedBatches, as_node(data), str(path))


def _scheduler(recorded: RecordedBatches, *, every_step: bool) -> _Asking | _AskingAhead:
    settings = recorded.settings.model_dump()
    page, tokens = settings.pop("page_size"), settings.pop("max_total_num_tokens")
    if settings["chunked_prefill_size"] is None:
        settings["chunked_prefill_size"] = -1
    pool = (BlockPool if settings["disable_radix_cache"] else RadixPool)(tokens // page, page)
    kind = _Asking if settings["disable_overlap_schedule"] else _AskingAhead
    return kind(validate(SglangConfig, settings), pool, every_step=every_step)


def replay_batches(recorded: RecordedBatches, *, every_step: bool) -> list[Row]:
    """Return the rows of the simulator's scheduler."""
    scheduler = _scheduler(recorded, every_step=every_step)
    arrivals: list[tuple[int, Generation]] = []
    scheduler.asked_by = {}
    for order, one in enumerate(sorted(recorded.requests, key=lambda r: (r.arrival_step, r.id))):
        content = None if one.prefix_group is None else GroupPrefix(one.prefix_group, one.prefix_tokens)
        seq: Generation = Generation(one.prompt_tokens, one.output_tokens, arrival_order=order, content=content)
        seq.request = one.id  # type: ignore[assignment]  # a recording has only the id
        scheduler.asked_by[seq] = one.max_new_tokens or one.output_tokens
        arrivals.append((one.arrival_step, seq))
    aborts = _Aborts(scheduler, recorded, [seq for _, seq in arrivals])
    rows: list[Row] = []
    step = following = unfinished = 0
    while following < len(arrivals) or unfinished or scheduler.ending:
        while following < len(arrivals) and arrivals[following][0] <= step:
            scheduler.enqueue(arrivals[following][1])
            following += 1
            unfinished += 1
        unfinished -= aborts.before_plan(step)
        until = min(arrivals[following][0] if following < len(arrivals) else 1 << 30, aborts.next_step(step)) - step
        plan = scheduler.plan(1 if every_step else until)
        if plan is None:
            if following == len(arrivals):   # nothing will ever run: report the rows so far
                break
            step = arrivals[following][0]
            continue
        if not plan.prefills and not plan.decodes:   # nothing to run beside the batch in flight
            aborts.beside_nothing(step)
            scheduler.complete(plan, 1, -1, 0)
            unfinished -= aborts.after_results([])
            continue
        rows += batches_of(scheduler, plan)
        step += plan.num_steps
        aborts.while_running(step)
        finished = scheduler.complete(plan, plan.num_steps, step - 1, step)
        unfinished -= aborts.after_results(finished)
        for done in finished:
            scheduler.release(done)
            unfinished -= 1
    return rows


class _Aborts:
    """Requests of a recording whose clients give up, as `LLMClient.abort` cancels them.

    With overlap, the client learns of an abort while the batch runs that is in flight two batches before.
    """

    def __init__(self, scheduler: SglangScheduler, recorded: RecordedBatches, seqs: list[Generation]) -> None:
        self.scheduler, self.lag = scheduler, int(scheduler.asynchronous)
        steps = {one.id: one.abort_step for one in recorded.requests if one.abort_step is not None}
        self.to_come = {seq: steps[_recorded_id(seq)] for seq in seqs if _recorded_id(seq) in steps}
        self.leaving: dict[Generation, int] = {}

    def next_step(self, step: int) -> int:
        """Return the next step at whose beginning a request is given up."""
        return min([at - self.lag for at in self.to_come.values() if at - self.lag > step], default=1 << 30)

    def while_running(self, step: int) -> None:
        """Note what is given up before the batches up to `step` have results."""
        for seq, at in list(self.to_come.items()):
            if at - self.lag <= step and self.scheduler.has(seq):
                self.leaving[seq] = self.to_come.pop(seq)
                self.scheduler.leave(seq, IN_STEP)

    def beside_nothing(self, step: int) -> None:
        """Count again from an empty plan: it is no batch, so what is given up a batch later is unknown to the next."""
        for seq in [seq for seq, at in self.leaving.items() if at > step]:
            self.scheduler._given_up[seq] = 0

    def after_results(self, finished: list[Generation]) -> int:
        """Take out what can leave, and return how many of them there are."""
        gone = [seq for seq in self.leaving if self.scheduler.leave(seq, RESULTS)]
        for seq in gone:
            del self.leaving[seq]
        finished[:] = [seq for seq in finished if seq not in gone]
        return len(gone)

    def before_plan(self, step: int) -> int:
        """Handle requests that are given up as they arrive; return how many leave at once."""
        scheduler, gone = self.scheduler, 0
        for seq, at in list(self.to_come.items()):
            if at - self.lag > step or not scheduler.has(seq):
                continue
            del self.to_come[seq]
            if scheduler.leave(seq, AT_REST if at <= step else IN_STEP):
                gone += 1
            else:
                self.leaving[seq] = at
        return gone


def _recorded_id(seq: Generation) -> int:
    return seq.request  # type: ignore[return-value]  # a recording has only the id


def batches_of(scheduler: SglangScheduler, plan: Plan, name: Callable[[Generation], int] = _recorded_id) -> list[Row]:
    """Return the rows of a planned run. name: A request's number in them."""
    group, page, ratio = scheduler.group, scheduler.pool.block_size, scheduler.ratio
    over: list[Generation] = []
    if isinstance(scheduler, OverlapSglangScheduler):
        free, cached = scheduler.seen
        over = scheduler.overrun
        free += group.blocks_for(1) if plan.decodes else 0
    else:
        cached = scheduler.tree.tree.evictable if scheduler.tree is not None else 0
        free = scheduler.pool.free_blocks - cached
    prefills = [[name(seq), n, seq.num_computed - n] for seq, n in plan.prefills]
    kind = "decode" if not prefills else "mixed" if plan.decodes else "extend"
    rows: list[Row] = []
    for j in range(plan.num_steps):
        decodes = [] if not plan.decodes else [
            [name(seq), 1, (seq.num_computed if seq in over else group.clock + seq.base) + j]
            for seq in (sorted([*group.members, *over], key=run_order) if over else group.members)]
        if plan.decodes and scheduler.decays:
            ratio = max(ratio - scheduler.decay, scheduler.min_ratio)
        taken = group.blocks_for(j + 1) if plan.decodes else 0
        rows.append([kind, prefills + decodes, [name(seq) for seq in plan.preempted] if j == 0 else [],
                     (free - taken) * page, cached * page, round(ratio, DIGITS)])
    return rows
