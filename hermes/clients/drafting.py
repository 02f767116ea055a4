"""Times of an engine's steps with speculative decoding.

After each step that gives tokens, what drafts runs `num_speculative_tokens` times: first over all tokens of the step,
then over one token of each sequence. A draft model is priced as a model of its own on the client's devices, an EAGLE or
MTP head as one decoder layer of the client's model with its output matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.clients.parts import StepPart
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.config import prices
from hermes.hardware.engines import StepTime
from hermes.schedulers.chunked_config import Speculation
from hermes.schedulers.plan import Plan
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["Drafter", "drafter_of"]

LOOKUPS = ("ngram", "ngram_gpu", "suffix")   # they look up texts, in no time
UNPRICED = ("medusa", "mlp_speculator")


class Drafter(StepPart):
    """Times of steps that verify drafts, and of what drafts.

    Args:
        target: Prices the client's model.
        passes: Runs of what drafts after each step.
        per_pass_ns, per_seq_ns: Time of a run, and more for each sequence.
        draft: Prices a run beside that; None for nothing.
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
        ns = self.target.step_ns(plan if self._knows_drafts or not plan.drafts else _as_prompts(plan))
        if not plan.sampled:
            return ns
        seqs = plan.decode_seqs + plan.prefill_seqs
        ns += self.passes * (self._per_pass_ns + self._per_seq_ns * seqs)
        if self.draft is not None:
            ns += self.draft.step_ns(plan)
            if self.passes > 1:
                one = StepStats(decode_seqs=seqs, decode_ctx=plan.decode_ctx + plan.prefill_past + plan.prefill_tokens,
                                decode_ctx_max=plan.decode_ctx_max, sampled=seqs)
                ns += (self.passes - 1) * self.draft.step_ns(one)
        return ns


def _as_prompts(plan: Plan) -> StepStats:
    """Return a step for a model that knows no drafts: the sequences that verify some compute short prompts."""
    tokens, seqs = plan.decode_seqs + plan.drafts, plan.decode_seqs
    each = tokens / seqs
    return StepStats(
        prefill_seqs=plan.prefill_seqs + seqs, prefill_tokens=plan.prefill_tokens + tokens,
        prefill_past=plan.prefill_past + plan.decode_ctx, sampled=plan.sampled,
        prefill_attn=plan.prefill_attn + round(each * plan.decode_ctx + seqs * each * (each + 1) / 2))


def drafter_of(given: Speculation, place: Place) -> Drafter:
    """Return the drafter of a client. Raises `InputError` if the drafting's time is neither given nor computable."""
    with inside("scheduler.speculative"):
        return _drafter(given, place.hardware, place.config.hardware, place.base_dir)


def _drafter(given: Speculation, target: HardwareModel, hardware: Any, base_dir: Path | None) -> Drafter:
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
    draft = hardware.model_copy(update={"step": StepTime(), "terms": {}} | (
        {"model": given.draft_model} if given.method == "draft_model" else {}))
    with inside("draft_model"):
        model = draft.build(base_dir, layers=None if given.method == "draft_model" else 1)
    return Drafter(target, given.num_speculative_tokens, 0, per_seq, model)
