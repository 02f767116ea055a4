"""`hermes validate-engine`: calibrate, simulate and run a real engine on the same online workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.engine_validation.session import Options, Outcome
    from hermes.calibration.engine_validation.workload import OnlineRequest
    from hermes.calibration.measurements import ValidationMeasurement

__all__ = ["add_to"]

CLOCKS = {"both": ("cpu", "wall"), "cpu": ("cpu",), "wall": ("wall",)}


def add_to(app: typer.Typer) -> None:
    app.command("validate-engine")(validate_engine)


def validate_engine(
    python: Annotated[str, typer.Option(metavar="PATH", help="Python interpreter of the engine.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of measurements and reports.")],
    plan: Annotated[Path | None, typer.Argument(
        metavar="[PLAN.yaml]", help="Plan of `hermes calibrate plan validation` [defaults].")] = None,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the plan; repeatable.")] = [],  # noqa: B006
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Time limit of the calibration.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a real engine, run it, and compare TTFT, TPOT and E2E.

    Give the same command again to continue an interrupted validation. Reports: report.md and report.json.
    """
    from hermes.calibration.engine_validation.session import Options
    from hermes.calibration.measurements import load_validation
    from hermes.config.validation import validate

    asked, folder = load_validation(plan, overrides), plan.parent if plan is not None else Path()
    settings = (
        "device", "dtype", "threads", "tensor_parallel", "max_num_batched_tokens", "max_num_seqs", "block_size",
        "num_blocks", "max_model_len")
    options = validate(Options, {
        "engine": asked.engine, "repetitions": asked.repetitions,
        "max_attempts": asked.max_attempts or 2 * asked.repetitions, "warmup_s": asked.warmup_s,
        "steps": str((folder / asked.steps).resolve()) if asked.steps else "",
        "calibration_tokens": asked.calibration_tokens or asked.max_num_batched_tokens,
        "calibration_seqs": asked.calibration_seqs or asked.max_num_seqs,
        "calibration_repetitions": asked.calibration_repetitions, "clocks": _clocks(asked.clock, asked.device),
        "requests": [request.model_dump() for request in _requests(asked, folder)],
        "settings": {"model": _model(folder / asked.model if asked.model else None),
                     **{name: getattr(asked, name) for name in settings}},
    })
    outcome = _run(options, output, python, budget)
    _show(outcome, output, as_json)


def _clocks(clock: str | None, device: str) -> list[str]:
    from hermes.errors import InputError

    chosen = clock or ("both" if device == "cpu" else "wall")
    if device != "cpu" and chosen != "wall":
        raise InputError("wall", chosen, field="clock")
    return list(CLOCKS[chosen])


def _model(path: Path | None) -> dict[str, object]:
    from hermes.calibration import engine_validation
    from hermes.errors import InputError
    from hermes.hardware.files import read_json

    file = path or Path(engine_validation.__file__).with_name("small-llama.json")
    content = read_json(file)
    if not isinstance(content, dict) or "vocab_size" not in content:
        raise InputError("a model's config.json with vocab_size", file=str(file))
    return content


def _requests(asked: ValidationMeasurement, folder: Path) -> list[OnlineRequest]:
    from hermes.calibration.engine_validation.workload import draw_requests, read_requests

    if asked.workload:
        return read_requests(folder / asked.workload)
    return draw_requests(asked.rate, asked.requests, asked.seed)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(options: Options, output: Path, python: str, budget: float | None) -> Outcome:
    from hermes.calibration.engine_validation.report import write_report
    from hermes.calibration.engine_validation.session import Session
    from hermes.cli.calibrate import command_line, watched

    session = Session(options, output, python, _say)
    session.begin()
    with watched(quiet=False) as on_progress:
        session.calibrate(budget, command_line(), on_progress)
    outcome = session.outcome()
    for _ in session.attempts():
        outcome = session.outcome()
        write_report(outcome, output)
    write_report(outcome, output)
    return outcome


def _show(outcome: Outcome, output: Path, as_json: bool) -> None:
    from hermes.calibration.engine_validation.report import to_dict

    if as_json:
        print_json(to_dict(outcome))
        return
    for clock in outcome.clocks:
        rows = [
            [f"{row.metric} {row.stat}", round(row.ours_s * 1e3, 2), round(row.engine_s * 1e3, 2), f"{row.error:+.1%}",
             f"{row.noise.cv:.1%}", row.noise.verdict]
            for row in clock.rows
        ]
        print_table(f"{clock.clock} clock: {len(clock.accepted)} of {len(clock.attempts)} attempts accepted",
                    ["", "ours ms", "engine ms", "error", "CV", "noise"], rows)
        for note in clock.notes:
            print(f"note: {note}")
    print(f"written to {output / 'report.md'}")
