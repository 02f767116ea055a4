"""`hermes explain`: the terms of a step with the source of each, or where the time of a request went."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer, Overrides, Plugins, Scenario
from hermes.cli.paths import of_run, scenario_of
from hermes.errors import InputError, Verbatim
from hermes.sums import float_sum
from hermes.units import counted

if TYPE_CHECKING:
    from hermes.results.layout import Part

__all__ = ["explain"]

ROUNDING_S = 1e-9
FIRST = "first request"   # comes after a replica is ready
STATISTICS = {"prefill_attn": "pairs of tokens in the attention of prompts",
              "decode_ctx": "cached tokens of all decodes"}
"""Statistics of a batch in words."""


def explain(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    decodes: Annotated[int, typer.Option(min=0, max=10**6, help="Sequences that decode.")] = 16,
    context: Annotated[int, typer.Option(min=1, max=10**9, help="Cached tokens of each of them.")] = 1000,
    prompt: Annotated[int, typer.Option(min=0, max=10**9, help="New tokens of a prompt in the same step.")] = 0,
    past: Annotated[int, typer.Option(min=0, max=10**9, help="Cached tokens of that prompt.")] = 0,
    adapters: Annotated[int | None, typer.Option(
        min=0, max=10**6, show_default=False, help="LoRA adapters of these sequences. Left out, as many as "
        "the workload has and a step may have.")] = None,
    request: Annotated[int | None, typer.Option(
        min=0, show_default=False, help="Simulate, and print where the time of this request went.")] = None,
    memory: Annotated[bool, typer.Option(
        "--memory", help="Print the sum of KV memory, term by term, with the engine's own words.")] = False,
    alternatives: Annotated[int | None, typer.Option(
        min=1, max=1000, show_default=False, metavar="K", help="With --request: print what the router's K best other "
        "choices would have given instead, each simulated.")] = None,
    plugins: Plugins = False,
) -> Answer:
    """Print how long a step takes on each kind of LLM client, by term, and where each term comes from.

    A hardware model fitted to whole steps has one term. Where replicas come and go, also how long a start takes, by
    phase, on a node without and with what an earlier start has left. With --request, print the time of a request by
    stage, queue and cause instead; with --alternatives, what it would have got from other clients; with --memory, the
    sum of each client's memory. With any of these SCENARIO may be the folder of a run.
    """
    if memory and (request, alternatives) != (None, None):
        raise InputError(Verbatim("goes with neither --request nor --alternatives; leave it out"), field="--memory")
    if memory or request is not None:
        with scenario_of(scenario, plugins=plugins) as file:
            if request is None:
                return _memory(file, overrides)
            if alternatives is not None:
                return _alternatives(file, overrides, request, alternatives)
            return _request(file, overrides, request)
    if alternatives is not None:
        raise InputError("the number of a request beside it", field="--request", suggestion="--request 0")
    if (resolved := of_run(scenario)) is not None:
        raise InputError(Verbatim(f"the folder of a run; name one of its requests (--request 0), or for the terms of a "
                                  f"step its scenario, {resolved}"), file=scenario)
    from hermes.clients.llm import LLMClient
    from hermes.errors import warn_all
    from hermes.hardware.fitted.monotone import Batch
    from hermes.hardware.info import hardware_info
    from hermes.results.layout import Section
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    if not decodes and not prompt:
        raise InputError("a step with at least one decode or one prompt token", 0, field="--decodes")
    stats = Batch(((prompt, past),) if prompt else (), (context,) * decodes).stats()
    seen: dict[int, dict[str, Any]] = {}
    loaded = load_scenario(scenario, overrides)
    built = build(loaded)
    warn_all(built.warnings)
    slots = {name: client.scheduler.options.max_loras or 0
             for client in loaded.clients if client.kind == "llm" for name in client.names}
    for client in built.clients:
        if isinstance(client, LLMClient):
            alone = client.hardware
            if id(alone) not in seen:
                _set_adapters(stats, slots[client.name], loaded.workload, adapters)
                seen[id(alone)] = {"client": client.name, "ranks": hardware_info(alone).dp, **_step(alone, stats)}
    what = " and ".join([
        *([f"{counted(decodes, 'decode')} with {counted(context, 'cached token')} each"] if decodes else []),
        *([f"a prompt of {counted(prompt, 'new token')} and {past:,} cached ones"] if prompt else [])])
    parts: list[Part] = [] if seen else ["no client of this scenario serves generations"]
    for step in seen.values():
        each = f", on each of {step['ranks']} ranks," if step["ranks"] > 1 else ""
        title = f"{step['client']}: a step of {what}{each} takes {step['step_s'] * 1e3:.4g} ms"
        if "range" in step:
            kind, low, high = step["class"], *(f"{end * 1e3:.3g}" for end in step["range"])
            title += f"; expected on the card: {low} to {high} ms ({kind})"
        parts.append(Section(title, ["term", "ms", "%", "class and range", "source"], [
            [row["term"], f"{row['seconds'] * 1e3:.4g}", f"{100 * row['seconds'] / step['step_s']:.1f}",
             _range_text(row), row["source"]] for row in step["terms"]], "\n".join(step["notes"])))
    starts = [_start_up(config, built.clients, loaded.source.base_dir)
              for config in loaded.clients if config.value_of("fleet") is not None]
    for start in starts:
        phases = [row for row in start["phases"] if row["phase"] != FIRST]
        cold, warm = (float_sum(row[key] for row in phases) for key in ("cold_s", "warm_s"))
        ends = [float_sum(row[key] * row["spread"][place][end] for row in phases)
                for place, key in enumerate(("cold_s", "warm_s")) for end in (0, 1)]
        colds, warms = (f" ({low:.3g} to {high:.3g})" if low < high else "" for low, high in (ends[:2], ends[2:]))
        ready = f"{cold:.3g} s{colds}" if cold == warm else (
            f"{cold:.3g} s{colds} on a cold node, {warm:.3g} s{warms} on a warm one")
        parts.append(Section(
            f"{start['client']}: a replica is ready after {ready}",
            ["phase", "cold s", "warm s", "source"],
            [[row["phase"], f"{row['cold_s']:.4g}", f"{row['warm_s']:.4g}", row["source"]] for row in start["phases"]],
            f"a spare takes requests {start['wake_s']:.3g} s after it is wanted" if "wake_s" in start else ""))
    return Answer([*seen.values(), *starts], parts)


def _memory(scenario: str, overrides: list[str]) -> Answer:
    """Return the terms of the memory of each group of LLM clients."""
    from hermes.deploy.start_log import memory_terms
    from hermes.results.layout import Section
    from hermes.scenario import load_scenario
    from hermes.scenario.starts import budgets

    data, parts = [], []
    for config, budget, longest, why in budgets(load_scenario(scenario, overrides)):
        rows = list(memory_terms(budget, longest))
        data.append({"client": config.name, "starts": why is None, "terms": [row._asdict() for row in rows]})
        parts.append(Section(
            f"{config.name}: {config.engine or config.scheduler.engine}, GiB of one device",
            ["term", "here", "range", "engine's words", "source"],
            [[row.name, row.text(row.here), row.range_text(), row.words, row.source] for row in rows], why or ""))
    return Answer(data, parts or ["no client of this scenario serves generations"])


def _start_up(config: Any, clients: list[Any], base_dir: Path) -> dict[str, Any]:
    """Return the phases of the start of a group's replicas."""
    from hermes.clients.start_up import engine_start
    from hermes.errors import inside
    from hermes.fleet.start_ups import PhaseRow

    first, probe = next(client for client in clients if client.name in config.names), config.fleet.probe
    waits = PhaseRow("probe", *(probe.period / 2 + probe.delay,) * 2,
                     f"half a period of {probe.period:g} s, and {probe.delay:g} s until routers know")
    engine, spares = partial(engine_start, config, first, base_dir), config.fleet.spares
    with inside(f"clients.{config.name}.fleet.start_up"):
        rows = list(config.fleet.start_up.rows(engine, waits))
    woken = {} if spares is None else {"wake_s": spares.waker(engine, 0).at(0.5)}
    return {"client": config.name, "phases": [row._asdict() for row in rows], **woken}


