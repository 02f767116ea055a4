"""Tables of the whole summary, which `hermes run -v` prints below the ten-line report."""

from __future__ import annotations

from typing import Any

from hermes.results.figures.catalogue import FIGURES, LATENCIES, limit_name
from hermes.results.figures.tenants import gateway_sections
from hermes.results.incident_text import HEAD, NOTE, incidents_rows
from hermes.results.layout import Section, format_number, format_s, gibibytes, percent
from hermes.sums import float_sum
from hermes.units import counted

__all__ = ["grouped_clients", "kv_size", "limits_text", "mean_of", "most_of", "sections"]

MAX_CLIENTS = 16
MAX_BOTTLENECKS = 12
_STATS = ("mean", "p50", "p90", "p95", "p99", "max")
_SHOWN = ("ttft", "prefill_ttft", "tpot", "itl", "e2e", "queue", "communication")
_GATEWAY_CAUSES = {"gateway": "its hop, with the wait for its capacity", "held": "unplaced at the gateway",
                   "lost": "attempts that came to nothing, and their back-off"}
_PER_MILLION = tuple(f"per_million_{of}_dollars" for of in ("answer_tokens", "output_tokens", "tokens"))


def sections(summary: dict[str, Any], meta: dict[str, Any]) -> list[Section]:
    """Return the tables to show."""
    out = [_overview(summary, meta), _latency(summary)]
    if _has_limits(summary):
        out.append(_slo(summary))
    if summary.get("measured"):
        out.append(_measured(summary["measured"]))
    reasons = summary["requests"]["reject_reasons"]
    if reasons:
        rows = [(f"{count:,}", reason) for reason, count in list(reasons.items())[:8]]
        out.append(Section("rejected", ("", ""), rows))
    if len(summary.get("breakdown", {}).get("stages", ())) > 1 or _gateway_causes(summary):
        out.append(_breakdown(summary))
    out += [_by(label, entries) for label, entries in summary.get("by", {}).items()
            if label not in ("workload", "band")]
    if "incidents" in summary:
        out.append(Section("incidents", HEAD, incidents_rows(summary["incidents"]), NOTE))
    out += gateway_sections(summary)
    if "balance" in summary.get("believed", {}):
        out.append(_beliefs(summary["believed"]))
    if "notes" in summary:
        stats = ("mean", "p50", "p99", "max")   # columns of 80 characters
        shown: list[tuple[str, ...]] = []
        for name, found in summary["notes"].items():
            if "shares" in found:
                shown += [(f"{name} {one}", f"{found['count']:,}", percent(share), *[""] * (len(stats) - 1))
                         for one, share in found["shares"].items()]
            else:
                shown.append((name, f"{found['count']:,}", *(format_number(found[stat]) for stat in stats)))
        out.append(Section("noted about requests", ("", "requests", *stats), shown))
    if summary.get("binds"):
        out.append(_binds(summary["binds"], summary.get("headline") or {}))
    out.append(_clients(summary))
    if "tiers" in summary:
        out.append(_tiers(summary))
    if summary.get("utilisation", {}).get("bottlenecks"):
        out.append(_bottlenecks(summary["utilisation"]))
    memory = _memory(summary)
    return [*out, memory] if memory.rows else out


def _beliefs(found: dict[str, Any]) -> Section:
    """Return the table of `believed` of a summary that has `balance`."""
    off = f"by more than {found['block_tokens']} tokens"
    rows = [("requests on a false belief", f"{percent(found['false_share'])} of {found['requests']:,}"),
            (f"believed too much, {off}", f"{found['false_high']:,}"),
            (f"believed too little, {off}", f"{found['false_low']:,}")]
    for name, pool in found["balance"].items():
        rows += [(f"{name}: tokens of {pool['clients']} clients, most / mean", f"{pool['max_over_mean']:.3f}"),
                 (f"{name}: the same, Jain's index", f"{pool['jain']:.3f}")]
    return Section("routers and caches", ("", ""), rows)


