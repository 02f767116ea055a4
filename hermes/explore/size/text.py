"""The answer of `hermes size` as text, as plain data and as a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hermes.explore.objective import binds_text, is_ended, limits_text, nearest_to_limit
from hermes.explore.size import Dearer, Found, Sizing, Tried, hourly
from hermes.explore.size.layouts import Kind, Left
from hermes.explore.size.size_range import StepRange
from hermes.hardware.descriptions.devices import load_device
from hermes.results.charts import Chart
from hermes.results.figures.catalogue import FIGURES, LATENCIES, limit_name
from hermes.results.figures.limit_parts import limit_of_row
from hermes.results.layout import Section, format_s, short_number
from hermes.units import counted

__all__ = ["chart", "dearer", "front", "front_section", "kind_plain", "left_out", "lines", "marks", "plain", "ranking",
           "speed"]

FRONT = 10   # rows of the front in the terminal
WIDEST = 22  # characters of a layout in a table that fits on a terminal
HOUR, MILLION, PER_J, GOOD = ("cost.dollars_per_hour", "headline.per_million_answer_tokens_dollars",
                              "headline.output_tokens_per_j", "headline.goodput_per_s")
_NUMBERS = re.compile(r"(?:\d+ x )?\d[\d,.]*")
_PRICE = "price_per_hour: "   # begins the source of a price in a description


def lines(sizing: Sizing) -> list[tuple[str, str]]:
    """Return (label, text) pairs: the question, the answer, and what cannot serve."""
    workload = sizing.scenario.workload
    rate = getattr(workload[0].arrivals, "rate", None) if len(workload) == 1 else None
    models = dict.fromkeys(client.model for client in sizing.scenario.clients if getattr(client, "model", None))
    unit = "conversations/s" if workload[0].lengths.has_turns else "requests/s"
    out = [("serves", f"{f'{rate:g} {unit}' if rate is not None else sizing.name}, {', '.join(models)}; "
                      f"{limits_text(sizing.scenario.slo)}")]
    if sizing.meets:
        best = sizing.meets[0]
        price = hourly(best)
        dollars = f", ${price:,.4g} an hour" if price is not None else ""
        fewest = "" if sizing.ranked else "; no device has a price: the fewest devices, which need not cost least"
        number = f"{counted(best.devices, 'device')}{_ends(best, sizing.steps)}"
        near = sizing.check is not None and sizing.check.within_noise
        noise = "; within noise, a client more is safe" if near else ""
        out.append(("answer", f"{best.label}: {number}{dollars}{fewest}{noise}"))
        out += _spares(sizing, best)
        if sizing.as_cheap:
            labels = ", ".join(one.label for one in sizing.as_cheap)
            out.append(("as cheap", f"{labels}; the answer has the fewest devices, then the simplest layout"))
        out += [("instead", text) for text in _instead(sizing)]
        if sizing.steps is not None:
            out.append(("range", _range(sizing.steps)))
        if sizing.headroom is not None:
            nearest = nearest_to_limit(best.row)
            limit = "" if nearest is None else f"; {nearest[0]} is nearest to its limit ({nearest[1]:.0%} of it)"
            out.append(("headroom", f"{sizing.headroom:.0%} more load{limit}; binds: {binds_text(best.row)}"))
        stops = limit_of_row(best.row)
        if stops is not None:
            out.append(("stops", stops))
        out += _checked(sizing)
    elif sizing.settled:
        out.append(("answer", "none of these layouts meets the SLO"))
    else:
        out.append(("answer", "none: no simulation settled; make the workload longer"))
    if sizing.unpriced:
        names = list(dict.fromkeys(tried.kind.device for tried in sizing.unpriced))
        out.append(("no price", f"{', '.join(names)}: not ranked; give dollars per hour of one device with --price "
                                + ",".join(f"{name}=DOLLARS" for name in names)))
    if any(found.layout == "pd" for found in sizing.found):
        out.append(("assumes", f"pd: KV moves {_kv_speed(sizing.scenario.network)}"))
    out += [("assumes", text) for text in sizing.assumed]
    out += [(mark, f"in the table: {text}") for text, mark in marks(sizing).items()]
    if sizing.own is not None:
        out.append(("own", own_text(sizing)))
    out += [("misses", _missing(found)) for found in sizing.found if found.best is None]
    out += dearer(sizing)
    out += left_out(sizing.left)
    if sizing.ranked:
        out.append(("prices", "; ".join(_prices(sizing))))
    return out


def _spares(sizing: Sizing, best: Tried) -> list[tuple[str, str]]:
    """Return what the spares of the answer are and cost, and what a loss does until routers know it."""
    if sizing.loss is None:
        return []
    devices = sum(best.spares) * best.kind.devices
    price = "" if best.kind.price is None else f", ${devices * best.kind.price:,.4g} an hour"
    side = " on either side" if len(best.clients) > 1 else ""
    out = [("spare", f"{devices} of these devices ({devices / best.devices:.0%}{price}) for the loss of "
                     f"{sizing.loss.text}{side}: every simulation is without them for its whole time, and so are the "
                     "figures here but devices and dollars")]
    if sizing.happens is not None:
        row = sizing.happens.incident
        known = "routers do not notice it" if row["noticed_s"] is None else (
            f"routers choose them for {format_s(row['left_s'])} ({row['noticed_by']})")
        over = "the SLO is not met again" if row["recovered_s"] is None else (
            f"the SLO is met again after {format_s(row['recovered_s'])}")
        lost = row["requests_failed"] + row["requests_refused"]
        out.append(("as lost", f"{sizing.happens.lost} at {format_s(row['at_s'])}: {known}, {over}; {lost:,} requests "
                               f"lost, {row['retried']:,} retried"))
    return out


def _million(tried: Tried) -> float | None:
    """Return the dollars per million tokens of answers of all clients; None without a price."""
    million, whole, own = tried.row.get(MILLION), hourly(tried), tried.row.get("cost.dollars_per_hour")
    return None if million is None or not whole or not own else float(million) * whole / float(own)


def _instead(sizing: Sizing) -> list[str]:
    """Return the cheapest layout of each other device, and how far its step times are trusted."""
    out = []
    for tried, steps in sizing.others:
        million = _million(tried)
        dollars = f"${hourly(tried):,.4g} an hour" + ("" if million is None else f", ${million:.3g}/M")
        out.append(f"{tried.label}: {counted(tried.devices, 'device')}, {dollars}"
                   + ("" if steps is None else f"; {_times(steps)}"))
    return out


def dearer(sizing: Sizing, ahead: str = "") -> list[tuple[str, str]]:
    """Return a line for each device with the layouts that must cost more than the answer, and what they cost at least.

    ahead: Text before each.
    """
    found: dict[str, list[Dearer]] = {}
    for one in sizing.dearer:
        found.setdefault(one.kind.device, []).append(one)
    out = []
    for device, several in found.items():
        parts = [f"{one.kind.split.name} {one.layout} {_at_least(sizing, one)}" for one in several]
        out.append(("dearer", f"{ahead}{device}: {', '.join(parts)} (bound)"))
    return out


def _at_least(sizing: Sizing, one: Dearer) -> str:
    """Return what a layout costs at least, clients of other kinds included."""
    if one.clients == math.inf:
        return "never meets the SLO"
    dollars = bound_hourly(sizing, one)
    return f"at least {counted(int(one.cost), 'device')}" if dollars is None else f"at least ${dollars:,.4g}/h"


def bound_hourly(sizing: Sizing, one: Dearer) -> float | None:
    """Return the dollars per hour that a layout costs at least; None without a price, or if it never meets the SLO."""
    if one.kind.price is None or one.clients == math.inf:
        return None
    others = next(((hourly(tried) or 0.0) - tried.devices * (tried.kind.price or 0.0) for tried in sizing.ranked), 0.0)
    return one.cost + others


def left_out(left: Sequence[Left], ahead: str = "") -> list[tuple[str, str]]:
    """Return a line for each reason, with all kinds of clients of a device that were not tried for it.

    Reasons that differ by numbers alone (memory that is missing) make one line, with the last of them.
    ahead: Text before each.
    """
    found: dict[tuple[str, str], list[Left]] = {}
    for one in left:
        found.setdefault((one.kind.device, _NUMBERS.sub("#", one.reason)), []).append(one)
    out = []
    for same in found.values():
        names = ", ".join([same[0].name, *(_short_name(one) for one in same[1:])])
        last = "the last: " if len({one.reason for one in same}) > 1 else ""
        out.append(("left out", f"{ahead}{names}: {last}{same[-1].reason}"))
    return out


def _short_name(left: Left) -> str:
    return f"{left.kind.split.name} {left.layout}".rstrip()


def marks(sizing: Sizing) -> dict[str, str]:
    """Return what to know of the times of some layouts that meet the SLO -> the mark that their rows have: [1], ..."""
    texts = dict.fromkeys(text for tried in sizing.meets for text in sizing.remarks.get(tried.kind, ()))
    return {text: f"[{number}]" for number, text in enumerate(texts, 1)}


def _prices(sizing: Sizing) -> list[str]:
    """Return dollars per hour of one device of each ranked kind, with where the figure is from."""
    out = []
    for device, price in dict.fromkeys((tried.kind.device, tried.kind.price) for tried in sizing.ranked):
        described = load_device(device, sizing.scenario.source.base_dir)
        sources = [source.removeprefix(_PRICE).split(";")[0] for source in described.sources
                   if source.startswith(_PRICE)]
        known = described.price_per_hour == price and sources
        out.append(f"{device} ${price:g} an hour each ({sources[0] if known else 'as given'})")
    return out


def _ends(best: Tried, steps: StepRange | None) -> str:
    """Return the devices at both ends of the range of step times, as ` (26 to 32)`, or ""."""
    if steps is None or steps.why or steps.fewest is None:
        return ""
    fewest, most = (None if one is None else (one + sum(best.spares)) * best.kind.devices
                    for one in (steps.fewest, steps.most))
    if fewest == most:
        return ""
    return f" ({fewest} to {'more than are allowed' if most is None else most})"


def _range(steps: StepRange) -> str:
    """Return the class and range of the step times, and what they make of the answer."""
    text = _times(steps)
    if steps.why:
        return f"{text}; not searched again: {steps.why}"
    if steps.most is None:
        return f"{text}: from {counted(steps.fewest or 0, 'client')} to more than are allowed"
    return f"{text}: {steps.fewest} to {counted(steps.most, 'client')}"


def _times(steps: StepRange) -> str:
    return f"step times {100 * (steps.low - 1):+.0f} to {100 * (steps.high - 1):+.0f}% ({steps.kind})"


def _checked(sizing: Sizing) -> list[tuple[str, str]]:
    """Return the check of the answer with other seeds, and a warning where they do not decide."""
    check = sizing.check
    if check is None:
        return []
    text = (f"{check.answer.met} of {len(check.answer.misses)} other seeds meet the SLO, arrivals for "
            f"{format_s(check.answer.arrivals_s)}")
    if check.longer is not None:
        text += f"; {check.longer.met} of {len(check.longer.misses)} for {format_s(check.longer.arrivals_s)}"
    for one in check.fewer:
        text += f"; {one.tried.label}: {one.met} of {len(one.misses)}, {one.tried.misses}"
    out = [("checked", text)]
    if check.within_noise:
        at = "a seed misses the SLO" if check.near is None else f"{_beyond_name(check.near)} is too near to its limit"
        out.append(("warning", f"within noise: {at}; a client more is safe"))
    return out


def _beyond_name(name: str) -> str:
    """Return the name of a limit of `settling.beyond` as it is printed."""
    metric, _, rest = name.partition("_")
    return f"{LATENCIES[metric]} {rest}"


def own_text(sizing: Sizing) -> str:
    """Return the scenario's own layout under both hardware models, in words."""
    own = sizing.own
    assert own is not None
    if own.composed is None:
        return f"{own.label} as written has the hardware {own.kind}, every row here composed: {own.why}"
    parts: dict[str, list[str]] = {own.kind: [], "composed": []}
    for metric in ("ttft", "tpot"):
        ours, theirs = (_at_percentile(row, metric, sizing.scenario.slo.percentile) for row in (own.own, own.composed))
        if ours is None or theirs is None:
            continue
        parts[own.kind].append(f"{limit_name(metric, sizing.scenario.slo.percentile)} {format_s(ours)}")
        parts["composed"].append(f"{format_s(theirs)} ({theirs / ours - 1:+.0%})")
    return (f"{own.label} as written: {own.kind} {', '.join(parts[own.kind])}; composed, as every row here, "
            f"{', '.join(parts['composed'])}")


