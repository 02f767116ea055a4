"""Polynomial terms over step statistics: parsing, evaluation on columns, and compilation to fast functions.

A term is a product of factors: `decode_seqs`, `prefill_tokens^2`, `decode_seqs*decode_ctx`, the hinge
`max(prefill_tokens-512,0)`, the cap `min(decode_seqs,8)`, the segment `clip(decode_seqs-128,0,64)` (rises from 0 at 128
to 64 at 192 and stays there), or `1` for the constant. Features are the fields of `StepStats` and two sums:
`tokens` = prefill_tokens + decode_seqs and `seqs` = prefill_seqs + decode_seqs.

Within a run only `decode_ctx` and `decode_ctx_max` change. Compilation therefore groups the terms by the product of
those two that they contain, and folds the rest of a group into one coefficient per run. One expression text is compiled
twice, over Python floats for a step and over float64 arrays for a run: the same operations in the same order, and so
the same bits (IEEE 754 double in both; integers are exact below 2^53; numpy's ufuncs do not fuse).

Features are never negative and every factor grows with its feature, so a polynomial without negative coefficients never
falls when a feature grows. Rounding keeps order, so this holds for the computed nanoseconds too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.errors import InputError, suggest
from hermes.hardware.base import BATCH_STATS, StepStats, WriteEnds

__all__ = [
    "FEATURES", "PREFILL_SAMPLED", "VARYING", "CompiledTerms", "Factor", "Term", "compile_terms", "evaluate",
    "feature_columns", "parse_term", "term_text",
]

_SUMS = {"tokens": ("prefill_tokens", "decode_seqs"), "seqs": ("prefill_seqs", "decode_seqs")}
FEATURES: tuple[str, ...] = (*BATCH_STATS, *_SUMS)
"""Names that a term may use."""
PREFILL_SAMPLED = "prefill_sampled"
"""Sequences that sample after a prefill, max(sampled - decode_seqs, 0), since every decode samples. Only for parts of a
step that hermes composes; terms in files cannot name it."""
VARYING = ("decode_ctx", "decode_ctx_max")
"""Features that grow from step to step of a run: decode_ctx by decode_seqs, decode_ctx_max by 1."""

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_FACTOR = re.compile(
    rf"(?:(?P<name>[a-z_]+)|max\((?P<hinge>[a-z_]+)-(?P<knot>{_NUMBER}),0\)|min\((?P<capped>[a-z_]+),(?P<cap>{_NUMBER})\)"
    rf"|clip\((?P<segment>[a-z_]+)-(?P<start>{_NUMBER}),0,(?P<width>{_NUMBER})\))(?:\^(?P<power>[1-4]))?\Z"
)
MAX_FACTORS = 8
MAX_NUMBER = 1e15   # of tokens or pairs; integers are exact below 2^53


class Factor(NamedTuple):
    """`feature ** power`; with a knot `max(feature - knot, 0) ** power`; a cap bounds the base from above."""

    feature: str
    knot: float | None = None
    power: int = 1
    cap: float | None = None

    def text(self) -> str:
        """Return the factor as a term writes it; `parse_term` reads it back."""
        if self.cap is None:
            base = self.feature if self.knot is None else f"max({self.feature}-{_plain(self.knot)},0)"
        elif self.knot is None:
            base = f"min({self.feature},{_plain(self.cap)})"
        else:
            base = f"clip({self.feature}-{_plain(self.knot)},0,{_plain(self.cap)})"
        return base if self.power == 1 else f"{base}^{self.power}"

    def values(self, base: FloatArray) -> FloatArray:
        """Return the factor's values at these values of its feature; any shape."""
        if self.knot is not None:
            base = np.maximum(base - self.knot, 0.0)
        if self.cap is not None:
            base = np.minimum(base, self.cap)
        value = base
        for _ in range(self.power - 1):
            value = value * base
        return value


def _plain(number: float) -> str:
    """Return a number without an exponent, as terms write it."""
    return str(int(number)) if number == int(number) else format(number, "f").rstrip("0")


