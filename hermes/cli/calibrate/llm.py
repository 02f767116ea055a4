"""`hermes calibrate llm`, `plan` and `pack`: an LLM engine's step times."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.driver import Progress
    from hermes.calibration.plan import Plan
    from hermes.calibration.steps import MeasuredSteps

__all__ = ["add_to", "watched"]

Engine = Annotated[str, typer.Option(metavar="NAME", help="torch or vllm.")]
Model = Annotated[str, typer.Option(metavar="MODEL", help="A shipped model, or the path of a config.json.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")]
Hardware = Annotated[
    str | None, typer.Option(metavar="NAME", help="Device description the estimates use [cpu-core, h100-sxm].")]
Dtype = Annotated[str | None, typer.Option(metavar="DTYPE", help="Precision [bf16 on a GPU, fp32 on a CPU].")]
Tp = Annotated[int, typer.Option(metavar="N", help="Tensor parallelism; one rank's shard is measured.")]
Clock = Annotated[str | None, typer.Option(metavar="CLOCK", help="On a CPU: wall or cpu [wall].")]
Repetitions = Annotated[int, typer.Option(min=1, max=1000, help="Measurements of every step.")]
Warmup = Annotated[float, typer.Option(min=0, max=3600, metavar="SECONDS", help="Work before the first measurement.")]
Tokens = Annotated[int, typer.Option(min=1, help="Most tokens of a step.")]
Seqs = Annotated[int, typer.Option(min=1, help="Most sequences of a step.")]
Context = Annotated[int, typer.Option(min=1, help="Longest sequence.")]
Threads = Annotated[int, typer.Option(min=1, max=4096, help="CPU threads of the engine.")]
Points = Annotated[int | None, typer.Option(min=1, max=100_000, help="Most points of the grid.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the random batches.")]
StepsFile = Annotated[
    Path, typer.Option("-o", "--output", metavar="STEPS.yaml", help="Steps; plan and journal are kept beside it.")]
JournalFile = Annotated[Path, typer.Argument(metavar="JOURNAL", help="What a collector wrote.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    app.command()(llm)
    app.command()(plan)
    app.command()(pack)


def _plan(engine: str, model: str, device: str, **options: Any) -> Plan:
    from hermes.calibration.engines import planner
    from hermes.calibration.plan import request_for

    made: Plan = planner(engine).plan(request_for(model, device, **options))
    return made


def llm(
    model: Model, engine: Engine = "torch", device: Device = "cpu", hardware: Hardware = None, dtype: Dtype = None,
    tp: Tp = 1, clock: Clock = None, repetitions: Repetitions = 5, warmup: Warmup = 20.0,
    max_num_batched_tokens: Tokens = 2048, max_num_seqs: Seqs = 256, max_context: Context = 8192,
    threads: Threads = 1, points: Points = None, seed: Seed = 0,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has the engine [this one].")] = None,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Stop in time; run again to continue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print grid, memory and time; measure nothing.")] = False,
    output: StepsFile = Path("steps.yaml"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Measure an engine's step times over a grid of batches. An interrupted run continues when started again."""
    from hermes.calibration.driver import collect
    from hermes.calibration.pack import pack as packed
    from hermes.calibration.plan import save_plan
    from hermes.calibration.steps import save_steps

    made = _plan(
        engine, model, device, hardware=hardware, dtype=dtype, tensor_parallel=tp, clock=clock,
        repetitions=repetitions, warmup_s=warmup, max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs, max_context=max_context, threads=threads, points=points, seed=seed,
    )
    if dry_run:
        _show_plan(made, budget, as_json)
        return
    plan_file, journal = output.with_suffix(".plan.json"), output.with_suffix(".journal.jsonl")
    save_plan(made, plan_file)
    with watched(quiet) as on_progress:
        progress, complete = collect(
            made, plan_file, journal, python=python, budget_s=budget, on_progress=on_progress)
    steps = packed(journal, command=_command())
    save_steps(steps, output)
    _show_steps(steps, output, as_json, progress, complete)


def plan(
    model: Model, output: Annotated[Path, typer.Option("-o", "--output", metavar="PLAN.json", help="The plan.")],
    engine: Engine = "torch", device: Device = "cpu", hardware: Hardware = None, dtype: Dtype = None,
    tp: Tp = 1, clock: Clock = None, repetitions: Repetitions = 5, warmup: Warmup = 20.0,
    max_num_batched_tokens: Tokens = 2048, max_num_seqs: Seqs = 256, max_context: Context = 8192,
    threads: Threads = 1, points: Points = None, seed: Seed = 0, as_json: Json = False,
) -> None:
    """Write a plan for another machine: there, `python -m COLLECTOR PLAN JOURNAL`; here again, `pack JOURNAL`."""
    from hermes.calibration.plan import save_plan

    made = _plan(
        engine, model, device, hardware=hardware, dtype=dtype, tensor_parallel=tp, clock=clock,
        repetitions=repetitions, warmup_s=warmup, max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs, max_context=max_context, threads=threads, points=points, seed=seed,
    )
    save_plan(made, output)
    _show_plan(made, None, as_json)
    if not as_json:
        print(f"written to {output}; there: python -m {made.collector} {output.name} JOURNAL.jsonl")


