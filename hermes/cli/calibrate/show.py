"""Output of `hermes calibrate`: plans and measurements."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.ivf_overlap import Candidate, IvfOverlap
    from hermes.calibration.link import LinkFile, LinkPlan
    from hermes.calibration.measurements import IvfMeasurement
    from hermes.calibration.plan import Plan, PointPlan
    from hermes.calibration.retrieval_plan import RetrievalPlan
    from hermes.calibration.retrieval_steps import MeasuredSearches
    from hermes.calibration.session import Measured
    from hermes.calibration.steps import MeasuredSteps
    from hermes.hardware.links import LinkDescription
    from hermes.services.retrieval_profile import RetrievalProfile

__all__ = ["fitted_searches", "measure_ivf", "pack", "plan"]

AGAIN = "stopped by the budget: run the same command again to continue"


# -- plans -------------------------------------------------------------------------------------------------------------


def plan(made: PointPlan, written: Path | None, budget: float | None, as_json: bool) -> None:
    """Print the points of a plan, their memory and their time."""
    from hermes.calibration.link import LinkPlan
    from hermes.calibration.plan import Plan
    from hermes.calibration.retrieval_plan import RetrievalPlan
    from hermes.calibration.terms_plan import TermsPlan
    from hermes.cli.calibrate.show_terms import terms_plan

    if isinstance(made, TermsPlan):
        data = terms_plan(made, as_json)
    elif isinstance(made, LinkPlan):
        data = _link_plan(made, as_json)
    elif isinstance(made, RetrievalPlan):
        data = _retrieval_plan(made, as_json)
    else:
        assert isinstance(made, Plan)
        data = _llm_plan(made, as_json)
    if as_json:
        print_json(data)
        return
    if budget is not None and budget < made.estimate_s:
        print(f"the budget of {budget:g} s may cut it off; coarse points come first; run again to continue")
    if written is not None:
        print(f"written to {written}; there: python -m {made.collector} {written.name} JOURNAL.jsonl")


def _link_plan(made: LinkPlan, as_json: bool) -> dict[str, Any]:
    memory = made.host_bytes()
    if not as_json:
        print_table("", ["transfer", "repetitions", "estimate (s)"],
                    [[point["name"], point["repetitions"], point["estimate_s"]] for point in made.points])
        print(f"host memory {memory / 2**30:.1f} GiB" + (f"; a test file in {made.disk_dir}" if made.disk_dir else "")
              + f"; about {made.estimate_s:.0f} s")
    return {"points": made.points, "host_memory_bytes": memory, "disk_dir": made.disk_dir,
            "estimate_s": round(made.estimate_s, 1)}


def _retrieval_plan(made: RetrievalPlan, as_json: bool) -> dict[str, Any]:
    from hermes.calibration.retrieval_plan import memory_bytes

    memory = memory_bytes(made)
    if not as_json:
        groups: dict[str, list[dict[str, Any]]] = {}
        for point in made.points:
            groups.setdefault(f"{point['index']['name']} ({point['index']['library']})", []).append(point)
        print_table("", ["index", "points", "estimate (s)"], [
            [name, len(found), round(sum(p["estimate_s"] for p in found), 1)] for name, found in groups.items()])
        print(f"{len(made.points)} points, memory about {memory / 2**30:.1f} GiB, time about {made.estimate_s:.0f} s "
              "(rough; corrected while measuring)")
    return {"points": made.points, "memory_bytes": memory, "estimate_s": round(made.estimate_s, 1)}


def _llm_plan(made: Plan, as_json: bool) -> dict[str, Any]:
    levels = Counter(point.get("level", 0) for point in made.points)
    seconds: Counter[int] = Counter()
    for point in made.points:
        seconds[point.get("level", 0)] += point.get("estimate_s", 0.0)
    data: dict[str, Any] = {
        "engine": made.engine, "model": made.model.name, "device": made.device, "hardware": made.hardware,
        "dtype": made.dtype, "tensor_parallel": made.tensor_parallel, "points": len(made.points),
        "repetitions": made.repetitions, "warmup_s": made.warmup_s, "estimate_s": round(made.estimate_s, 1),
        "memory": {**made.memory.model_dump(), "total_bytes": made.memory.total_bytes} if made.memory else None,
        "levels": {level: {"points": count, "estimate_s": round(seconds[level], 1)} for level, count in levels.items()},
    }
    data["grid"] = [point["name"] for point in made.points]
    if as_json:
        return data
    print_table("", ["level", "point", "estimate (s)"],
                [[p.get("level", 0), p["name"], float(p.get("estimate_s", 0.0))] for p in made.points])
    print(f"{made.engine}, {made.model.name}, {made.dtype}, tp {made.tensor_parallel}, {made.device} "
          f"({made.hardware}): {len(made.points)} points, {made.repetitions} repetitions each")
    if made.memory:
        memory = made.memory
        parts = ", ".join(f"{what} {size / 2**30:.2f} GiB" for what, size in (
            ("weights", memory.weights_bytes), ("KV", memory.kv_bytes), ("activations", memory.activation_bytes)))
        of = f" of {memory.capacity_bytes / 2**30:.1f}" if memory.capacity_bytes else ""
        print(f"memory of the device: {parts}; {memory.total_bytes / 2**30:.2f}{of} GiB")
    print(f"time: about {made.estimate_s:.0f} s, {made.warmup_s:.0f} s of warm-up included (a roofline's estimate; "
          "corrected while measuring)")
    return data


# -- what was measured -------------------------------------------------------------------------------------------------


def pack(
    journal: Path, output: Path, clock: str | None, as_json: bool, *, measured: Measured | None = None,
    profile: Path | None = None,
) -> None:
    """Write the contents of a journal (steps, terms, searches, links) to `output`, and print them.

    Args:
        measured: The session that has just written the journal.
        profile: File for the cost model of searches.
    """
    from hermes.calibration.link import save_link
    from hermes.calibration.link_fit import link_file, of_tool
    from hermes.calibration.records import engine_of_journal
    from hermes.cli.calibrate import command_line
    from hermes.errors import InputError
    from hermes.hardware.links import LinkDescription
    from hermes.hardware.profile import dump_yaml

    if output.suffix not in (".yaml", ".yml"):
        raise InputError("a file name that ends in .yaml", str(output), field="output")
    command = command_line()
    links = of_tool(journal, output.stem, command)
    if isinstance(links, LinkDescription):
        dump_yaml(links, output, f"All-reduces. In a scenario or a device description: link: ./{output.name}")
        _show_interconnect(links, output, as_json)
        return
    engine = "link" if links is not None else engine_of_journal(journal)
    if engine in ("link", "retrieval") and clock is not None:
        raise InputError("no clock: it was chosen when measuring", clock, field="--clock")
    complete = measured is None or measured.complete
    if engine == "link":
        links = links or link_file(journal, output.stem, command)
        save_link(links, output)
        _show_links(links, output, complete, as_json)
    elif engine == "retrieval":
        from hermes.calibration.fit.retrieval import fit_retrieval
        from hermes.calibration.retrieval_steps import load_searches, pack_searches, save_searches
        from hermes.services.retrieval_profile import save_retrieval_profile

        save_searches(pack_searches(journal, output.stem, command), output)
        searches = load_searches(output)
        fitted = fit_retrieval(searches, (profile or output).stem, command)
        if profile is not None:
            save_retrieval_profile(fitted, profile)
        fitted_searches(searches, fitted, [output, profile], complete, as_json)
    elif engine == "terms":
        from hermes.calibration.terms import pack_terms, save_terms
        from hermes.cli.calibrate.show_terms import measured_terms

        terms = pack_terms(journal, output.stem, command, clock)
        save_terms(terms, output)
        measured_terms(terms, output, as_json, measured, AGAIN)
    else:
        from hermes.calibration.pack import pack as packed
        from hermes.calibration.steps import save_steps

        steps = packed(journal, clock=clock, command=command)
        save_steps(steps, output)
        _show_steps(steps, output, as_json, measured)


def _show_steps(
    steps: MeasuredSteps, output: Path, as_json: bool, measured: Measured | None
) -> None:
    options = steps.header.options
    usable = len(steps.usable())
    data: dict[str, Any] = {
        "steps": str(output), "rows": len(steps.rows), "usable": usable, "noise": options.get("noise"),
        "drift": options.get("drift"), "notes": steps.header.notes, "failed": steps.header.excluded,
    }
    if measured is not None:
        data |= {"points": measured.progress.points, "measured": measured.progress.done, "complete": measured.complete}
    if as_json:
        print_json(data)
        return
    if measured is not None:
        print(f"{measured.progress.done} of {measured.progress.points} points measured"
              + ("" if measured.complete else f"; {AGAIN}"))
    print(f"{len(steps.rows)} rows, {usable} usable")
    for what in ("noise", "drift"):
        if data[what]:
            print(f"{what}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in data[what].items()))
    for note in (*steps.header.notes, *steps.header.excluded):
        print(f"note: {note}")
    print(f"written to {output}")


def _show_interconnect(link: LinkDescription, output: Path, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(output), **link.model_dump(mode="json")})
        return
    print_table("", ["devices", "sizes", "largest (MiB)", "GB/s there"], [
        [times.ranks, len(times.bytes), times.bytes[-1] / 2**20,
         2 * (times.ranks - 1) / times.ranks * times.bytes[-1] / times.seconds[-1] / 1e9] for times in link.measured])
    print(f"written to {output}; in a scenario or a device description: link: ./{output.name}")


def _show_links(links: LinkFile, output: Path, complete: bool, as_json: bool) -> None:
    from hermes.calibration.link import network_lines
    from hermes.core.noise import tally

    if as_json:
        print_json({"file": str(output), "complete": complete, **links.model_dump(mode="json")})
        return
    rows = [
        [found.label(), "-" if found.latency is None else found.latency * 1e6, found.bandwidth / 1e9, len(found.sizes),
         *("-" if error is None else f"{100 * error:.1f}" for error in (found.mape, found.worst, found.held_out_mape)),
         tally(size.noise for size in found.sizes)] for found in links.links
    ]
    print_table("", ["link", "latency (us)", "GB/s", "sizes", "error %", "worst %", "held out %", "noise"], rows)
    for note in links.provenance.notes:
        print(f"note: {note}")
    if not complete:
        print(AGAIN)
    shown = next((found for found in links.links if found.path == "host_to_device"), links.links[0])
    print(f"in a scenario ({shown.label()}; the others stand at the head of the file):")
    print("\n".join(f"    {line}" for line in network_lines(shown)))
    print(f"written to {output}")


def fitted_searches(
    searches: MeasuredSearches, fitted: RetrievalProfile, written: list[Path | None], complete: bool, as_json: bool,
) -> None:
    """Print a cost model of searches, its errors, and the files written."""
    if as_json:
        print_json({"rows": len(searches.rows), "usable": len(searches.usable()), "complete": complete,
                    **fitted.model_dump(mode="json")})
        return
    rows = [
        [kind, model.library, model.points, 100 * model.error.mape, 100 * model.error.worst,
         "-" if model.error.unseen_index_mape is None else f"{100 * model.error.unseen_index_mape:.1f}", model.noise]
        for kind, model in fitted.models.items()
    ]
    print_table("held-out errors in percent", ["index", "library", "points", "mean", "worst", "unseen index", "noise"],
                rows)
    print_table("", ["index", "per", "ns", ""], [
        [kind, term.per, 1e9 * term.seconds, term.rate]
        for kind, model in fitted.models.items() for term in model.terms
    ])
    for kind, model in fitted.models.items():
        if model.corpus_exponent:
            found = model.corpus_exponent
            print(f"{kind}: time grows like vectors^{found.mean:.2f} (95% interval {found.low:.2f} to "
                  f"{found.high:.2f}, {found.pairs} settings)")
    print(f"{len(searches.rows)} rows, {len(searches.usable())} usable")
    for note in (*searches.header.excluded, *searches.header.notes):
        print(f"note: {note}")
    if not complete:
        print(AGAIN)
    for path in written:
        if path is not None:
            print(f"written to {path}")


# -- one index for lookahead retrieval ---------------------------------------------------------------------------------


def measure_ivf(asked: IvfMeasurement, base_dir: Path, output: Path, *, quiet: bool, as_json: bool) -> None:
    """Measure one index, write the file, print its tables. Raises `InputError` for data that does not fit."""
    from hermes.calibration.collect.ivf_overlap import generated, of_file
    from hermes.calibration.ivf_overlap import measure_overlap, save_overlap
    from hermes.errors import InputError, Verbatim

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    rewrites = base_dir / asked.rewrites_file if asked.rewrites_file else None
    if rewrites is not None and not rewrites.is_file():
        raise InputError("an existing file", str(rewrites), field="rewrites_file")
    try:
        data = of_file(rewrites) if rewrites else generated(asked.vectors, asked.dim, asked.queries, asked.seed)
        source = rewrites.name if rewrites else "generated clustered embeddings"
        found = measure_overlap(data, source, asked.nlist, threads=asked.threads, seed=asked.seed, speed=asked.speed,
                                say=say)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("embeddings that fit", Verbatim(str(error)), field="rewrites_file") from None
    except ImportError:
        raise InputError("faiss: pip install 'hermes-sim[retrieval]'", Verbatim("it is not installed")) from None
    if asked.speed:
        found = found.model_copy(update={"accelerator": _accelerator(asked.device, asked.seed)})
    save_overlap(found, output)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _show_overlap(found, output)


def _accelerator(device: Any, seed: int) -> dict[str, Any] | None:
    """Return the device's rates and its loop beside the simulated one; None without a device."""
    from hermes.calibration.collect.ivf_overlap_cuda import measure_device
    from hermes.calibration.engine_validation.lookahead import compared

    measured = measure_device(device, seed, 10)
    return None if measured is None else {**measured, "loop": compared(measured["loop"])}