def _overview(summary: dict[str, Any], meta: dict[str, Any]) -> Section:
    requests, rate, steps, good = (summary[key] for key in ("requests", "throughput", "steps", "goodput"))
    rows = [
        ("requests", f"{requests['completed']:,} completed, {requests['rejected']:,} rejected, "
                     f"{requests['unfinished']:,} unfinished"),
        ("whole run", f"{format_s(summary['makespan_s'])}, with warm-up and drain"),
        ("throughput", f"{format_number(rate['requests_per_s'])} requests/s, "
                       f"{format_number(rate['output_tokens_per_s'])} output tokens/s, "
                       f"{format_number(rate['total_tokens_per_s'])} tokens/s"),
        *([("goodput", f"{format_number(good['requests_per_s'])} requests/s ({percent(good['share'])}; "
                       f"{limits_text(good)})")] if good["requests"] is not None else []),
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
                                  f"({percent(sharing['saved_share'])}), {sharing['copied_blocks']:,} copied"))
    if steps["out_of_range"]:
        rows.append(("outside the measured range",
                     f"{steps['out_of_range']:,} steps ({percent(steps['out_of_range_share'])})"))
    energy = summary["energy"]
    if energy is not None:
        without = energy["clients_without_watts"]
        rows.append(("energy", f"{format_number(energy['total_j'])} J, "
                               f"{format_number(energy['per_output_token_j'])} J per output token"
                               + (f"; without {counted(without, 'client')} of unknown watts" if without else "")))
        rows.append(("watts from", _sources(summary["clients"], "power_source")))
    cost = summary.get("cost")
    if cost is not None:
        each = [FIGURES[f"cost.{key}"].dollars(format_number(cost[key])) for key in _PER_MILLION if key in cost]
        rows.append(("cost", ", ".join([f"${format_number(cost['total_dollars'])}", *each])))
        rows.append(("prices from", _sources(summary["clients"], "price_source")))
    if meta.get("interrupted"):
        rows.append(("interrupted", "results up to the interruption"))
    if meta.get("wall_s") is not None:
        rows.append(("simulated in", format_s(float(meta["wall_s"]))))
    return Section("the whole run", ("", ""), rows)


def limits_text(good: dict[str, Any]) -> str:
    """Return the per-request limits in words."""
    return ", ".join(
        f"{LATENCIES[name.removesuffix('_s')]} <= {format_s(limit)}"
        for name, limit in good["limits"].items() if limit is not None
    ) + (f"; others for {', '.join(good['limits_of'])}" if "limits_of" in good else "")


def _measured(measured: dict[str, Any]) -> Section:
    """Return the table of the measured window."""
    rows = [
        (kind, f"{format_number(of['per_s'])}/s, p50 {format_s(of['latency_s']['p50'])}, "
               f"p99 {format_s(of['latency_s']['p99'])}")
        for kind, of in measured["served"].items()
    ]
    if measured["weighted_per_s"] is not None:
        rows.append(("weighted", f"{format_number(measured['weighted_per_s'])}/s"))
    if measured.get("energy_j") is not None:
        each = format_number(measured["per_token_j"])
        rows.append(("energy", f"{format_number(measured['energy_j'])} J, {each} J per token"))
    rows.append(("accelerators in a step", percent(measured["hardware_stepping"])))
    title = f"from {format_s(measured['start_s'])} to {format_s(measured['until_s'])}"
    return Section(title, ("", ""), rows)


def _sources(clients: dict[str, Any], key: str) -> str:
    """Return the sources of a figure of the clients, each once."""
    return ", ".join(dict.fromkeys(str(c.get(key) or "not stated") for c in clients.values()))


def _latency(summary: dict[str, Any]) -> Section:
    latency = summary["latency"]
    rows = [
        (LATENCIES[name], *(format_s(of[stat]) for stat in _STATS)) for name in _SHOWN
        if (of := latency.get(f"{name}_s")) is not None and (of["max"] or name == "queue")
    ]
    return Section("latency", ("", *_STATS), rows, note="of completed requests")


def _gateway_causes(summary: dict[str, Any]) -> tuple[str, ...]:
    """Return the causes at a gateway for which requests spend time."""
    causes = summary.get("breakdown", {}).get("causes", {})
    return tuple(name for name in _GATEWAY_CAUSES if causes.get(f"{name}_s", {}).get("mean"))


