"""Compare the schedule of a scenario with that of the real engine (`hermes conform SCENARIO --engine vllm`).

The scenario is simulated step by step. Every LLM client's scheduler notes which sequence it got before which step, and
what it scheduled. The engine's own scheduler (`hermes.deploy.vllm_alone`, in an interpreter that has it) then gets the
same sequences before the same steps, with prompts that share the blocks that these share, and both schedules are
compared: sequences, tokens, preemptions, free blocks.

An engine that schedules asynchronously keeps two batches in flight: it plans the next step before it knows the results
of the one that runs. Arrivals are given by the number of schedules made before, so that both see them alike; which
arrivals an engine sees in time is the client's part (rule 20, docs/background/vllm.md).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.clients.llm import LLMClient
from hermes.clients.schedule_rows import Row, compared, row_of, rows_of
from hermes.core.generation import Generation
from hermes.deploy.vllm_scheduler import SCRIPT, BlockNames, asked_tokens
from hermes.errors import HermesError, InputError, Verbatim
from hermes.scenario import Overrides, load_scenario
from hermes.scenario.build import build
from hermes.schedulers.adapters import adapter_of
from hermes.schedulers.base import IN_STEP, PLANNED, RESULTS
from hermes.schedulers.chunked import AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.in_flight import Batch, InFlightScheduler
from hermes.schedulers.plan import Plan

__all__ = ["ClientResult", "Served", "as_list", "ask", "conform_scenario", "served_of"]

MORE = ("max_num_scheduled_tokens", "max_num_active_seqs", "prefill_schedule_interval")
"""Passed through to vLLM's SchedulerConfig."""


@dataclass
class Served:
    """Inputs and schedule of one client's scheduler.

    Args:
        settings: As in a recorded schedule.
        requests: As `hermes.deploy.vllm_alone` reads them.
        steps: As in a recorded schedule.
    """

    client: str
    settings: dict[str, Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)


@dataclass
class ClientResult:
    """Steps of a client that the engine takes alike, and the first that it does not."""

    client: str
    version: str
    steps: int
    theirs: int
    identical: int
    first_difference: Row | None

    @property
    def ok(self) -> bool:
        return self.first_difference is None