def _show_overlap(found: IvfOverlap, output: Path) -> None:
    index = found.index
    print(f"{index['vectors']:,} vectors of {index['dim']} dimensions in {index['clusters']} clusters "
          f"({index['source']}); sigma of log sizes {found.size_sigma:.3f}; probed / mean size "
          + ", ".join(f"{ratio:.3f} at nprobe {p}" for p, ratio in found.probed_over_mean.items()))
    rows = [[m.rewrite, *(f"{100 * row[1]:.1f}" for row in m.overlap)] for m in found.measured]
    print_table(f"overlap in percent, nprobe {found.nprobes[1]}, by clusters prefetched",
                ["rewrite", *map(str, found.budgets)], rows)
    print_table("models fitted to one cell of each rewrite (two: spread fitted): points of error on the others",
                ["family", "shape", "spread", "mean", "worst", "at (prefetched, nprobe)", "noise there", "fitted"],
                [_candidate_row(c) for c in found.candidates])
    for scan in found.scans:
        print(f"scan, {scan['threads']} thread(s): {scan['mean'] / 1e9:.2f} GB/s (cv {scan['cv']:.1%}, "
              f"{scan['class']})")
    for merge in found.merges:
        print(f"best {merge['top_k']} of {merge['candidates']:,}: {1e6 * merge['mean']:,.0f} us "
              f"(cv {merge['cv']:.1%}, {merge['class']})")
    _show_accelerator(found.accelerator)
    print(f"written to {output}")


