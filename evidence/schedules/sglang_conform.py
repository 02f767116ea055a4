"""Compare the schedule of a scenario with SGLang's own (`hermes conform SCENARIO --engine sglang`).

The scenario is simulated step by step. The scheduler of every `kind: sglang` client notes which request it got before
which plan, and its batches. SGLang's scheduler (`sglang_alone`, in an interpreter that has SGLang) then gets the same
requests before the same plans, with prompts and answers that share the tokens that these share, and both schedules are
compared: kinds, requests with new and cached tokens, retractions, free and evictable tokens, and the new-token ratio.

With overlap scheduling a batch is planned while the one before runs. Arrivals are given by the number of plans made
before, so that both see them alike.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from evidence.schedules.sglang_replay import COLUMNS, batches_of
from hermes.clients.llm import LLMClient
from hermes.clients.schedule_rows import Row, compared
from hermes.core.block_hashes import name_runs
from hermes.core.generation import Generation
from hermes.deploy.engine_conform import ClientResult, Served, as_list
from hermes.errors import HermesError, InputError, Verbatim
from hermes.scenario import Overrides, load_scenario
from hermes.scenario.build import build
from hermes.schedulers.base import AT_REST
from hermes.schedulers.plan import Plan
from hermes.schedulers.sglang import SglangScheduler
from hermes.schedulers.sglang_config import SglangConfig

__all__ = ["conform_scenario", "served_of"]

SCRIPT = Path(__file__).with_name("sglang_alone.py")
ENVIRONMENT = {
    "init_new_token_ratio": "SGLANG_INIT_NEW_TOKEN_RATIO",
    "min_new_token_ratio_factor": "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR",
    "new_token_ratio_decay_steps": "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS",
    "retract_decode_steps": "SGLANG_RETRACT_DECODE_STEPS",
}
"""Options that SGLang reads from variables of its environment."""
SLACK = 64   # tokens of a request's row of places that the engine's limits of a request leave unused
PASSED = ("max_running_requests", "max_prefill_tokens", "schedule_policy", "schedule_conservativeness",
          "enable_mixed_chunk", "disable_overlap_schedule", "ignore_eos")
ENGINE_ROW = ("kind", "scheduled", "retracted", "free_tokens", "cached_tokens", "ratio")   # in the order of COLUMNS


class _Names:
    """Numbers of texts that several requests have parts of, for all clients."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def runs(self, seq: Generation) -> list[list[int]]:
        """Return [number, end] for each part of prompt and answer that others may have, in order."""
        total, end = seq.prompt_tokens + seq.target_tokens, 0
        runs: list[list[int]] = []
        for name, until in name_runs(seq, 1):
            until = min(until, total)
            if until > end:
                runs.append([self._numbers.setdefault(name, len(self._numbers)), until])
                end = until
        return runs


class _Listener:
    """Notes what a client's scheduler is given and plans."""

    def __init__(self, client: LLMClient, config: SglangConfig, names: _Names) -> None:
        scheduler = client.scheduler
        assert isinstance(scheduler, SglangScheduler)
        pool = scheduler.pool
        self.served = Served(client.name, {
            "page_size": pool.block_size, "max_total_num_tokens": pool.num_blocks * pool.block_size,
            "chunked_prefill_size": scheduler.chunk_size, "disable_radix_cache": scheduler.tree is None,
            "arrivals": "plans", "longest": 0, **{name: getattr(config, name) for name in PASSED}})
        self._scheduler, self._names = scheduler, names
        self._numbers: dict[Generation, int] = {}
        self._plans = 0
        self._in_flight = False
        self._given_up: dict[Generation, int] = {}   # and the plans made before the engine knows of it
        self._enqueue, self._plan, self._leave = scheduler.enqueue, scheduler.plan, scheduler.leave
        scheduler.enqueue, scheduler.plan, scheduler.leave = (   # type: ignore[method-assign]
            self.enqueue, self.plan, self.leave)

    def enqueue(self, seq: Generation) -> None:
        number = self._numbers[seq] = len(self._numbers)
        asked = self._scheduler.max_new_tokens(seq)
        self.served.requests.append({
            "id": number, "arrival_step": self._plans, "prompt_tokens": seq.prompt_tokens,
            "output_tokens": seq.target_tokens, "max_new_tokens": asked, "runs": self._names.runs(seq)})
        settings = self.served.settings
        settings["longest"] = max(settings["longest"], seq.prompt_tokens + asked + SLACK)
        if seq in self._given_up:
            self.served.requests[number]["abort_step"] = self._given_up[seq]
        self._enqueue(seq)

    def leave(self, seq: Generation, when: int) -> bool:
        if seq not in self._given_up:
            at = self._given_up[seq] = self._plans + (self._scheduler.asynchronous and when != AT_REST)
            if seq in self._numbers:
                self.served.requests[self._numbers[seq]]["abort_step"] = at
        return self._leave(seq, when)

    def plan(self, max_steps: int) -> Plan | None:
        plan = self._plan(1)
        # with overlap the engine plans once more, before it is idle, beside a batch that computes nothing new
        self._plans += 1 + (plan is None and self._in_flight and self._scheduler.asynchronous)
        self._in_flight = plan is not None and bool(plan.prefills or plan.decodes)
        if plan is not None and (plan.prefills or plan.decodes):
            self.served.steps += [dict(zip(COLUMNS, row, strict=True)) for row in batches_of(
                self._scheduler, plan, self._numbers.__getitem__)]
        return plan


