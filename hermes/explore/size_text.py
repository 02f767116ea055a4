"""The answer of `hermes size` as text, as plain data and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.explore.objective import limits_text
from hermes.explore.size import LINK, Found, Sizing, Tried, hourly
from hermes.results.layout import Section, format_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["front", "front_section", "lines", "plain", "plot", "ranking", "speed"]

FRONT = 10   # rows of the front in the terminal


def lines(sizing: Sizing) -> list[tuple[str, str]]:
    """Return (label, text) pairs: the question, the answer, and what cannot serve."""
    workload = sizing.scenario.workload
    rate = getattr(workload[0].arrivals, "rate", None) if len(workload) == 1 else None
    models = dict.fromkeys(client.model for client in sizing.scenario.clients if getattr(client, "model", None))
    out = [("serves", f"{f'{rate:g} requests/s' if rate is not None else sizing.name}, {', '.join(models)}; "
                      f"{limits_text(sizing.scenario.slo)}")]
    ranked = sizing.ranked
    if ranked:
        best = ranked[0]
        price = hourly(best)
        dollars = f", ${price:,.4g} an hour" if price is not None else ""
        out.append(("answer", f"{best.label}: {best.devices} devices{dollars}"))
        if sizing.headroom is not None:
            nearest = _nearest(best.row)
            near = "" if nearest is None else f"; {nearest[0]} is nearest to its limit ({nearest[1]:.0%} of it)"
            out.append(("headroom", f"{sizing.headroom:.0%} more load{near}; binds: {_binds(best)}"))
    else:
        out.append(("answer", "none of these layouts meets the SLO"))
    if any(found.layout == "pd" for found in sizing.found):
        out.append(("assumes", f"pd: KV moves over links of {LINK['bandwidth']} for each client"))
    out += [("misses", _missing(found)) for found in sizing.found if found.best is None]
    out += [("left out", f"{left.kind.name}: {left.reason}") for left in sizing.left]
    return out


def _binds(tried: Tried) -> str:
    what, where = tried.row.get("binds.what"), tried.row.get("binds.where")
    return f"{what} of {where}" if where else str(what)


def _missing(found: Found) -> str:
    most = max(found.tried, key=lambda tried: (tried.devices, tried.label))
    return f"{found.kind.name} {found.layout}: {most.devices} devices as {most.label}: {most.misses}"


def ranking(sizing: Sizing) -> Section:
    """Return the table of layouts that meet the SLO, cheapest first."""
    slo = sizing.scenario.slo
    at = f"p{slo.percentile:g}"
    rows = []
    for tried in sizing.ranked:
        row, nearest = tried.row, _nearest(tried.row)
        rows.append((
            tried.label, str(tried.devices), _short(hourly(tried)),
            _short(row.get("headline.per_million_output_tokens_dollars")),
            _short(row.get("headline.output_tokens_per_j")),
            *(format_s(_at_percentile(row, metric, slo.percentile)) for metric in ("ttft", "tpot")),
            _short(row.get("headline.goodput_per_s")), "-" if nearest is None else f"{nearest[1]:.0%}",
        ))
    return Section("layouts that meet the SLO", ("layout", "dev.", "$/h", "$/M", "tok/J", f"TTFT {at}", f"TPOT {at}",
                                                 "good/s", "used"), rows,
                   "$/M: per million output tokens; used: the latency nearest to its limit, as a share of it")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _at_percentile(row: Any, metric: str, percentile: float) -> float | None:
    own = row.get(f"slo.{metric}.value_s")
    return own if own is not None else row.get(f"latency.{metric}_s.p{percentile:g}")  # type: ignore[no-any-return]


def _nearest(row: Any) -> tuple[str, float] | None:
    """Return the latency nearest to its limit, and its share of the limit."""
    shares = [(row[key] / row[key.replace("value_s", "limit_s")], key.split(".")[1]) for key in row
              if key.startswith("slo.") and key.endswith(".value_s") and row[key] is not None]
    if not shares:
        return None
    share, name = max(shares)
    metric, _, percentile = name.partition("_")
    return f"{metric.upper()} {percentile}".strip(), share


def speed(tried: Tried) -> tuple[float, float] | None:
    """Return the output tokens per second of one user (the median), and of one device."""
    tpot, tokens = tried.row.get("latency.tpot_s.p50"), tried.row.get("throughput.output_tokens_per_s")
    return None if not tpot or not tokens else (1.0 / tpot, tokens / tried.devices)


def front(tried: Sequence[Tried]) -> list[Tried]:
    """Return the simulations that no other beats in both speeds, from the fastest user on."""
    points = [(found, one) for one in tried if (found := speed(one)) is not None]
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


def plain(sizing: Sizing) -> dict[str, Any]:
    """Return the answer as data for JSON."""
    def one(tried: Tried) -> dict[str, Any]:
        user, device = speed(tried) or (None, None)
        return {"layout": tried.layout, "device": tried.kind.device, "tp": tried.kind.tp,
                "clients": list(tried.clients), "devices": tried.devices, "dollars_per_hour": hourly(tried),
                "misses": tried.misses,
                "tokens_per_s_per_user": user, "tokens_per_s_per_device": device}

    return {
        "ranked": [one(tried) for tried in sizing.ranked], "headroom": sizing.headroom,
        "misses": [{"device": found.kind.device, "tp": found.kind.tp, "layout": found.layout, "why": _missing(found)}
                   for found in sizing.found if found.best is None],
        "left_out": [{"device": left.kind.device, "tp": left.kind.tp, "why": left.reason} for left in sizing.left],
        "front": [one(tried) for tried in front(sizing.tried)], "simulations": len(sizing.tried),
    }


def plot(sizing: Sizing) -> Figure:
    """Draw the two speeds of every simulation, by kind of client; the front as a line; filled where the SLO is met."""
    from hermes.results.plots import make_figure

    figure, (axis,) = make_figure(1, 1, 9.5, 5.0)
    labels = list(dict.fromkeys(f"{tried.kind.name} {tried.layout}" for tried in sizing.tried))
    colours = {label: f"C{i}" for i, label in enumerate(labels)}
    seen: set[str] = set()
    for tried in sizing.tried:
        found = speed(tried)
        if found is None:
            continue
        label = f"{tried.kind.name} {tried.layout}"
        axis.plot(*found, "o" if tried.layout == "mixed" else "s", color=colours[label],
                  fillstyle="full" if tried.misses is None else "none", label=None if label in seen else label)
        seen.add(label)
    line = [found for one in front(sizing.tried) if (found := speed(one)) is not None]
    axis.plot(*zip(*line, strict=True), "-", color="gray", linewidth=1, zorder=0)
    axis.set_xlabel("output tokens/s of one user (median)")
    axis.set_ylabel("output tokens/s of one device")
    axis.set_title("filled: meets the SLO", fontsize="medium")
    figure.legend(fontsize="small", loc="outside right upper")
    return figure