def _set_adapters(stats: Any, slots: int, workloads: Any, adapters: int | None) -> None:
    """Give the sequences of a step LoRA adapters: so many, or as many as there are and the client has slots for."""
    known = sum(workload.adapters.count for workload in workloads if workload.adapters is not None)
    number = min(slots, known) if adapters is None else adapters
    stats.lora_adapters = min(number, stats.decode_seqs + stats.prefill_seqs)
    stats.lora_tokens = stats.decode_seqs + stats.prefill_tokens if stats.lora_adapters else 0


def _alternatives(scenario: str, overrides: list[str], request: int, most: int) -> Answer:
    """Return what the clients that a router did not choose would have given a request."""
    import time
    from dataclasses import asdict

    from hermes.api import run_built
    from hermes.errors import inside
    from hermes.results.layout import Section
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build
    from hermes.scenario.other_choices import other_choices

    loaded = load_scenario(scenario, overrides)
    with inside("--request"):
        results, choices = other_choices(
            lambda decisions: run_built(loaded, build(loaded, decisions), time.perf_counter()), request, most)
    row = results.requests.iloc[request]
    parts: list[Part] = [
        f"request {request}: {row['prompt_tokens']:,} prompt and {row['output_tokens']:,} output tokens, came at "
        f"{row['arrival_s']:.6g} s"]
    for number, choice in enumerate(choices, 1):
        decision, figures = choice.decision, choice.decision.figures
        by = f"the router compares {next(iter(figures))}" if figures else "fewest requests first"
        rows = []
        for outcome in choice.outcomes:
            place = decision.among.index(outcome.client)
            cells = [f"{values[place]:.4g}" for values in figures.values()]
            mark = " (chosen)" if outcome is choice.outcomes[0] else ""
            times = [outcome.reason, ""] if outcome.reason else [f"{outcome.ttft_s * 1e3:.4g}",
                                                                 f"{outcome.e2e_s * 1e3:.4g}"]
            rows.append([
                outcome.client + mark, *cells, decision.waiting[place], decision.running[place],
                f"{outcome.cached_tokens:,}", f"{outcome.queue_s * 1e3:.4g}", *times,
                "" if mark else f"{outcome.others_ttft_s * 1e3:+.3g}"])
        parts.append(Section(
            f"decision {number} of {len(choices)} at {decision.time_ns / 1e9:.6g} s: {decision.stage}, among "
            f"{counted(len(decision.among), 'client')}, {by}",
            ["client", *figures, "waiting", "running", "cached", "queue ms", "TTFT ms", "E2E ms", "others ms"], rows))
    parts.append("waiting, running: requests there at that instant, as the router may not see it\n"
                 "others: change of the mean TTFT of all others, of one run: small ones are noise")
    return Answer({"request": request, "choices": [asdict(choice) | {
        "outcomes": [outcome._asdict() for outcome in choice.outcomes]} for choice in choices]}, parts)