def served_of(scenario: Any, overrides: Overrides = ()) -> tuple[list[Served], dict[str, dict[str, str]]]:
    """Simulate a scenario; return what every client with SGLang's rules served, and its engine's environment by name.

    Raises `InputError` for a scenario without such a client, and for one with roles.
    """
    checked = load_scenario(scenario, overrides)
    if any(getattr(client, "role", "both") != "both" for client in checked.clients):
        raise InputError(Verbatim("the engine's scheduler alone cannot serve clients that only prefill or decode"),
                         field="clients")
    checked = load_scenario(scenario, [*as_list(overrides), "stepping=every_step"])
    simulation = build(checked)
    configs = {name: config.scheduler for config in checked.clients for name in config.names}
    names = _Names()
    listeners = [_Listener(client, configs[client.name], names) for client in simulation.clients
                 if isinstance(client, LLMClient) and isinstance(client.scheduler, SglangScheduler)]
    if not listeners:
        raise InputError("a scenario with LLM clients whose scheduler is sglang", checked.name, field="clients")
    simulation.run()
    served = [listener.served for listener in listeners]
    return served, {one.client: _environment(configs[one.client]) for one in served}


def _environment(config: SglangConfig) -> dict[str, str]:
    """Return the variables that give SGLang the options it has no arguments for."""
    return {variable: str(getattr(config, name)) for name, variable in ENVIRONMENT.items()}


def conform_scenario(scenario: Any, python: str, overrides: Overrides = ()) -> list[ClientResult]:
    """Compare the schedule of every client that served something with SGLang's.

    python: An interpreter that has SGLang. Raises `InputError` if there is none, `HermesError` if it gives no answer.
    """
    found, environments = served_of(scenario, overrides)
    return [_compared(served, python, environments[served.client]) for served in found if served.requests]


def _compared(served: Served, python: str, environment: Mapping[str, str]) -> ClientResult:
    answer = _ask(python, {"settings": served.settings, "requests": served.requests}, environment)
    theirs = [dict(zip(COLUMNS, (step[name] for name in ENGINE_ROW), strict=True)) for step in answer["steps"]]
    identical, first = compared(theirs, served.steps, "engine")
    return ClientResult(served.client, answer["version"], len(served.steps), len(theirs), identical, first)


def _ask(python: str, case: Row, environment: Mapping[str, str]) -> Any:   # Any: JSON
    try:
        done = subprocess.run([python, str(SCRIPT)], input=json.dumps(case), capture_output=True, text=True,
                              check=False, env={**os.environ, **environment})
    except OSError as error:
        raise InputError("an interpreter that has SGLang", python, field="--python") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = next((line for line in reversed(done.stderr.strip().splitlines()) if line.strip()), "no message")
        raise HermesError(f"{python} gave no schedule of SGLang: {last}")
    return json.loads(lines[-1])
