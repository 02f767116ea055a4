"""`hermes calibrate retrieval`: search times of vector and word indices, and the cost model fitted to them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.calibrate.llm import watched
from hermes.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.points import PointPlan
    from hermes.calibration.retrieval_steps import MeasuredSearches
    from hermes.services.retrieval_profile import RetrievalProfile

__all__ = ["add_to"]


def _numbers(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text)


def add_to(app: typer.Typer) -> None:
    app.command()(retrieval)


def retrieval(
    index: Annotated[
        list[str], typer.Option(help="ivf-flat, ivf-pq, ivf-pq-fs (4-bit codes), hnsw, bm25; may be given often "
                                "[all but ivf-pq-fs].")] = [],  # noqa: B006  (typer copies it)
    vectors: Annotated[list[int], _numbers("N", "Vectors or documents; may be given often [50000, 200000].")] = [],  # noqa: B006
    dim: Annotated[list[int], _numbers("D", "Dimensions; may be given often [128, 768].")] = [],  # noqa: B006
    vectors_file: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Embeddings to use, float, shape (rows, dim).")] = None,
    texts_file: Annotated[
        Path | None, typer.Option(metavar="FILE.txt", help="Documents for BM25, one a line.")] = None,
    nlist: Annotated[list[int], _numbers("L", "IVF: lists [about sqrt(N) and 4 sqrt(N)].")] = [],  # noqa: B006
    pq_m: Annotated[list[int], _numbers("M", "IVF-PQ: subquantisers [dim / 8].")] = [],  # noqa: B006
    nprobe: Annotated[list[int], _numbers("P", "IVF: lists probed [1, 4, 16, 64].")] = [],  # noqa: B006
    hnsw_m: Annotated[list[int], _numbers("M", "HNSW: links per vector [16, 32].")] = [],  # noqa: B006
    ef_construction: Annotated[int, _numbers("EF", "HNSW: candidates while building.")] = 100,
    ef_search: Annotated[list[int], _numbers("EF", "HNSW: candidates while searching [16, 64, 256].")] = [],  # noqa: B006
    query_tokens: Annotated[list[int], _numbers("W", "BM25: words of a query [2, 8, 32].")] = [],  # noqa: B006
    batch: Annotated[list[int], _numbers("B", "Queries of a call; may be given often [1, 8, 64].")] = [],  # noqa: B006
    threads: Annotated[list[int], _numbers("T", "Threads; may be given often [1].")] = [],  # noqa: B006
    top_k: Annotated[int, _numbers("K", "Neighbours asked for.")] = 10,
    repetitions: Annotated[int, typer.Option(min=2, max=1000, help="Measurements of every point.")] = 5,
    queries: Annotated[int, typer.Option(min=1, help="Different queries.")] = 512,
    build_threads: Annotated[int, typer.Option(min=1, help="Threads that build (hnswlib always one).")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated data.")] = 0,
    clock: Annotated[
        str, typer.Option(metavar="CLOCK", help="wall, or cpu: CPU time of searches with one thread.")] = "wall",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the profile [that of its file].")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the libraries [this one].")] = None,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Stop in time; run again to continue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print grid, memory and time; measure nothing.")] = False,
    from_steps: Annotated[
        Path | None, typer.Option(metavar="STEPS.yaml", help="Fit these searches instead of measuring.")] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="STEPS.yaml",
                           help="Measured searches; plan and journal are kept beside it.")] = Path("retrieval.yaml"),
    profile: Annotated[
        Path | None, typer.Option(metavar="PROFILE.yaml", help="Write the fitted cost model here.")] = None,
    ivf: Annotated[bool, typer.Option(
        "--ivf", help="Measure one index for lookahead retrieval instead: sizes, overlap of rewritten queries, scans. "
        "Uses --vectors, --dim, --nlist, --queries, --seed, --threads, -o.")] = False,
    rewrites_file: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="With --ivf: vectors, queries and rewrites to use.")] = None,
    speed: Annotated[bool, typer.Option(help="With --ivf: time scans and merges too.")] = True,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="With --ivf: cuda, measured where torch sees a GPU; cpu tries out the "
                          "collector without one.")] = "cuda",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Measure searches (IVF, HNSW, BM25) and fit what they cost. An interrupted run continues when started again."""
    from hermes.calibration.fit.retrieval import fit_retrieval
    from hermes.calibration.points import PointPlan, measure
    from hermes.calibration.retrieval_plan import Grid, retrieval_plan
    from hermes.calibration.retrieval_steps import load_searches, pack_searches, save_searches
    from hermes.services.retrieval_profile import save_retrieval_profile

    if ivf or rewrites_file is not None:
        from hermes.cli.calibrate.ivf import measure_ivf

        measure_ivf(
            _existing(rewrites_file, "--rewrites-file"), (vectors or [2_000_000])[0], (dim or [64])[0],
            (nlist or [4096])[0], queries=queries, threads=(threads or [1])[0], seed=seed, speed=speed, device=device,
            output=output, quiet=quiet, as_json=as_json,
        )
        return
    complete = True
    if from_steps is None:
        given = {
            "kinds": index, "vectors": vectors, "dims": dim, "nlists": nlist, "pq_m": pq_m, "nprobes": nprobe,
            "hnsw_m": hnsw_m, "ef_searches": ef_search, "query_tokens": query_tokens, "batches": batch,
            "threads": threads,
        }
        plan = PointPlan(retrieval_plan(Grid(
            **{key: tuple(values) for key, values in given.items() if values},  # type: ignore[arg-type]
            ef_construction=ef_construction, top_k=top_k, repetitions=repetitions, queries=queries, seed=seed,
            build_threads=build_threads, clock=clock, vectors_file=_existing(vectors_file, "--vectors-file"),
            texts_file=_existing(texts_file, "--texts-file"), libraries=_libraries(python),
        )))
        if dry_run:
            _show_plan(plan, budget, as_json)
            return
        with watched(quiet) as on_progress:
            journal, _, complete = measure(plan, output, python=python, budget_s=budget, on_progress=on_progress)
        searches = pack_searches(journal, output.stem, _command())
        save_searches(searches, output)
    searches = load_searches(from_steps or output)
    fitted = fit_retrieval(searches, name or (profile or from_steps or output).stem, _command())
    if profile is not None:
        save_retrieval_profile(fitted, profile)
    _show(searches, fitted, None if from_steps else output, profile, complete, as_json)


