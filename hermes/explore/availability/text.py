"""The answer of `hermes availability` as lines and tables of text, and as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from hermes.explore.availability import DAY_S, Availability
from hermes.explore.availability.closed_form import sound_share, states_share
from hermes.explore.objective import limits_text
from hermes.results.layout import Section, format_s, short_number
from hermes.units import counted

__all__ = ["lines", "plain", "states_table", "windows_table"]


def lines(found: Availability) -> list[tuple[str, str]]:
    """Return (label, text) pairs."""
    month = f"{counted(found.months, 'month')} of {found.days:g} days"
    out_s = (1.0 - found.share) * found.days * DAY_S
    out = [("available", f"{_share(found.share)} of the time{_interval(found)}, {month}; out of the SLO for "
                         f"{format_s(out_s)} a month"),
           ("closed", f"not known: {found.why}" if found.closed is None else
            f"{_share(found.closed)} by the closed form, k of n independent replicas"),
           ("keeps", limits_text(found.scenario.slo))]
    kinds = Counter[str]()
    for one in found.windows:
        kinds[f"{one.kind} of {one.group}"] += one.count
    each = ", ".join(f"{name} {count / found.months:.3g}" for name, count in kinds.items())
    out.append(("incidents", f"{found.incidents / found.months:.3g} a month" + (f": {each}" if each else "")))
    if found.windows:
        out.append(("they cost", f"{short_number(found.a_month('lost'))} requests lost, "
                                 f"{short_number(found.a_month('retried'))} retried, "
                                 f"{short_number(found.a_month('wasted_tokens'))} tokens wasted a month"))
    out += [("cut short", f"{one.kind} of {one.group}: the queue that is left after a loss of {format_s(one.back_s)} "
                          "is not counted") for one in found.windows if not one.whole and _missed_after(found, one)]
    out += [("left out", f"{name}: crashes, failures and updates at given times") for name in found.left_out]
    return out


def _missed_after(found: Availability, one: Any) -> bool:   # Any: a `Window`
    after = tuple(before - hits for before, hits in zip(one.before, one.hits, strict=True))
    return any(state.sound == after and state.misses is not None for state in found.states)


def _interval(found: Availability) -> str:
    if found.half is None:
        return ""
    if not found.half:
        return " (no month differs)"
    return f" ({_share(max(found.share - found.half, 0.0))} to {_share(min(found.share + found.half, 1.0))})"


def _share(value: float) -> str:
    """Return a share with two digits of what is missing."""
    left = 1.0 - value
    digits = 2
    while left and digits < 8 and left * 100 < 10.0 ** (1 - digits):
        digits += 1
    return f"{100 * value:.{digits}f}%"


def states_table(found: Availability) -> Section:
    """Return the states with their share of the time, by the simulation and by the closed form."""
    sound = [sound_share([one for one in found.rates if one.group == name]) for name in found.names]
    rows = [(" + ".join(map(str, one.sound)), f"{100 * one.share:.4g}%",
             "-" if found.closed is None else f"{100 * states_share(found.full, sound, one.sound):.4g}%",
             "kept" if one.misses is None else f"missed: {one.misses}") for one in found.states]
    return Section("sound replicas", (" + ".join(found.names), "of the time", "closed form", "SLO"), rows)


def windows_table(found: Availability) -> Section:
    """Return what each kind of incident does."""
    rows = [(f"{one.kind} of {one.group}", " + ".join(map(str, one.before)), f"{one.count / found.months:.3g}",
             format_s(one.back_s), "-" if one.recovered_s is None else format_s(one.recovered_s), f"{one.lost:,}",
             f"{one.retried:,}", f"{one.wasted_tokens:,}") for one in found.windows]
    return Section("incidents", ("", "sound before", "a month", "capacity back", "time to recover", "lost", "retried",
                                 "tokens wasted"), rows, "of one incident, simulated once for each state before it; "
                   "capacity back: mean of all of them")


def plain(found: Availability) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    return {
        "share": found.share, "half": found.half, "closed_form": found.closed, "why_not": found.why or None,
        "days": found.days, "months": found.months, "by_month": found.shares, "incidents": found.incidents,
        "groups": dict(zip(found.names, found.full, strict=True)),
        "states": [one._asdict() for one in found.states], "windows": [asdict(one) for one in found.windows],
        "rates": [one._asdict() for one in found.rates], "simulations": found.simulations, "left_out": found.left_out,
        **{name: found.a_month(name) for name in ("lost", "retried", "wasted_tokens")},
    }
