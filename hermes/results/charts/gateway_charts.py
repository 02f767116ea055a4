"""Charts of a gateway's queues over time: what flow control holds by class, what it sends out, what keeps the rest, and
the calls that wait for the gateway's capacity or for a ready client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hermes.arrays import IntArray
from hermes.core.record import HALT_LIMITS, HELD_OUTCOMES, RunRecord
from hermes.errors import InputError, Verbatim
from hermes.results.charts import GREY, PALETTE, Axis, Layer, Panel
from hermes.results.charts.time_charts import BINS, MAX_GROUPS, NAME, Runs, colours
from hermes.results.figures.gateway_times import shares_of_ttft
from hermes.results.layout import format_s, shortened
from hermes.results.results import Results
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["gateway", "gateway_panels", "gateway_title"]

SENT = HELD_OUTCOMES.index("dispatched")
OTHERS = "others"
Spans = tuple[IntArray, IntArray]
# other colours than those of the classes above
LIMIT_COLOURS = {name: GREY if name == "cycle" else PALETTE[(number + 2) % len(PALETTE)]
                 for number, name in enumerate(HALT_LIMITS)}


def gateway(runs: Runs) -> list[Panel]:
    """Return the queues of gateways over time. Raises `InputError` where nothing waits at one."""
    panels = gateway_panels(runs)
    if not panels:
        raise InputError(Verbatim("nothing waits at a gateway in this run: it has no `gateway` with flow_control, a "
                                  "capacity or a queue, or no request waited there"), field="kind")
    return panels


def gateway_title(run: Results) -> str:
    """Return in a few words where the time to the first token goes at the gateway."""
    total = run.summary["latency"]["ttft_s"]["mean"]
    if not total:
        return "no request was answered"
    words = {"gateway": "in the gateway's hop", "held": "held at the gateway", "lost": "in lost attempts"}
    shown = [f"{share:.0%} {words[name]}" for name, share in shares_of_ttft(run.summary).items() if share >= 0.01]
    return f"TTFT {format_s(float(f'{total:.3g}'))} on average, {', '.join(shown) or 'under 1% at the gateway'}"


def gateway_panels(runs: Runs, *, more: bool = True) -> list[Panel]:
    """Return the panels of those runs in which requests wait at a gateway; none without. more: With what becomes of the
    requests."""
    found = [(name, run) for name, run in runs if any(_spans(run.record, kind) for kind in _KINDS)]
    if not found:
        return []
    end = max(_end_ns(run.record) for _, run in found)
    x = Axis("time (s)", domain=(0.0, max(end / NS_PER_S, 1e-9)))
    return [panel for kind, title in _KINDS.items() for panel in _of_kind(found, kind, title, x, end, more)]


_KINDS = {"held": "Held by flow control", "queued": "Waiting for a ready client",
          "hop": "Calls that wait for the gateway's capacity"}


def _of_kind(runs: Runs, kind: str, title: str, x: Axis, end: int, more: bool) -> list[Panel]:
    """Return the panels of one queue. more: With what becomes of the requests in it."""
    mine = [(name, run) for name, run in runs if _spans(run.record, kind)]
    if not mine:
        return []
    several = len(runs) > 1
    if several:
        rows = [(name, *_all_spans(run.record, kind)) for name, run in mine]
    else:
        rows = _by_group(mine[0][1].record, kind)
    peaks = [_peak([row]) for row in rows]
    most = " and ".join(f"{peak:,}" for peak in (peaks if several else [_peak(rows)]))
    each = ", ".join(f"{peak:,} of {row[0]}" for peak, row in zip(peaks, rows, strict=True))
    panels = [_counts(f"{title}: at most {most}", rows, x, end, several, runs)]
    if len(rows) > 1 and not several:
        panels = [replace(panel, said=f"At most {each}.") for panel in panels]
    if kind == "held" and more:
        panels.append(_dispatched(rows if several else _by_group(mine[0][1].record, kind, sent=True), mine, x, end,
                                  several, runs))
        if not several:
            panels += _limits(mine[0][1].record, x, end)
    return panels


# -- what waits --------------------------------------------------------------------------------------------------------


def _all_spans(record: RunRecord, kind: str) -> Spans:
    found = _spans(record, kind)
    assert found is not None   # checked
    return found[1], found[2]


def _spans(record: RunRecord, kind: str) -> tuple[IntArray, IntArray, IntArray] | None:
    """Return request, begin and end of each wait of a kind; None without any."""
    if kind == "hop":
        table, names = record.calls, ("asked_ns", "served_ns")
    else:
        table, names = (record.held if kind == "held" else record.queued), ("asked_ns", "left_ns")
    if not table:
        return None
    begin, end = (table[name] for name in names)
    if kind != "hop":
        end = np.where(end < 0, record.end_ns, end)
    rows = np.flatnonzero(end > begin)
    request = table["request"] if kind != "queued" else record.calls["request"][table["call"]]
    return (request[rows], begin[rows], np.minimum(end, _end_ns(record))[rows]) if len(rows) else None


def _by_group(record: RunRecord, kind: str, *, sent: bool = False) -> list[tuple[str, IntArray, IntArray]]:
    """Return begin and end of waits by class of the requests, or by band or by tenant, those of the highest band
    first; beyond `MAX_GROUPS` the smaller ones are one. sent: Only those of calls that were sent out."""
    if sent:
        table = record.held
        rows = np.flatnonzero(table["outcome"] == SENT)
        request, begin, end = table["request"][rows], table["asked_ns"][rows], table["left_ns"][rows]
    else:
        found = _spans(record, kind)
        assert found is not None   # checked
        request, begin, end = found
    label = next((name for name in ("class", "band", "tenant") if len(record.labels.get(name, ((), ()))[1]) > 1), None)
    if label is None:
        return [("", begin, end)]
    codes, names = record.labels[label]
    mine = codes[request]
    present = np.unique(codes[record.arrival_ns >= 0]).tolist()
    order = sorted(present, key=lambda code: -_priority(record, codes == code))
    prefix = "" if label == "class" else f"{label} "
    shown = [(f"{prefix}{shortened(names[code] or '(none)', NAME)}", mine == code) for code in order]
    if len(shown) > MAX_GROUPS:
        shown.sort(key=lambda one: -int(one[1].sum()))
        rest = np.any([chosen for _, chosen in shown[MAX_GROUPS:]], axis=0)
        shown = [*shown[:MAX_GROUPS], (OTHERS, rest)]
    return [(name, begin[chosen], end[chosen]) for name, chosen in shown]


def _priority(record: RunRecord, requests: np.ndarray) -> int:
    """Return the band of some requests of one class; 0 if none was held."""
    chosen = requests[record.held["request"]] if record.held else np.zeros(0, dtype=bool)
    return int(record.held["priority"][chosen][0]) if chosen.any() else 0


def _peak(rows: Sequence[tuple[str, IntArray, IntArray]]) -> int:
    """Return how many waited at most at one time."""
    begins, ends = (np.concatenate([row[place] for row in rows]) for place in (1, 2))
    time = np.concatenate((begins, ends))
    change = np.concatenate((np.ones(len(begins), dtype=np.int64), -np.ones(len(ends), dtype=np.int64)))
    return int(np.cumsum(change[np.lexsort((change, time))]).max(initial=0))   # at equal times those that leave first


def _counts(title: str, rows: Sequence[tuple[str, IntArray, IntArray]], x: Axis, end: int, several: bool, runs: Runs,
            ) -> Panel:
    """Return how many wait over time: of one run stacked by group, of several a line each."""
    at = np.linspace(0.0, float(end), BINS + 1)
    series = [(name, np.searchsorted(np.sort(begin), at, "right") - np.searchsorted(np.sort(until), at, "right"))
              for name, begin, until in rows]
    return _panel(title, "requests", at / NS_PER_S, series, x, several, runs)


def _dispatched(rows: Sequence[tuple[str, IntArray, IntArray]], mine: Runs, x: Axis, end: int, several: bool,
                runs: Runs) -> Panel:
    """Return how many leave flow control's queue per second, over time."""
    edges = np.linspace(0.0, float(end), BINS // 3 + 1)
    series = []
    for number, (name, _begin, left) in enumerate(rows):
        if several:
            record = mine[number][1].record
            left = record.held["left_ns"][record.held["outcome"] == SENT]
        series.append((name, np.histogram(left, edges)[0] / (np.diff(edges) / NS_PER_S)))
    total = np.sum([values for _, values in series], axis=0)
    title = "Sent out by flow control" + ("" if several else f": at most {total.max(initial=0.0):,.3g} requests/s")
    at = np.repeat(edges, 2)[1:-1] / NS_PER_S
    return _panel(title, "requests/s", at, [(name, np.repeat(values, 2)) for name, values in series], x, several, runs)


def _limits(record: RunRecord, x: Axis, end: int) -> list[Panel]:
    """Return what kept calls in the queue over time: shares of the time, of several gateways their mean."""
    halts = record.halts
    if not len(halts["limit"]):
        return []
    edges = np.linspace(0.0, float(end), BINS // 3 + 1)
    width, pools = float(edges[1] - edges[0]), max(len(np.unique(halts["gateway"])), 1)
    series, shares = [], {}
    for code in np.unique(halts["limit"]).tolist():
        mine = halts["limit"] == code
        until = np.where(halts["end_ns"][mine] < 0, record.end_ns, halts["end_ns"][mine])
        covered = _covered(halts["begin_ns"][mine], until, edges) / width / pools
        series.append((HALT_LIMITS[code], np.repeat(covered, 2)))
        shares[HALT_LIMITS[code]] = float((until - halts["begin_ns"][mine]).sum())
    whole = float_sum(shares.values()) or 1.0
    said = ", ".join(f"{name} {ns / whole:.0%}" for name, ns in sorted(shares.items(), key=lambda one: -one[1])[:3])
    panel = _panel(f"What keeps them: {said}", "", np.repeat(edges, 2)[1:-1] / NS_PER_S, series, x, False, ())
    return [replace(panel, y=Axis("share of the time", domain=(0.0, 1.08), percent=True), legend=True,
                    said="What flow control saw while requests waited.", colours=LIMIT_COLOURS)]


def _covered(begin: IntArray, end: IntArray, edges: np.ndarray) -> np.ndarray:
    """Return how much of each interval between edges some spans cover, in sum."""
    def upto(times: IntArray) -> np.ndarray:   # sum over the spans of the time after `times`, before each edge
        times = np.sort(times)
        total = np.concatenate(([0.0], np.cumsum(times, dtype=np.float64)))
        number = np.searchsorted(times, edges, "right")
        return np.asarray(number * edges - total[number])

    return np.asarray(np.diff(upto(begin) - upto(end)))


def _panel(title: str, unit: str, at: np.ndarray, series: Sequence[tuple[str, np.ndarray]], x: Axis, several: bool,
           runs: Runs) -> Panel:
    layers, low = [], np.zeros(len(at))
    for name, values in series:
        if several:
            layers.append(Layer("line", pd.DataFrame({"x": at, "y": values, "series": name})))
            low = np.maximum(low, values)
        else:
            high = low + values
            layers.append(Layer("stack", pd.DataFrame({"x": at, "y": low, "y2": high, "series": name or "all"})))
            low = high
    return Panel(title, x, Axis(unit, domain=(0.0, float(low.max(initial=0.0)) * 1.08 or 1.0)), layers,
                 legend=several or len(series) > 1, colours=colours(runs) if several else {})


def _end_ns(record: RunRecord) -> int:
    return max(record.end_ns, int(record.arrival_ns.max(initial=0)))
