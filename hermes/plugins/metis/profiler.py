"""METIS's profiler, with errors: its profile of a query, its confidence, and the effect of feedback on both.

93% of the profiles are confident (above 0.90), and 96% of those are good (METIS's figures for a large model). Assumed:
half of the others are good; a bad profile has one mistake, each equally likely: joint reasoning or complexity inverted,
pieces doubled or halved, summaries of half or twice the length; each golden answer in the prompt removes 15% of the
remaining mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hermes.errors import InputError, suggest
from hermes.plugins.metis.decision import CONFIDENT, Profile

__all__ = ["PROFILERS", "Profiler", "profiler"]


@dataclass(frozen=True)
class Profiler:
    """Quality and cost of a profiler.

    Attributes:
        confident: Share of profiles above the threshold.
        good_confident, good_unsure: Shares of good profiles among those and among the others.
        learns: Share of the mistakes that one golden answer removes.
        fixed_tokens: Prompt tokens of a call for instructions and the line about the database, without the question.
        example_tokens: Prompt tokens for each golden answer kept, without that answer.
        output_tokens: Tokens of the profile.
    """

    confident: float = 0.93
    good_confident: float = 0.96
    good_unsure: float = 0.5
    learns: float = 0.15
    fixed_tokens: int = 80
    example_tokens: int = 40
    output_tokens: int = 20

    def estimate(self, true: Profile, rng: np.random.Generator, kept: int = 0) -> Profile:
        """Return a profile for a query whose true one is known, with `kept` golden answers in the prompt. Always draws
        six numbers."""
        u = rng.random(6).tolist()
        sure = u[0] < self.confident
        wrong = (1 - (self.good_confident if sure else self.good_unsure)) * (1 - self.learns) ** kept
        confidence = CONFIDENT + (1 - CONFIDENT) * u[1] if sure else 0.5 + (CONFIDENT - 0.5) * u[1] * 0.999
        good = replace(true, confidence=confidence)
        return good if u[2] >= wrong else _mistaken(good, int(u[3] * 4), more=u[4] < 0.5)

    def prompt_tokens(self, question_tokens: int, kept_answers: int = 0, answer_tokens: int = 0) -> int:
        """Return the tokens of one call's prompt."""
        return self.fixed_tokens + question_tokens + kept_answers * (self.example_tokens + answer_tokens)


def _mistaken(profile: Profile, which: int, *, more: bool) -> Profile:
    if which == 0:
        return replace(profile, joint=not profile.joint)
    if which == 1:
        return replace(profile, complex=not profile.complex)
    if which == 2:
        pieces = min(10, 2 * profile.pieces) if more or profile.pieces == 1 else profile.pieces // 2
        return replace(profile, pieces=pieces)
    low, high = profile.summary_words
    words = (2 * low, 2 * high) if more or low < 45 else (low // 2, high // 2)
    return replace(profile, summary_words=(min(200, max(30, words[0])), min(200, max(30, words[1]))))


PROFILERS = {
    "large": Profiler(),
    "small": Profiler(confident=0.85, good_confident=0.90),
    "poor": Profiler(good_confident=0.5, good_unsure=0.5),
    "perfect": Profiler(good_confident=1.0, good_unsure=1.0),
}
"""The large model of METIS's figures; a smaller one, assumed to be less sure and wrong more often; one that is wrong
half of the time without knowing it; and a perfect one."""


def profiler(name: str) -> Profiler:
    """Return a profiler by name. Raises `InputError` for an unknown one."""
    if name not in PROFILERS:
        raise InputError(f"a profiler: one of {', '.join(PROFILERS)}", name, field="profiler",
                         suggestion=suggest(name, PROFILERS))
    return PROFILERS[name]
