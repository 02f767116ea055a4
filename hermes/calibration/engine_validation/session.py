"""A validation from beginning to end, in a folder that keeps all files, so that an interrupted one continues.

    options.json                the options
    steps-CLOCK.yaml, .parquet  measured steps (and steps.journal.jsonl, steps.plan.json if they were collected here)
    profile-CLOCK.yaml          the profile fitted to them
    workload-CLOCK.json         the engine's workload
    attempt-CLOCK-N.json, .log  the engine's result, every attempt
    report.md, report.json      written anew after every attempt
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hermes.calibration.comparison import LatencyError, compare_latencies
from hermes.calibration.engine_validation.attempts import Attempt, next_number, read_attempts
from hermes.calibration.engine_validation.engines import engine_named, run_online
from hermes.calibration.engine_validation.prediction import Prediction, predict
from hermes.calibration.engine_validation.profiles import collected_steps, fit_profile, given_steps, reference_s
from hermes.calibration.engine_validation.result import METRICS, Times
from hermes.calibration.engine_validation.workload import Clock, EngineSettings, OnlineRequest, OnlineWorkload
from hermes.calibration.engines import planner
from hermes.calibration.plan import request_for
from hermes.calibration.session import Progress, journal_of, measure
from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.errors import InputError, Verbatim
from hermes.hardware.files import read_json

__all__ = ["ClockOutcome", "Options", "Outcome", "Session", "compared"]

Say = Callable[[str], None]


class Options(ConfigModel):
    """Options of a validation. Other options need another folder, but repetitions can be added."""

    engine: str
    settings: EngineSettings
    requests: list[OnlineRequest]
    clocks: list[Clock]
    repetitions: Annotated[int, Field(ge=1, le=100)] = 3
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 6
    """Attempts per clock to get `repetitions` that the machine did not spoil."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    steps: str = ""
    """Measured steps to use; collected if left out."""
    calibration_tokens: Annotated[int, Field(ge=64)] = 512
    """Most tokens of a calibrated step."""
    calibration_seqs: Annotated[int, Field(ge=1)] = 32
    """Most sequences of a calibrated step."""
    calibration_repetitions: Annotated[int, Field(ge=1, le=100)] = 1
    hardware: str | None = None
    """Device description for the calibration's time estimates."""


@dataclass
class ClockOutcome:
    """Results on one clock."""

    clock: str
    prediction: Prediction
    attempts: list[Attempt]
    rows: list[LatencyError] = field(default_factory=list)
    """Simulated latencies compared with the accepted attempts; with all that have a result if none was accepted."""
    notes: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.accepted]


@dataclass
class Outcome:
    """Results of a validation so far."""

    options: Options
    workload: OnlineWorkload
    profiles: dict[str, Path]
    expected_reference_s: float | None
    clocks: list[ClockOutcome]
    problems: list[str] = field(default_factory=list)


