"""Configuration of the `chunked` scheduler (`hermes.schedulers.chunked`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, PrivateAttr, model_validator

from hermes.config import ConfigModel, Duration, Named
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.engines import EngineDefaults, Rules
from hermes.memory.blocks import BlockPool
from hermes.schedulers.chunked import AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.queues import PACKING

if TYPE_CHECKING:
    from hermes.schedulers.acceptance import Acceptance
    from hermes.schedulers.parts import SchedulerPart

__all__ = ["GONE", "PARTS", "PLANNED_AHEAD", "PLANNED_AHEAD_LATER", "SINCE", "WITH_KV", "ChunkedConfig", "Speculation",
           "newer_keys", "plans_ahead"]

Rate = Annotated[float, Field(ge=0, le=1)]

SINCE = {
    "max_num_scheduled_tokens": (0, 17), "max_num_active_seqs": (0, 31), "prefill_schedule_interval": (0, 25),
    "max_num_queued_reqs": (0, 29), "max_num_queued_tokens": (0, 29), "max_loras": (0, 31),
    "speculative": (0, 31),
}
"""First versions of vLLM with the keys that not all have. Before 0.25 `prefill_schedule_interval` also defers prompts
that are found whole, before 0.31 sequences that `max_loras` passes over wait in a queue of their own."""


def newer_keys(version: str) -> dict[str, str]:
    """Return the keys for which a version of vLLM (`0.28.0`) has no rules here, each with the first engine that has."""
    numbers = tuple(map(int, version.split(".")[:2]))
    return {name: f"vllm-{first[0]}.{first[1]}" for name, first in SINCE.items() if numbers < first}

_ORDER: tuple[str, ...] = get_args(Rules)
WITH_KV = ("eagle", "eagle3", "mtp", "draft_model")
"""Methods whose drafter has KV of its own."""
PLANNED_AHEAD = (*WITH_KV, "ngram_gpu")
PLANNED_AHEAD_LATER = (*PLANNED_AHEAD, "ngram")
"""Methods that vLLM schedules asynchronously, before 0.33 and from then on (by its V2 model runner). With the others it
turns `async_scheduling` off, and refuses true."""
GONE = ("medusa", "mlp_speculator")
"""Methods that vLLM has no more from 0.33 on (`SpeculativeMethod`, vllm/config/speculative.py:74)."""


class Speculation(ConfigModel):
    """Speculative decoding with a given acceptance (vLLM's `speculative_config`)."""

    method: Literal["ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "mtp", "draft_model", "medusa",
                    "mlp_speculator"] = "ngram"
    """The drafter. It decides which KV slots are held for drafting, what the prefix cache may give, and whether the
    engine schedules asynchronously: vLLM does not with `suffix`, nor before 0.33 with `ngram`, `medusa` and
    `mlp_speculator`. vLLM 0.33 has `medusa` and `mlp_speculator` no more."""
    num_speculative_tokens: int = Field(ge=1, le=64)
    """Draft tokens of a sequence in each step."""
    acceptance_rate: Rate | None = None
    """Probability that a draft is accepted if all before it in the step are: geometric acceptance."""
    acceptance_by_position: list[Rate] = Field(default=[], max_length=64)
    """Share of steps in which the draft at each position is accepted, as vLLM's metrics report it: it never rises."""
    accepted: list[Annotated[int, Field(ge=0, le=64)]] = Field(default=[], max_length=2**16)
    """Accepted drafts of each step, used in turn by every sequence: a recorded trace."""
    draft_model: str = Field(default="", max_length=4096)
    """Model of `method: draft_model`: a description as the client's `model`."""
    draft_time: Duration | None = None
    """Time of one run of the drafter, `num_speculative_tokens` of which follow each step that gives tokens. Left out:
    none for `ngram`, `ngram_gpu` and `suffix`, which look texts up; else what the client's hardware says for the draft
    model, or for one decoder layer of the client's model with its output matrix (EAGLE, MTP). `medusa` and
    `mlp_speculator` need it."""
    draft_time_per_seq: Duration = 0.0
    """More for each sequence."""

    @model_validator(mode="after")
    def _one_acceptance(self) -> Self:
        given = [name for name in ("acceptance_rate", "acceptance_by_position", "accepted")
                 if getattr(self, name) not in (None, [])]
        if len(given) != 1:
            raise InputError(Verbatim("needs one of acceptance_rate, acceptance_by_position and accepted; "
                                      + (f"leave out {given[1]}" if given else "none is given")))
        if self.draft_model and self.method != "draft_model":
            raise InputError(Verbatim(f"{self.method} has no model of its own; leave it out"), field="draft_model")
        shares = self.acceptance_by_position
        if shares and len(shares) != self.num_speculative_tokens:
            raise InputError(f"{self.num_speculative_tokens} shares, one for each draft", len(shares),
                             field="acceptance_by_position")
        if any(b > a for a, b in pairwise(shares)):
            raise InputError("shares that never rise: a draft counts only if all before it are accepted", shares,
                             field="acceptance_by_position")
        return self

    @property
    def lookahead(self) -> int:
        """KV slots held past the scheduled tokens: the drafter writes there (vLLM: `num_lookahead_tokens`)."""
        return self.num_speculative_tokens if self.method in WITH_KV else 0

    @property
    def slots(self) -> int:
        """Slots of the input that drafting takes for each sequence (vLLM: draft models take one)."""
        return int(self.method == "draft_model")

    @property
    def drops_last_hit(self) -> bool:
        """Whether the last block found in the prefix cache is computed again, for its hidden states (EAGLE, MTP)."""
        return self.method in ("eagle", "eagle3", "mtp")

    def rates(self) -> list[float]:
        """Return the probability that the draft at each position is accepted if all before it are."""
        if self.acceptance_rate is not None:
            return [self.acceptance_rate] * self.num_speculative_tokens
        shares = [1.0, *self.acceptance_by_position]
        return [b / a if a else 0.0 for a, b in pairwise(shares)]

    def acceptance(self) -> Acceptance:
        from hermes.schedulers.acceptance import Acceptance

        return Acceptance([] if self.accepted else self.rates(), self.accepted)


def is_since(engine: str | None, rules: Rules) -> bool:
    """Whether an engine's rules are those of a version or later ones; without an engine they are the newest."""
    return engine is None or _ORDER.index(engine) >= _ORDER.index(rules)


def plans_ahead(given: bool | None, default: bool, speculative: Speculation | None, rules: Rules | None = None) -> bool:
    """Return whether the engine plans each step while the one before runs.

    Args:
        given: The scheduler's `async_scheduling`, None if left out.
        default: The engine's on the client's device, without speculative decoding.
        speculative: The scheduler's speculative decoding.
        rules: The engine's.

    It does not with a draft method that vLLM schedules synchronously.
    """
    methods = PLANNED_AHEAD_LATER if is_since(rules, "0.33.0") else PLANNED_AHEAD
    if speculative is None or speculative.method in methods:
        return default if given is None else given
    return False


class ChunkedConfig(SchedulerConfig):
    """vLLM V1's scheduler: each step has a token budget; running sequences first, then a chunk of waiting prompts."""

    follows_engine: ClassVar[bool] = True

    kind: Literal["chunked"] = "chunked"
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=2**31)
    """Token budget of one step. Left out, the default of the client's `engine` on its device."""
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**31)
    """Most sequences running at once. Left out, the default of the client's `engine` on its device."""
    policy: Annotated[str, Named(PACKING)] = "fcfs"
    """Order of the waiting queue. With `priority` the least urgent running sequence is preempted, otherwise the last
    one."""
    long_prefill_token_threshold: int = Field(default=0, ge=0, le=2**31)
    """Most new tokens of one sequence in a step while others are eligible; 0 for no cap."""
    enable_chunked_prefill: bool = True
    """Split prompts over several steps."""
    adaptive_long_prefill_threshold: bool = False
    """Raise the cap to at least an equal share of the token budget: max(threshold, budget // eligible sequences)."""
    reserve_full_isl: bool | None = None
    """Admit a sequence only if its whole prompt (and kept outputs) fits, not just its first chunk. Left out, as the
    client's `engine` does (vLLM 0.15: no; later versions: yes)."""
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """Share of the blocks kept free when a waiting sequence is admitted while others run."""
    max_num_scheduled_tokens: int | None = Field(default=None, ge=1, le=2**31)
    """Fewer tokens in a step than `max_num_batched_tokens`, to which memory and the adaptive cap still keep."""
    max_num_active_seqs: int | None = Field(default=None, ge=1, le=2**31)
    """Fewer sequences running than `max_num_seqs`, for which memory is still set aside."""
    prefill_schedule_interval: int = Field(default=1, ge=1, le=2**31)
    """Steps from one in which prompts may be computed with decodes to the next. All ranks of the engine count them
    together. An engine without `parallel.dp` counts from the latest step with prompts (vLLM 0.33 and later)."""
    max_num_queued_reqs: int | None = Field(default=None, ge=0, le=2**40)
    """Most requests waiting or running; the client rejects others, as vLLM's API server does (each branch counts)."""
    max_num_queued_tokens: int | None = Field(default=None, ge=0, le=2**60)
    """Prompt tokens of requests without a first token from which on the client rejects requests."""
    max_loras: int | None = Field(default=None, ge=1, le=2**20)
    """Most adapters in one step. Left out, none: workloads with `adapters` need it."""
    async_scheduling: bool | None = None
    """Plan each step while the one before runs: slots, blocks and arrivals are seen one step later. Left out, as the
    client's `engine` does on its device with this drafter (vLLM: on GPUs; before 0.33 not with `ngram`)."""
    speculative: Speculation | None = None
    """Speculative decoding: drafts of each step and how many are accepted."""
    _rules: Rules | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _not_of_vllm(cls, data: Any) -> Any:   # Any: what the user wrote
        if isinstance(data, dict) and not data.keys() <= cls.model_fields.keys():
            from hermes.schedulers.vllm_fields import refuse_fields_of_vllm

            refuse_fields_of_vllm(cls, "scheduler", data)
        return data

    def completed(self, defaults: EngineDefaults, longest: int | None = None) -> ChunkedConfig:
        """Return this with the engine's rules, and its defaults filled in.

        Args:
            longest: The client's `max_model_len`. Without chunked prefill the budget is at least that.
        """
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if budget is None and not self.enable_chunked_prefill and longest is not None:
            budget = max(longest, defaults.max_num_batched_tokens)
        if seqs is None:
            seqs = defaults.max_num_seqs if budget is None else min(defaults.max_num_seqs, budget)
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > seqs:
            raise InputError(f"at most max_num_seqs ({seqs})", self.max_num_active_seqs,
                             field="scheduler.max_num_active_seqs")
        return self.following(defaults.rules).model_copy(update={
            "max_num_batched_tokens": defaults.max_num_batched_tokens if budget is None else budget,
            "max_num_seqs": seqs,
            "reserve_full_isl": (
                defaults.reserve_full_isl if self.reserve_full_isl is None else self.reserve_full_isl),
            "async_scheduling": plans_ahead(
                self.async_scheduling, defaults.async_scheduling, self.speculative, defaults.rules),
        })

    def following(self, rules: Rules | None) -> Self:
        """Return this with the rules of a version of vLLM; None are those of the newest."""
        made = self.model_copy()
        made._rules = rules
        return made

    @property
    def engine_version(self) -> Rules | None:
        """The version of vLLM whose rules this follows: that of the client's `engine`."""
        return self._rules

    def _since(self, rules: Rules) -> bool:
        return is_since(self._rules, rules)

    @property
    def unhashed_to_front(self) -> bool:
        """The queueing of freed blocks without a hash (see `PrefixBlockPool`)."""
        return self._since("0.24.0")

    @property
    def spares_lone_prefill(self) -> bool:
        """Whether the cap does not hold for a lone request (from 0.31 on)."""
        return self._since("0.32.0")

    @property
    def keeps_its_place(self) -> bool:
        """Whether the loop over running keeps its place when an earlier, unscheduled request goes (up to 0.27)."""
        return not self._since("0.28.0")

    @property
    def goes_on(self) -> bool:
        """Whether the loop over running goes on behind a request that preempted itself (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def local_interval(self) -> bool:
        """Whether an engine without data-parallel ranks heeds `prefill_schedule_interval` (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def counts_all_adapters(self) -> bool:
        """Whether `max_loras` counts running requests that get nothing in the step, too (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def hashes_ahead(self) -> bool:
        """Whether a drafter with hidden states has blocks hashed with the token after them (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def ranks_chunks(self) -> bool:
        """Whether a request under way moves chunks in the host's order of eviction (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def offers_anew(self) -> bool:
        """Whether a preempted request offers all its chunks to the host again (from 0.33 on)."""
        return self._since("0.33.0")

    @property
    def hashes_results(self) -> bool:
        """Whether verified tokens are hashed with the results, scheduling synchronously as well (from 0.33 on)."""
        return self._since("0.33.0")

    def build(self, pool: BlockPool, *, every_step: bool) -> ChunkedScheduler:
        return self.build_with(pool, (), every_step=every_step)

    def build_with(self, pool: BlockPool, parts: Sequence[SchedulerPart], *, every_step: bool) -> ChunkedScheduler:
        """Return a scheduler with the parts of its own options, and those that other options of the client bring."""
        if not parts:
            return self.scheduler_type(self, pool, every_step=every_step)
        from hermes.schedulers.drafts import Drafts
        from hermes.schedulers.in_flight import InFlightScheduler
        from hermes.schedulers.parts import AsyncPartedScheduler, PartedScheduler

        if self.speculative is not None:
            return InFlightScheduler(self, pool, parts=parts)
        if not self.async_scheduling:
            return PartedScheduler(self, pool, every_step=every_step, parts=parts)
        if any(part.connects for part in parts):   # a step with copies cannot be planned late
            return InFlightScheduler(self, pool, parts=(*parts, Drafts(self, None)))
        return AsyncPartedScheduler(self, pool, every_step=every_step, parts=parts)

    @property
    def scheduler_type(self) -> type[ChunkedScheduler]:
        """The class that follows these rules."""
        if self.speculative is not None:
            from hermes.schedulers.in_flight import InFlightScheduler

            return InFlightScheduler
        if not any(part.given(self) for part in PARTS):
            return AsyncChunkedScheduler if self.async_scheduling else ChunkedScheduler
        from hermes.schedulers.parts import AsyncPartedScheduler, PartedScheduler

        return AsyncPartedScheduler if self.async_scheduling else PartedScheduler

    def parts(self) -> tuple[SchedulerPart, ...]:
        """Return what the options add to the scheduler's loop."""
        return tuple(part.make(self) for part in PARTS if part.given(self))


class PartOption(NamedTuple):
    """An option that is a part of the scheduler's loop.

    Attributes:
        given: Whether the option is on.
        maker: "module:function": makes the part. Imported when the option is on.
    """

    given: Callable[[ChunkedConfig], bool]
    maker: str

    def make(self, config: ChunkedConfig) -> SchedulerPart:
        module, _, function = self.maker.partition(":")
        part: SchedulerPart = vars(import_module(module))[function](config)
        return part


PARTS: tuple[PartOption, ...] = (
    PartOption(lambda config: config.max_loras is not None, "hermes.schedulers.adapters:slots_of"),
    PartOption(lambda config: config.prefill_schedule_interval > 1, "hermes.schedulers.cadence:cadence_of"),
    PartOption(lambda config: config.speculative is not None, "hermes.schedulers.drafts:drafts_of"),
)
"""Options that are a part of the loop: a new one is a part in a file of its own, a row here, and its key above."""