Term = tuple[Factor, ...]
"""A product of factors; the empty product is the constant."""


@lru_cache(maxsize=4096)   # profiles share their terms, and a sweep builds each profile many times
def parse_term(text: str) -> Term:
    """Return the factors of a term such as `decode_seqs*max(decode_ctx-512,0)`. Raises `InputError`."""
    plain = "".join(text.split())
    if plain == "1":
        return ()
    factors = []
    for part in plain.split("*"):
        match = _FACTOR.match(part)
        if match is None:
            raise InputError(
                "a product of features, feature^power, max(feature-number,0), min(feature,number) and "
                "clip(feature-number,0,number), or 1", text,
            )
        feature = match["name"] or match["hinge"] or match["capped"] or match["segment"]
        if feature not in FEATURES:
            raise InputError(f"features among {', '.join(FEATURES)}", feature, suggestion=suggest(feature, FEATURES))
        knot, cap = match["knot"] or match["start"], match["cap"] or match["width"]
        factors.append(Factor(feature, _number(knot), int(match["power"] or 1), _number(cap)))
    if sum(factor.power for factor in factors) > MAX_FACTORS:
        raise InputError(f"a product of at most {MAX_FACTORS} features", text)
    return tuple(factors)


def _number(text: str | None) -> float | None:
    """Parse a knot or a cap. Raises `InputError` beyond the range of steps, where floats would become infinite."""
    if text is not None and not float(text) <= MAX_NUMBER:
        raise InputError(f"knots and caps of at most {MAX_NUMBER:g}", text)
    return None if text is None else float(text)


def feature_columns(columns: Mapping[str, IntArray | FloatArray]) -> dict[str, FloatArray]:
    """Return the columns of `StepStats` fields as float64, with the sums whose parts are present."""
    out = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    for name, (first, second) in _SUMS.items():
        if first in out and second in out:
            out[name] = out[first] + out[second]
    return out


def evaluate(term: Term, columns: Mapping[str, FloatArray], rows: int) -> FloatArray:
    """Return a term's values, float64, shape (rows,); `columns` as from `feature_columns`. For fits, not the kernel."""
    value = np.ones(rows)
    for factor in term:
        value = value * factor.values(columns[factor.feature])
    return value


def term_text(term: Term) -> str:
    """Return the text of a term; `parse_term` reads it back."""
    return "*".join(factor.text() for factor in term) or "1"


class CompiledTerms(NamedTuple):
    """A polynomial of `StepStats` as three functions that agree bit for bit; nanoseconds, floored and rounded.

    `ends(stats, num_steps, ends, pos, now)` writes the end times of a run that starts at `now` to `ends[pos:]`, step by
    step, and returns the last one: faster than numpy for a few steps.
    """

    step: Callable[[StepStats], int]
    run: Callable[[StepStats, int], IntArray]
    ends: WriteEnds
    source: str


def _monomial(factors: Sequence[Factor], scalar: bool) -> str:
    """Return `*a*b` for a product. Python evaluates left to right, so a coefficient in front makes it all floats."""
    text = ""
    for factor in factors:
        text += f"*{_factor(factor, scalar)}" * factor.power
    return text


def _factor(factor: Factor, scalar: bool) -> str:
    """Return the source of one factor without its power; the same value in both forms."""
    name, knot, cap = factor.feature, factor.knot, factor.cap
    if not scalar:
        return name if knot is None and cap is None else f"piece({name},{name}_first,{name}_last,{knot!r},{cap!r})"
    if cap is None:
        return name if knot is None else f"({name}-{knot!r} if {name}>{knot!r} else 0.0)"
    if knot is None:
        return f"({name} if {name}<{cap!r} else {cap!r})"
    return f"(0.0 if {name}<={knot!r} else {name}-{knot!r} if {name}-{knot!r}<{cap!r} else {cap!r})"