class Session:
    """The validation of one folder. `say` receives lines for a person to read."""

    def __init__(self, options: Options, folder: Path, python: str, say: Say = lambda line: None) -> None:
        self.options, self.folder, self.python, self.say = options, folder, python, say
        self.engine = engine_named(options.engine)
        self.on_cpu = options.settings.device == "cpu"
        self.workloads: dict[str, OnlineWorkload] = {
            clock: validate(OnlineWorkload, {
                "clock": clock, "warmup_s": options.warmup_s, "engine": options.settings.model_dump(),
                "requests": [request.model_dump() for request in options.requests],
            })
            for clock in options.clocks
        }
        self._notes: dict[str, list[str]] = {clock: [] for clock in options.clocks}
        self._predictions: dict[str, Prediction] = {}

    # -- steps and profiles -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the folder, or check that it was begun with the same options. Raises `InputError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = self.options.model_dump(mode="json", exclude={"repetitions", "max_attempts"})
        path = self.folder / "options.json"
        if path.is_file():
            begun = read_json(path)
            other = [name for name in content if not isinstance(begun, dict) or begun.get(name) != content[name]]
            if other:
                raise InputError("the options this folder was begun with, or a new folder",
                                 Verbatim(f"another {', '.join(other)}"), file=str(path))
        write_text(path, json.dumps(content, indent=1) + "\n")
        for clock, workload in self.workloads.items():
            write_text(self.folder / f"workload-{clock}.json", workload.text())

    @property
    def journal(self) -> Path | None:
        """Return the calibration's journal, if steps were collected here."""
        return None if self.options.steps else journal_of(self.folder / "steps.yaml")

    def calibrate(self, budget_s: float | None, command: str,
                  on_progress: Callable[[Progress], None] | None = None) -> None:
        """Collect steps, or take the given ones; write one set per clock."""
        if self.journal is None:
            for clock in self.workloads:
                note = given_steps(Path(self.options.steps), clock, self._steps(clock))
                self._notes[clock] += [note] if note else []
            return
        if not all(self._steps(clock).is_file() for clock in self.workloads):
            self._collect(budget_s, on_progress)
        for clock in self.workloads:
            if not self._steps(clock).is_file():
                collected_steps(self.journal, clock, self._steps(clock), command, on_cpu=self.on_cpu)

    def _collect(self, budget_s: float | None, on_progress: Callable[[Progress], None] | None) -> None:
        options, settings = self.options, self.options.settings
        config = self.folder / model_name(settings.model) / "config.json"   # a description is named after its folder
        write_text(config, json.dumps(settings.model, indent=1) + "\n")
        request = request_for(
            str(config), settings.device, options.hardware, settings.dtype, "cpu" if self.on_cpu else None,
            tensor_parallel=settings.tensor_parallel, repetitions=options.calibration_repetitions,
            warmup_s=options.warmup_s, max_num_batched_tokens=options.calibration_tokens,
            max_num_seqs=options.calibration_seqs, max_context=settings.max_model_len, threads=settings.threads,
            seed=settings.seed,
        )
        plan = planner(options.engine).plan(request)
        self.say(f"calibrating: {len(plan.points)} points, about {plan.estimate_s:.0f} s")
        done = measure(plan, self.folder / "steps.yaml", python=self.python, budget_s=budget_s, on_progress=on_progress)
        if not done.complete:
            self.say("calibration stopped by its budget; what it has is used")

    def _steps(self, clock: str) -> Path:
        return self.folder / f"steps-{clock}.yaml"

    def profile(self, clock: str) -> Path:
        """Return the profile fitted to a clock's steps; fits it on first use."""
        path = self.folder / f"profile-{clock}.yaml"
        if not path.is_file():
            self.say(f"fitting {self._steps(clock).name}")
            fit_profile(self._steps(clock), path)
        return path

    # -- attempts ---------------------------------------------------------------------------------------------------

    def attempts(self) -> Iterator[tuple[str, int]]:
        """Run attempts, the clocks in turn, until each has its repetitions or used up its attempts.

        Yields (clock, number) after each, so that a report can be written.
        """
        expected = self.expected_reference_s()
        more = True
        while more:
            more = False
            for clock, workload in self.workloads.items():
                number = next_number(self.folder, clock)
                done = read_attempts(self.folder, clock, workload, expected)
                if sum(a.accepted for a in done) >= self.options.repetitions or number > self.options.max_attempts:
                    continue
                more = True
                self._attempt(clock, number)
                yield clock, number

    def _attempt(self, clock: str, number: int) -> None:
        name = f"attempt-{clock}-{number}"
        self.say(f"{name}: serving {len(self.options.requests)} requests with the real engine")
        failure = run_online(self.engine, self.python, self.folder / f"workload-{clock}.json",
                             self.folder / f"{name}.json", self.folder / f"{name}.log")
        if failure:
            self.say(f"{name} failed: {failure}")
            if number == 1:
                raise InputError("an engine that serves the workload", Verbatim(failure),
                                 file=str(self.folder / f"{name}.log"))

    def expected_reference_s(self) -> float | None:
        """Return the reference step while calibrating, if it was measured here."""
        return reference_s(self.journal, on_cpu=self.on_cpu)

    # -- outcome ----------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Return all results of the folder."""
        expected = self.expected_reference_s()
        clocks = [self._clock_outcome(clock, workload, expected) for clock, workload in self.workloads.items()]
        first = next(iter(self.workloads.values()))
        return Outcome(self.options, first, {c: self.profile(c) for c in self.workloads}, expected, clocks)

    def _clock_outcome(self, clock: str, workload: OnlineWorkload, expected: float | None) -> ClockOutcome:
        if clock not in self._predictions:
            self._predictions[clock] = predict(workload, self.engine.scheduler(workload), self.profile(clock))
        prediction = self._predictions[clock]
        attempts = read_attempts(self.folder, clock, workload, expected)
        outcome = ClockOutcome(clock, prediction, attempts, notes=list(self._notes[clock]))
        counted = [a.times for a in outcome.accepted if a.times is not None]
        if len(counted) < self.options.repetitions:
            outcome.notes.append(
                f"{len(counted)} of {self.options.repetitions} repetitions were accepted in {len(attempts)} attempts")
        if not counted:
            counted = [a.times for a in attempts if a.times is not None]
            outcome.notes += ["no attempt was accepted: the table compares with all of them"] if counted else []
        if counted:
            outcome.rows = compared(prediction.times, counted)
        return outcome


def compared(ours: Times, engine: Sequence[Times]) -> list[LatencyError]:
    """Return every metric and statistic; metrics that no request has are left out. `engine` holds at least one
    repetition."""
    return [row for metric in METRICS if len(ours.metric(metric))
            for row in compare_latencies(metric, ours.metric(metric), [times.metric(metric) for times in engine])]


def model_name(config: dict[str, Any]) -> str:
    """Return a name for the model of a config.json, which has none: family, layers, width."""
    return f"{config.get('model_type', 'model')}-{config.get('num_hidden_layers')}x{config.get('hidden_size')}"


def options_dict(options: Options) -> dict[str, Any]:
    """Return plain values without the requests, which have a file of their own."""
    return {name: value for name, value in options.model_dump(mode="json").items() if name != "requests"}
