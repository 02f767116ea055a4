"""Charts of replicas that come and go: how many are in each state, their queue, and the SLO by minute of arrival.

Dashed lines in all panels are the decisions, so that a decision, the replicas that follow, the queue and the SLO can be
read one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hermes.core.record import MEMBER_STATES, RunRecord
from hermes.errors import InputError, Verbatim
from hermes.results.charts import GREY, INK, PALETTE, WIDTH, Axis, Layer, Panel
from hermes.results.charts.gateway_charts import gateway_panels
from hermes.results.charts.time_charts import BINS, MAX_GROUPS, NAME, Runs, colours, over_time
from hermes.results.figures.lost import chosen_dead
from hermes.results.figures.membership import fleet_groups, replicas_of
from hermes.results.figures.replica_states import STACK, Decision, decisions, longest_queue, state_counts
from hermes.results.figures.slo_minutes import MINUTE_NS, slo_minutes
from hermes.results.layout import shortened
from hermes.results.results import Results
from hermes.results.slo import slo_given, slo_groups
from hermes.units import NS_PER_S

__all__ = ["STATE_COLOURS", "fleet", "fleet_panels", "fleet_title"]

STATE_COLOURS = {"ready": PALETTE[0], "starting": PALETTE[1], "draining": PALETTE[3], "down": PALETTE[4]}
WITHIN, OUT = "within limits", "out of limit"
CHOSEN = "a dead replica is chosen"
MAX_STEPS = 4 * BINS   # changes up to which they are drawn exactly; more are means of `BINS` intervals
MAX_RULES = 40         # decisions beyond which lines would hide the panels
REASON = 18            # characters of a decision
_CHARACTER = 7.0       # pixels of a character of a text


def fleet(runs: Runs) -> list[Panel]:
    """Return replicas by state, queue and SLO over time. Raises `InputError` where nothing comes and goes."""
    panels = fleet_panels(runs, gateway=True)
    if not panels:
        raise InputError(Verbatim("nothing comes and goes in this run: no group of clients has a `fleet`"),
                         field="kind")
    return panels


def fleet_title(run: Results) -> str:
    """Return in a few words how many replicas were ready, and for how long the run was out of its SLO."""
    slo = run.summary.get("fleet_slo")
    texts = [f"{name} {found['ready_mean']:.3g} ready on average" for name, found in run.summary["fleet"].items()]
    texts += [] if slo is None else [f"out of the SLO in {slo['slo_minutes_out']} of {slo['minutes']} minutes"]
    return ", ".join(texts)


def fleet_panels(runs: Runs, *, gateway: bool = False) -> list[Panel]:
    """Return the panels of those runs that have replicas that come and go; none without. gateway: With its queue."""
    found = [(name, run) for name, run in runs if len(run.record.membership)]
    if not found:
        return []
    several = len(runs) > 1
    replicas = [_replicas(run.record, group, members, f" of {shortened(name, NAME)}" if several else "")
                for name, run in found for group, members in list(fleet_groups(run.record).items())[:MAX_GROUPS]]
    queues = over_time(found, ("replicas",))
    if not several:
        queues = [replace(queue, title=_queue_title(found[0][1].record)) for queue in queues]
    rules = [] if several else _rules(_all_decisions(found[0][1].record))
    dead = [] if several else _dead(found[0][1].record)
    queues += gateway_panels(found, more=False) if gateway else []
    panels = [*replicas, *(replace(panel, layers=[*panel.layers, *rules]) for panel in (*queues, *_slo(found)))]
    if dead:
        panels = [replace(panel, layers=[*panel.layers, *dead], legend=True, colours={**panel.colours, CHOSEN: INK})
                  for panel in panels]
    end = max(_end_ns(run.record) for _, run in found) / NS_PER_S
    return [replace(panel, x=Axis("time (s)", domain=(0.0, max(end, 1e-9)))) for panel in panels]


def _queue_title(record: RunRecord) -> str:
    """Return the longest queue of each group: the line of the chart has samples only."""
    texts = [f"{longest_queue(record, members).stages:,} of {shortened(group, NAME)}"
             for group, members in list(fleet_groups(record).items())[:MAX_GROUPS]]
    return f"Stages that wait at replicas: at most {', '.join(texts)}"


def _end_ns(record: RunRecord) -> int:
    return max(record.end_ns, int(record.membership[:, 2].max()), int(record.arrival_ns.max(initial=0)))


# -- replicas ----------------------------------------------------------------------------------------------------------


def _replicas(record: RunRecord, group: str, members: Sequence[int], of_run: str) -> Panel:
    """Return the replicas of a group by state, stacked."""
    at, numbers = _steps(record, members)
    # a group that never had a replica shows that none was ready
    shown = [name for name in STACK if numbers[:, MEMBER_STATES.index(name)].any()] or ["ready"]
    layers, low = [], np.zeros(len(at))
    for name in shown:
        high = low + numbers[:, MEMBER_STATES.index(name)]
        layers.append(Layer("stack", pd.DataFrame({"x": at, "y": low, "y2": high, "series": name})))
        low = high
    top, end = float(low.max(initial=0.0)), _end_ns(record) / NS_PER_S
    ready = state_counts(record, members)[1][:, MEMBER_STATES.index("ready")]   # `numbers` may be means
    made = decisions(record, members)
    many = f"{len(made)} decisions, too many to draw."
    slots = len(replicas_of(record, members))
    return Panel(
        f"{shortened(group, NAME)}{of_run}: {ready.max(initial=0)} ready at most, of {slots} slots",
        Axis("time (s)"), Axis("replicas", domain=(0.0, top * 1.08 or 1.0)),
        [*layers, *_rules(made), *_texts(made, end)],
        said=many if len(made) > MAX_RULES else "Dashed: decisions." if made else "", legend=bool(shown),
        colours=STATE_COLOURS | {name: GREY for name in STACK if name not in STATE_COLOURS})


def _steps(record: RunRecord, members: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return corners of the numbers by state over time: seconds of shape (corners,), and (corners, states)."""
    times, counts = state_counts(record, members)
    at, end = times / NS_PER_S, _end_ns(record) / NS_PER_S
    numbers = counts.astype(float)
    if len(at) > MAX_STEPS:
        edges = np.linspace(0.0, end, BINS + 1)
        grown = np.concatenate((np.zeros((1, numbers.shape[1])), np.cumsum(
            numbers * np.diff(np.append(at, end))[:, None], axis=0)))
        upto = np.stack([np.interp(edges, np.append(at, end), column) for column in grown.T], axis=1)
        at, numbers = edges[:-1], np.diff(upto, axis=0) / np.diff(edges)[:, None]
    return np.append(np.repeat(at, 2)[1:], end), np.repeat(numbers, 2, axis=0)


