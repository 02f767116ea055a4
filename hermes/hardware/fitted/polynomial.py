"""Hardware model `polynomial`: a fitted profile, evaluated fast.

The polynomial of a step is:

- without decodes: the profile's `prefill` phase;
- decodes only: its `decode` phase;
- both: its `mixed` phase, but never less than the prefills alone or the decodes alone would take. Three polynomials
  fitted apart may disagree where they meet, and more work must not make a step cheaper. A profile without a mixed phase
  (its source measured no mixed steps) is composed: the linear layers process all tokens of the step together, so the
  prefill polynomial gives their time at `prefill_tokens + decode_seqs` tokens (its attention terms unchanged), but
  never less than the part of the decode polynomial without context. The decode polynomial's terms in decode_ctx and
  decode_ctx_max (reading the KV cache) are added.

So with polynomials that never fall when a feature grows (`hermes.hardware.fitted.monotone`), more tokens, longer
contexts or more sequences never make a step cheaper, even if they change its kind.

A time is never below the phase's `floor_s` (at least 1 ns), in a mixed step the largest of the three. `out_of_range`
counts steps outside the measured range; a composed step counts if its tokens leave the prefill range or its decodes
leave the decode range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.errors import inside
from hermes.hardware.base import StepStats
from hermes.hardware.config import HardwareConfig
from hermes.hardware.fitted.profile import PhaseProfile, Profile, load_profile
from hermes.hardware.fitted.ranges import steps_outside
from hermes.hardware.fitted.terms import PREFILL_SAMPLED, VARYING, CompiledTerms, Term, compile_terms
from hermes.hardware.info import HardwareInfo, measured_info
from hermes.units import NS_PER_S

__all__ = ["Polynomial", "PolynomialModel"]


_Terms = Sequence[tuple[float, Term]]

# features summed over a whole step, restricted to its prefills and to its decodes
_OF_PREFILLS = {"tokens": "prefill_tokens", "seqs": "prefill_seqs", "sampled": PREFILL_SAMPLED}
_OF_DECODES = {"tokens": "decode_seqs", "seqs": "decode_seqs", "sampled": "decode_seqs"}


def _renamed(terms: _Terms, names: Mapping[str, str]) -> list[tuple[float, Term]]:
    return [
        (coefficient, tuple(f._replace(feature=names.get(f.feature, f.feature)) for f in term))
        for coefficient, term in terms
    ]


def _contains(whole: _Terms, part: _Terms) -> bool:
    """Whether `whole` is `part` plus terms that are never negative, and so is never below it."""
    sums: list[dict[Term, float]] = [{}, {}]
    for total, terms in zip(sums, (whole, part), strict=True):
        for coefficient, term in terms:
            total[term] = total.get(term, 0.0) + coefficient
    return all(sums[0].get(term, 0.0) >= sums[1].get(term, 0.0) for term in sums[0].keys() | sums[1].keys())


def _compose(prefill: PhaseProfile, decode: PhaseProfile, scale: float, overhead_ns: float) -> CompiledTerms:
    """Compile the mixed polynomial of a profile without one (see the module's docstring)."""
    overhead: list[tuple[float, Term]] = [(overhead_ns, ())]
    linear = _renamed(prefill.scaled(scale), {"prefill_tokens": "tokens"}) + overhead
    terms = decode.scaled(scale) + overhead
    context = [entry for entry in terms if any(f.feature in VARYING for f in entry[1])]
    rest = [entry for entry in terms if entry not in context]
    return compile_terms(linear + context, max(prefill.floor_s, decode.floor_s) * scale, at_least=rest)


class PolynomialModel:
    """A profile compiled for the kernel. `scale` is a factor of every time."""

    def __init__(self, profile: Profile, scale: float = 1.0) -> None:
        self.profile = profile
        self.name = profile.name
        source = profile.provenance
        self.description = f"polynomial {profile.name}: {source.model}, {source.hardware}, TP{source.tensor_parallel}"
        self.notes = [source.contains()]
        phases = profile.phases
        factor = scale * NS_PER_S
        extra: list[tuple[float, Term]] = [(profile.overhead_s * factor, ())]
        prefill = phases.prefill.scaled(factor) + extra
        decode = phases.decode.scaled(factor) + extra
        floors = [phase.floor_s * factor for phase in (phases.prefill, phases.decode)]
        self.prefill = compile_terms(prefill, floors[0])
        self.decode = compile_terms(decode, floors[1])
        self.bounds: list[CompiledTerms] = []
        """Lower bounds of a mixed step that its own polynomial does not ensure."""
        if phases.mixed is None:
            self.mixed = _compose(phases.prefill, phases.decode, factor, profile.overhead_s * factor)
        else:
            mixed = phases.mixed.scaled(factor) + extra
            self.mixed = compile_terms(mixed, max(phases.mixed.floor_s * factor, *floors))
            parts = ((prefill, _OF_PREFILLS, floors[0]), (decode, _OF_DECODES, floors[1]))
            self.bounds = [
                compile_terms(_renamed(part, names), floor)
                for part, names, floor in parts if not _contains(mixed, part)
            ]
        self._prefill_step, self._prefill_run, _ends, _ = self.prefill
        self._mixed_step = self.mixed.step
        self._decode_step, self._decode_run, self.write_ends, _ = self.decode

    @property
    def info(self) -> HardwareInfo:
        """Properties that were measured besides the steps."""
        profile = self.profile
        return measured_info(profile.name, "profile", profile.provenance, memory=profile.memory, power=profile.power)

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        if not stats.decode_seqs:
            return self._prefill_step(stats)
        if stats.prefill_tokens:
            ns = self._mixed_step(stats)
            for bound in self.bounds:
                ns = max(ns, bound.step(stats))
            return ns
        return self._decode_step(stats)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        if not stats.decode_seqs:
            return self._prefill_run(stats, num_steps)
        if stats.prefill_tokens:
            ns = self.mixed.run(stats, num_steps)
            for bound in self.bounds:
                ns = np.maximum(ns, bound.run(stats, num_steps))
            return ns
        return self._decode_run(stats, num_steps)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return how many steps of each run left the measured range, int64, shape (runs,)."""
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


class Polynomial(HardwareConfig):
    """Regression on measured steps: polynomials of batch statistics from a profile."""

    kind: Literal["polynomial"] = "polynomial"
    profile: Annotated[str, Field(min_length=1, max_length=4096)]
    """Name of a shipped profile (`hw_profiles/NAME.yaml`) or the path of a profile file."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of every step time, for faster or slower hardware."""

    def build(self, base_dir: Path | None = None) -> PolynomialModel:
        """Build the model; a profile path is relative to `base_dir`. Raises `InputError` for a bad profile."""
        with inside("profile"):
            profile = load_profile(self.profile, base_dir)
        return PolynomialModel(profile, self.scale)
