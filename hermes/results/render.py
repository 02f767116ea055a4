"""The summary for people: the same compact sections as rich tables, plain text and HTML."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

__all__ = ["Section", "format_number", "format_s", "headline", "sections", "sections_html", "sections_rich",
           "sections_text", "to_html", "to_rich", "to_text"]

MAX_CLIENTS = 16
MAX_BOTTLENECKS = 12
_STATS = ("mean", "p50", "p90", "p95", "p99", "max")
_LATENCIES = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E", "queue_s": "queueing",
    "communication_s": "communication",
}


@dataclass(frozen=True)
class Section:
    """A small table: a title, column heads, rows of text. The first column is left-aligned, the others right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def format_s(value: float | None) -> str:
    """A duration with four significant digits and the unit that suits it."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * factor >= 1 or unit == "µs" or value == 0:
            return f"{format_number(value * factor)} {unit}"
    raise AssertionError


def format_number(value: float | None) -> str:
    """Four significant digits, thousands separated; integers in full."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if value == 0 or value >= 0.001 else f"{value * 100:.2g}%"


def headline(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    """One line: how many requests in what time, and the medians."""
    requests, latency = summary["requests"], summary["latency"]
    parts = [f"{requests['completed']:,} of {requests['total']:,} requests in {format_s(summary['makespan_s'])}"]
    parts += [f"{_LATENCIES[m]} p50 {format_s(latency[m]['p50'])}" for m in ("ttft_s", "tpot_s", "e2e_s")]
    parts += ["interrupted"] if meta.get("interrupted") else []
    name = meta.get("name")
    return (f"{name}: " if name else "") + ", ".join(parts)


def sections(summary: dict[str, Any], meta: dict[str, Any]) -> list[Section]:
    """What is worth showing at once."""
    out = [_overview(summary, meta), _latency(summary), _slo(summary)]
    if summary.get("measured"):
        out.append(_measured(summary["measured"]))
    reasons = summary["requests"]["reject_reasons"]
    if reasons:
        rows = [(reason, f"{count:,}") for reason, count in list(reasons.items())[:8]]
        out.append(Section("rejected", ("reason", "requests"), rows))
    if len(summary.get("breakdown", {}).get("stages", ())) > 1:
        out.append(_breakdown(summary))
    out += [_by(label, entries) for label, entries in summary.get("by", {}).items() if label != "workload"]
    out.append(_clients(summary))
    if "tiers" in summary:
        out.append(_tiers(summary))
    if summary.get("utilisation", {}).get("bottlenecks"):
        out.append(_bottlenecks(summary["utilisation"]))
    memory = _memory(summary)
    return [*out, memory] if memory.rows else out


def _overview(summary: dict[str, Any], meta: dict[str, Any]) -> Section:
    requests, rate, steps, good = (summary[key] for key in ("requests", "throughput", "steps", "goodput"))
    limits = ", ".join(
        f"{name.removesuffix('_s').upper()} <= {format_s(limit)}"
        for name, limit in good["limits"].items() if limit is not None
    ) + (f"; others for {', '.join(good['limits_of'])}" if "limits_of" in good else "")
    rows = [
        ("requests", f"{requests['completed']:,} completed, {requests['rejected']:,} rejected, "
                     f"{requests['unfinished']:,} unfinished"),
        ("makespan", format_s(summary["makespan_s"])),
        ("throughput", f"{format_number(rate['requests_per_s'])} requests/s, "
                       f"{format_number(rate['output_tokens_per_s'])} output tokens/s, "
                       f"{format_number(rate['total_tokens_per_s'])} tokens/s"),
        ("goodput", f"{format_number(good['requests_per_s'])} requests/s ({_percent(good['share'])}; {limits})"),
        ("preemptions", f"{steps['preemptions']:,} (of {requests['preempted']:,} requests)"),
        ("steps", f"{steps['steps']:,} in {steps['runs']:,} runs, mean batch {format_number(steps['mean_batch'])}"),
    ]
    branches = summary.get("branches")
    if branches is not None:
        rows.append(("branches", f"{branches['branches']:,} of {branches['requests']:,} requests; p50 from the first "
                                 f"that is done to the last {format_s(branches['spread_s']['p50'])}"))
    sharing = summary.get("sharing")
    if sharing is not None:
        rows.append(("KV shared", f"up to {sharing['saved_blocks']:,} blocks of {sharing['client']} saved at once "
                                  f"({_percent(sharing['saved_share'])}), {sharing['copied_blocks']:,} copied"))
    if steps["out_of_range"]:
        rows.append(("outside the measured range",
                     f"{steps['out_of_range']:,} steps ({_percent(steps['out_of_range_share'])})"))
    energy = summary["energy"]
    if energy is not None:
        without = energy["clients_without_watts"]
        rows.append(("energy", f"{format_number(energy['total_j'])} J, "
                               f"{format_number(energy['per_output_token_j'])} J per output token"
                               + (f"; {without} clients without watts are not in it" if without else "")))
        rows.append(("watts from", _sources(summary["clients"], "power_source")))
    cost = summary.get("cost")
    if cost is not None:
        rows.append(("cost", f"${format_number(cost['total_dollars'])}, "
                             f"${format_number(cost['per_million_output_tokens_dollars'])} per million output tokens, "
                             f"${format_number(cost['per_million_tokens_dollars'])} per million tokens"))
        rows.append(("prices from", _sources(summary["clients"], "price_source")))
    if meta.get("interrupted"):
        rows.append(("interrupted", "results up to the interruption"))
    if meta.get("wall_s") is not None:
        rows.append(("simulated in", format_s(float(meta["wall_s"]))))
    return Section(str(meta.get("name") or "results"), ("", ""), rows)


def _measured(measured: dict[str, Any]) -> Section:
    """What was served in the measured window."""
    rows = [
        (kind, f"{format_number(of['per_s'])}/s, p50 {format_s(of['latency_s']['p50'])}, "
               f"p99 {format_s(of['latency_s']['p99'])}")
        for kind, of in measured["served"].items()
    ]
    if measured["weighted_per_s"] is not None:
        rows.append(("weighted", f"{format_number(measured['weighted_per_s'])}/s"))
    rows.append(("accelerators busy", _percent(measured["hardware_busy"])))
    title = f"from {format_s(measured['start_s'])} to {format_s(measured['until_s'])}"
    return Section(title, ("", ""), rows)


def _sources(clients: dict[str, Any], key: str) -> str:
    """Where a figure of the clients comes from, each source once."""
    return ", ".join(dict.fromkeys(str(c.get(key) or "not stated") for c in clients.values()))


def _latency(summary: dict[str, Any]) -> Section:
    latency = summary["latency"]
    rows = [
        (label, *(format_s(latency[name][stat]) for stat in _STATS))
        for name, label in _LATENCIES.items() if latency[name]["max"] or name == "queue_s"
    ]
    return Section("latency", ("", *_STATS), rows, note="of completed requests; makespan: first arrival to last "
                   "completion, or to the end if requests are unfinished")


def _breakdown(summary: dict[str, Any]) -> Section:
    """Time on the critical path by kind of stage; the means add up to the mean latency."""
    def row(name: str, share: float | None, total: dict[str, Any], parts: dict[str, Any]) -> tuple[str, ...]:
        return (name, _percent(share), *(format_s(total[stat]) for stat in ("mean", "p50", "p90", "p99")),
                *(format_s(parts[f"{cause}_s"]["mean"]) for cause in ("queue", "communication", "compute")))

    parts = summary["breakdown"]
    rows = []
    for kind, part in parts["stages"].items():
        rows.append(row(kind, part["share"], part["total_s"], part))
        if "first_token_s" in part:
            first = part["first_token_s"]
            rows.append(("  its first token", "", *(format_s(first[stat]) for stat in ("mean", "p50", "p90", "p99")),
                         "", "", format_s(first["mean"])))
    rows.append(row("all", 1.0, summary["latency"]["e2e_s"], parts["causes"]))
    head = ("stage", "share", "mean", "p50", "p90", "p99", "queue", "communication", "compute")
    return Section("where the time goes", head, rows, note="on the critical path of completed requests; the last three "
                   "are means")


def _by(label: str, entries: dict[str, Any]) -> Section:
    """One line for each pipeline or model."""
    rows = [
        (name, f"{one['completed']:,}", f"{one['rejected']:,}",
         *(format_s(one[metric][stat]) for metric in ("ttft_s", "tpot_s", "e2e_s") for stat in ("p50", "p99")),
         format_number(one["output_tokens_per_s"]), _percent(one["goodput_share"]))
        for name, one in entries.items()
    ]
    head = (label, "completed", "rejected", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "p99", "tokens/s", "good")
    return Section(f"by {label}", head, rows)


def _slo(summary: dict[str, Any]) -> Section:
    words = {True: "pass", False: "FAIL", None: "-"}
    own, others = summary["slo"], summary.get("slo_of", {})
    rows = []
    for whose, table in {"": own, **others}.items():
        if others and not whose and not any(row["value_s"] is not None for name, row in own.items() if name != "pass"):
            continue   # every request has limits of its own
        rows += [
            (f"{whose}: {_slo_name(name)}" if whose else _slo_name(name), format_s(row["value_s"]),
             format_s(row["limit_s"]), words[row["pass"]])
            for name, row in table.items() if name != "pass"
        ]
    return Section("SLO", ("", "value", "limit", ""), [
        *rows, ("all of them" if others else "all six", "", "", words[own["pass"]]),
    ])


def _slo_name(name: str) -> str:
    metric, percentile = name.split("_")
    return f"{metric.upper()} {percentile}"


def _clients(summary: dict[str, Any]) -> Section:
    clients = summary["clients"]
    head = ("client", "kind", "role", "stages", "busy", "mean batch", "KV mean", "KV peak", "preempted", "energy")
    rows = []
    for name, c in list(clients.items())[:MAX_CLIENTS]:
        energy = c.get("energy_j")
        rows.append((
            name, c["kind"], c["role"], f"{c['stages']:,}", _percent(c["utilisation"]),
            format_number(c["mean_batch"]), _percent(c["kv_mean_share"]), _percent(c["kv_peak_share"]),
            f"{c['preemptions']:,}", f"{format_number(energy)} J" if energy else "-",   # nothing: no watts are known
        ))
    left = len(clients) - len(rows)
    return Section("clients", head, rows, note=f"and {left} more clients" if left > 0 else "")


def _tiers(summary: dict[str, Any]) -> Section:
    """Stores of KV, those of one name on one line."""
    rows = [
        (name, f"{t['stores']:,} x {_gigabytes(t['capacity_bytes'] // t['stores'])}", _percent(t["peak_share"]),
         f"{t['hits']:,}", f"{t['misses']:,}", _percent(t["hit_rate"]), f"{t['evictions']:,}",
         _gigabytes(t["read_bytes"]), _gigabytes(t["written_bytes"]), _percent(t["max_utilisation"]))
        for name, t in summary["tiers"].items()
    ]
    head = ("tier", "stores", "full", "hits", "misses", "hit rate", "evicted", "read", "written", "busy")
    cache = summary.get("cache")
    note = "hits and misses: of what was looked for here; full, busy: the fullest and the busiest store"
    if cache:
        note += (f"; of {cache['prompt_tokens']:,} prompt tokens, {_percent(cache['hit_rate'])} were found on devices "
                 "or in tiers")
    return Section("KV tiers", head, rows, note=note)


def _bottlenecks(used: dict[str, Any]) -> Section:
    """What was used almost all of the time."""
    found = used["bottlenecks"]
    rows = [
        (name, _percent(use["utilisation"]), _percent(use["peak"]))
        for name, use in list(found.items())[:MAX_BOTTLENECKS]
    ]
    left = len(found) - len(rows)
    note = (f"used more than {used['threshold']:.0%} of the window, or of the busiest of its {used['windows']} parts; "
            "busy: an LLM client computes, with however small a batch")
    return Section("bottlenecks", ("", "used", "at its peak"), rows,
                   note=note + (f"; and {left} more" if left > 0 else ""))


def _memory(summary: dict[str, Any]) -> Section:
    """KV capacity, clients that are alike on one line."""
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for name, c in summary["clients"].items():
        if c.get("memory"):
            groups.setdefault(repr((c["memory"], c["num_devices"])), ([], c))[0].append(name)
    rows = []
    for names, c in list(groups.values())[:MAX_CLIENTS]:
        m = c["memory"]
        label = names[0] if len(names) == 1 else f"{names[0]} ({len(names)} alike)"
        gigabytes = (_gigabytes(m[key]) for key in
                     ("memory_bytes", "weights_bytes", "activation_bytes", "engine_bytes", "kv_bytes"))
        memory, weights, activations, engine, kv = gigabytes
        used = "-" if m["utilization"] is None else f"{c['num_devices']} x {memory} x {m['utilization']:g}"
        rows.append((label, f"{m['kv_tokens']:,}", f"{m['kv_blocks']:,} x {m['block_size']}", kv, used, weights,
                     activations, engine))
    sources = dict.fromkeys(str(c["memory"]["source"]) for _, c in groups.values() if c["memory"]["source"])
    head = ("client", "KV tokens", "blocks", "KV", "memory", "weights", "activations", "engine")
    return Section("KV capacity", head, rows, note=" | ".join(sources))


def _gigabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:,.2f} GB"


