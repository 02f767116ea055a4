"""`scheduler: {kind: vllm}`: the installed vLLM's own scheduler decides for a client.

It runs in an interpreter that has vLLM, without a model (`hermes.deploy.vllm_alone`), and is asked once before and once
after each step. The simulation gives it requests and time: the client's hardware model prices what it schedules. Texts
are made up so that prompts and answers share the blocks that the scenario says they share.

An asynchronous engine schedules a batch while the one before it runs: after it got the results of step k - 1 it
schedules batch k + 1, while step k begins. So what arrives during step k is seen by batch k + 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from pydantic import Field

from hermes.config.own_code import check_own_code
from hermes.core.generation import Generation
from hermes.errors import HermesError, InputError, Verbatim
from hermes.hardware.descriptions.engines import EngineDefaults
from hermes.memory.blocks import BlockPool
from hermes.schedulers.adapters import adapter_of, count_adapters
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.bursts import TokenBursts
from hermes.schedulers.chunked_config import Speculation, plans_ahead
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.plan import Plan

__all__ = ["BlockNames", "VllmConfig", "VllmScheduler", "asked_tokens"]

SCRIPT = Path(__file__).with_name("vllm_alone.py")
MORE_TOKENS = 4096   # that an answer which ends early asks for at most: more make no difference
_OWN_KEYS = ("max_num_batched_tokens", "max_num_seqs", "policy", "async_scheduling")


class VllmConfig(SchedulerConfig):
    """vLLM's own scheduler, in an interpreter that has it; the client's `engine` must be its version."""

    follows_engine: ClassVar[bool] = True

    kind: Literal["vllm"] = "vllm"
    python: str = ""
    """Interpreter that has vLLM. Left out, the one that runs HERMES. Simulating the scenario runs this program,
    whatever it is; `--no-plugins` refuses it."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=2**31)
    """Token budget of one step. Left out, the default of the client's `engine` on its device."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**31)
    """Most sequences running at once. Left out, the default of the client's `engine` on its device."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of the waiting queue."""
    async_scheduling: bool | None = None
    """Plan each step while the one before runs. Left out, as the client's `engine` does on its device with this
    drafter."""
    max_loras: int | None = Field(default=None, ge=1, le=2**20)
    """Slots of LoRA adapters; left out, requests have none."""
    speculative: Speculation | None = None
    """Speculative decoding: drafts of each step and how many are accepted. The engine schedules, the draws are ours."""
    scheduler_config: dict[str, bool | int | float | str] = {}
    """Other fields of vLLM's SchedulerConfig, by vLLM's names."""

    _version: str = ""   # of the client's `engine`

    def completed(self, defaults: EngineDefaults, longest: int | None = None) -> VllmConfig:
        """Return this with the engine's defaults filled in.

        longest: The client's `max_model_len`, which the client checks itself.
        """
        double = sorted(set(_OWN_KEYS) & set(self.scheduler_config))
        if double:
            raise InputError(Verbatim(f"is a key of the scheduler itself: write `scheduler.{double[0]}`"),
                             field=f"scheduler.scheduler_config.{double[0]}")
        if self.python:
            check_own_code(f"the simulation runs the program {self.python}", field="scheduler.python")
        budget = self.max_num_batched_tokens or defaults.max_num_batched_tokens
        seqs = self.max_num_seqs
        if seqs is None:
            seqs = defaults.max_num_seqs if self.max_num_batched_tokens is None else min(defaults.max_num_seqs, budget)
        built = self.model_copy(update={
            "max_num_batched_tokens": budget, "max_num_seqs": seqs,
            "async_scheduling": plans_ahead(
                self.async_scheduling, defaults.async_scheduling, self.speculative, defaults.rules)})
        built._version = defaults.version
        return built

    def build(self, pool: BlockPool, *, every_step: bool) -> VllmScheduler:
        return VllmScheduler(self, pool, self._version)