def _request(scenario: str, overrides: list[str], request: int) -> Answer:
    """Return the parts of a request's time."""
    from hermes.api import simulate
    from hermes.errors import inside
    from hermes.results.layout import Section
    from hermes.results.request_times import request_times
    from hermes.scenario import load_scenario

    results = simulate(load_scenario(scenario, overrides), whole=True)
    with inside("--request"):
        parts = request_times(results, request)
    row = results.requests[results.requests["request"] == request].iloc[0]
    title = (f"request {request}: {row['prompt_tokens']:,} prompt and {row['output_tokens']:,} output tokens, "
             f"TTFT {row['ttft_s'] * 1e3:.4g} ms, E2E {row['e2e_s'] * 1e3:.4g} ms")
    data = {"request": request, "ttft_s": row["ttft_s"], "e2e_s": row["e2e_s"],
            "parts": [part._asdict() for part in parts]}
    return Answer(data, [Section(title, ["stage", "client", "part", "ms", "%", "steps", "cause"], [
        [part.stage, part.client, part.part, f"{part.seconds * 1e3:.4g}", f"{100 * part.seconds / row['e2e_s']:.1f}",
         part.steps or "", part.cause] for part in parts])])


def _notes(hardware: Any, stats: Any) -> list[str]:
    """Return what a step depends on in addition to its batch, and how far the tables reach."""
    from hermes.hardware.info import hardware_info

    out = []
    stages = hardware.stages_ns(stats) if hasattr(hardware, "stages_ns") else []
    if len(stages) > 1:
        out.append(f"{len(stages)} pipeline stages: one batch alone takes their sum; with {len(stages)} such batches "
                   f"in flight one ends every {max(stages) / 1e6:.4g} ms")
    ranks = hardware_info(hardware).dp
    if ranks > 1:   # as lockstep steps are priced, of ranks that all have this batch
        alone = int(hardware.lockstep_ns([stats] + [None] * (ranks - 1), 1)[0])
        out.append(f"{ranks} ranks step together: experts, dispatch and combine are of the tokens of all of them; with "
                   f"the other {ranks - 1} idle the step takes {alone / 1e6:.4g} ms")
    history = hardware.history() if hasattr(hardware, "history") else None
    if history is not None:
        if history.idle_ns:
            out.append(f"the first step of an idle engine: {history.idle_ns / 1e6:.3g} ms more")
        clocks = hardware.base.device.clocks
        if clocks is not None:
            out.append(f"steps with prompts: clocks sink as {clocks.free:.0%} to {clocks.full:.0%} of the peak "
                       f"arithmetic fill the last {clocks.over * 1e3:.3g} ms; products keep {clocks.sustained:.0%}")
    reach = hardware.ranges() if hasattr(hardware, "ranges") else {}
    if reach:
        out.append("the times rest on measurements of steps with up to "
                   + ", ".join(f"{last:,.0f} {STATISTICS.get(name, name)}" for name, last in reach.items())
                   + "; those of larger steps are extrapolated")
    return out


