"""The workload of a scenario: arrivals, lengths, pipeline and model, drawn into a `RequestTable`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import IntArray
from hermes.config import Component, ConfigModel, Duration, Name
from hermes.config.retries import ClientRetry
from hermes.config.streams import stream
from hermes.core.columns import constant
from hermes.core.record import APART, Offered
from hermes.core.request_table import ANY_NUMBER, RequestTable
from hermes.errors import InputError, Verbatim
from hermes.units import s_to_ns
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.attributes import Adapters, Names, Patience, Prefixes, Priorities, Sessions
from hermes.workload.base import MAX_TOKENS, ArrivalProcess, ClosedLoopProcess, Ends, LengthModel, Lengths, inside
from hermes.workload.branches import branch_tokens, scaled_outputs
from hermes.workload.contexts import Contexts
from hermes.workload.lengths import LENGTHS
from hermes.workload.pipelines import PipelineChoice, Pipelines, choices_of

__all__ = ["MAX_REQUESTS", "WorkloadConfig", "offered"]

MAX_REQUESTS = 50_000_000
"""A larger number of requests is taken for a mistake."""


class WorkloadConfig(ConfigModel):
    """Requests of one kind: their number, arrivals and lengths, and the pipeline and model that serve them."""

    name: Name = "main"
    """Name of the workload. Its random numbers depend on this name, and on no other workload."""
    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    """Number of requests (of conversations: turns in total, the last conversation may be incomplete). Give this or
    `duration`. Traces need neither (all their rows)."""
    duration: Duration | None = None
    """Period of arrivals, from `start` on, instead of a number of requests. Conversations start in this period, and
    have all their turns."""
    start: Duration = 0.0
    """Start of the workload, on the simulation's clock."""
    arrivals: Annotated[Any, Component(ARRIVALS)]
    """Arrival process of the requests. For `lengths: conversations`: of the starts of conversations."""
    lengths: Annotated[Any, Component(LENGTHS)]
    """Lengths of prompts and answers."""
    output_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of the drawn answer lengths (reasoning: 8 to 32), rounded to tokens."""
    branches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parallel answers to each prompt. They share the prompt's KV, and the request ends with the last."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Spread of branch lengths around the answer's length: 0.3 is uniform from 0.7 to 1.3 of it."""
    max_total_tokens: Annotated[int, Field(ge=2, le=2**41)] | None = None
    """Longest prompt plus output, as of a context window: prompts are truncated to one less, then outputs to the
    rest."""
    ends: Ends | None = None
    """How answers end: by a `stop_token`, as in chat, or with the `max_new_tokens` that a request asks for, as where a
    load driver sets `ignore_eos`. An engine that schedules asynchronously sees a stop token too late, and computes the
    request in one step more. Left out: what a trace's column says, otherwise by `max_new_tokens` if the answers have
    `fixed` or `uniform` lengths, and by a `stop_token` if not."""
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Output tokens that each request asks for (`max_tokens` of the API). Longer answers are cut there, and end so.
    Left out, as many as the client's context leaves (or the trace's)."""
    sampling: Literal["greedy", "top_p"] | None = None
    """How tokens are chosen. `greedy` takes the most probable one. `top_p` draws from the most probable ones, for which
    the engine sorts its vocabulary: 4 to 6% of a decode step. Left out, what the publisher's generation settings say.
    It counts for hardware of named terms; one request that draws makes its step sort."""
    priorities: Priorities | None = None
    """Priorities of the requests. Left out, all 0 (or the trace's)."""
    tenants: Names | None = None
    """Tenants of the requests, which results tell apart and a gateway may treat fairly. Left out, none (or the
    trace's)."""
    classes: Names | None = None
    """Classes of the requests at a gateway (`gateway.classes` gives their priorities there). Left out, none (or the
    trace's)."""
    adapters: Adapters | None = None
    """LoRA adapters of the requests; clients need `scheduler.max_loras`. Left out, none."""
    patience: Patience | None = None
    """When clients give up. Their requests are cancelled, and count as rejected with that reason. Left out, never."""
    retry: ClientRetry | None = None
    """What clients do when a request ends with an error: they offer it again, as a whole and from the start. TTFT and
    E2E count from the first offer, and `patience` ends all of them. Left out, they do nothing."""
    prefixes: Prefixes | None = None
    """Prompts with shared beginnings. Left out, none (or the trace's)."""
    sessions: Sessions | None = None
    """Conversations that requests belong to. Left out, none (or the trace's)."""
    contexts: Contexts | None = None
    """Past contexts of requests. Left out, none."""
    pipeline: Pipelines = "plain"
    """Pipeline that serves these requests: its name, a mapping with its parameters, or a list of several, mixed by
    weight."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Model that the requests ask for, if the pipeline leaves it open."""

    @property
    def counted(self) -> dict[str, str]:
        """Units that the rates of its parts count, if not requests (shown in the resolved scenario)."""
        return {"arrivals": "conversations"} if self.lengths.has_turns else {}

    @property
    def pipelines(self) -> list[PipelineChoice]:
        """Pipelines that its requests take, one or several."""
        return choices_of(self.pipeline)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.requests is not None and self.duration is not None:
            raise InputError(Verbatim("requests and duration exclude each other; give one"), field="duration")
        if self.requests is None and self.duration is None and not (self.arrivals.replays or self.lengths.replays):
            raise InputError(Verbatim("missing: give a number of requests, or a duration"), field="requests")
        if self.ends == "max_new_tokens" and self.max_new_tokens is not None:
            raise InputError(Verbatim("answers that end with max_new_tokens have the lengths that `lengths` gives; "
                                      "leave it out"), field="max_new_tokens")
        if self.branch_spread and self.branches == 1:
            raise InputError(Verbatim("branch_spread needs several branches; set more than 1"), field="branches")
        timed = isinstance(self.arrivals, ArrivalProcess) and self.arrivals.endless_time
        if self.duration is not None and not timed:
            raise InputError(Verbatim(f"missing: {self.arrivals.kind} arrivals have no end; give a number of requests"),
                             field="requests")
        if self.lengths.has_turns and self.prefixes is not None:
            raise InputError(Verbatim("conversations begin with their system_tokens; leave it out"), field="prefixes")
        if self.lengths.has_turns and self.sessions is not None:
            raise InputError(Verbatim("each conversation is a session; leave it out"), field="sessions")
        return self

    def draw(self, seed: int, base_dir: Path) -> RequestTable:
        """Draw the requests, in arrival order. Files are relative to `base_dir`, the scenario's folder.

        A workload limited by `duration` may have no requests. Raises `InputError` for malformed files, and for traces
        with fewer requests than asked for.
        """
        with inside("arrivals"):
            arrivals = self.arrivals.bound(base_dir)
        with inside("lengths"):
            lengths: LengthModel = self.lengths.bound_beside(arrivals, base_dir)
        rows = [part.available() for part in (arrivals, lengths)]
        limit = min((n for n in rows if n is not None), default=MAX_REQUESTS)
        n = limit if self.requests is None else self.requests
        if lengths.has_turns:
            return self._conversations(arrivals, lengths, limit, seed, base_dir)
        when: dict[str, Any] = {}
        with inside("arrivals"):
            if isinstance(arrivals, ClosedLoopProcess):
                think_ns = arrivals.think_ns(n, self._stream(seed, "arrivals"))
                think_ns[: arrivals.users] += s_to_ns(self.start)  # a user's first request waits for the start as well
                when = {"users": arrivals.users, "think_ns": think_ns}
            else:
                times = (
                    arrivals.times_ns(n, self._stream(seed, "arrivals")) if self.duration is None
                    else self._until_the_end(arrivals, limit, seed)
                )
                n = len(times)
                when = {"arrival_ns": times + s_to_ns(self.start), "max_in_flight": arrivals.max_in_flight}
        with inside("lengths"):
            drawn = lengths.draw(n, self._stream(seed, "lengths"))
        return RequestTable(**when, **self._columns(drawn, seed, base_dir))

    def _conversations(
        self, arrivals: Any, lengths: Any, limit: int, seed: int, base_dir: Path
    ) -> RequestTable:
        """Draw `requests` turns, or all turns of the conversations that start within `duration` or in a trace."""
        def turns(n: int) -> Lengths:
            if n > MAX_REQUESTS:
                raise InputError(Verbatim(f"the conversations have {MAX_REQUESTS} turns or more; shorten it"),
                                 field="duration")
            with inside("lengths"):
                drawn: Lengths = lengths.turns_of(
                    n, self._stream(seed, "lengths"), goes_on_with=lambda tokens: self._continued(tokens, seed),
                    max_total_tokens=self.max_total_tokens,
                )
                return drawn

        n, starts = self.requests, None
        if n is None:
            with inside("arrivals"):
                starts = (arrivals.times_ns(limit, self._stream(seed, "arrivals")) if self.duration is None
                          else self._until_the_end(arrivals, limit, seed))
            n = lengths.turns_in(len(starts), turns)
        drawn = turns(n)
        assert drawn.turn is not None
        assert drawn.think_ns is not None
        first = drawn.turn == 0
        count = int(first.sum())
        when: dict[str, Any]
        with inside("arrivals"):
            if isinstance(arrivals, ClosedLoopProcess):
                think_ns = arrivals.think_ns(count, self._stream(seed, "arrivals"))
                think_ns[: arrivals.users] += s_to_ns(self.start)
                drawn.think_ns[first] = think_ns
                when = {"users": arrivals.users}
            else:
                if starts is None:
                    starts = arrivals.times_ns(count, self._stream(seed, "arrivals"))
                when = {"arrival_ns": np.full(n, -1, dtype=np.int64), "max_in_flight": arrivals.max_in_flight}
                when["arrival_ns"][first] = starts + s_to_ns(self.start)
        return RequestTable(**when, **self._columns(drawn, seed, base_dir))

    def _end(self, columns: dict[str, Any]) -> None:
        """Cut answers that are longer than what their requests ask for, and note what the others ask for."""
        asked, n = columns.pop("max_new_tokens", None), len(columns["output_tokens"])
        if self.max_new_tokens is not None:
            asked = np.full(n, self.max_new_tokens, dtype=np.int64)
            columns["output_tokens"] = np.minimum(columns["output_tokens"], asked)
        elif asked is not None and self.output_scale != 1:
            asked = np.where(asked < ANY_NUMBER, columns["output_tokens"], ANY_NUMBER)
        ends = self.ends or ("stop_token" if asked is not None else self.lengths.ends)
        if ends == "stop_token":
            columns["max_new_tokens"] = constant(ANY_NUMBER, n) if asked is None else asked

    def _continued(self, output_tokens: IntArray, seed: int) -> IntArray:
        """Return the answer tokens with which conversations continue: scaled, and of several branches the first."""
        if self.output_scale != 1:
            output_tokens = scaled_outputs(output_tokens, self.output_scale)
        if self.max_new_tokens is not None:
            output_tokens = np.minimum(output_tokens, self.max_new_tokens)
        if self.branches > 1:
            of_branches = self._stream(seed, "branches")
            return branch_tokens(output_tokens, self.branches, self.branch_spread, of_branches)[:, 0]
        return output_tokens

    def _stream(self, seed: int, consumer: str) -> np.random.Generator:
        return stream(seed, f"{consumer}/{self.name}")

    def _until_the_end(self, arrivals: ArrivalProcess, limit: int, seed: int) -> IntArray:
        """Return the arrival times before `duration`. Longer draws begin with shorter ones, so doubling is safe."""
        end_ns = s_to_ns(self.duration or 0.0)
        n = min(4096, limit)
        while True:
            times = arrivals.times_ns(n, self._stream(seed, "arrivals"))
            if n == 0 or times[-1] >= end_ns:
                return times[: int(np.searchsorted(times, end_ns, side="left"))]
            if n == limit:
                if limit == MAX_REQUESTS:
                    raise InputError(Verbatim(f"{MAX_REQUESTS} requests or more arrive in {self.duration} s; lower the "
                                              "rate or the duration"))
                return times
            n = min(4 * n, limit)

    def _columns(self, drawn: Lengths, seed: int, base_dir: Path) -> dict[str, Any]:
        columns = {name: value for name, value in vars(drawn).items() if value is not None}
        n = len(drawn.prompt_tokens)
        if self.priorities is not None:
            columns["priority"] = self.priorities.draw(n, self._stream(seed, "priorities"))
        if self.adapters is not None:
            columns["adapter"] = self.adapters.draw(n, self._stream(seed, "adapters"))
        if self.sessions is not None:
            columns["session"] = self.sessions.draw(n, self._stream(seed, "sessions"))
        if self.tenants is not None:
            columns["tenant"] = self.tenants.draw(n, columns.get("session"), self._stream(seed, "tenants"))
        if self.classes is not None:
            columns["service_class"] = self.classes.draw(n, columns.get("session"), self._stream(seed, "classes"))
        if self.contexts is not None:
            with inside("contexts"):
                columns["context"], columns["population"] = self.contexts.bound(base_dir).draw(
                    n, columns.get("session"), self.name, self._stream(seed, "contexts"),
                    stream(seed, f"context tokens/{self.contexts.name or self.name}"),
                )
        if self.prefixes is not None:
            for name in ("hash_ids", "hash_tokens"):   # they would override the requested groups
                columns.pop(name, None)
            columns |= dict(zip(
                ("prompt_tokens", "prefix_group", "prefix_tokens"),
                self.prefixes.draw(drawn.prompt_tokens, self._stream(seed, "prefixes")), strict=True,
            ))
        if self.output_scale != 1:
            columns["output_tokens"] = scaled_outputs(columns["output_tokens"], self.output_scale)
        self._end(columns)
        if self.branches > 1:
            columns["branch_tokens"] = branch_tokens(
                columns["output_tokens"], self.branches, self.branch_spread, self._stream(seed, "branches")
            )
        if self.max_new_tokens is not None and "branch_tokens" in columns:
            columns["branch_tokens"] = np.minimum(columns["branch_tokens"], self.max_new_tokens)
        if self.max_total_tokens is not None:
            prompt = np.minimum(columns["prompt_tokens"], self.max_total_tokens - 1)
            columns["prompt_tokens"] = prompt
            columns["output_tokens"] = np.minimum(columns["output_tokens"], self.max_total_tokens - prompt)
            if "max_new_tokens" in columns:
                columns["max_new_tokens"] = np.minimum(columns["max_new_tokens"], self.max_total_tokens - prompt)
            if "branch_tokens" in columns:
                columns["branch_tokens"] = np.minimum(
                    columns["branch_tokens"], (self.max_total_tokens - prompt)[:, None]
                )
            if "prefix_tokens" in columns:
                columns["prefix_tokens"] = np.minimum(columns["prefix_tokens"], prompt)
            if "hash_tokens" in columns:
                _cut_pieces(columns, prompt)
            elif "hash_ids" in columns:
                columns["hash_ids"] = _cut_blocks(columns["hash_ids"], -(-prompt // drawn.hash_block_tokens))
        return columns


def _cut_blocks(ids: Sequence[tuple[int, ...]], blocks: IntArray) -> Sequence[tuple[int, ...]]:
    """Return the first `blocks[i]` hashes of each row."""
    from hermes.core.int_lists import IntLists  # most traces have no hashes

    if isinstance(ids, IntLists):
        return ids.heads(blocks)
    return [row[:k] for row, k in zip(ids, blocks, strict=True)]


def _cut_pieces(columns: dict[str, Any], prompt_tokens: IntArray) -> None:
    """Cut the hashed pieces of truncated prompts: those beyond the prompt's end go, and the last one left is cut."""
    ids, pieces = list(columns["hash_ids"]), list(columns["hash_tokens"])
    for row, (tokens, limit) in enumerate(zip(pieces, prompt_tokens.tolist(), strict=True)):
        if sum(tokens) > limit:
            ends = list(accumulate(tokens))
            last = bisect_left(ends, limit)
            ids[row] = ids[row][: last + 1]
            pieces[row] = (*tokens[:last], limit - (ends[last - 1] if last else 0))
    columns["hash_ids"], columns["hash_tokens"] = ids, pieces


def offered(workloads: Sequence[WorkloadConfig], horizon_ns: int | None) -> Offered:
    """Return what workloads say. horizon_ns: Latest end of the run."""
    starts = [s_to_ns(one.start) for one in workloads]
    ends = [start + s_to_ns(one.duration) for start, one in zip(starts, workloads, strict=True)
            if one.duration is not None]
    until = max(ends, default=-1) if horizon_ns is None else min(max(ends, default=-1), horizon_ns)
    changes = [one.arrivals.changes for one in workloads]
    bursts = [one.arrivals.kind == "at_once" for one in workloads]
    if len(set(starts)) > 1 or len(set(ends)) > 1 or len(set(bursts)) > 1:
        changes.append(APART)
    said = next(filter(None, changes), None if None in changes else "")
    more = next((f"workload.{key}" for key in ("duration", "requests")
                 if any(getattr(one, key) is not None for one in workloads)), "the trace")
    return Offered(min(starts) if len(ends) == len(starts) else -1, until, said, more)