def pack(
    journal: JournalFile, output: StepsFile = Path("steps.yaml"),
    clock: Annotated[str | None, typer.Option(metavar="CLOCK", help="wall or cpu: what time_s holds.")] = None,
    as_json: Json = False,
) -> None:
    """Turn a collector's journal, complete or cut off, into measured steps."""
    from hermes.calibration.pack import pack as packed
    from hermes.calibration.steps import save_steps

    steps = packed(journal, clock=clock, command=_command())
    save_steps(steps, output)
    _show_steps(steps, output, as_json)


def _command() -> str:
    """The command line, for the provenance; of absolute paths the last part, since the rest is this machine's."""
    return shlex.join(["hermes", *(Path(part).name if Path(part).is_absolute() else part for part in sys.argv[1:])])


@contextmanager
def watched(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Something to call with the progress of a collector: a bar on a terminal, now and then a line elsewhere."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from hermes.results.progress import ProgressBar

        with ProgressBar("starting", transient=False) as bar:
            yield lambda now: bar.update(now.done, now.points, f"{now.last[:48] or 'warming up'}; {_left(now)}")
    else:
        shown = -1

        def line(now: Progress) -> None:
            nonlocal shown
            if now.done * 10 // now.points > shown:
                shown = now.done * 10 // now.points
                print(f"{now.done}/{now.points} points, {_left(now)}", file=sys.stderr, flush=True)

        yield line


def _left(progress: Progress) -> str:
    classes = ", ".join(f"{count} {name}" for name, count in progress.classes.most_common())
    return f"{progress.left_s:.0f} s left" + (f"; {classes}" if classes else "")


def _show_plan(plan: Plan, budget: float | None, as_json: bool) -> None:
    levels = Counter(point.get("level", 0) for point in plan.points)
    seconds: Counter[int] = Counter()
    for point in plan.points:
        seconds[point.get("level", 0)] += point.get("estimate_s", 0.0)
    data = {
        "engine": plan.engine, "model": plan.model.name, "device": plan.device, "hardware": plan.hardware,
        "dtype": plan.dtype, "tensor_parallel": plan.tensor_parallel, "points": len(plan.points),
        "repetitions": plan.repetitions, "warmup_s": plan.warmup_s, "estimate_s": round(plan.estimate_s, 1),
        "memory": {**plan.memory.model_dump(), "total_bytes": plan.memory.total_bytes} if plan.memory else None,
        "levels": {level: {"points": count, "estimate_s": round(seconds[level], 1)} for level, count in levels.items()},
    }
    if as_json:
        print_json({**data, "grid": [point["name"] for point in plan.points]})
        return
    print_table("", ["level", "point", "estimate (s)"],
                [[p.get("level", 0), p["name"], float(p.get("estimate_s", 0.0))] for p in plan.points])
    print(f"{plan.engine}, {plan.model.name}, {plan.dtype}, tp {plan.tensor_parallel}, {plan.device} "
          f"({plan.hardware}): {len(plan.points)} points, {plan.repetitions} repetitions each")
    if plan.memory:
        memory = plan.memory
        parts = ", ".join(f"{what} {size / 2**30:.2f} GiB" for what, size in (
            ("weights", memory.weights_bytes), ("KV", memory.kv_bytes), ("activations", memory.activation_bytes)))
        of = f" of {memory.capacity_bytes / 2**30:.1f}" if memory.capacity_bytes else ""
        print(f"memory of the device: {parts}; {memory.total_bytes / 2**30:.2f}{of} GiB")
    print(f"time: about {plan.estimate_s:.0f} s, {plan.warmup_s:.0f} s of warm-up included (a roofline's estimate; "
          "corrected while measuring)")
    if budget is not None and budget < plan.estimate_s:
        print(f"the budget of {budget:g} s will cut the grid off; coarse points come first")


def _show_steps(
    steps: MeasuredSteps, output: Path, as_json: bool, progress: Progress | None = None, complete: bool = True,
) -> None:
    options = steps.header.options
    usable = len(steps.usable())
    data: dict[str, Any] = {
        "steps": str(output), "rows": len(steps.rows), "usable": usable, "noise": options.get("noise"),
        "drift": options.get("drift"), "notes": steps.header.notes, "failed": steps.header.excluded,
    }
    if progress is not None:
        data |= {"points": progress.points, "measured": progress.done, "complete": complete}
    if as_json:
        print_json(data)
        return
    if progress is not None:
        print(f"{progress.done} of {progress.points} points measured" + ("" if complete else
              "; stopped by the budget, run the same command again to continue"))
    print(f"{len(steps.rows)} rows, {usable} usable")
    for what in ("noise", "drift"):
        if data[what]:
            print(f"{what}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in data[what].items()))
    for note in (*steps.header.notes, *steps.header.excluded):
        print(f"note: {note}")
    print(f"written to {output}")
