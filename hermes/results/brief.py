"""The ten-line report of a run: requests, rates, latencies, goodput, binding resource, memory, cost, next command.

The tables of `hermes.results.render` show everything else. No line is longer than 80 columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.core.reasons import CAPACITY, DEAD, DRAINS, EARLY, FLOW_CONTROL, GAVE_UP, LATE, NO_REPLICA
from hermes.results.assumes import NOT_MODELLED, assumed_lines
from hermes.results.figures.catalogue import FIGURES, LATENCIES
from hermes.results.figures.tenants import gateway_line
from hermes.results.incident_text import incidents_lines
from hermes.results.layout import WIDTH, Part, format_s, labelled, percent, share_text, short_number, shortened, to_html
from hermes.results.render import grouped_clients, kv_size, limits_text, mean_of, most_of, sections
from hermes.results.slo import METRICS, own_limits_missed
from hermes.units import counted

__all__ = ["brief", "grows", "headline", "html", "parts"]

LABEL = 10       # columns of a line's first word
NAME = 24        # most columns of the scenario's name
REASONS = 3
SOURCE_SHARE = 0.05   # of the time of steps from which on a source is named
FACTOR = 2.0     # ends beyond which a range is written as factors
OUTSIDE = 0.01   # share of steps outside the measured range above which the report warns
WAITING = 0.25   # of the time, from which on the option of the scheduler that work waits for is named
OPTIONS = {"slots": "max_num_seqs", "token budget": "max_num_batched_tokens"}
LATENESS = {"patience": "of the requests are given up", LATE: "of the requests have no answer in time",
            DRAINS: "of the requests are cut off by `fleet.drain`"}
LONGER = {"the trace": "give a longer trace"}
NO_SLO = "no SLO is set: --set slo.ttft=1s --set slo.tpot=50ms"

Line = tuple[str, str]   # the first word of a line, and the rest


def headline(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    """Return one line: the number of requests, their time, and the median latencies."""
    requests, latency = summary["requests"], summary["latency"]
    parts = [f"{requests['completed']:,} of {requests['total']:,} requests in {format_s(summary['makespan_s'])}"]
    parts += [f"{LATENCIES[metric]} p50 {format_s(latency[f'{metric}_s']['p50'])}" for metric in METRICS]
    parts += ["interrupted"] if meta.get("interrupted") else []
    name = meta.get("name")
    return (f"{name}: " if name else "") + ", ".join(parts)


def brief(summary: dict[str, Any], meta: dict[str, Any], *, verbose: bool = False) -> list[Line]:
    """Return the lines in order; more than ten only with warnings, defaults that decide, and the F1 that a pipeline
    notes. `meta` may give the files and the next command (`files`). verbose: List all defaults."""
    latency = summary["latency"]
    out = [("requests", _requests(summary, meta)), *_wrong(summary, meta), ("rate", _rate(summary))]
    out += [(LATENCIES[metric], f"p50 {format_s(of['p50']):<10}  p99 {format_s(of['p99'])}"
             f"{_of_prefill(latency) if metric == 'ttft' else ''}")
            for metric in METRICS for of in (latency[f"{metric}_s"],)]
    notes = summary.get("notes", {})
    f1, measured = (notes.get(name, {}).get("mean") for name in ("f1", "f1_measured"))
    if f1 is not None:
        nearest = "" if measured in (None, 1) else (
            f"; {percent(1 - measured)} of the requests have that of the nearest configuration that was measured")
        out.append(("F1", f"mean {f1:.3f}{nearest}"))
    out.append(("goodput", _goodput(summary)))
    out += [("misses", text) for text in own_limits_missed(summary.get("slo_of", {}))]
    out += [("fleet", text) for text in _fleets(summary)]
    out += [("incidents", text) for text in incidents_lines(summary)]
    out += [("attempts", text) for text in _attempts(summary)]
    if (held := gateway_line(summary)) is not None:
        out.append(("gateway", held))
    out += [("caches", text) for text in _believed(summary)]
    out += [("binds", _binds(summary)), ("KV", _memory(summary)), ("cost", _cost(summary))]
    out += [("sources", text) for text in _sources(summary.get("sources", ()), verbose=verbose)]
    if ranges := _ranges(summary):
        out.append(("ranges", ranges))
    out += [("assumes", text) for text in assumed_lines(summary.get("assumes", ()), verbose=verbose)]
    if verbose and "assumes" in summary:
        out.append(("", NOT_MODELLED))
    if meta.get("files"):
        out.append(("files", str(meta["files"])))
    return out


def _fleets(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each group whose replicas come and go, and one for the minutes out of the SLO."""
    slo = summary.get("fleet_slo")
    out = [] if slo is None else [f"out of the SLO in {slo['slo_minutes_out']} of {slo['minutes']} minutes"]
    return [f"{name}: {found['ready_mean']:.3g} ready on average, {found['ready_most']} at most (of {found['slots']}); "
            f"{found['held_device_hours']:.3g} device-hours, {found['started']} started, {found['drained']} drained"
            + "".join(f", {found[cause]} {cause.replace('_', ' ')}" for cause in
                      ("crashed", "hung", "device_down", "node_down", "zone_down", "reclaimed") if cause in found)
            + (f"; {counted(found['cut'], 'answer')} cut" if "cut" in found else "")
            for name, found in summary.get("fleet", {}).items()] + out


