"""Figures of a paper with those of a study, and the verdict on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["NEAR", "VERDICTS", "Compared", "cell", "numbers_of"]

Figures = float | tuple[float, float] | str | None
NEAR = 0.15
"""Share of the paper's figure within which a study agrees with it, and of its effect below which there is none."""
VERDICTS = {
    "agrees": "all of it lies within 15% of the paper's figure (at most half of its effect), or the words agree",
    "partly": "part of it does, or the figure exists for some of the paper's cases only",
    "direction": "none does, but the effect has the paper's sign",
    "differs": "none of these",
    "reversed": "the effect has the opposite sign",
    "noise": "it would agree, but the interval over seeds contains no effect",
    "fitted": "it agrees because a parameter of the study is fitted to it",
    "given": "it agrees because it is an input of the study, or a definition",
    "paper wrong": "it differs, and arithmetic on the paper's own set-up gives the study's figure",
    "not comparable": "the study's run is outside the paper's regime or uses other data",
    "not computed": "the study has no such figure",
    "cannot tell": "the run is too short or too small",
    "-": "the paper has no such figure",
}
"""Verdicts on a figure of a paper, with their meanings."""
REPLACED = {
    "": (), "fitted": ("agrees",), "given": ("agrees",), "reversed": ("differs",),
    "paper wrong": ("partly", "direction", "differs", "reversed"), "not comparable": tuple(VERDICTS),
    "not computed": tuple(VERDICTS),
}
"""Verdicts that `Compared.qualifier` replaces."""


@dataclass(frozen=True)
class Compared:
    """One figure of a paper and the study's.

    Args:
        name: Its name, unique in a report; with the unit.
        paper: The paper's figure: a number, a pair (lowest, highest), words, or None if the paper has none.
        here: The study's, likewise.
        why: Cause of the difference, or of the agreement; one sentence.
        digits: Decimals of its numbers; None: 4 significant digits.
        where: Figure, table or section of the paper.
        interval: Lowest and highest of `here` over seeds, or its 95% interval; None where one run is the answer.
        neutral: The number between opposite conclusions: 1 for a ratio, 0 for a gain. None if there is none.
        agrees: Whether the study agrees with words of the paper, which no rule here can compare; None for numbers.
        settled: False if the run is too short or too small to tell; its verdict is then "cannot tell".
        qualifier: A verdict that stands in place of those in `REPLACED`, such as "fitted" in place of "agrees".
        cases: The figure of each case, such as a data set, where `here` is their lowest and highest.
        of: Number of cases for which the paper gives the figure; 0 if it gives one.
    """

    name: str
    paper: Figures
    here: Figures
    why: str = ""
    digits: int | None = None
    where: str = ""
    interval: tuple[float, float] | None = None
    neutral: float | None = None
    agrees: bool | None = None
    settled: bool = True
    qualifier: str = ""
    cases: tuple[float, ...] = ()
    of: int = 0

    def text(self, figures: Figures) -> str:
        """Return a figure of this kind as text."""
        if isinstance(figures, tuple):
            return " to ".join(cell(value, self.digits) for value in figures)
        return cell(figures, self.digits)

    @property
    def verdict(self) -> str:
        """Return one of `VERDICTS`."""
        if self.paper is None:
            return "-"
        if self.here is None:
            return self.qualifier or "cannot tell"
        found = self._compared()
        return self.qualifier if found in REPLACED[self.qualifier] else found

    def _compared(self) -> str:
        if not self.settled:
            return "cannot tell"
        paper, here = numbers_of(self.paper), list(self.cases) or numbers_of(self.here)
        words = self.agrees is not None or not paper or not here
        found = {True: "agrees", False: "differs", None: "-"}[self.agrees] if words else self._of_numbers(paper, here)
        if found in ("agrees", "direction", "reversed") and self._contains_no_effect(paper):
            return "differs" if found == "reversed" else "noise"
        if found in ("agrees", "direction") and 0 < len(self.cases) < self.of:
            return "partly" if found == "agrees" else "differs"
        return found

    def _of_numbers(self, paper: list[float], here: list[float]) -> str:
        low, high = min(paper) - self._near(min(paper)), max(paper) + self._near(max(paper))
        sides = {self._effect(number, 0.0) for number in paper}
        least = NEAR * min(abs(number - (self.neutral or 0.0)) for number in paper)
        across = [number for number in here if len(sides) == 1 and self._effect(number, least) not in sides]
        inside = [number for number in here if low <= number <= high and number not in across]
        if len(inside) == len(here):
            return "agrees"
        if inside or (not self.cases and min(here) <= high and max(here) >= low and len(across) < len(here)):
            return "partly"
        if self.neutral is None or len(sides) > 1:
            return "differs"
        if not across:
            return "direction"
        opposite = {-side for side in sides if side}
        return "reversed" if all(self._effect(number, least) in opposite for number in here) else "differs"

    def _near(self, paper: float) -> float:
        """Return how far from a figure of the paper the study may be."""
        near = NEAR * abs(paper)
        return near if self.neutral in (None, paper) else min(near, abs(paper - (self.neutral or 0.0)) / 2)

    def _effect(self, number: float, least: float) -> int:
        """Return the sign of an effect, 0 up to `least`; 1 for figures without a neutral number."""
        if self.neutral is None:
            return 1
        difference = number - self.neutral
        return 0 if abs(difference) <= least else 1 if difference > 0 else -1

    def _contains_no_effect(self, paper: list[float]) -> bool:
        if self.neutral is None or self.interval is None:
            return False
        claimed = bool(paper) and min(paper) <= self.neutral <= max(paper)
        return self.interval[0] <= self.neutral <= self.interval[1] and not claimed


def numbers_of(figures: Figures) -> list[float]:
    """Return the numbers of a figure; none of words."""
    values = figures if isinstance(figures, tuple) else (figures,)
    return [float(value) for value in values if isinstance(value, int | float) and value == value]


def cell(value: Any, digits: int | None) -> str:
    """Return a value as text, with `digits` decimals, or four significant digits."""
    if value is None or value != value:   # NaN
        return "-"
    if isinstance(value, str | bool) or not hasattr(value, "__float__"):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15 and digits is None:
        return f"{int(value):,}"
    return f"{value:,.{digits}f}" if digits is not None else f"{value:,.4g}"
