"""Times of an engine's steps with speculative decoding.

After each step that gives tokens, the drafter runs `num_speculative_tokens` times: first over all tokens of the step,
then over one token of each sequence. A draft model is priced as a model of its own on the client's devices, an EAGLE or
MTP head as one decoder layer of the client's model with its output matrix. The drafter is on the devices of the last
pipeline stage, which it keeps from the next batch. Data-parallel ranks draft together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.clients.lockstep import LockstepHardware
from hermes.clients.memory import describe_model
from hermes.clients.parts import StepPart
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.config import prices
from hermes.hardware.descriptions.engines import StepTime
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.schedulers.chunked_config import WITH_KV, Speculation
from hermes.schedulers.plan import Plan
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.config import LLMClientConfig
    from hermes.clients.llm import LLMClient

__all__ = ["Drafter", "drafter_at", "drafter_kv_bytes", "drafter_of"]

LOOKUPS = ("ngram", "ngram_gpu", "suffix")   # they look up texts, in no time
UNPRICED = ("medusa", "mlp_speculator")


class Drafter(StepPart):
    """Times of steps that verify drafts, and of the drafter.

    Args:
        target: Prices the client's model.
        passes: Runs of the drafter after each step.
        per_pass_ns, per_seq_ns: Time of a run, and more for each sequence.
        draft: Prices a run in addition to that; None for nothing.
    """

    def __init__(self, target: HardwareModel, passes: int, per_pass_ns: int, per_seq_ns: int,
                 draft: HardwareModel | None) -> None:
        self.target, self.passes, self.draft = target, passes, draft
        self._per_pass_ns, self._per_seq_ns = per_pass_ns, per_seq_ns
        self._knows_drafts = prices(target, "prices_drafts")

    def attach(self, client: LLMClient) -> None:
        client.step_parts.drafter = self

    def step_ns(self, plan: Plan) -> int:
        """Return the time of a step and of the drafting after it."""
        return self.target.step_ns(self.verified(plan)) + self.drafting_ns(plan)

    def verified(self, plan: Plan) -> StepStats:
        """Return a step as the hardware model prices it."""
        return plan if self._knows_drafts or not plan.drafts else _as_prompts(plan)

    def drafting_ns(self, plan: Plan) -> int:
        """Return the time of the drafting after a step, none after one that gives no token."""
        if not plan.sampled:
            return 0
        ns = self.passes * (self._per_pass_ns + self._per_seq_ns * _num_seqs(plan))
        if self.draft is not None:
            ns += self.draft.step_ns(plan)
            if self.passes > 1:
                ns += (self.passes - 1) * self.draft.step_ns(_one_token_each(plan))
        return ns

    def common_drafting_ns(self, plans: Sequence[Plan | None]) -> int:
        """Return the time of the drafting after a step that ranks take together; None stands for an idle rank.

        They draft together, too: a head of a mixture has experts that they share.
        """
        drafting = [plan if plan is not None and plan.sampled else None for plan in plans]
        busy = [plan for plan in drafting if plan is not None]
        if not busy:
            return 0
        ns = self.passes * (self._per_pass_ns + self._per_seq_ns * max(map(_num_seqs, busy)))
        if self.draft is not None:
            ns += self._common_pass_ns(drafting)
            if self.passes > 1:
                ns += (self.passes - 1) * self._common_pass_ns(
                    [None if plan is None else _one_token_each(plan) for plan in drafting])
        return ns

    def _common_pass_ns(self, batches: Sequence[StepStats | None]) -> int:
        assert self.draft is not None
        if hardware_info(self.draft).dp == 1:   # a dense model: each rank has one of its own
            return max(self.draft.step_ns(batch) for batch in batches if batch is not None)
        assert isinstance(self.draft, LockstepHardware)   # built as the client's own model is
        return int(self.draft.lockstep_ns(list(batches), 1)[0])


def _num_seqs(plan: Plan) -> int:
    return plan.decode_seqs + plan.prefill_seqs


def _one_token_each(plan: Plan) -> StepStats:
    """Return a run of the drafter after the first: one token of each sequence."""
    seqs = _num_seqs(plan)
    return StepStats(decode_seqs=seqs, decode_ctx=plan.decode_ctx + plan.prefill_past + plan.prefill_tokens,
                     decode_ctx_max=plan.decode_ctx_max, sampled=seqs)


def _as_prompts(plan: Plan) -> StepStats:
    """Return a step for a model that knows no drafts: the sequences that verify some compute short prompts."""
    tokens, seqs = plan.decode_seqs + plan.drafts, plan.decode_seqs
    each = tokens / seqs
    return StepStats(
        prefill_seqs=plan.prefill_seqs + seqs, prefill_tokens=plan.prefill_tokens + tokens,
        prefill_past=plan.prefill_past + plan.decode_ctx, sampled=plan.sampled,
        prefill_attn=plan.prefill_attn + round(each * plan.decode_ctx + seqs * each * (each + 1) / 2))


def drafter_at(given: Speculation, place: Place) -> Drafter:
    """Return the drafter of a client. Raises `InputError` if the drafting's time is neither given nor computable."""
    with inside("scheduler.speculative"):
        return drafter_of(given, place.hardware, place.config.hardware, place.base_dir)


def drafter_of(given: Speculation, target: HardwareModel, hardware: Any, base_dir: Path | None) -> Drafter:
    """Return a drafter. hardware: The configuration of `target`, of any kind."""
    per_pass, per_seq = s_to_ns(given.draft_time or 0.0), s_to_ns(given.draft_time_per_seq)
    if given.method in LOOKUPS or given.draft_time is not None:
        return Drafter(target, given.num_speculative_tokens, per_pass, per_seq, None)
    if given.method in UNPRICED:
        raise InputError(Verbatim(f"missing: give the time of one run; heads of {given.method} have no price here"),
                         field="draft_time")
    if given.method == "draft_model" and not given.draft_model:
        raise InputError(Verbatim("missing: name the model that drafts, or give draft_time"), field="draft_model")
    assert isinstance(hardware, Composed)   # `hermes.engine.compatibility`
    draft = hardware.model_copy(update={"step": StepTime(), "terms": {}, "pp": 1} | (   # on the last stage alone
        {"model": given.draft_model, "dp": 1, "ep": 1} if given.method == "draft_model" else {}))
    with inside("draft_model"):
        model = draft.build(base_dir, layers=None if given.method == "draft_model" else 1)
    return Drafter(target, given.num_speculative_tokens, 0, per_seq, model)


def drafter_kv_bytes(given: Speculation, config: LLMClientConfig, info: HardwareInfo, base_dir: Path | None) -> float:
    """Return the KV bytes of one token of the drafter: of a draft model, or of one layer of the client's model.

    Raises `InputError` for a model that is not named, or has no description.
    """
    if given.method not in WITH_KV:
        return 0.0
    if given.method != "draft_model":
        model = config.memory_model(info, base_dir)
        return config.memory.kv_bytes(model, info, base_dir) / describe_model(model, base_dir).num_layers
    with inside("scheduler.speculative"):
        if not given.draft_model:
            raise InputError(Verbatim("missing: name the model that drafts; its KV moves with a sequence"),
                             field="draft_model")
        with inside("draft_model"):
            draft = load_model(given.draft_model, base_dir)
    return float(draft.kv_bytes_per_token(config.memory.value_bytes(info), info.tp))