def sections_rich(parts: Sequence[Section]) -> Group:
    """Sections as rich tables. Names come from users: no markup is interpreted."""
    shown: list[Any] = []
    for part in parts:
        table = Table(title=Text(part.title, style="bold"), title_justify="left", box=None, pad_edge=False,
                      show_header=any(part.head))
        for index, name in enumerate(part.head):
            table.add_column(Text(name), justify="left" if index == 0 or not any(part.head) else "right",
                             overflow="fold")
        for row in part.rows:
            table.add_row(*(Text(cell) for cell in row))
        shown += [table, *([Text(part.note, style="dim")] if part.note else []), Text("")]
    return Group(*shown[:-1])


def sections_text(parts: Sequence[Section], width: int = 120) -> str:
    """Sections as plain text, at most `width` columns wide."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(sections_rich(parts))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def sections_html(parts: Sequence[Section]) -> str:
    """Sections as HTML tables; every text is escaped."""
    out = []
    for part in parts:
        out.append(f"<table><caption style='text-align:left'><b>{escape(part.title)}</b></caption>")
        if any(part.head):
            out.append("<tr>" + "".join(f"<th>{escape(name)}</th>" for name in part.head) + "</tr>")
        out += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in part.rows]
        out.append("</table>")
        if part.note:
            out.append(f"<div><small>{escape(part.note)}</small></div>")
    return "<div>" + "".join(out) + "</div>"


def to_rich(summary: dict[str, Any], meta: dict[str, Any]) -> Group:
    return sections_rich(sections(summary, meta))


def to_text(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    return sections_text(sections(summary, meta))


def to_html(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    return sections_html(sections(summary, meta))
