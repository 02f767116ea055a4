"""Measured starts of a serving engine (`hermes-starts/1`): their plan, the file, and what a fit reads of it.

A small YAML file: for each model what of it takes time when it is loaded, and a row for each start.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from hermes.calibration.collect.counters import LIMIT
from hermes.calibration.collect.vllm_log import PHASES
from hermes.calibration.fit.start_up import Measured
from hermes.calibration.plan import PointPlan, read_records
from hermes.calibration.table_files import Origin
from hermes.config import ConfigModel, Name
from hermes.config.validation import load, validate
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.fitted.profile import dump_yaml
from hermes.hardware.start_up import Started
from hermes.sums import float_sum

__all__ = ["SHOWN", "Cache", "Start", "StartPoint", "StartUpPlan", "StartedModel", "StartsFile", "Times", "kept",
           "load_starts", "models_of", "pack_starts", "save_starts", "scenario_lines", "times_of"]

Cache = Literal["cold", "warm"]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
CACHES: tuple[Cache, Cache] = ("cold", "warm")
NOTED_S = 0.1
DECIMALS = 3   # of a second: more is noise
SHOWN = {"process_s": "process", "imports_s": "- imports", "launch_s": "- engine, workers", "server_s": "- API server",
         "weights_s": "weights", "compile_s": "compile", "profiling_s": "profiling",
         "capture_s": "capture", "time_s": "ready", "first_request_s": "first request"}
"""Seconds of a start that are shown, with their names, in order."""
_COLUMNS = ("time_s", *PHASES, "imports_s", "launch_s", "server_s", "trace_s", "graphs_s", "first_request_s",
            "cpu_time_s", "others_s")


class StartPoint(ConfigModel):
    """One start."""

    name: str
    level: int
    estimate_s: Annotated[float, Field(ge=0)]
    model: str
    cache: Cache
    repetition: Annotated[int, Field(ge=0)]


class PlannedModel(ConfigModel):
    """A model that is started."""

    folder: str = ""
    """Its files; empty: they are written, from `config_json`."""
    config_json: dict[str, Any]
    layers: Annotated[int, Field(ge=1, le=100_000)]
    vocabulary: Annotated[int, Field(ge=1, le=2**31)]
    weight_bytes: Annotated[int, Field(ge=0, le=10**15)]
    """On each device."""
    flops_per_token: Annotated[float, Field(ge=0, le=1e18)]
    """Of each device, in the layers."""


class StartUpPlan(PointPlan):
    """Starts of models; one level for each repetition, so that a short time gives one of each."""

    row_columns: ClassVar[dict[str, str]] = {"repetition": "int64", **dict.fromkeys(_COLUMNS, "float64")}
    record_fields: ClassVar[tuple[str, ...]] = ("work", "library")
    point: ClassVar[type[ConfigModel] | None] = StartPoint

    engine: Literal["start-up"] = "start-up"
    collector: str = "hermes.calibration.collect.start_up"
    clock: Literal["wall"] = "wall"
    warmup_s: float = 0.0
    models: dict[str, PlannedModel]
    command: str
    environment: dict[str, str]
    cache_variables: list[str]
    weights: Literal["written", "dummy"]
    dtype: str
    hardware: str
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)]
    ready: str
    first_request: bool
    timeout_s: Seconds
    folder: str


class Start(ConfigModel):
    """One start. The phases from `process_s` to `capture_s` add up to `time_s`."""

    model: Name
    cache: Cache
    repetition: Annotated[int, Field(ge=0)]
    compiled: bool
    """Whether the engine compiled, or read all of it from its cache."""
    time_s: Annotated[float, Field(gt=0, le=1e6)]
    process_s: Seconds
    weights_s: Seconds | None = None
    """None where the engine made its own weights."""
    compile_s: Seconds
    profiling_s: Seconds
    capture_s: Seconds
    imports_s: Seconds | None = None
    launch_s: Seconds | None = None
    server_s: Seconds | None = None
    trace_s: Seconds | None = None
    graphs_s: Seconds | None = None
    first_request_s: Seconds | None = None
    cpu_time_s: Seconds | None = None
    """CPU seconds of the server's processes."""
    others_s: Seconds | None = None
    """CPU seconds of all other processes of the machine meanwhile."""