def _breakdown(summary: dict[str, Any]) -> Section:
    """Return the time on the critical path by kind of stage; the means add up to the mean latency."""
    at_gateway = _gateway_causes(summary)
    causes = (*at_gateway, "queue", "communication", "compute")

    def row(name: str, share: float | None, total: dict[str, Any], parts: dict[str, Any]) -> tuple[str, ...]:
        return (name, percent(share), *(format_s(total[stat]) for stat in ("mean", "p50", "p90", "p99")),
                *(format_s(parts[f"{cause}_s"]["mean"]) for cause in causes))

    parts = summary["breakdown"]
    rows = []
    for kind, part in parts["stages"].items():
        rows.append(row(kind, part["share"], part["total_s"], part))
        if "first_token_s" in part:
            first = part["first_token_s"]
            rows.append(("  its first token", "", *(format_s(first[stat]) for stat in ("mean", "p50", "p90", "p99")),
                         *[""] * (len(causes) - 1), format_s(first["mean"])))
    rows.append(row("all", 1.0, summary["latency"]["e2e_s"], parts["causes"]))
    if at_gateway and summary["latency"]["ttft_s"]["count"]:
        rows.append(row("to the first token", None, summary["latency"]["ttft_s"], parts["ttft"]))
    head = ("stage", "share", "mean", "p50", "p90", "p99", *at_gateway, "queue", "move", "compute")
    more = "".join(f"{name} ({_GATEWAY_CAUSES[name]}), " for name in at_gateway)
    return Section("where the time goes", head, rows, note=f"on the critical path of completed requests; {more}queue, "
                   "move (communication) and compute are means")


def _by(label: str, entries: dict[str, Any]) -> Section:
    """Return a table with one line per pipeline or model."""
    rows = [
        (name, f"{one['completed']:,}", f"{one['rejected']:,}",
         *(format_s(one[metric][stat]) for metric in ("ttft_s", "tpot_s", "e2e_s") for stat in ("p50", "p99")),
         format_number(one["output_tokens_per_s"]), percent(one["goodput_share"]))
        for name, one in entries.items()
    ]
    head = (label, "completed", "rejected", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "p99", "tokens/s", "good")
    return Section(f"by {label}", head, rows)


def _has_limits(summary: dict[str, Any]) -> bool:
    return any(len(table) > 1 for table in (summary["slo"], *summary.get("slo_of", {}).values()))


def _slo(summary: dict[str, Any]) -> Section:
    words = {True: "pass", False: "FAIL", None: "-"}
    own, others = summary["slo"], summary.get("slo_of", {})
    rows = []
    for whose, table in {"": own, **others}.items():
        if others and not whose and not any(row["value_s"] is not None for name, row in own.items() if name != "pass"):
            continue   # every request has limits of its group
        for name, row in table.items():
            if name != "pass":
                label = limit_name(name, row.get("percentile"))
                rows.append((f"{whose}: {label}" if whose else label, format_s(row["value_s"]),
                             format_s(row["limit_s"]), words[row["pass"]]))
    if len(rows) > 1:
        rows.append(("all of them", "", "", words[own["pass"]]))
    return Section("SLO", ("", "value", "limit", ""), rows)


def _binds(binds: dict[str, Any], headline: dict[str, Any]) -> Section:
    """Return the binding resource of each group of clients, in the headline's window."""
    def waits(group: dict[str, Any]) -> str:
        found = [f"{reason} {share:.0%}" for reason, share in sorted(group["waiting"].items(), key=lambda i: -i[1])]
        if "held" in group:
            found.append(f"at the gateway {group['held']['share']:.0%} ({group['held']['limit']})")
        return ", ".join(found)

    rows = [
        (name, f"{group['clients']:,}", group["what"], percent(group["stepping_share"]), waits(group))
        for name, group in list(binds["groups"].items())[:MAX_CLIENTS]
    ]
    other = [f"{name} {share:.0%} of the time" for name, share in binds["all"].items()]
    span = {"steady": "steady state", "measured": "measured window"}.get(str(headline.get("window")), "whole run")
    span = "time of arrivals" if headline.get("stable") is False else span
    return Section("what binds", ("clients", "", "binds", "stepping", "work waits for"), rows,
                   note=f"share of the {span} with a step (or a task) under way, and in which work waited for each "
                        "reason" + (f"; binds: {', '.join(other)}" if other else ""))