class _Listener:
    """Notes what a client's scheduler is given and plans."""

    def __init__(self, client: LLMClient, config: ChunkedConfig, names: BlockNames) -> None:
        scheduler = client.scheduler
        assert isinstance(scheduler, ChunkedScheduler)
        pool = scheduler.pool
        self.served = Served(client.name, {
            "max_num_batched_tokens": scheduler.input_budget,
            "max_num_seqs": config.max_num_seqs or scheduler.max_num_seqs,
            "num_blocks": pool.num_blocks, "block_size": pool.block_size, "prefix_caching": pool.caching,
            "scheduling_policy": config.policy, "watermark": config.watermark,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "chunked_prefill": config.enable_chunked_prefill, "reserve_full_isl": config.reserve_full_isl,
            "adaptive_cap": config.adaptive_long_prefill_threshold, "async_scheduling": bool(config.async_scheduling),
            "scheduler_config": {name: value for name in MORE
                                 if (value := getattr(config, name)) != ChunkedConfig.model_fields[name].default},
            "local_interval": True,
            **({} if config.max_loras is None else {"max_loras": config.max_loras}),
            **({"num_speculative_tokens": scheduler.drafts.most, "speculative_method": scheduler.drafts.method}
               if isinstance(scheduler, InFlightScheduler) else {})})
        self._scheduler, self._names, self.client = scheduler, names, client
        self._numbers: dict[Generation, int] = {}
        self._early: dict[Generation, Row] = {}   # given up before the scheduler had them
        self._plans = 0
        self._victims: list[Generation] = []
        self._noted = False   # whether the steps of the plan being made are noted
        self._free_blocks = -1   # after the step took its own, before blocks of sequences that ended came back
        self._enqueue, self._leave = scheduler.enqueue, scheduler.leave
        scheduler.leave = self.leave   # type: ignore[method-assign]
        if isinstance(scheduler, InFlightScheduler):
            self._schedule = scheduler.schedule
            scheduler.enqueue, scheduler.schedule = self.enqueue, self.schedule   # type: ignore[method-assign]
            return
        self._plan, self._preempt = scheduler.plan, scheduler.preempt
        scheduler.enqueue, scheduler.plan, scheduler.preempt = (   # type: ignore[method-assign]
            self.enqueue, self.plan, self.preempt)
        if isinstance(scheduler, AsyncChunkedScheduler):
            self._let_go, self._preempt_ending = scheduler._let_go, scheduler._preempt_ending
            scheduler._let_go, scheduler._preempt_ending = (   # type: ignore[method-assign]
                self.let_go, self.preempt_ending)

    def enqueue(self, seq: Generation) -> None:
        pool, size = self._scheduler.pool, self._scheduler.pool.block_size
        if seq.transferred or seq.branches is not None:
            raise InputError(Verbatim("the engine's scheduler alone cannot serve sequences with branches"),
                             field="workload")
        number = self._numbers[seq] = len(self._numbers)
        self.served.requests.append({
            "id": number, "arrival_step": self._plans, "prompt_tokens": seq.prompt_tokens,
            "output_tokens": seq.target_tokens, "max_new_tokens": asked_tokens(seq), "priority": seq.priority,
            **self._names.shared(seq, size, caching=pool.caching, ahead=pool.hash_lookahead > 0),
            "adapter": adapter_of(seq)} | self._accepted(seq) | self._early.pop(seq, {}))
        self._enqueue(seq)

    def leave(self, seq: Generation, when: int) -> bool:
        scheduler = self._scheduler
        if when in (IN_STEP, RESULTS):
            ahead = len(scheduler._batches) if isinstance(scheduler, InFlightScheduler) else 1
            self._note_end(seq, abort_in_step=self._plans - ahead)
        else:   # PLANNED: the engine has scheduled the next step already
            self._note_end(seq, abort_step=self._plans + (when == PLANNED))
        return self._leave(seq, when)

    def _note_end(self, seq: Generation, **when: int) -> None:
        """Note when the engine cancels a request, unless that is noted."""
        number = self._numbers.get(seq)
        if number is None:   # the engine gets it with the next step
            self._early[seq] = when
            return
        request = self.served.requests[number]
        if not {"abort_step", "abort_in_step"} & request.keys():
            request |= when

    def _accepted(self, seq: Generation) -> Row:
        """Return how many drafts the engine is to accept, one number for each time that it verifies some."""
        scheduler = self._scheduler
        if not isinstance(scheduler, InFlightScheduler):
            return {}
        return {"accepted": scheduler.drafts.acceptance.first(seq.arrival_order, seq.target_tokens)}

    def schedule(self) -> Batch:
        """Note what a batch with drafts holds."""
        self._plans += 1
        batch = self._schedule()
        if batch.shares:
            self.served.steps.append(row_of(batch, self._scheduler.pool.free_blocks, self._numbers.__getitem__))
        return batch

    def plan(self, max_steps: int) -> Plan | None:
        self._victims, self._free_blocks, self._noted = [], -1, False
        plan = self._plan(1)
        if plan is not None:
            self._plans += 1
            if not self._noted:
                self._scheduler.take_blocks(plan, 1)
                free = self._scheduler.pool.free_blocks if self._free_blocks < 0 else self._free_blocks
                self.served.steps += self._rows(plan, free)
        return plan

    def _rows(self, plan: Plan, free_blocks: int) -> list[Row]:
        scheduler = self._scheduler
        assert isinstance(scheduler, ChunkedScheduler)
        return rows_of(scheduler, plan, self._victims, free_blocks, name=self._numbers.__getitem__)

    def preempt(self, seq: Generation, plan: Plan) -> None:
        self._victims.append(seq)
        self._preempt(seq, plan)

    def let_go(self, plan: Plan | None) -> None:
        scheduler = self._scheduler
        assert isinstance(scheduler, AsyncChunkedScheduler)
        self._free_blocks = scheduler.pool.free_blocks
        if plan is not None:   # sequences that it computes may leave now
            self.served.steps += self._rows(plan, self._free_blocks)
            self._noted = True
        self._let_go(plan)

    def preempt_ending(self, order: list[Generation]) -> Generation | None:
        seq = self._preempt_ending(order)
        if seq is not None:
            self._victims.append(seq)
        return seq