class StartedModel(ConfigModel):
    """What of a model takes time in a start; see `hermes.hardware.start_up.Started`."""

    name: Name
    layers: Annotated[int, Field(ge=1, le=100_000)]
    vocabulary: Annotated[int, Field(ge=1, le=2**31)]
    weight_bytes: Annotated[int, Field(ge=0, le=10**15)]
    flops_per_token: Annotated[float, Field(ge=0, le=1e18)]
    sizes: list[Annotated[int, Field(ge=1, le=2**31)]] = []
    """Tokens of the captured graphs."""


class StartsFile(ConfigModel):
    """A `hermes-starts/1` file."""

    format: Literal["hermes-starts/1"] = "hermes-starts/1"
    name: Name
    engine: str
    """Engine and version, as its log says."""
    device: str
    """Device description whose peak arithmetic captures are compared with."""
    command: str
    provenance: Origin
    models: Annotated[list[StartedModel], Field(min_length=1)]
    starts: Annotated[list[Start], Field(min_length=1)]




def load_starts(path: Path) -> StartsFile:
    """Load measured starts. Raises `InputError`."""
    found = load(StartsFile, path)
    known = {model.name for model in found.models}
    for place, start in enumerate(found.starts):
        if start.model not in known:
            raise InputError(f"a model of this file: {', '.join(sorted(known))}", start.model, file=str(path),
                             field=f"starts.{place}.model")
    return found


def save_starts(found: StartsFile, path: Path) -> None:
    """Write a file that `load_starts` reads; its first lines show its use in a scenario."""
    lines = ["Measured starts of an engine, seconds. In a scenario, for each model:", ""]
    for model in found.models:
        lines += [f"{model.name}:", *(f"    {line}" for line in scenario_lines(found, model.name)), ""]
    dump_yaml(found, path, "\n".join(lines[:-1]))


class _Seen(ConfigModel):
    """What the log of a start says of the engine."""

    sizes: list[Annotated[int, Field(ge=1, le=2**31)]] = []
    compiled: bool


def pack_starts(journal: Path, name: str, command: str = "", date: datetime.date | None = None) -> StartsFile:
    """Return the starts of a journal, complete or cut off. Raises `InputError`."""
    plan, found = read_records(journal, StartUpPlan)
    points = {point["name"]: point for point in plan.points}
    starts, sizes, engines = list[Start](), dict[str, list[int]](), list[str]()
    for record in found.points:
        if not record["rows"]:
            continue
        point, seen = points[record["point"]], validate(_Seen, record["work"], str(journal))
        row = {key: round(value, DECIMALS) if isinstance(value, float) else value
               for key, value in record["rows"][0].items()}
        starts.append(validate(Start, {
            "model": point["model"], "cache": point["cache"], **row, "repetition": point["repetition"],
            "compiled": seen.compiled}, str(journal)))
        if sizes.setdefault(point["model"], seen.sizes) != seen.sizes:
            raise InputError(f"the captured sizes of its other starts, {sizes[point['model']]}", seen.sizes,
                             file=str(journal), field=f"{record['point']}: work.sizes")
        engines.append(record["library"])
    if not starts:
        raise InputError("at least one start that was measured", Verbatim("; ".join(found.failed) or "none"),
                         file=str(journal))
    notes = [*found.failed, *found.unreached(plan)]
    if len(set(engines)) > 1:
        notes.append(f"several versions: {', '.join(sorted(set(engines)))}")
    notes += _machine_notes(starts, found.environment.get("cores"))
    models = [StartedModel(name=each, sizes=sizes[each], **model.model_dump(exclude={"folder", "config_json"}))
              for each, model in plan.models.items() if each in sizes]
    return StartsFile(
        name=name, engine=engines[-1], device=plan.hardware, command=plan.command, models=models, starts=starts,
        provenance=Origin(
            date=date or found.environment.get("date", "unknown"), clock="wall clock, and the engine's own figures",
            source=f"measured by {plan.collector}", collected_by=command, environment=found.environment, notes=notes))


def _machine_notes(starts: list[Start], cores: object) -> list[str]:
    """Return what other load the machine had, and warm starts that compiled all the same."""
    notes = []
    if isinstance(cores, int) and cores > 0:
        shares = [(start.others_s or 0.0) / (cores * start.time_s) for start in starts]
        busy = sum(share > LIMIT for share in shares)
        notes.append(f"other processes took {median(shares):.0%} of the machine's cores in the median, more than "
                     f"{LIMIT:.0%} in {busy} of {len(starts)} starts")
    again = sum(start.compiled for start in starts if start.cache == "warm")
    if again:
        notes.append(f"{again} of {sum(start.cache == 'warm' for start in starts)} warm starts compiled again: the "
                     "engine did not take all from its cache")
    return notes