def _own_plain(sizing: Sizing) -> dict[str, Any]:
    """Return the own layout as data for JSON."""
    own = sizing.own
    if own is None:
        return {}
    def figures(row: Any) -> dict[str, Any] | None:   # Any: flat figures of a simulation
        return None if row is None else {
            f"{metric}_s": _at_percentile(row, metric, sizing.scenario.slo.percentile) for metric in ("ttft", "tpot")}

    return {"own": {"clients": own.label, "hardware": own.kind, "as_written": figures(own.own),
                    "composed": figures(own.composed), "why": own.why or None}}


def _kv_speed(network: Any) -> str:   # Any: networks of plug-ins have nothing in common but `kind`
    """Return how the KV moves from a prefill to a decode client."""
    if network.kind in ("kv_link", "link"):
        return f"at {network.bandwidth / 1e9:g} GB/s between two clients"
    return "in no time" if network.kind == "ideal" else f"over the scenario's network ({network.kind})"


def _missing(found: Found) -> str:
    most = max(found.tried, key=lambda tried: (tried.devices, tried.label))
    return f"{found.kind.name} {found.layout}: {counted(most.devices, 'device')} as {most.label}: {most.misses}"


def ranking(sizing: Sizing) -> list[Section]:
    """Return the tables of layouts that meet the SLO: by price, and without one."""
    out = []
    if sizing.ranked:
        out.append(_table(sizing, "layouts that meet the SLO, by $/h", sizing.ranked))
    if sizing.unpriced:
        out.append(_table(sizing, "layouts that meet the SLO without a price, by devices: not ranked", sizing.unpriced))
    return out