def _candidate_row(found: Candidate) -> list[Any]:
    worst = max((p for p in found.predictions if p.worst_error is not None), key=lambda p: p.worst_error or 0.0,
                default=None)
    return [
        found.family, " ".join(f"{k}={v:g}" for k, v in found.shape.items() if k != "spread") or "-",
        "fitted" if found.spread_fitted else f"{found.shape.get('spread', 0):g}", found.mean_error, found.worst_error,
        "-" if worst is None else f"{worst.rewrite} {worst.worst_cell}", "-" if worst is None else worst.worst_noise,
        f"{sum(p.strength is not None for p in found.predictions)} of {len(found.predictions)}",
    ]


def _show_accelerator(found: dict[str, Any] | None) -> None:
    if found is None:
        print("GPU: none at hand (or no torch that sees it), not measured")
        return
    loop = found["loop"]
    for name in ("copy", "scan"):
        print(f"{found['device']}, {name}: {found[name]['mean'] / 1e9:.2f} GB/s (cv {found[name]['cv']:.1%}, "
              f"{found[name]['class']})")
    print(f"loop: {1e3 * loop['loop_s']:.2f} ms measured, {1e3 * loop['simulated_s']:.2f} ms simulated "
          f"({loop['error']:+.1%}; generation {1e3 * loop['generate_s']:.2f}, copy {1e3 * loop['copy_s']:.2f}, scan "
          f"{1e3 * loop['scan_s']:.2f} ms)")