def grouped_clients(clients: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the clients of each group, under one name for all of them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, client in clients.items():
        groups.setdefault(client.get("group") or name, []).append(client)
    return {name if len(mine) == 1 else f"{name} x {len(mine)}": mine for name, mine in groups.items()}


def _clients(summary: dict[str, Any]) -> Section:
    """Return one row per group: sums, means, and the highest peak."""
    groups = grouped_clients(summary["clients"])
    head = ("client", "role", "stages", "stepping", "batch", "KV mean", "peak", "preempted", "energy")
    rows = []
    for name, mine in list(groups.items())[:MAX_CLIENTS]:
        energy = float_sum(c.get("energy_j") or 0.0 for c in mine)
        steps = sum(c["steps"] for c in mine)
        batch = float_sum((c["mean_batch"] or 0.0) * c["steps"] for c in mine) / steps if steps else None
        rows.append((
            name, mine[0]["role"], f"{sum(c['stages'] for c in mine):,}", percent(mean_of(mine, "utilisation")),
            format_number(batch), percent(mean_of(mine, "kv_mean_share")), percent(most_of(mine, "kv_peak_share")),
            f"{sum(c['preemptions'] for c in mine):,}",
            f"{format_number(energy)} J" if energy else "-",   # "-" if no power is known
        ))
    left = len(groups) - len(rows)
    return Section("clients", head, rows, note=f"and {left} more groups of clients" if left > 0 else "")


def mean_of(clients: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean over the clients that have the key."""
    values = [c[key] for c in clients if c.get(key) is not None]
    return float_sum(values) / len(values) if values else None


def most_of(clients: list[dict[str, Any]], key: str) -> float | None:
    return max((c[key] for c in clients if c.get(key) is not None), default=None)


def _tiers(summary: dict[str, Any]) -> Section:
    """Return the KV stores, one line per name."""
    rows = [
        (name, f"{t['stores']:,} x {gibibytes(t['capacity_bytes'] // t['stores'])}", percent(t["peak_share"]),
         f"{t['hits']:,}", f"{t['misses']:,}", percent(t["hit_rate"]), f"{t['evictions']:,}",
         gibibytes(t["read_bytes"]), gibibytes(t["written_bytes"]), percent(t["max_utilisation"]))
        for name, t in summary["tiers"].items()
    ]
    head = ("tier", "stores", "full", "hits", "misses", "hit rate", "evicted", "read", "written", "busy")
    cache = summary.get("cache")
    note = "hits and misses: of what was looked for here; full, busy: the fullest and the busiest store"
    if cache:
        note += (f"; of {cache['prompt_tokens']:,} prompt tokens, {percent(cache['hit_rate'])} were found on devices "
                 "or in tiers")
    return Section("KV tiers", head, rows, note=note)


def _bottlenecks(used: dict[str, Any]) -> Section:
    """Return the resources used almost all of the time."""
    found = used["bottlenecks"]
    rows = [
        (name, percent(use["utilisation"]), percent(use["peak"]))
        for name, use in list(found.items())[:MAX_BOTTLENECKS]
    ]
    left = len(found) - len(rows)
    note = f"more than {used['threshold']:.0%} of the window, or of the busiest of its {used['windows']} parts"
    return Section("bottlenecks", ("", "used", "at its peak"), rows,
                   note=note + (f"; and {left} more" if left > 0 else ""))


def kv_size(memory: dict[str, Any]) -> str:
    """Return the KV memory of a client with its range, as far as it is known."""
    low, high = (memory.get(key) or 0 for key in ("kv_low_bytes", "kv_high_bytes"))
    ends = f" ({low / 2**30:.3g} to {high / 2**30:.3g})" if low < high else ""
    return gibibytes(memory["kv_bytes"]) + ends


def _memory(summary: dict[str, Any]) -> Section:
    """Return the KV capacity, one line for equal clients."""
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for name, c in summary["clients"].items():
        if c.get("memory"):
            groups.setdefault(repr((c["memory"], c["num_devices"], c.get("group"))), ([], c))[0].append(name)
    rows = []
    for names, c in list(groups.values())[:MAX_CLIENTS]:
        m = c["memory"]
        label = names[0] if len(names) == 1 else f"{c.get('group') or names[0]} x {len(names)}"
        memory, weights, activations, engine = (gibibytes(m[key]) for key in (
            "memory_bytes", "weights_bytes", "activation_bytes", "engine_bytes"))
        used = "-" if m["utilization"] is None else f"{c['num_devices']} x {memory} x {m['utilization']:g}"
        fits = "-" if m["kv_concurrency"] is None else f"{m['kv_concurrency']:.2f}"
        rows.append((label, f"{m['kv_tokens']:,}", f"{m['kv_blocks']:,} x {m['block_size']}", fits, kv_size(m), used,
                     weights, activations, engine))
    sources = dict.fromkeys(str(c["memory"]["source"]) for _, c in groups.values() if c["memory"]["source"])
    head = ("client", "KV tokens", "blocks", "longest at once", "KV (range)", "memory", "weights", "activations",
            "engine")
    return Section("KV capacity", head, rows, note=" | ".join(sources))