def _table(sizing: Sizing, title: str, layouts: Sequence[Tried]) -> Section:
    slo = sizing.scenario.slo
    at = f"p{slo.percentile:g}"
    rows = []
    known = marks(sizing)
    for tried in layouts:
        row, nearest, dollars = tried.row, nearest_to_limit(tried.row), hourly(tried)
        rows.append((
            " ".join([tried.label, *(known[text] for text in sizing.remarks.get(tried.kind, ()))]),
            str(tried.devices), short_number(dollars), short_number(_million(tried)),
            short_number(row.get(PER_J)),
            *(format_s(_at_percentile(row, metric, slo.percentile)) for metric in ("ttft", "tpot")),
            short_number(row.get(GOOD)), "-" if nearest is None else f"{nearest[1]:.0%}",
        ))
    head, devices = "layout", {tried.kind.device for tried in layouts}
    if max(len(row[0]) for row in rows) > WIDEST and len(devices) == 1:   # the device then stands in the head
        device = devices.pop()
        head = f"layout of {device}"
        rows = [(row[0].replace(f" {device} ", " ", 1), *row[1:]) for row in rows]
    heads = [FIGURES[path].head for path in (HOUR, MILLION, PER_J, GOOD)]
    return Section(title, (head, "dev.", *heads[:3], f"TTFT {at}", f"TPOT {at}", heads[3], "used"),
                   rows, f"{heads[1]}: {FIGURES[MILLION].name}; used: the latency nearest to its limit, as a share "
                         "of it; other seeds checked the answer, and layouts that might cost no more")