def _piece(values: FloatArray, first: int, last: int, knot: float | None, cap: float | None) -> FloatArray | float:
    """Return `min(max(values - knot, 0), cap)` of values that rise from `first` to `last`, which is above the knot; a
    number if it is the same for all.

    A run seldom crosses a knot, so that usually nothing needs to be compared; the bits are the same.
    """
    low: float = first
    high: float = last
    if knot is not None:
        values = values - knot if low >= knot else np.maximum(values - knot, 0.0)
        low, high = low - knot, high - knot
    if cap is not None:
        if low >= cap:
            return cap
        if high > cap:
            values = np.minimum(values, cap)
    return values


def _sum(terms: Sequence[tuple[float, Sequence[Factor]]]) -> str:
    return " + ".join(f"{coefficient!r}{_monomial(factors, True)}" for coefficient, factors in terms) or "0.0"


class _Source:
    """Source text of the two functions for one polynomial, in nanoseconds."""

    def __init__(self, terms: Sequence[tuple[float, Term]]) -> None:
        self.groups: dict[tuple[Factor, ...], list[tuple[float, Sequence[Factor]]]] = {}
        for coefficient, term in terms:
            varying = tuple(sorted((f for f in term if f.feature in VARYING), key=str))
            fixed = tuple(f for f in term if f.feature not in VARYING)
            self.groups.setdefault(varying, []).append((coefficient, fixed))
        self.constant = self.groups.pop((), [])

    def lines(self, constants: Sequence[str]) -> list[str]:
        """Return statements that bind the features and fold the parts that are constant over a run into c0, c1, ..."""
        texts = [*constants, *(_sum(group) for group in self.groups.values())]
        words = set(re.findall(r"\w+", " ".join(texts)))
        used = {name for name in (*FEATURES, PREFILL_SAMPLED) if name in words}
        used |= {part for name in used & set(_SUMS) for part in _SUMS[name]}
        if PREFILL_SAMPLED in used:
            used |= {"sampled", "decode_seqs"}
        if self.groups:
            used.add("decode_seqs")
        lines = [f"{name} = stats.{name}" for name in FEATURES if name in used and name not in _SUMS]
        lines += [f"{name} = {_SUMS[name][0]} + {_SUMS[name][1]}" for name in _SUMS if name in used]
        if PREFILL_SAMPLED in used:
            lines.append(f"{PREFILL_SAMPLED} = sampled - decode_seqs if sampled > decode_seqs else 0")
        if len(constants) == 1:
            lines.append(f"c0 = {constants[0]}")
        else:
            lines += [f"c0 = {constants[0]}", f"other = {constants[1]}", "if other > c0: c0 = other"]
        lines += [f"c{i} = {_sum(group)}" for i, group in enumerate(self.groups.values(), 1)]
        if used != {"decode_seqs"}:
            return lines
        # They depend only on the number of decodes, which recurs from step to step: cached by it.
        names = ", ".join(f"c{i}" for i in range(len(self.groups) + 1)) + ","
        bound, rest = lines[0], lines[1:]
        return [bound, "known = folded.get(decode_seqs)", "if known is None:", *(f"    {line}" for line in rest),
                f"    folded[decode_seqs] = ({names})", f"else: {names} = known"]

    def total(self) -> str:
        return "c0" + "".join(f" + c{i}{_monomial(key, True)}" for i, key in enumerate(self.groups, 1))

    def falls(self) -> str:
        """Return whether a run may fall below the floor. Features are never negative: with non-negative coefficients
        the first part bounds the sum from below."""
        return " or ".join(["c0 < FLOOR", *(f"c{i} < 0.0" for i in range(1, len(self.groups) + 1))])

    def sums(self) -> list[str]:
        """Return statements that add up `ns` over a run, in the order of `total`. A part below its knot in every step
        adds nothing, and is left out."""
        lines = ["ns = c0"]
        for i, key in enumerate(self.groups, 1):
            above = " and ".join(f"{f.feature}_last > {f.knot!r}" for f in key if f.knot is not None)
            lines.append((f"if {above}: " if above else "") + f"ns += c{i}{_monomial(key, False)}")
        return lines

    def varying(self) -> list[str]:
        return [name for name in VARYING if any(f.feature == name for key in self.groups for f in key)]


