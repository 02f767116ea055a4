"""`measure: start-up`: how long a serving engine takes to start, by phase, cold and warm, over several models."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.measurements.base import FitOptions, Measurement, Shown, again
from hermes.calibration.measurements.model import config_of
from hermes.calibration.plan import DTYPES, PointPlan
from hermes.calibration.session import Measured
from hermes.calibration.start_up import (
    SHOWN,
    Cache,
    StartsFile,
    StartUpPlan,
    load_starts,
    models_of,
    pack_starts,
    save_starts,
    scenario_lines,
    times_of,
)
from hermes.config import Duration
from hermes.config.files import read_json
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import find
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.start_up import Elsewhere
from hermes.results.layout import Part, Section

__all__ = ["StartUpMeasurement"]

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_GUESS_S = {"cold": 90.0, "warm": 45.0}   # of a start, for the estimate only
_LEAST = 2   # models that a fit needs


class StartUpMeasurement(Measurement):
    """Starts of vLLM by phase, with empty and with filled caches."""

    engines: ClassVar[tuple[str, ...]] = ("start-up",)
    format: ClassVar[str] = "hermes-starts/1"

    measure: Literal["start-up"] = "start-up"
    models: Annotated[list[str], Field(min_length=1, max_length=100)]
    """Shipped models, paths of a config.json, or folders with one. A folder that holds weights is started as it is;
    for all others weights and a tokenizer are made up."""
    command: str = "{python} -m vllm.entrypoints.openai.api_server --model {model} --port {port}"
    """Command line of the server. {python}: the interpreter of --python; {model}: a folder; {port}: a free port."""
    environment: dict[str, str] = {}
    """Further environment variables of the server."""
    hardware: str | None = None
    """Device description of the machine, for captures of CUDA graphs; null: cpu-core."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share the model; the command has to say it, too."""
    dtype: str = "bf16"
    """Precision of made-up weights."""
    weights: Literal["written", "dummy"] = "written"
    """written: made-up weights lie in a file that the engine reads; dummy: the engine makes its own (--load-format
    dummy), and loading is not measured."""
    caches: Annotated[list[Cache], Field(min_length=1, max_length=2)] = ["cold", "warm"]
    """cold: an empty compile cache, and weights out of the page cache; warm: what an earlier start has left."""
    cache_variables: list[str] = ["VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"]
    """Environment variables that name folders of compile caches: each start's own."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 3
    """Starts of each model and cache."""
    ready: Annotated[str, Field(pattern=r"^/[!-~]*$")] = "/health"
    """Path that answers 200 when the server is ready."""
    first_request: bool = True
    """Whether to measure how much longer the first request takes than the next ones."""
    timeout: Duration = Field(default=1800.0, gt=0)
    """Longest start."""
    folder: str = ""
    """Folder for made-up models and compile caches, removed in the end; empty: the temporary folder."""
    output: str = "starts.yaml"
    """Measured starts; plan and journal beside it."""

    def plan(self, base_dir: Path, python: str | None = None) -> StartUpPlan:
        """Return the plan: repetition by repetition, model by model, cold before warm. Raises `InputError`."""
        self._check()
        models: dict[str, dict[str, Any]] = {}
        for place, asked in enumerate(self.models):
            with inside(f"models.{place}"):
                name, model = self._model(asked, base_dir)
                if name in models:
                    raise InputError("models of different names", name)
                models[name] = model
        points = [
            {"name": f"{name} {cache} {repetition}", "level": repetition, "estimate_s": _GUESS_S[cache], "model": name,
             "cache": cache, "repetition": repetition}
            for repetition in range(self.repetitions) for name in models for cache in ("cold", "warm")
            if cache in self.caches]
        folder = base_dir / self.folder if self.folder else None
        if folder is not None and not folder.is_dir():
            raise InputError("an existing folder", self.folder, field="folder")
        return validate(StartUpPlan, {
            "models": models, "command": self.command, "environment": self.environment,
            "cache_variables": self.cache_variables, "weights": self.weights, "dtype": self.dtype,
            "hardware": self.hardware or "cpu-core", "tensor_parallel": self.tensor_parallel, "ready": self.ready,
            "first_request": self.first_request, "timeout_s": self.timeout,
            "folder": str(folder.resolve()) if folder else "", "points": points,
        })

    def _check(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"one of {', '.join(DTYPES)}", self.dtype, field="dtype")
        if len(set(self.caches)) != len(self.caches):
            raise InputError("each cache once", Verbatim(", ".join(self.caches)), field="caches")
        for place in ("{model}", "{port}"):
            if place not in self.command:
                raise InputError(f"a command line with {place}", self.command, field="command")
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise InputError(Verbatim(f"a command line: {error}"), self.command, field="command") from None
        with inside("hardware"):
            load_device(self.hardware or "cpu-core")

    def _model(self, asked: str, base_dir: Path) -> tuple[str, dict[str, Any]]:
        """Return the name of a model and its part of the plan. Raises `InputError`."""
        description = load_model(asked, base_dir)
        path = find(asked, base_dir, "models", "a model description")
        config = read_json(path) if path.suffix == ".json" else config_of(description)
        own = path.name == "config.json" and any(any(path.parent.glob(kind)) for kind in _WEIGHTS)
        per_token = 2.0 * (description.active_params() - description.outer_params()) / self.tensor_parallel
        return description.name, {
            "folder": str(path.parent.resolve()) if own else "", "config_json": config,
            "layers": description.num_layers, "vocabulary": description.vocab_size, "flops_per_token": per_token,
            "weight_bytes": round(description.weight_bytes(self.dtype, self.tensor_parallel))}

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the starts, the command and what is written."""
        assert isinstance(plan, StartUpPlan)
        shown = super().show_plan(plan)
        written = sum(model.weight_bytes * plan.tensor_parallel for model in plan.models.values()
                      if not model.folder and plan.weights == "written")
        return Shown({**shown.data, "written_bytes": written}, [
            *shown.parts, f"each start: {plan.command}",
            f"weights to write: {written / 1e9:.2f} GB in {plan.folder or 'the temporary folder'}"])

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write measured starts. Raises `InputError`."""
        found = pack_starts(journal, output.stem, command)
        save_starts(found, output)
        data = {"file": str(output), "complete": measured is None or measured.complete, **found.model_dump(mode="json")}
        parts = [*_tables(found), *(f"note: {note}" for note in found.provenance.notes), *again(measured)]
        first = found.models[0].name
        parts += [f"in a scenario, the `fleet` of {first} (the others stand at the head of the file):",
                  *(f"    {line}" for line in scenario_lines(found, first)), f"written to {output}"]
        return Shown(data, parts)

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Fit the times of a start, each model predicted by a fit to the others. Raises `InputError`."""
        from hermes.calibration.fit.start_up import errors, fit_start_up, start_up_text

        found = load_starts(file)
        models = models_of(found, str(file))
        if len(models) < _LEAST:
            raise InputError(f"starts of at least {_LEAST} models: one does not say what grows with layers or bytes; "
                             "take the lines at the head of the file", Verbatim(f"one, {models[0].name}"),
                             file=str(file), field="models")
        fitted = fit_start_up(models, options.name or (options.output or file).stem, found.engine, found.device, [
            f"fitted to {len(found.starts)} starts of {len(models)} models ({file.name}): `hermes fit`",
            "tokenizer: in the process; compile: with what else of a start an empty cache makes longer; weights: warm "
            "starts, from the page cache"], Elsewhere())
        data: dict[str, Any] = {"times": fitted.model_dump(mode="json")}
        parts: list[Part] = []
        if len(models) > _LEAST:
            left_out = errors(models)
            parts.append(Section("each model, predicted by a fit to the others", [
                "model", "cache", "phase", "measured s", "predicted s", "error %"], [
                [one.model, one.cache, "ready" if one.phase == "wall" else one.phase, f"{one.measured_s:.2f}",
                 f"{one.predicted_s:.2f}", f"{100 * one.relative:+.1f}"]
                for one in left_out if one.phase != "tokenizer" and one.measured_s > 0]))
            data["errors"] = [one._asdict() for one in left_out]
        if options.output is not None:
            write_text(options.output, start_up_text(fitted))
            parts += [f"written to {options.output}; in a scenario: start_up: {{times: ./{options.output.name}}}"]
        else:
            parts.append(start_up_text(fitted))
        return Shown(data, parts)


def _tables(found: StartsFile) -> list[Part]:
    rows = []
    for model in found.models:
        by_cache = {cache: times_of(found, model.name, cache) for cache in ("cold", "warm")}
        for column, name in SHOWN.items():
            cells = []
            for times in by_cache.values():
                one = times.get(column)
                cells += ["-", ""] if one is None else [f"{one.median:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
            if cells[0] != "-" or cells[2] != "-":
                rows.append([model.name, name, *cells])
    counts = {cache: sum(start.cache == cache for start in found.starts) for cache in ("cold", "warm")}
    return [Section(f"{found.engine}: {counts['cold']} cold and {counts['warm']} warm starts, medians and ranges",
                    ["model", "phase", "cold s", "range", "warm s", "range"], rows)]
