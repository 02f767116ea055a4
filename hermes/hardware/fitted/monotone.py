"""Monotonicity of a profile: prove from its polynomials, or search, whether more work is ever cheaper.

The proof: every factor of a term (`x`, `x^2`, `max(x-k,0)`, `min(x,k)`, `clip(x-a,0,w)`) is non-negative and never
falls when its feature grows, and features are never negative, so a sum of terms with non-negative coefficients never
falls. Terms with negative coefficients are allowed if they only bend a line: for each product of other factors, the
terms `x` and `max(x-k,0)` form a piecewise linear function of one feature. That function never falls if all its slopes,
the sums of coefficients from left to right, are non-negative. Other polynomials are not proved (they may still be
monotone).

The search: `cheaper_steps` walks over random batches, adds work to each in every direction in which a batch can grow
(tokens, past, context, sequences, from one kind of step to another), and returns pairs in which more work is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hermes.arrays import exp
from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.fitted.profile import PhaseProfile, Profile
from hermes.hardware.fitted.terms import Factor, Term, term_text

__all__ = ["Batch", "cheaper_steps", "falling_terms", "unproved"]


def falling_terms(terms: Sequence[tuple[float, Term]], rounding: float = 1e-9) -> list[str]:
    """Return the terms in which the polynomial is not proved to rise; empty if it never falls in any feature.

    A negative slope below `rounding` of the coefficients in its sum counts as zero: files have nine digits.
    """
    bent: dict[tuple[Term, str], list[tuple[float, float]]] = {}
    found = []
    for coefficient, term in terms:
        if coefficient < 0 and term:  # a negative constant shifts all steps alike
            lines = _lines(term)
            if lines:
                bent.setdefault(lines[0][0], []).append((lines[0][1], coefficient))
            else:
                found.append(term_text(term))
    for coefficient, term in terms:
        if coefficient > 0:
            key = next((line for line in _lines(term) if line[0] in bent), None)
            if key is not None:
                bent[key[0]].append((key[1], coefficient))
    for (rest, feature), bends in bent.items():
        slope = size = 0.0
        for _, coefficient in sorted(bends):
            slope, size = slope + coefficient, max(size, abs(coefficient))
            if slope < -rounding * size:
                found.append(term_text((Factor(feature), *rest)))
                break
    return found


def _lines(term: Term) -> list[tuple[tuple[Term, str], float]]:
    """Yield the ways to read a term as (other factors, feature) times a line from a knot; those with knots first."""
    out = []
    for factor in sorted((f for f in term if f.power == 1 and f.cap is None), key=lambda f: f.knot is None):
        rest = list(term)
        rest.remove(factor)
        out.append(((tuple(sorted(rest, key=Factor.text)), factor.feature), factor.knot or 0.0))
    return out


def unproved(profile: Profile) -> dict[str, list[str]]:
    """Return the phases whose polynomial is not proved monotone, with its terms; empty for a monotone profile."""
    phases: Mapping[str, PhaseProfile | None] = {
        "prefill": profile.phases.prefill, "decode": profile.phases.decode, "mixed": profile.phases.mixed,
    }
    found = {name: falling_terms(phase.scaled(1.0)) for name, phase in phases.items() if phase is not None}
    return {name: terms for name, terms in found.items() if terms}


@dataclass(frozen=True)
class Batch:
    """A step's sequences: `prefills` are (new tokens, past tokens), `contexts` the cached tokens of each decode."""

    prefills: tuple[tuple[int, int], ...] = ()
    contexts: tuple[int, ...] = ()

    def stats(self) -> StepStats:
        """Return its statistics; every sequence samples."""
        return StepStats(
            prefill_seqs=len(self.prefills),
            prefill_tokens=sum(n for n, _ in self.prefills),
            prefill_past=sum(past for _, past in self.prefills),
            prefill_attn=sum(n * past + n * (n + 1) // 2 for n, past in self.prefills),
            decode_seqs=len(self.contexts), decode_ctx=sum(self.contexts),
            decode_ctx_max=max(self.contexts, default=0), sampled=len(self.prefills) + len(self.contexts),
            prefill_max=max((n for n, _ in self.prefills), default=0),
        )

    def grown(self, rng: np.random.Generator, most: int) -> Iterator[Batch]:
        """Yield batches with a little or a lot more work, up to `most` tokens of a kind."""
        by = int(math.exp(rng.uniform(0, math.log(most))))
        if self.prefills:
            (n, past), *rest = self.prefills
            yield replace(self, prefills=((n + by, past), *rest))
            yield replace(self, prefills=((n, past + by), *rest))
        if self.contexts:
            first, *others = self.contexts
            yield replace(self, contexts=(first + by, *others))
            yield replace(self, contexts=tuple(c + 1 for c in self.contexts))
        yield replace(self, prefills=(*self.prefills, (by, 0)))
        yield replace(self, prefills=(*self.prefills, (1, 0)))
        yield replace(self, contexts=(*self.contexts, by))
        yield replace(self, contexts=(*self.contexts, *self.contexts, 1))


def cheaper_steps(
    model: HardwareModel, largest: Mapping[str, float], count: int = 300, seed: int = 1
) -> list[tuple[Batch, Batch, int, int]]:
    """Return (batch, the same with more work, its ns, its smaller ns) for pairs found among `count` random batches.

    `largest` bounds the search: `tokens` and `past` of a prefill, `seqs` and `context` of decodes.
    """
    rng = np.random.default_rng(seed)
    logarithms = {name: math.log(max(2.0, value)) for name, value in largest.items()}

    def draws(name: str, many: int) -> list[int]:
        drawn: list[int] = exp(rng.uniform(0, logarithms[name], many)).astype(np.int64).tolist()
        return drawn

    def draw(name: str) -> int:
        return draws(name, 1)[0]

    found = []
    for i in range(count):
        prefills = tuple((draw("tokens"), draw("past") * int(rng.integers(2))) for _ in range(rng.integers(1, 4)))
        contexts = tuple(draws("context", draw("seqs")))
        batch = Batch(prefills if i % 3 != 1 else (), contexts if i % 3 != 0 else ())
        before = model.step_ns(batch.stats())
        for more in batch.grown(rng, max(2, int(largest["tokens"]))):
            after = model.step_ns(more.stats())
            if after < before:
                found.append((batch, more, before, after))
    return found