def _command() -> str:
    return shlex.join(["hermes", *sys.argv[1:]])


def _existing(path: Path | None, option: str) -> str:
    from hermes.errors import InputError

    if path is not None and not path.is_file():
        raise InputError("an existing file", str(path), field=option)
    return str(path.resolve()) if path is not None else ""


def _libraries(python: str | None) -> tuple[str, ...]:
    """Those of the libraries that the interpreter finds, without importing them."""
    from hermes.errors import InputError, Verbatim

    code = ("import importlib.util as u, json;"
            "print(json.dumps([n for n in ('faiss', 'hnswlib', 'bm25s') if u.find_spec(n)]))")
    try:
        done = subprocess.run([python or sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return tuple(json.loads(done.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise InputError("a Python interpreter", Verbatim(f"{python} ({error})"), field="--python") from None


def _show_plan(plan: PointPlan, budget: float | None, as_json: bool) -> None:
    from hermes.calibration.retrieval_plan import memory_bytes

    memory = memory_bytes(plan.content)
    if as_json:
        print_json({"points": plan.points, "memory_bytes": memory, "estimate_s": round(plan.estimate_s, 1)})
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for point in plan.points:
        groups.setdefault(f"{point['index']['name']} ({point['index']['library']})", []).append(point)
    print_table("", ["index", "points", "estimate (s)"],
                [[name, len(found), round(sum(p["estimate_s"] for p in found), 1)] for name, found in groups.items()])
    print(f"{len(plan.points)} points, memory about {memory / 2**30:.1f} GiB, time about {plan.estimate_s:.0f} s "
          "(rough; corrected while measuring)")
    if budget is not None and budget < plan.estimate_s:
        print(f"the budget of {budget:g} s may cut it off; run the same command again to continue")


def _show(
    searches: MeasuredSearches, fitted: RetrievalProfile, steps: Path | None, profile: Path | None, complete: bool,
    as_json: bool,
) -> None:
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
        print("stopped by the budget: run the same command again to continue")
    for path in (steps, profile):
        if path is not None:
            print(f"written to {path}")