def _believed(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about what routers believed to be cached, where they do."""
    found = summary.get("believed")
    if found is None or not found["prompt_tokens"]:
        return []
    believed, cached = (found[name] / found["prompt_tokens"] for name in ("believed_tokens", "cached_tokens"))
    return [f"routers believed {percent(believed)} of the prompt tokens cached, {percent(cached)} were; "
            f"{found['missed_tokens']:,} tokens missed, {found['unexpected_tokens']:,} unexpected"]


def _attempts(summary: Mapping[str, Any]) -> list[str]:
    """Return lines about the waits for a gateway's capacity, and about its attempts where some came to nothing."""
    found = summary.get("attempts")
    if found is None:
        return []
    waits = found.get("wait_s")
    hop = [] if waits is None else [f"waited for the gateway's capacity: mean {format_s(waits['mean'])}, "
                                    f"p99 {format_s(waits['p99'])}, at most {format_s(waits['max'])}"]
    if found["completed"] == found["started"]:
        return hop
    names = ("migrated", "failed", "timed_out", "cancelled", "revoked", "running")
    text = ", ".join(f"{found[name]:,} {name.replace('_', ' ')}" for name in names if found.get(name))
    wasted = found["wasted"].values()
    tokens = sum(part["prompt_tokens"] + part["output_tokens"] for part in wasted)
    joules = [part["energy_j"] for part in wasted if part["energy_j"] is not None]
    lost = f"; wasted: {tokens:,} tokens" + (f", {sum(joules):,.0f} J" if joules else "") if tokens else ""
    offers = found.get("client_retries")
    again = "" if offers is None else (f"; clients offered {offers['requests']:,} requests again, "
                                       f"{offers['offers']:,} times")
    calls = found["started"] - found["retried_attempts"]
    return [f"{found['started']:,} for {calls:,} calls: {text}{lost}{again}", *_migrations(found), *hop]


def _migrations(attempts: Mapping[str, Any]) -> list[str]:
    """Return a line about answers that went on at another client."""
    found = attempts.get("migrations")
    if found is None or not found["migrated"]:
        return []
    causes = ", ".join(f"{part['migrated']:,} {name.replace('_', ' ')}" for name, part in found["causes"].items()
                       if part["migrated"])
    return [f"migrated with their answers: {causes}; {found['recomputed_tokens']:,} tokens computed again, "
            f"{found['lost_tokens']:,} lost"]


def _sources(groups: Sequence[Mapping[str, Any]], *, verbose: bool) -> list[str]:
    """Return where step times come from, a line for each group of clients; one without a name where all are equal."""
    out = {}
    for group in groups:
        parts = group["parts"] if verbose else [part for part in group["parts"] if part["share"] >= SOURCE_SHARE]
        text = ", ".join(f"{part['share']:.0%} {part['source']}" for part in parts)
        low, high = (100 * (group[end] - 1) for end in ("low", "high"))
        named = group["because"][:REASONS] if group["class"] != "measured" and len(group["parts"]) > 1 else ()
        why = f" (because of {', '.join(named)})" if named else ""
        out[group["group"]] = f"{text}: {group['class']}{why}, step times {low:+.0f} to {high:+.0f}%"
    alike = len(set(out.values())) == 1
    return list(out.values())[:1] if alike else [f"{group}: {text}" for group, text in out.items()]


def _ranges(summary: Mapping[str, Any]) -> str:
    """Return between what the latencies are expected, as factors or percent of them; "" where the queue grows, of which
    nothing has a range. Of several groups the widest range."""
    groups = [group["results"] for group in summary.get("sources", ()) if "results" in group]
    if not groups or grows(summary.get("headline") or {}):
        return ""
    found = {name: (min(group[name]["low"] for group in groups), max(group[name]["high"] for group in groups))
             for name in groups[0]}
    times, p99, ttft, ttft_p99 = (_span(*found[name]) for name in ("times", "times p99", "ttft", "ttft p99"))
    held = [group["kv_range"] for group in summary.get("sources", ()) if "kv_range" in group]
    text = f"means and p50 of TPOT and E2E {times}, p99 {p99}; TTFT {ttft}, p99 {ttft_p99}"
    return text + ("" if not held else f"; the error of KV memory is {'' if all(held) else 'not '}in them")


def _span(low: float, high: float) -> str:
    """Return both ends of a range of factors."""
    if high > FACTOR or low < 1.0 / FACTOR:
        return f"x{low:.2g} to x{high:.2g}"
    return f"{100 * (low - 1):+.0f} to {100 * (high - 1):+.0f}%"


def _of_prefill(latency: dict[str, Any]) -> str:
    """Return the latency of the prefill's own token, where another client gives the user's."""
    own = latency.get("prefill_ttft_s")
    if own is None:
        return ""
    return f"; prefill's own {format_s(own['p50'])}, {format_s(own['p99'])}"


def _requests(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    counts = summary["requests"]
    total, completed = counts["total"], counts["completed"]
    parts = ["all completed"] if completed == total else [f"{completed:,} completed"]
    gone = sum(count for reason, count in counts["reject_reasons"].items() if reason.startswith(GAVE_UP))
    others = {"gave up": gone, "rejected": counts["rejected"] - gone, "unfinished": counts["unfinished"]}
    parts += [f"{count:,} {name}" for name, count in others.items() if count]
    name = f" of {shortened(str(meta['name']), NAME)}" if meta.get("name") else ""
    text = f"{total:,}{name}: {', '.join(parts)} in {format_s(summary['makespan_s'])}"
    if meta.get("wall_s") is None:
        return text
    took = f"{text} (simulated in {float(meta['wall_s']):.3g} s)"
    return took if len(took) <= WIDTH - LABEL else text


def _wrong(summary: dict[str, Any], meta: dict[str, Any]) -> list[Line]:
    """Return warnings that a reader must see before any figure."""
    out: list[Line] = []
    reasons = summary["requests"]["reject_reasons"]
    for reason, count in list(reasons.items())[:REASONS]:
        word, text = ("gave up", reason.removeprefix(GAVE_UP)) if reason.startswith(GAVE_UP) else ("rejected", reason)
        out.append((word, f"{count:,}: {text}"))
    if len(reasons) > REASONS:
        out.append(("", f"and {len(reasons) - REASONS} other reasons (-v)"))
    if in_vain := summary["requests"].get("gave_up_computed"):
        out.append(("", f"{in_vain:,} gave up after their prompt was computed, in full or in part"))
    if reasons and summary["requests"]["completed"]:
        out.append(("", f"latencies are those of the {summary['requests']['completed']:,} that were answered"))
    if meta.get("interrupted"):
        out.append(("warning", "interrupted: results up to the interruption"))
    steps = summary["steps"]
    if (steps["out_of_range_share"] or 0.0) >= OUTSIDE:
        out.append(("warning", f"{steps['out_of_range']:,} steps ({percent(steps['out_of_range_share'])}) lie outside "
                               "the measured range"))
    return out


def _rate(summary: dict[str, Any]) -> str:
    found = summary.get("headline")
    if not found:   # results from before there was one
        return f"served {_per_s(summary['throughput']['requests_per_s'])}, whole run"
    offered = f"offered {_per_s(found['offered_per_s'])}, " if found["offered_per_s"] is not None else ""
    if grows(found):
        return f"{offered}served: not stable, the queue grows"
    served = f"served {_per_s(found['served_per_s'])}"
    if found["served_low_per_s"] is not None:
        served += f" ({short_number(found['served_low_per_s'])} to {short_number(found['served_high_per_s'])})"
    if found["window"] == "whole":
        why = str(found["why"]) + ("; the queue grows" if found["stable"] is False else "")
        of = f" of {format_s(found['over_s'])}" if "over_s" in found else ""
        return f"{offered}{served}, whole run{of} ({why})"
    if summary.get("settling", {}).get("settled") is False and summary["goodput"]["requests"] is None:
        return f"{offered}{served}, unsettled {short_number(found['start_s'])} to {short_number(found['until_s'])} s"
    word = {"steady": "steady", "measured": "measured"}[found["window"]]
    return f"{offered}{served}, {word} {short_number(found['start_s'])} to {short_number(found['until_s'])} s"


def _per_s(rate: float | None) -> str:
    return "-" if rate is None else f"{short_number(rate)}/s"


def _goodput(summary: dict[str, Any]) -> str:
    good, found = summary["goodput"], summary.get("headline")
    if good["requests"] is None:
        return NO_SLO
    passed = summary["slo"]["pass"]
    apart = good.get("without_limit", 0)
    rest = f"; no limit applies to {apart:,} requests without tokens" if apart else ""
    if good["share"] is None and apart:
        return f"no limit applies to the {apart:,} requests: they give no tokens; set slo.e2e"
    settled = summary.get("settling", {}).get("settled") is not False
    met = "met" if settled else "met, unsettled"
    rate, share = ((found["goodput_per_s"], found["goodput_share"]) if found
                   else (good["requests_per_s"], good["share"]))
    asked = next((row["percentile"] / 100 for row in summary["slo"].values()
                  if isinstance(row, Mapping) and "percentile" in row), None)
    if passed and asked is not None and share is not None and share < asked:
        met += " by each limit"
    verdict = "" if passed is None else f"SLO {met if passed else 'MISSED'}, "
    within = share_text(share, None if passed else asked)
    if found and grows(found):
        ended = " that ended" if summary["requests"]["unfinished"] else ""
        return f"{verdict}{within} of the requests{ended} within {limits_text(good)}{rest}"
    return f"{verdict}{_per_s(rate)} ({within}) within {limits_text(good)}{rest}"


def grows(found: Mapping[str, Any]) -> bool:
    """Whether the queue of a run grows in which nothing changes, so that it has no rate. found: Its headline."""
    return found.get("stable") is False and not found.get("changes")


def _binds(summary: dict[str, Any]) -> str:
    binds = summary.get("binds")
    if not binds:
        return "-"
    text, away = _what_binds(summary, binds) + _at_gateway(binds), binds.get("turned_away")
    if not away:
        return text
    turns = (f"{away['what']} of {shortened(away['where'], 24)}: turns {away['share']:.0%} of the requests away, "
             "which never fit it")
    return turns if _alone(binds) else f"{text}; {turns}"


def _at_gateway(binds: dict[str, Any]) -> str:
    """Return how long flow control held requests for what binds, and what to do about what binds at a gateway."""
    held = binds.get("groups", {}).get(binds["where"], {}).get("held")
    if held is None or binds["what"] in (FLOW_CONTROL, NO_REPLICA):
        said = ""
    else:
        said = f"; flow control holds requests {held['share']:.0%} of the time ({held['limit']})"
    return said + (f"; {binds['do']}" if binds.get("do") else "")


def _alone(binds: dict[str, Any]) -> bool:
    """Whether what binds is only the memory that turns requests away."""
    away = binds["turned_away"]
    return bool(all(binds[key] == away[key] for key in ("what", "where", "share")))


def _what_binds(summary: dict[str, Any], binds: dict[str, Any]) -> str:
    if binds["what"] == "arrivals":
        found = summary.get("headline") or {}
        if found.get("window") == "whole" and str(found.get("why")).startswith("too short"):
            more = summary.get("settling", {}).get("more", "workload.requests")
            return f"unknown: the run is too short to settle; {LONGER.get(more, f'raise {more}')}"
        return "arrivals: the clients keep up with the offered load"
    if binds["what"] == "nothing":
        return "nothing" if summary["requests"]["completed"] else "nothing: no request was served"
    if binds.get("of"):   # nothing stops admission, and a latency is too long
        return (f"{binds['what']} of {shortened(binds['where'], 24)}: {binds['share']:.0%} of {binds['of']}"
                f"{_also(binds)}")
    if binds["where"] == "gateway" and binds["what"] == NO_REPLICA:
        return f"replicas: none is ready for {binds['share']:.0%} of the requests"
    if binds["where"] == "gateway" and binds["what"] != CAPACITY:
        return f"{binds['what']} of the gateway: turns {binds['share']:.0%} of the requests away"
    if binds["what"] in LATENESS:
        lost = f"{_part(binds['share'])} {LATENESS[binds['what']]}"
        return f"{binds['what']} of {shortened(binds['where'], 24)}: {lost}{_also(binds)}"
    if binds["what"] == DEAD:
        return _of_dead(binds["dead"])
    if binds["what"] == EARLY:
        early = binds["groups"][binds["where"]]["early"]
        return (f"early binding of {shortened(binds['where'], 24)}: work waits {binds['share']:.0%} of the time at "
                f"{early['replicas']} of {early['of']} replicas while others are free{_also(binds)}")
    if binds["what"] == "queue limit":
        return f"queue limit of {shortened(binds['where'], 24)}: turns {binds['share']:.0%} of the requests away"
    held = {"compute": "work waits for it", "slots": "work waits for a place in the batch",
            "KV memory": "work waits for blocks", CAPACITY: "calls wait for it", FLOW_CONTROL: "it holds requests",
            NO_REPLICA: "requests wait for a ready one", "link": "full", "tier": "its link is full",
            "machine": "used up"}
    name = "the gateway" if binds["what"] == CAPACITY else shortened(binds["where"], 24)
    span = "" if "span_s" not in binds else " from {:.4g} to {:.4g} s".format(*binds["span_s"])
    text = (f"{binds['what']} of {name}: {held.get(binds['what'], 'work waits for it')}"
            f" {binds['share']:.0%} of the time{span}{_named(binds)}")
    return text + _also(binds)


def _also(binds: dict[str, Any]) -> str:
    """Return what follows what binds: the next place, what keeps the queue short, and what was lost elsewhere."""
    then, bounded, text = binds.get("then"), binds.get("bounded_by"), ""
    if then:
        text += f"; then: {then['what']} of {shortened(then['where'], 24)}, {then['share']:.0%}"
    if bounded and bounded["what"] not in (DEAD, DRAINS):
        verb = "bound" if bounded["what"] == LATE else "bounds"
        away = LATENESS.get(bounded["what"], "of the requests are turned away")
        text += f"; {bounded['what']} {verb} the queue, {_part(bounded['share'])} {away}"
    return text + (f"; {_of_dead(binds['dead'])}" if "dead" in binds else "")


def _of_dead(dead: dict[str, Any]) -> str:
    """Return what was lost at a replica that had gone down."""
    chosen = f"; routers chose it for {dead['detection_s']:.3g} s after (fleet.probe)" if dead["detection_s"] else ""
    return f"{DEAD} {shortened(dead['replica'], 24)}: {_part(dead['share'])} of the requests are lost at it{chosen}"


def _part(share: float) -> str:
    return f"{share:.0%}" if share >= 0.05 else percent(share)


def _named(binds: dict[str, Any]) -> str:
    """Return for which option of the scheduler work waits, where compute binds: the reader may want to raise it."""
    waiting = binds.get("groups", {}).get(binds["where"], {}).get("waiting", {}) if binds["what"] == "compute" else {}
    found = [f"{share:.0%} for {what} ({OPTIONS[what]})" for what, share in waiting.items()
             if what in OPTIONS and share >= WAITING]
    return f", {', '.join(found)}" if found else ""


def _memory(summary: dict[str, Any]) -> str:
    parts = []
    groups = {name: mine for name, mine in grouped_clients(summary["clients"]).items() if mine[0].get("memory")}
    if groups:
        name, fullest = max(groups.items(), key=lambda item: most_of(item[1], "kv_peak_share") or 0.0)
        memory = fullest[0]["memory"]
        of = f" of {kv_size(memory)}" if memory["kv_bytes"] else f" of {memory['kv_tokens']:,} tokens"
        where = f" at {shortened(name, 20)}" if len(groups) > 1 else ""
        parts.append(f"mean {percent(mean_of(fullest, 'kv_mean_share'))}, "
                     f"peak {percent(most_of(fullest, 'kv_peak_share'))}{of}{where}")
    cache = summary.get("cache")
    if cache:
        parts.append(f"prefix hits {percent(cache['hit_rate'])} of prompts")
    return "; ".join(parts) or "-"


def _cost(summary: dict[str, Any]) -> str:
    found = summary.get("headline") or {}
    cost, energy = summary.get("cost"), summary["energy"]
    engines = [c for c in summary["clients"].values() if c.get("memory") or c["steps"]]
    wanted = not all(c.get("device") for c in engines)
    hint = ": give the device, --set clients.0.device=NAME" if wanted else ""
    if cost is None and energy is None:
        return f"no price and no power{hint}"
    if grows(found):
        return "no figure per token: the queue grows"
    if not summary["tokens"]["output"]:
        return "no figure per token: no output tokens"
    each = [FIGURES[f"headline.{key}"].dollars(short_number(found[key]), short=True) for key in (
        "per_million_answer_tokens_dollars", "per_million_output_tokens_dollars") if found.get(key) is not None]
    parts = [", ".join(each)] if cost is not None and each else []
    rate, joules = found.get("output_tokens_per_s"), found.get("per_output_token_j")
    each = [] if rate is None else [f"{short_number(rate)}{'' if parts else ' tokens'}/s"]
    each += [f"{short_number(joules)} J each"] if energy is not None and joules is not None else []
    parts += [f"({', '.join(each)})" if parts else ", ".join(each)] if each else []
    missing = [word for word, part in (("price", cost), ("power", energy)) if part is None]
    text = " ".join(parts)
    return text + (f", no {missing[0]}" + (" without a `device:`" if wanted else "") if missing else "")


def parts(summary: dict[str, Any], meta: dict[str, Any], *, verbose: bool = False) -> list[Part]:
    """Return the ten lines; with `verbose`, every table after them."""
    return [labelled(brief(summary, meta, verbose=verbose)), *(sections(summary, meta) if verbose else [])]


def html(summary: dict[str, Any], meta: dict[str, Any]) -> str:
    """Return the ten lines for a notebook, with everything else folded below."""
    rest = to_html(sections(summary, meta))
    return f"<div>{to_html(parts(summary, meta))}<details><summary>everything</summary>{rest}</details></div>"