def _at_percentile(row: Any, metric: str, percentile: float) -> float | None:
    own = row.get(f"slo.{metric}.value_s")
    return own if own is not None else row.get(f"latency.{metric}_s.p{percentile:g}")  # type: ignore[no-any-return]


def speed(tried: Tried) -> tuple[float, float] | None:
    """Return the output tokens per second of one user (the median), and of one device; None of a simulation that was
    ended as it certainly missed its SLO."""
    if is_ended(tried.row):
        return None
    tpot, tokens = tried.row.get("latency.tpot_s.p50"), tried.row.get("headline.output_tokens_per_s")
    return None if not tpot or not tokens else (1.0 / tpot, tokens / tried.devices)


def front(tried: Sequence[Tried]) -> list[Tried]:
    """Return the simulations that no other beats in both speeds, from the fastest user on: of those that meet the SLO,
    if any does (an overloaded device is the fastest)."""
    meet = [one for one in tried if not one.misses]
    points = [(found, one) for one in meet or tried if (found := speed(one)) is not None]
    points.sort(key=lambda point: (-point[0][0], -point[0][1], point[1].label))
    best, out = 0.0, []
    for (_user, device), one in points:
        if device > best:
            best = device
            out.append(one)
    return out


def front_section(sizing: Sizing) -> Section:
    """Return the front of all simulations as a table."""
    rows = [(one.label, *(f"{value:.4g}" for value in speed(one) or ()), "misses" if one.misses else "meets")
            for one in front(sizing.tried)[:FRONT]]
    return Section("fastest for users, or for devices", ("layout", "tokens/s of a user", "of a device", "SLO"), rows)


