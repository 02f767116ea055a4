"""Hardware model `polynomial`: a fitted profile, evaluated fast.

Which polynomial prices a step:

- no decodes: the profile's `prefill` phase;
- decodes only: its `decode` phase;
- both: its `mixed` phase. A profile without one (its source measured no mixed steps) is composed: the linear layers
  see all tokens of the step together, so they are priced by the prefill polynomial at `prefill_tokens + decode_seqs`
  tokens (its attention terms unchanged), but never below the decode polynomial's part that does not depend on context;
  the decode polynomial's terms in decode_ctx and decode_ctx_max (reading the KV cache) are added.

An answer is never below the phase's `floor_s` (at least 1 ns). Leaving the measured range is counted by
`out_of_range`; a composed step counts when its tokens leave the prefill range or its decodes leave the decode range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel
from hermes.errors import inside
from hermes.hardware.base import HARDWARE, IntArray, StepStats
from hermes.hardware.profile import PhaseProfile, Profile, load_profile
from hermes.hardware.ranges import steps_outside
from hermes.hardware.terms import VARYING, CompiledTerms, Factor, Term, compile_terms
from hermes.units import NS_PER_S

__all__ = ["Polynomial", "PolynomialModel"]


def _over_all_tokens(term: Term) -> Term:
    return tuple(Factor("tokens", *f[1:]) if f.feature == "prefill_tokens" else f for f in term)


def _compose(prefill: PhaseProfile, decode: PhaseProfile, scale: float, overhead_ns: float) -> CompiledTerms:
    """The mixed polynomial of a profile that measured none (see the module's rule)."""
    overhead: list[tuple[float, Term]] = [(overhead_ns, ())]
    linear = [(coefficient, _over_all_tokens(term)) for coefficient, term in prefill.scaled(scale)] + overhead
    terms = decode.scaled(scale) + overhead
    context = [entry for entry in terms if any(f.feature in VARYING for f in entry[1])]
    rest = [entry for entry in terms if entry not in context]
    return compile_terms(linear + context, max(prefill.floor_s, decode.floor_s) * scale, at_least=rest)


class PolynomialModel:
    """A profile compiled for the kernel. `scale` multiplies every time."""

    def __init__(self, profile: Profile, scale: float = 1.0) -> None:
        self.profile = profile
        self.name = profile.name
        source = profile.provenance
        self.description = f"polynomial {profile.name}: {source.model}, {source.hardware}, TP{source.tensor_parallel}"
        phases = profile.phases
        factor = scale * NS_PER_S
        extra: list[tuple[float, Term]] = [(profile.overhead_s * factor, ())]
        self.prefill = compile_terms(phases.prefill.scaled(factor) + extra, phases.prefill.floor_s * factor)
        self.decode = compile_terms(phases.decode.scaled(factor) + extra, phases.decode.floor_s * factor)
        if phases.mixed is None:
            self.mixed = _compose(phases.prefill, phases.decode, factor, profile.overhead_s * factor)
        else:
            self.mixed = compile_terms(phases.mixed.scaled(factor) + extra, phases.mixed.floor_s * factor)
        self._prefill_step, self._prefill_run, _ = self.prefill
        self._decode_step, self._decode_run, _ = self.decode
        self._mixed_step, self._mixed_run, _ = self.mixed

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        if not stats.decode_seqs:
            return self._prefill_step(stats)
        if stats.prefill_tokens:
            return self._mixed_step(stats)
        return self._decode_step(stats)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        if not stats.decode_seqs:
            return self._prefill_run(stats, num_steps)
        if stats.prefill_tokens:
            return self._mixed_run(stats, num_steps)
        return self._decode_run(stats, num_steps)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """How many steps of each run left the measured range, int64, shape (runs,)."""
        phases = self.profile.phases
        if phases.mixed is not None:
            mixed = phases.mixed.range
        else:
            prefill = {"tokens" if k == "prefill_tokens" else k: v for k, v in phases.prefill.range.items()}
            mixed = prefill | phases.decode.range
        decodes = columns["decode_seqs"] > 0
        prefills = columns["prefill_tokens"] > 0
        out = np.zeros(len(num_steps), dtype=np.int64)
        for rows, ranges in (
            (~decodes, phases.prefill.range), (decodes & ~prefills, phases.decode.range), (decodes & prefills, mixed),
        ):
            part = {name: values[rows] for name, values in columns.items()}
            out[rows] = steps_outside(ranges, part, num_steps[rows])
        return out


@HARDWARE.register("polynomial")
class Polynomial(ConfigModel):
    """Regression on measured steps: polynomials of batch statistics from a profile."""

    kind: Literal["polynomial"] = "polynomial"
    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    """Name of a shipped profile (`hw_profiles/NAME.yaml`) or the path of a profile file."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Multiplies every step time (what if this hardware were slower or faster)."""

    def build(self, base_dir: Path | None = None) -> PolynomialModel:
        """The model; a profile path is relative to `base_dir`. Raises `InputError` for a bad profile."""
        with inside("profile"):
            profile = load_profile(self.profile, base_dir)
        return PolynomialModel(profile, self.scale)
