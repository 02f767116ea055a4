"""The answer of `hermes size --scale` as lines of text, as a table, and as plain data."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hermes.explore.scale import Point, Scaled
from hermes.results.layout import Section, format_s
from hermes.units import counted

__all__ = ["lines", "plain", "points_table"]

SHOWN = 10   # rows without -v


def lines(found: Scaled, slo: str) -> list[tuple[str, str]]:
    """Return (label, text) pairs. slo: The limits of latency in words."""
    out = [("keeps", f"{slo}, in all but {found.limit.text}{_of(found)}"), ("answer", _answer(found))]
    if found.best is not None:
        out.append(("fleet", _fleet(found.best)))
    if found.static is not None:
        saved = "" if found.saved is None else f"; the answer needs {100 * found.saved:.0f}% fewer device-hours"
        out.append(("static", f"{counted(found.static.fleet.start, 'replica')} throughout: {_cost(found.static)}; "
                              f"{_out(found.static)} out of limit{saved}"))
    if found.beyond is not None:
        out.append(("beyond", f"{_label(found, found.beyond)}: {_out(found.beyond)} out of limit"))
    if found.cheapest is not None:
        out.append(("lost", _lost(found.cheapest)))
        out.append(("checked", _checked(found)))
    out.append(("assumed", _assumed(found)))
    return out


def _of(found: Scaled) -> str:
    seen = next(iter(found.points[0].seen.values()))
    return f" of {seen.minutes:,} with requests"


def _answer(found: Scaled) -> str:
    if found.static is None:
        most = next(point for point in found.points if point.fleet.start == found.space.most_static
                    and point.fleet.is_static)
        return (f"none within the limit: even {counted(most.fleet.start, 'replica')} throughout, the most that there "
                f"may be, are out of limit in {_out(most)}")
    if found.best is None:
        return (f"the static fleet, {counted(found.static.fleet.start, 'replica')} throughout: no target tried keeps "
                f"the limit with fewer device-hours")
    return f"{_label(found, found.best)}: {_cost(found.best)}; {_out(found.best)} out of limit"


def _label(found: Scaled, point: Point) -> str:
    """Return a fleet in words: what its targets are, `min`, `max` and `start`."""
    several = "" if len(found.space.targets) == 1 else " (all targets by the same factor)"
    return (f"{found.space.kind} of {found.space.group}, target of {found.space.what} {point.fleet.target:g}{several}"
            f"{point.fleet.bounds}")


def _cost(point: Point) -> str:
    half, dollars = point.half_width, point.mean("dollars")
    seeds = len(point.seen)
    interval = f"(1 seed{'' if seeds == 1 else 's'})"
    if half is not None:
        interval = f"(95% interval {_hours(point.hours - half)} to {_hours(point.hours + half)}, {seeds} seeds)"
    return f"{_hours(point.hours)} device-hours {interval}" + ("" if dollars is None else f", ${dollars:,.2f}")


def _hours(value: float) -> str:
    return f"{value:,.4g}"


def _out(point: Point) -> str:
    low, high = point.out
    return f"{low} minute{'' if low == 1 else 's'}" if low == high else f"{low} to {high} minutes"


def _fleet(point: Point) -> str:
    most = max(one.ready_most for one in point.seen.values())
    return (f"{point.mean('ready_mean'):.3g} ready on average, {most} at most; {point.mean('events'):.3g} scale events "
            f"a day; {point.mean('cold'):,.4g} requests missed their limits while a replica started")


def _lost(point: Point) -> str:
    causes = ", ".join(f"{count:,} {cause}" for cause, count in point.lost.items())
    return f"{causes or 'no requests'}, in {counted(len(point.seen), 'simulation')}"


def _checked(found: Scaled) -> str:
    if not found.checked:
        return ("not confirmed: each answer missed the limit with a seed that its search had not seen, and the "
                "last one was not simulated with others; more --seeds, or fewer values of --min and --start, help")
    both = ", the static fleet too" if found.best is not None else ""
    return f"{found.checked} of {found.checked} other seeds keep the limit{both}"


def _assumed(found: Scaled) -> str:
    """Return the start-up, as simulated, the probe, and what begins ready."""
    client = next(client for client in found.scenario.clients if client.name == found.space.group)
    fleet = client.fleet
    times = [one.start_s for point in found.points for one in point.seen.values() if one.start_s is not None]
    starts = sum(one.starts for point in found.points for one in point.seen.values())
    text = f"a start-up (`{fleet.start_up.kind}`) that no replica needed"
    if times:
        low, high = format_s(min(times)), format_s(max(times))
        text = (f"a start-up (`{fleet.start_up.kind}`) of {low if low == high else f'{low} to {high}'} until routers "
                f"know, the means of simulations with {counted(starts, 'start')} in all")
    if fleet.crashes or fleet.failures:
        what = [*(["crash"] * len(fleet.crashes)), *(failure.kind for failure in fleet.failures)]
        probe = fleet.probe
        crashes = ", ".join(f"{count} {kind}" if count == 1 else f"{count} {kind}{'es' if kind == 'crash' else 's'}"
                            for kind, count in Counter(what).items())
        return (f"{text}; {crashes}, noticed by {probe.failures} probes each "
                f"{format_s(probe.period)} and {format_s(probe.delay)}")
    return f"{text}; no crash"


def points_table(found: Scaled, *, verbose: bool = False) -> Section:
    """Return a row per fleet that was tried, means over its seeds: those that keep the limit first, by device-hours."""
    ranked = sorted(found.points, key=lambda point: (not found.keeps(point), point.hours, point.fleet.label))
    static = [point for point in ranked if point is found.static]
    shown = ranked if verbose else [*static, *(point for point in ranked if point not in static)][:SHOWN]
    shown = sorted(shown, key=ranked.index)
    left = len(ranked) - len(shown)
    return Section("fleets tried, means over their seeds", [
        "target", "min", "max", "start", "ready", "dev.-h", "$", "out", "cold", "ev/d", "lost", "seeds"],
        [_row(point) for point in shown],
        "ready: mean/most; out: minutes out of limit, fewest to most of the seeds; cold: requests that missed their "
        "limits while a replica started; ev/d: scale events a day" + (f"; {left} more with -v" if left else ""))


def _row(point: Point) -> list[str]:
    fleet, dollars = point.fleet, point.mean("dollars")
    low, high = point.out
    lost = sum(point.lost.values()) / len(point.seen)
    bounds = ["-" if bound is None else str(bound) for bound in (fleet.least, fleet.most, fleet.start)]
    return [
        "static" if fleet.is_static else f"{fleet.target:g}", *bounds,
        f"{point.mean('ready_mean'):.3g}/{max(one.ready_most for one in point.seen.values())}",
        _hours(point.hours), "-" if dollars is None else f"{dollars:.4g}", str(low) if low == high else f"{low}-{high}",
        f"{point.mean('cold'):.3g}", f"{point.mean('events'):.3g}", f"{lost:.3g}", str(len(point.seen))]


def plain(found: Scaled) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    return {
        "scenario": found.name, "group": found.space.group, "autoscaler": found.space.kind,
        "limit": {"minutes": found.limit.minutes, "share": found.limit.share},
        "best": None if found.best is None else _plain(found, found.best),
        "static": None if found.static is None else _plain(found, found.static),
        "beyond": None if found.beyond is None else _plain(found, found.beyond),
        "saved": found.saved, "seeds": found.seeds, "checked": found.checked,
        "points": [_plain(found, point) for point in found.points],
    }


def _plain(found: Scaled, point: Point) -> dict[str, Any]:
    fleet = point.fleet
    return {
        "fleet": "static" if fleet.is_static else found.space.kind, "start": fleet.start, "min": fleet.least,
        "max": fleet.most, "target": None if fleet.is_static else fleet.target, "settings": found.space.settings(fleet),
        "keeps": found.keeps(point), "device_hours": point.hours, "half_width": point.half_width,
        "dollars": point.mean("dollars"), "ready_mean": point.mean("ready_mean"),
        "seeds": {str(seed): one._asdict() for seed, one in sorted(point.seen.items())},
    }