def _step(hardware: Any, stats: Any) -> dict[str, Any]:
    """Return the seconds of a step, and of its terms with their sources."""
    from hermes.hardware.fitted.adjusted import AdjustedModel
    from hermes.hardware.term_trust import WHOLE, described, in_total, trust_of
    from hermes.hardware.trust import NEAR

    total = hardware.step_ns(stats) / 1e9
    if isinstance(hardware, AdjustedModel):
        found, change = _step(hardware.base, stats), hardware.change
        text = (f"prompts times {change.prompts:g}, decodes times {change.decodes:g}, {change.fixed * 1e3:g} ms a "
                f"step, {change.per_seq * 1e3:g} ms a sequence")
        rest = {"term": "adjust", "seconds": total - found["step_s"], "source": text}
        return {**found, "step_s": total, "terms": [*found["terms"], rest]}
    if not hasattr(hardware, "terms_ns"):
        ranged = _ranged(total, trust_of(hardware)[WHOLE])
        return {"step_s": total, **ranged, "notes": getattr(hardware, "notes", []),
                "terms": [{"term": WHOLE, "seconds": total, "source": described(hardware), **ranged}]}
    sources, trust = hardware.sources_of(), trust_of(hardware)
    seconds = {name: ns / 1e9 for name, ns in hardware.terms_ns(stats).items()}
    texts = {name: sources.get(name, "") for name in seconds}
    rest = total - sum(seconds.values())
    if rest > ROUNDING_S:
        seconds["host"], texts["host"] = rest, "the engine's host, where the device does not hide it"
    rows = [{"term": name, "seconds": each, "source": texts[name], **_ranged(each, trust.get(name, NEAR))}
            for name, each in seconds.items()]
    whole = _ranged(total, in_total(seconds, trust))
    return {"step_s": total, **whole, "terms": rows, "notes": _notes(hardware, stats)}


def _ranged(seconds: float, trust: Any) -> dict[str, Any]:
    """Return the class of a time, and the seconds between which the true one is expected."""
    return {"class": trust.kind, "range": [seconds * trust.low, seconds * trust.high]}


def _range_text(row: dict[str, Any]) -> str:
    """Return class and range of a term in words, or ""."""
    if "range" not in row or not row["seconds"]:
        return ""
    low, high = (end / row["seconds"] * 100 - 100 for end in row["range"])
    return f"{row['class']}, {low:+.0f} to {high:+.0f}%"