def served_of(scenario: Any, overrides: Overrides = ()) -> list[Served]:
    """Simulate a scenario; return what every LLM client with vLLM's rules served.

    Raises `InputError` for one without such a client.
    """
    checked = load_scenario(scenario, overrides)
    if any(getattr(client, "role", "both") != "both" for client in checked.clients):
        raise InputError(Verbatim("the engine's scheduler alone cannot serve clients that only prefill or decode"),
                         field="clients")
    if any(client.kind == "llm" and client.memory.kv_offload is not None for client in checked.clients):
        raise InputError(Verbatim("the engine's scheduler alone cannot serve clients with memory.kv_offload"),
                         field="clients")
    checked = load_scenario(scenario, [*as_list(overrides), "stepping=every_step"])
    simulation = build(checked)
    names = BlockNames()
    configs = {name: config.scheduler for config in checked.clients for name in config.names}
    rules = ChunkedScheduler
    listeners = [_Listener(client, configs[client.name], names) for client in simulation.clients
                 if isinstance(client, LLMClient) and isinstance(client.scheduler, rules)]
    if any(one.client.step_parts.pace is not None and configs[one.served.client].prefill_schedule_interval > 1
           for one in listeners):
        raise InputError(Verbatim("the engine's scheduler alone does not know the steps of other ranks; leave it out"),
                         field="clients.scheduler.prefill_schedule_interval")
    if not listeners:
        raise InputError("a scenario with LLM clients whose scheduler is chunked", checked.name, field="clients")
    simulation.run()
    return [listener.served for listener in listeners]


def as_list(overrides: Overrides) -> Sequence[str]:
    """Return overrides as `KEY=VALUE`."""
    if isinstance(overrides, Sequence) and not isinstance(overrides, str):
        return overrides
    assert isinstance(overrides, Mapping)
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def conform_scenario(scenario: Any, python: str, overrides: Overrides = ()) -> list[ClientResult]:
    """Compare the schedule of every client that served something with the engine's.

    python: An interpreter that has vLLM. Raises `InputError` if there is none, `HermesError` if it gives no answer.
    """
    return [_compared(served, python) for served in served_of(scenario, overrides) if served.requests]


def _compared(served: Served, python: str) -> ClientResult:
    version, [answer] = ask(python, [{"settings": served.settings, "requests": served.requests}])
    if "error" in answer:
        raise HermesError(f"{python} gave no schedule of vLLM {version}: {answer['error']}")
    identical, first = compared(answer["steps"], served.steps, "engine")
    return ClientResult(served.client, version, len(served.steps), len(answer["steps"]), identical, first)


def ask(python: str, cases: Sequence[Row]) -> tuple[str, list[Row]]:
    """Let an interpreter's vLLM schedule cases; return its version and an answer for each.

    See `hermes.deploy.vllm_alone` for cases and answers. Raises `InputError` if there is no such interpreter,
    `HermesError` if it gives no answer.
    """
    try:
        done = subprocess.run([python, str(SCRIPT)], input=json.dumps({"cases": list(cases)}), capture_output=True,
                              text=True, check=False)
    except OSError as error:
        raise InputError("an interpreter that has vLLM", python, field="--python") from error
    if done.returncode:
        last = next((line for line in reversed(done.stderr.strip().splitlines()) if line.strip()), "no message")
        raise HermesError(f"{python} gave no schedule of vLLM: {last}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["version"], answer["schedules"]
