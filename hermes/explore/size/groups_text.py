"""The answer of `hermes size` for several groups of LLM clients, as text and as plain data."""

from __future__ import annotations

from typing import Any

from hermes.explore.objective import limits_text
from hermes.explore.size import Tried
from hermes.explore.size.groups import Grouped
from hermes.explore.size.text import dearer, kind_plain, left_out
from hermes.explore.size.text import plain as plain_sizing
from hermes.results.layout import format_s
from hermes.sums import float_sum
from hermes.units import counted

__all__ = ["lines", "plain"]

SHOWN = 3   # layouts of a group


def lines(found: Grouped) -> list[tuple[str, str]]:
    """Return (label, text) pairs: the question, the answer of each group, and all together."""
    slo = next(iter(found.sizings.values())).scenario.slo
    out = [("groups", f"{', '.join(found.sizings)}, sized one by one, the others with clients in plenty; "
                      f"{limits_text(slo)}")]
    for name, sizing in found.sizings.items():
        meets = sizing.meets
        out.append((name, "; ".join(map(_said, meets[:SHOWN])) if meets else "none of these layouts meets the SLO"))
        for layout in sizing.found:
            if layout.best is None:
                most = max(layout.tried, key=lambda tried: (tried.devices, tried.label))
                out.append(("misses", f"{name}: {counted(most.devices, 'device')} as {most.label}: {most.misses}"))
        out += dearer(sizing, f"{name}: ")
        out += left_out(sizing.left, f"{name}: ")
    if not found.best:
        return out
    devices = sum(tried.devices for tried in found.best.values())
    prices = [_dollars(tried) for tried in found.best.values()]
    dollars = "" if None in prices else f", ${float_sum(price or 0.0 for price in prices):,.4g} an hour"
    layouts = ", ".join(f"{name} {tried.label}" for name, tried in found.best.items())
    out.append(("together", f"{layouts}: {counted(devices, 'device')}{dollars}"))
    if found.added:
        out.append(("added", f"{', '.join(found.added)}: a client more, since all together missed the SLO"))
    figures = ", ".join(f"{label} p99 {format_s(found.row.get(f'latency.{key}_s.p99'))}"
                        for label, key in (("TTFT", "ttft"), ("TPOT", "tpot")))
    out.append(("SLO", f"met: {figures}" if found.misses is None else f"MISSED: {found.misses}"))
    return out


def _said(tried: Tried) -> str:
    price = _dollars(tried)
    return f"{tried.label}: {counted(tried.devices, 'device')}" + ("" if price is None else f", ${price:,.4g} an hour")


def _dollars(tried: Tried) -> float | None:
    """Return the price of a group's own devices; the row's is that of the whole scenario."""
    return None if tried.kind.price is None else tried.kind.price * tried.devices


def plain(found: Grouped) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    return {
        "groups": {name: plain_sizing(sizing) for name, sizing in found.sizings.items()},
        "together": None if not found.best else {
            "clients": {name: {**kind_plain(tried.kind), "clients": list(tried.clients), "devices": tried.devices}
                        for name, tried in found.best.items()},
            "devices": sum(tried.devices for tried in found.best.values()), "added": found.added,
            "misses": found.misses}}
