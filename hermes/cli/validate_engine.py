"""`hermes validate-engine`: calibrate, simulate and run a real engine on the same online workload."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.engine_validation.session import Options, Outcome
    from hermes.calibration.engine_validation.workload import OnlineRequest

__all__ = ["add_to"]

CLOCKS = {"both": ("cpu", "wall"), "cpu": ("cpu",), "wall": ("wall",)}


def add_to(app: typer.Typer) -> None:
    app.command("validate-engine")(validate_engine)


def validate_engine(
    python: Annotated[str, typer.Option(metavar="PATH", help="Interpreter that has the engine.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder that keeps everything.")],
    engine: Annotated[str, typer.Option(metavar="NAME", help="Engine to validate.")] = "vllm",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="A config.json [a small Llama].")] = None,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bf16, fp16 or fp32.")] = "bf16",
    tp: Annotated[int, typer.Option(min=1, max=1024, help="Tensor parallelism.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=4096, help="CPU threads of the engine.")] = 1,
    rate: Annotated[float, typer.Option(min=1e-6, max=1e6, help="Requests per second, Poisson.")] = 1.5,
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="Requests of a repetition.")] = 80,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Requests instead of drawn ones.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the workload.")] = 1,
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Accepted runs wanted per clock.")] = 3,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Runs per clock at most [twice the repetitions].")] = None,
    clock: Annotated[str, typer.Option(metavar="CLOCK", help="wall, cpu or both [both on a CPU].")] = "",
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Of the engine.")] = 512,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Of the engine.")] = 32,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 128,
    num_blocks: Annotated[int, typer.Option(min=1, help="KV blocks.")] = 1360,
    max_model_len: Annotated[int, typer.Option(min=1, help="Longest sequence.")] = 4096,
    warmup: Annotated[float, typer.Option(min=0, max=3600, metavar="SECONDS", help="Before measuring.")] = 20.0,
    steps: Annotated[
        Path | None, typer.Option(metavar="STEPS.yaml", help="Measured steps, instead of calibrating.")] = None,
    calibration_tokens: Annotated[
        int | None, typer.Option(min=64, help="Largest step calibrated [max-num-batched-tokens].")] = None,
    calibration_seqs: Annotated[
        int | None, typer.Option(min=1, help="Largest batch calibrated [max-num-seqs].")] = None,
    calibration_repetitions: Annotated[
        int, typer.Option(min=1, max=100, help="Measurements of every calibrated step.")] = 1,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="For the calibration; it keeps it.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a real engine, run it, and print our TTFT, TPOT and E2E beside the engine's.

    An interrupted validation continues when the same command is given again. Reports: report.md and report.json.
    """
    from hermes.calibration.engine_validation.session import Options
    from hermes.config.validation import validate

    options = validate(Options, {
        "engine": engine, "repetitions": repetitions, "max_attempts": max_attempts or 2 * repetitions,
        "warmup_s": warmup, "steps": str(steps.resolve()) if steps else "",
        "calibration_tokens": calibration_tokens or max_num_batched_tokens,
        "calibration_seqs": calibration_seqs or max_num_seqs, "calibration_repetitions": calibration_repetitions,
        "clocks": _clocks(clock, device),
        "requests": [request.model_dump() for request in _requests(workload, rate, requests, seed)],
        "settings": {
            "model": _model(model), "device": device, "dtype": dtype, "threads": threads, "tensor_parallel": tp,
            "max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": max_num_seqs, "block_size": block_size,
            "num_blocks": num_blocks, "max_model_len": max_model_len,
        },
    })
    outcome = _run(options, output, python, budget)
    _show(outcome, output, as_json)


def _clocks(clock: str, device: str) -> list[str]:
    from hermes.errors import InputError, suggest

    chosen = clock or ("both" if device == "cpu" else "wall")
    if chosen not in CLOCKS or (device != "cpu" and chosen != "wall"):
        names = list(CLOCKS) if device == "cpu" else ["wall"]
        raise InputError(f"one of {', '.join(names)}", chosen, field="--clock", suggestion=suggest(chosen, names))
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


def _requests(path: Path | None, rate: float, number: int, seed: int) -> list[OnlineRequest]:
    from hermes.calibration.engine_validation.workload import draw_requests, read_requests

    return read_requests(path) if path else draw_requests(rate, number, seed)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(options: Options, output: Path, python: str, budget: float | None) -> Outcome:
    from hermes.calibration.engine_validation.report import write_report
    from hermes.calibration.engine_validation.session import Session
    from hermes.cli.calibrate.llm import watched

    session = Session(options, output, python, _say)
    session.begin()
    with watched(quiet=False) as on_progress:
        session.calibrate(budget, shlex.join(["hermes", *sys.argv[1:]]), on_progress)
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