# -- what follows from it ----------------------------------------------------------------------------------------------


class Times(NamedTuple):
    """Seconds of a phase over the repetitions."""

    median: float
    low: float
    high: float


def kept(found: StartsFile, model: str, cache: Cache, column: str) -> list[float]:
    """Return the seconds of a phase in all starts of a model that show it."""
    seconds = [getattr(start, column) for start in found.starts if (start.model, start.cache) == (model, cache)]
    return [each for each in seconds if each is not None]


def times_of(found: StartsFile, model: str, cache: Cache) -> dict[str, Times]:
    """Return median, shortest and longest time of each phase that was measured, in the order of `SHOWN`."""
    all_of = {column: kept(found, model, cache, column) for column in SHOWN}
    return {column: Times(median(each), min(each), max(each)) for column, each in all_of.items() if each}


def of_cache(found: StartsFile, model: str) -> float:
    """Return the seconds of the process that an empty compile cache makes a start longer. vLLM keeps there, too, what
    it has found out about a model's class. 0 without both kinds of starts."""
    cold, warm = (kept(found, model, cache, "process_s") for cache in CACHES)
    return max(0.0, median(cold) - median(warm)) if cold and warm else 0.0


def scenario_lines(found: StartsFile, model: str) -> list[str]:
    """Return the lines of a `fleet` that starts this model as measured: medians. `compile` has all that depends on its
    cache."""
    cold, warm = ({column: times.median for column, times in times_of(found, model, cache).items()} for cache in CACHES)
    more = of_cache(found, model)
    if cold and warm:
        cold = cold | {"process_s": cold["process_s"] - more, "compile_s": cold["compile_s"] + more}

    def said(column: str) -> str:
        both = [times[column] for times in (cold, warm) if column in times]
        if column == "process_s":
            return f"{both[-1]:.4g} s"
        return f"{both[0]:.4g} s" if len(both) == 1 else f"{{cold: {both[0]:.4g} s, warm: {both[1]:.4g} s}}"

    note = f"   # {more:.4g} s of it outside of compiling" if more >= NOTED_S else ""
    lines = ["start_up:", f"  process: {said('process_s')}", "  tokenizer: 0 s   # in the process"]
    lines += [f"  {phase}: {said(f'{phase}_s')}{note if phase == 'compile' else ''}"
              for phase in ("weights", "compile", "profiling", "capture") if f"{phase}_s" in (cold or warm)]
    first = [times["first_request_s"] for times in (cold, warm) if "first_request_s" in times]
    return lines + ([f"  first_request: {float_sum(first) / len(first):.4g} s"] if first else [])


def models_of(found: StartsFile, file: str) -> list[Measured]:
    """Return the models as the fit takes them: medians of their cold and warm starts, with all that depends on the
    compile cache in `compile`. Raises `InputError` where a phase is missing that the fit needs."""
    device: DeviceDescription = load_device(found.device)
    peak = device.flops.get("bf16") or max(device.flops.values())
    out = []
    for model in found.models:
        seconds: dict[tuple[str, str], float] = {}
        for cache in CACHES:
            times = times_of(found, model.name, cache)
            if "weights_s" not in times:
                missing = "no weights read in" if times else "no"
                raise InputError("cold and warm starts of each model, with weights that the engine reads "
                                 "(weights: written)", Verbatim(f"{missing} {cache} starts of {model.name}"), file=file,
                                 field="starts")
            more = of_cache(found, model.name) if cache == "cold" else 0.0
            traced = median(kept(found, model.name, cache, "trace_s") or [0.0])
            compiled = times["compile_s"].median + more
            seconds |= {(cache, "tokenizer"): 0.0, (cache, "trace"): min(traced, compiled),
                        (cache, "graphs"): max(0.0, compiled - traced), (cache, "wall"): times["time_s"].median}
            seconds |= {(cache, name): times[f"{name}_s"].median for name in ("weights", "profiling", "capture")}
            seconds |= {(cache, "process"): times["process_s"].median - more, (cache, "compile"): compiled}
        started = Started(model.layers, model.vocabulary, model.weight_bytes, model.flops_per_token, peak,
                          tuple(model.sizes))
        captures = {started.sizes: seconds["warm", "capture"]} if started.sizes else {}
        out.append(Measured(model.name, started, seconds, captures))
    return out