class BlockNames:
    """Numbers of blocks that are the same in several texts, for one engine."""

    def __init__(self) -> None:
        self._names: dict[object, int] = {}

    def of(self, seq: Generation, block_size: int) -> list[int]:
        """Return a number for each whole block of prompt and answer; -1 where no other text is the same."""
        num_tokens = seq.prompt_tokens + seq.target_tokens
        return self._numbers(seq.block_key(i, block_size) for i in range(num_tokens // block_size))

    def shared(self, seq: Generation, block_size: int, *, caching: bool, ahead: bool) -> dict[str, list[int]]:
        """Return what `hermes.deploy.vllm_alone` takes of a text. ahead: Whether hashes may cover a token more."""
        blocks = {"blocks": self.of(seq, block_size) if caching else []}
        return blocks | {"firsts": self.firsts(seq, block_size)} if caching and ahead else blocks

    def firsts(self, seq: Generation, block_size: int) -> list[int]:
        """Return a number for the first token of each block, alike in texts that are the same up to that token."""
        return self._numbers(seq.block_key(i, 1) for i in range(0, seq.prompt_tokens + seq.target_tokens, block_size))

    def _numbers(self, keys: Iterable[object]) -> list[int]:
        return [-1 if key is None else self._names.setdefault(key, len(self._names)) for key in keys]


def asked_tokens(seq: Generation) -> int:
    """Return the output tokens that a sequence asks the engine for."""
    return min(seq.max_new_tokens, seq.target_tokens + MORE_TOKENS) if seq.stops_early else seq.target_tokens


class _Engine:
    """The process that has vLLM. It ends with this object."""

    def __init__(self, python: str, settings: dict[str, Any]) -> None:
        self._python = python
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")   # noqa: SIM115  (`_end` closes it)
        try:
            self._process = subprocess.Popen([python, str(SCRIPT), "--serve"], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1)
        except OSError as error:
            raise InputError("an interpreter that has vLLM", python, field="scheduler.python") from error
        weakref.finalize(self, _end, self._process, self._errors)
        self.version: str
        self.commit: str
        self.version, self.commit = self.ask(settings).values()

    def ask(self, asked: dict[str, Any]) -> Any:   # Any: JSON
        """Return the answer; `HermesError` with the last line of the process's messages if there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self._errors.seek(0)
            said = [text for text in self._errors.read().splitlines() if text.strip()]
            raise HermesError(f"{self._python} does not serve as vLLM's scheduler: {(said or ['no message'])[-1]}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise HermesError(f"vLLM's scheduler in {self._python} failed: {answer['error']}")
        return answer


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            stream.close()


class _Waiting:
    """Sequences that the engine keeps waiting, in order of arrival. The engine decides which is next."""

    def __init__(self) -> None:
        self._seqs: dict[Generation, None] = {}

    def push(self, seq: Generation) -> None:
        self._seqs[seq] = None

    push_preempted = push

    def peek(self) -> Generation:
        return next(iter(self._seqs))

    def pop(self) -> Generation:
        seq = self.peek()
        self.remove(seq)
        return seq

    def remove(self, seq: Generation) -> None:
        del self._seqs[seq]

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._seqs)


class VllmScheduler(LLMScheduler):
    """See the module's docstring. The engine has the queue and the blocks; `pool` only counts as many as are free."""

    takes_over_kv = False
    splits = False

    def __init__(self, config: VllmConfig, pool: BlockPool, version: str) -> None:
        assert config.max_num_seqs is not None
        assert config.max_num_batched_tokens is not None
        super().__init__(pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens)
        self.waiting = self._queue = _Waiting()
        self._config, self._version = config, version
        self._engine: _Engine | None = None
        self._names = BlockNames()
        self._numbers: dict[Generation, int] = {}
        self._stages: list[Generation | None] = []
        self._adapters: list[int] = []
        self._arrived: list[dict[str, Any]] = []
        self._bursts = TokenBursts(self.group)
        self._acceptance = None if config.speculative is None else config.speculative.acceptance()
        self._free_blocks = pool.num_blocks   # after the latest step

    def seed(self, seed: int) -> None:
        if self._acceptance is not None:
            self._acceptance.seed(seed)

    def can_ever_fit(self, seq: Generation) -> str | None:
        if seq.branches is not None:
            return "vLLM's own scheduler serves no branches here"
        return super().can_ever_fit(seq)

    def enqueue(self, seq: Generation) -> None:
        number = self._numbers[seq] = len(self._stages)
        self._stages.append(seq)
        self._adapters.append(0 if self._config.max_loras is None else adapter_of(seq))
        self._arrived.append({
            "id": number, "prompt_tokens": seq.prompt_tokens, "output_tokens": seq.target_tokens,
            "max_new_tokens": asked_tokens(seq), "priority": seq.priority, "adapter": self._adapters[number],
            **self._names.shared(seq, self.pool.block_size, caching=self.pool.caching,
                                 ahead=self._config.speculative is not None),
            "accepted": [] if self._acceptance is None else self._acceptance.first(
                seq.arrival_order, seq.target_tokens)})
        self._queue.push(seq)

    def wants_cut(self, seq: Generation) -> bool:
        return False   # every step is planned alone

    def plan(self, max_steps: int) -> Plan | None:
        idle = not (self.waiting or self.running)
        if not self._stages or (idle and not self._config.async_scheduling):
            return None
        # With drafts the engine may have computed a sequence in one batch more than it needed: that batch still runs.
        arrived, self._arrived = self._arrived, []
        row = self._ask({"add": arrived})
        if row is None:
            self.pool.free_blocks = self._free_blocks
            return None
        plan, drafts = Plan(), row["drafts"]
        ended: list[tuple[int, int]] = []   # adapter and tokens
        plan.decodes = True   # a step, even if all its sequences have ended meanwhile
        for number in row["preempted"]:
            victim = self._stages[number]
            if victim is not None:   # else its last token was in flight, and it has ended
                self._preempted(victim, plan)
        for number, tokens, past in row["scheduled"]:
            seq, drafted = self._stages[number], drafts.get(str(number), 0)
            if seq is None:   # it ended while this batch was in flight
                plan.add_drafted(past, drafted)
                ended.append((self._adapters[number], tokens))
                continue
            if seq not in self.running:
                self._admitted(seq, past)
            plan.add_verified(seq, tokens, past, drafted)
            seq.num_computed = past + tokens
        self.pool.free_blocks = row["free_blocks_after"]
        if self._config.max_loras is not None:
            count_adapters(plan, (), others=ended)
        return plan

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        """Complete the step; every sequence that caught up has a token."""
        answer = self._ask({"finish": True})
        self._free_blocks = answer["free_blocks"]
        got = {self._stage(number): tokens for number, tokens in answer["tokens"]}
        self._bursts.note(got, step, now_ns)
        plan.sampled = sum(got.values())
        finished = []
        for seq in got:
            if seq.num_tokens - seq.prompt_tokens >= seq.target_tokens:
                finished.append(seq)
                self._bursts.forget(seq)
                del self.running[seq], self.partial[seq]
        return finished

    def release(self, seq: Generation) -> None:
        self._stages[self._numbers.pop(seq)] = None
        self.pool.free_blocks = self._free_blocks   # the engine has the blocks back already

    def leave(self, seq: Generation, when: int) -> bool:
        number = self._numbers.pop(seq)
        self._stages[number] = None
        self._bursts.forget(seq)
        if seq in self.running:
            del self.running[seq], self.partial[seq]
        else:
            self._queue.remove(seq)
        self._close_segment(seq)
        seq.join_tick = self.group.clock   # no more tokens
        if any(one["id"] == number for one in self._arrived):   # the engine does not have it yet
            self._arrived = [one for one in self._arrived if one["id"] != number]
        else:
            self._free_blocks = self._ask({"abort": number})["free_blocks"]   # from the next plan on
        return True

    def _admitted(self, seq: Generation, past: int) -> None:
        self._queue.remove(seq)
        self.running[seq] = self.partial[seq] = None
        seq.run_order = self.num_admissions
        self.num_admissions += 1
        if past and seq.start_ns < 0:
            seq.cached_tokens = past

    def _preempted(self, seq: Generation, plan: Plan) -> None:
        del self.running[seq], self.partial[seq]
        seq.num_computed = 0
        seq.preemptions += 1
        self.num_preemptions += 1
        self._queue.push(seq)
        plan.preempted.append(seq)

    def _stage(self, number: int) -> Generation:
        seq = self._stages[number]
        assert seq is not None
        return seq

    def _ask(self, asked: dict[str, Any]) -> Any:   # Any: JSON
        if self._engine is None:
            self._engine = self._started()
        return self._engine.ask(asked)

    def _started(self) -> _Engine:
        """Start the engine, at the first request: validation and plans of sweeps need none."""
        config, pool = self._config, self.pool
        engine = _Engine(config.python or sys.executable, {
            "max_num_batched_tokens": self.max_num_batched_tokens, "max_num_seqs": self.max_num_seqs,
            "num_blocks": pool.num_blocks, "block_size": pool.block_size, "prefix_caching": pool.caching,
            "scheduling_policy": config.policy, "async_scheduling": config.async_scheduling,
            "long_prefill_token_threshold": 0, "scheduler_config": config.scheduler_config,
            "max_loras": config.max_loras, "local_interval": True, **(
                {} if config.speculative is None else {
                    "num_speculative_tokens": config.speculative.num_speculative_tokens,
                    "speculative_method": config.speculative.method})})
        minor = ".".join(engine.version.split(".")[:2])
        if self._version and minor != ".".join(self._version.split(".")[:2]):
            raise InputError(f"the client's engine, vLLM {self._version}", f"{engine.version}",
                             field="scheduler.python", suggestion=f"engine: vllm-{minor}")
        self.engine = f"vllm {engine.version}" + (f" ({engine.commit})" if engine.commit else "")
        return engine