def kind_plain(kind: Kind) -> dict[str, Any]:
    """Return the device of a kind of client, and how its devices share the model, as data for JSON."""
    return {"device": kind.device, "tp": kind.tp, "pp": kind.pp, "dp": kind.dp, "ep": kind.ep}


def plain(sizing: Sizing) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    def one(tried: Tried) -> dict[str, Any]:
        user, device = speed(tried) or (None, None)
        return {"layout": tried.layout, **kind_plain(tried.kind), "remarks": sizing.remarks.get(tried.kind, []),
                "clients": list(tried.clients), "devices": tried.devices, "dollars_per_hour": hourly(tried),
                **({} if tried.kind.loss is None else {"spares": list(tried.spares)}),
                "misses": tried.misses,
                "tokens_per_s_per_user": user, "tokens_per_s_per_device": device}

    check = sizing.check
    return {
        "ranked": [one(tried) for tried in sizing.ranked], "unranked": [one(tried) for tried in sizing.unpriced],
        "headroom": sizing.headroom,
        **({} if sizing.loss is None else {"spare": {
            "unit": sizing.loss.unit, "number": sizing.loss.number,
            "as_lost": None if sizing.happens is None else dict(sizing.happens.incident)}}),
        "steps": None if sizing.steps is None else asdict(sizing.steps),
        "others": [{"layout": tried.label, "steps": None if steps is None else asdict(steps)}
                   for tried, steps in sizing.others],
        "check": None if check is None else {
            "seeds": len(check.answer.misses), "meet": check.answer.met, "within_noise": check.within_noise,
            "near": check.near, "arrivals_s": check.answer.arrivals_s,
            "longer": None if check.longer is None else {
                "seeds": len(check.longer.misses), "meet": check.longer.met, "arrivals_s": check.longer.arrivals_s},
            "fewer": [{"clients": list(one.tried.clients), "seeds": len(one.misses), "meet": one.met,
                       "misses": one.tried.misses} for one in check.fewer]},
        "misses": [{**kind_plain(found.kind), "layout": found.layout, "why": _missing(found)}
                   for found in sizing.found if found.best is None],
        "dearer": [{**kind_plain(one.kind), "layout": one.layout,
                    "clients": None if one.clients == math.inf else one.clients,
                    "dollars_per_hour": bound_hourly(sizing, one)} for one in sizing.dearer],
        "assumed_links": sizing.assumed,
        "left_out": [{**kind_plain(left.kind), "layout": left.layout or None, "why": left.reason}
                     for left in sizing.left],
        "front": [one(tried) for tried in front(sizing.tried)], "simulations": len(sizing.tried),
        **_own_plain(sizing),
    }


def chart(sizing: Sizing) -> Chart:
    """Return the two speeds of every simulation, by whether it meets the SLO, with the front as a line."""
    from hermes.explore.sweep.plots import front_panel

    groups: dict[str, list[tuple[float, float]]] = {"misses the SLO": [], "meets the SLO": []}
    for tried in sizing.tried:
        if (found := speed(tried)) is not None:
            groups["misses the SLO" if tried.misses else "meets the SLO"].append(found)
    best = [(*found, one.label) for one in front(sizing.tried) if (found := speed(one)) is not None]
    answer = sizing.meets[0] if sizing.meets else None
    title = "no layout meets the SLO" if answer is None else f"{answer.label} is the cheapest that meets the SLO"
    drawn = sum(map(len, groups.values()))
    counts = f"{drawn} of {len(sizing.tried)} simulations: the others certainly miss, and were ended"
    if drawn == len(sizing.tried):
        counts = f"{drawn} simulations"
    return Chart(title, counts + ("; ring: the cheapest" if answer else ""), [front_panel(
        "Speed of a user against speed of a device", "output tokens/s of one user (median)",
        "output tokens/s of one device", groups, best, None if answer is None else speed(answer))])