def compile_terms(
    terms: Sequence[tuple[float, Term]], floor_ns: float, at_least: Sequence[tuple[float, Term]] = ()
) -> CompiledTerms:
    """Compile `sum(coefficient * term)` with coefficients in nanoseconds, never below `floor_ns` (at least 1).

    `at_least` holds terms without decode context; their sum bounds the part of the polynomial without decode context
    from below. Times are rounded half to even.
    """
    terms = [(coefficient, term) for coefficient, term in terms if coefficient != 0.0]
    source = _Source(terms)
    constants = [_sum(source.constant)] + ([_sum(at_least)] if at_least else [])
    head = source.lines(constants)
    step = ["def step(stats):", *head]
    step += [f"{name} = stats.{name}" for name in source.varying()]
    # the method: half the cost of `round`
    step += [f"ns = {source.total()}", "return ns.__round__() if ns > FLOOR else FLOOR_INT"]
    run = ["def run(stats, num_steps):"]
    if source.groups:
        run += head
        starts = {"decode_ctx": "decode_seqs", "decode_ctx_max": "1"}
        for name in source.varying():
            # float64 arange computes first + i * step, exact for integers; a run has decode_seqs >= 1
            step_by = starts[name]
            run.append(f"{name}_first = stats.{name}")
            run.append(f"{name}_last = {name}_first + (num_steps - 1)*{step_by}")
            run.append(f"{name} = arange({name}_first, {name}_first + num_steps*{step_by}, {step_by}, float64)")
        run += source.sums()
        # every varying part may be beyond its cap or below its knot
        run.append("if type(ns) is float: return full(num_steps, round(ns) if ns > FLOOR else FLOOR_INT, int64)")
        run += [f"if {source.falls()}: maximum(ns, FLOOR, out=ns)", "return rint(ns, out=ns).astype(int64)"]
    else:
        run += ["return full(num_steps, step(stats), int64)"]
    text = "\n\n".join("\n    ".join(lines) for lines in (step, run, _ends(source, head))) + "\n"
    floor = float(max(1, round(floor_ns)))
    namespace: dict[str, object] = {
        "FLOOR": floor, "FLOOR_INT": int(floor), "maximum": np.maximum, "piece": _piece, "arange": np.arange,
        "folded": {}, "rint": np.rint, "int64": np.int64, "float64": np.float64, "full": np.full,
    }
    exec(_code(text), namespace)  # made of parsed terms and float literals only
    return CompiledTerms(
        namespace["step"], namespace["run"], namespace["ends"], text)  # type: ignore[arg-type]


def _ends(source: _Source, head: Sequence[str]) -> list[str]:
    """Return the lines of `CompiledTerms.ends`."""
    varying = source.varying()
    lines = ["def ends(stats, num_steps, ends, pos, now):", *head]
    if varying and "decode_seqs = stats.decode_seqs" not in head:
        lines.append("decode_seqs = stats.decode_seqs")
    lines += [f"{name} = stats.{name}" for name in varying]
    grow = [f"{name} += {'decode_seqs' if name == 'decode_ctx' else 1}" for name in varying]

    def loop(*body: str) -> list[str]:
        return ["for pos in range(pos, pos + num_steps):", *(f"    {line}" for line in (*body, *grow)), "return now"]

    floored = loop(f"ns = {source.total()}", "now += ns.__round__() if ns > FLOOR else FLOOR_INT", "ends[pos] = now")
    lines += [f"if {source.falls()}:", *(f"    {line}" for line in floored)]
    return lines + loop(f"ends[pos] = now = now + ({source.total()}).__round__()")


@lru_cache(maxsize=512)
def _code(text: str) -> CodeType:
    """Return compiled source, cached: groups of clients, and simulations in one process, share profiles."""
    return compile(text, "<polynomial>", "exec")