def _texts(made: Sequence[Decision], end: float) -> list[Layer]:
    """Return the texts of decisions above a panel, those left out that would cover an earlier one."""
    rows: dict[str, list[tuple[float, str]]] = {"left": [], "center": [], "right": []}
    free = -np.inf
    if len(made) > MAX_RULES:
        return []
    for one in made:
        text = shortened(one.text, REASON)
        x, width = one.time_ns / NS_PER_S, len(text) * _CHARACTER / WIDTH * end
        align = "left" if x < width / 2 else "right" if x + width / 2 > end else "center"
        begin = x if align == "left" else x - width if align == "right" else x - width / 2
        if begin >= free:
            rows[align].append((x, text))
            free = begin + width
    return [Layer("above", pd.DataFrame(found, columns=["x", "label"]), align)   # type: ignore[arg-type]
            for align, found in rows.items() if found]


def _rules(made: Sequence[Decision]) -> list[Layer]:
    """Return dashed lines at decisions, if they are few."""
    times = sorted({one.time_ns for one in made})
    if not times or len(made) > MAX_RULES:
        return []
    return [Layer("rule", pd.DataFrame({"x": np.array(times) / NS_PER_S}))]


def _dead(record: RunRecord) -> list[Layer]:
    """Return the times in which routers still chose a dead replica."""
    rows = [(down / NS_PER_S, last / NS_PER_S, CHOSEN) for _, down, last in chosen_dead(record)]
    return [Layer("span", pd.DataFrame(rows, columns=["x", "x2", "series"]))] if rows else []


def _all_decisions(record: RunRecord) -> list[Decision]:
    return [one for members in fleet_groups(record).values() for one in decisions(record, members)]


# -- SLO ---------------------------------------------------------------------------------------------------------------


def _slo(runs: Runs) -> list[Panel]:
    """Return the share of requests within their limits by minute of arrival; nothing without limits."""
    lines, said, asked = [], [], set()
    for name, run in runs:
        if (found := _minutes(run)) is None:
            continue
        frame, out, shares = found
        lines.append(Layer("step", frame.assign(series=name if len(runs) > 1 else WITHIN)))
        if out.any():
            edges = frame["x"].to_numpy()
            at = ((edges[:-1] + edges[1:]) / 2)[out]
            lines.append(Layer("point", pd.DataFrame({"x": at, "y": frame["y"].to_numpy()[:-1][out], "series": OUT})))
        said.append(f"{int(out.sum())} of {int(frame['y'].notna().sum()) - 1}")
        asked |= set(shares)
    if not lines:
        return []
    title = f"SLO by minute of arrival: {' and '.join(said)} minutes out of limit"
    levels = [Layer("rule", pd.DataFrame({"y": [share]})) for share in sorted(asked)]
    return [Panel(
        title, Axis("time (s)"), Axis("share within limits", domain=(0.0, 1.05), percent=True), [*lines, *levels],
        said=f"Dashed: the share that the SLO asks for, {' or '.join(f'{share:.4g}' for share in sorted(asked))}.",
        legend=True, colours={**(colours(runs) if len(runs) > 1 else {WITHIN: PALETTE[2]}),
                              OUT: PALETTE[4]})]


def _minutes(run: Results) -> tuple[pd.DataFrame, np.ndarray, tuple[float, ...]] | None:
    """Return x and y of the share by minute, with its end; which of these minutes are out of limit; and the shares
    that the limits ask for. A minute without requests has no share."""
    groups = slo_groups(run.slo, run.record)
    if not slo_given(groups):
        return None
    found = slo_minutes(groups, run.metrics, run.record)
    if not len(found.minute):
        return None
    every = np.arange(found.minute[0], found.minute[-1] + 1)
    place = found.minute - found.minute[0]
    share, out = np.full(len(every), np.nan), np.zeros(len(every), dtype=bool)
    share[place], out[place] = found.share, found.out
    x = np.append(every, every[-1] + 1) * (MINUTE_NS / NS_PER_S)
    x[-1] = min(x[-1], _end_ns(run.record) / NS_PER_S)   # the last minute may be cut short
    return pd.DataFrame({"x": x, "y": np.append(share, share[-1])}), out, found.asked
