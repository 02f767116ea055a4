"""From measured terms (`hermes-terms/1`) to what the composed hardware model reads: kernel tables, what it costs
decodes to share a launch with a prompt, and the engine's own time of each step.

The tables hold medians; nothing is smoothed or extended here. `checked` asks the composed model for every measured
point: an error says what the model's way of reading the tables loses. `hermes.hardware.composed.kernel_tables` reads
the files (`hermes-kernels/1`) and has their format. The engine's time comes from measured steps of a whole engine:

    measured step = scheduling and output (`overhead_s`) + kernels (the composed model) + what is left

The first part is `host`: fixed, and for each sequence; it hides behind the device where scheduling is asynchronous.
What is left is `exposed`: input tensors, the launch, the sampler without its sort (the collectors sample greedily);
more (`uncaptured`) in steps beyond the largest captured one. Both are fitted without negative figures, on errors
relative to the whole step.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.arrays import FloatArray
from hermes.calibration.comparison import Errors, compare_times
from hermes.calibration.fit.estimators import HUBER, solve
from hermes.calibration.steps import MeasuredSteps
from hermes.calibration.terms import MeasuredTerms
from hermes.calibration.terms_plan import GEMMS, ROW_OPERATORS, Rank
from hermes.config.writing import write_bytes, write_text
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError
from hermes.hardware.base import BATCH_STATS, StepStats
from hermes.hardware.composed import Beside
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.composed.kernel_tables import KernelsFile, KernelTables
from hermes.hardware.composed.term_sources import HostTime, Sources
from hermes.hardware.descriptions.devices import DevicePower
from hermes.hardware.descriptions.engines import StepTime
from hermes.hardware.descriptions.models import precision
from hermes.hardware.efficiency import load_efficiency
from hermes.hardware.engine_memory import captured_sizes
from hermes.hardware.roofline import RooflineModel, RooflineOptions
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = [
    "BesideFit", "EngineFit", "FittedTerms", "Watts", "coded", "fit_beside", "fit_engine", "fit_power", "fit_terms",
    "model_of", "save_kernels",
]

Arrays = dict[str, np.ndarray[Any, Any]]
FEWEST_BESIDE = 6   # points for the three figures of decodes beside a prompt
FEWEST_LOADS = 4    # for the three figures of watts

SCALE = 1000.0
FEWEST_STEPS = 8


@dataclass(frozen=True)
class BesideFit:
    """Decodes beside a prompt, and how far the fit is off the time that they add."""

    beside: Beside
    errors: Errors


@dataclass(frozen=True)
class Watts:
    """Watts under one load."""

    load: str
    share: float
    power_w: float
    rate: float
    """Bytes/s moved or flop/s computed."""


@dataclass(frozen=True)
class FittedTerms:
    """Kernel tables of measured terms."""

    file: KernelsFile
    arrays: Arrays
    """Nanoseconds by table, nan where not measured, and the tables' axes."""
    beside: BesideFit | None
    watts: list[Watts]
    power: DevicePower | None
    """Fitted to `watts`; None with too few of them."""
    errors: dict[str, Errors]
    """By term: the composed model with these tables, and the measured points."""
    notes: list[str]

    def tables(self) -> KernelTables:
        """Return the tables as they are read back from a file."""
        return _tables(self.file, self.arrays)


def _is_table(key: str, values: np.ndarray[Any, Any]) -> bool:
    """Return whether an array is a table of times, not an axis of one."""
    return values.ndim > 1 and not key.endswith("/heads")


def _tables(file: KernelsFile, arrays: Arrays) -> KernelTables:
    return KernelTables(file, {
        key: coded(values) if _is_table(key, values) else values for key, values in arrays.items()})


def fit_terms(terms: MeasuredTerms, name: str) -> FittedTerms:
    """Return the tables of measured terms. Raises `InputError` where nothing is left for a table."""
    header, found = terms.header, terms.medians()
    key = "bf16" if header.dtype == "fp16" else header.dtype   # as the composed model asks
    notes: list[str] = []
    arrays = _gemm_table(found, key) | _row_tables(found, key)
    for phase in ("prefill", "decode"):
        arrays |= _attention_tables(found, phase, key, notes)
    tables = [key for key, values in arrays.items() if _is_table(key, values)]
    if not tables:
        raise InputError("measured operators", field="rows")
    file = KernelsFile(
        format="hermes-kernels/1", name=name, device=header.description.name, engine=header.engine, tables=tables,
        sha256="", cold=True, license="that of the measurement",
        source=f"{header.source} on {header.hardware}, {header.date}: {header.measured} of {header.planned} points for "
               f"{header.model.name}, {header.dtype}, tp {', '.join(map(str, header.tensor_parallel))}; medians")
    beside = fit_beside(terms) if header.launch == "one launch" else None
    if beside is None:
        notes.append("decodes beside a prompt: launched apart, write `mixed_attention: apart` in the device description"
                     if header.launch == "apart" else "decodes beside a prompt: too few points; figures of other cards")
    built = {tp: model_of(terms, _tables(file, arrays), tp, beside) for tp in header.tensor_parallel}
    watts = [Watts(row.load, row.share, row.power_w, row.rate)
             for row in _points(found[found["term"] == "power"].sort_values(["load", "share"]))]
    power = fit_power(watts, header.description.memory_bandwidth,
                      header.description.peak(precision(header.dtype).compute))
    return FittedTerms(file, arrays, beside, watts, power, _checked(found, built), notes)


def _points(found: pd.DataFrame) -> list[Any]:
    """Return the rows as named tuples; pandas types their fields as anything that a cell can hold."""
    return list(found.itertuples())


# -- tables ------------------------------------------------------------------------------------------------------------


def _grid(found: pd.DataFrame, axes: Sequence[str]) -> tuple[FloatArray, list[FloatArray]]:
    """Return the nanoseconds on a grid of the axes' values, nan where not measured, and those values."""
    values = [np.sort(found[axis].unique()).astype(np.float64) for axis in axes]
    out = np.full([len(v) for v in values], np.nan)
    at = tuple(np.searchsorted(v, found[axis]) for v, axis in zip(values, axes, strict=True))
    out[at] = found["time_s"] * NS_PER_S
    return out, values


def _gemm_table(found: pd.DataFrame, dtype: str) -> Arrays:
    part = found[found["term"].isin(GEMMS)]
    if part.empty:
        return {}
    ns, axes = _grid(part, ("rows", "n", "k"))
    for number in range(3):   # a reader interpolates between two values at least
        if len(axes[number]) == 1:
            axes[number] = np.append(axes[number], 2 * axes[number])
            ns = np.concatenate([ns, np.full_like(ns, np.nan)], axis=number)
    key = f"gemm/{dtype}"
    return {key: ns} | {f"{key}/{axis}": values for axis, values in zip("mnk", axes, strict=True)}


def _row_tables(found: pd.DataFrame, dtype: str) -> Arrays:
    out: Arrays = {}
    for operator in ROW_OPERATORS:
        part = found[found["term"] == operator]
        if part.empty:
            continue
        key = f"rows/{operator}/{'fp32' if operator == 'sampling' else dtype}"
        out[key], (out[f"{key}/rows"], out[f"{key}/width"]) = _grid(part, ("rows", "width"))
    return out


def _attention_tables(found: pd.DataFrame, phase: str, dtype: str, notes: list[str]) -> Arrays:
    part = found[(found["term"] == phase) & (found["past"] == 0)]
    length = "new" if phase == "prefill" else "context"
    out: Arrays = {}
    for head_dim, group in part.groupby("head_dim"):
        pairs = sorted(set(zip(group["heads"], group["kv_heads"], strict=True)))
        index = {pair: number for number, pair in enumerate(pairs)}
        group = group.assign(pair=[index[pair] for pair in zip(group["heads"], group["kv_heads"], strict=True)])
        ns, (_, lengths, batches) = _grid(group, ("pair", length, "batch"))
        if len(lengths) < 2 or len(batches) < 2:
            notes.append(f"attention ({phase}, heads of {head_dim}): fewer than two lengths or batches; no table")
            continue
        key = f"{phase}/{head_dim}/{dtype}"
        out |= {key: ns, f"{key}/heads": np.array(pairs), f"{key}/length": lengths, f"{key}/batch": batches}
    return out


# -- what is fitted ----------------------------------------------------------------------------------------------------


def fit_beside(terms: MeasuredTerms) -> BesideFit | None:
    """Fit what decodes add to a launch with a prompt (`hermes.hardware.composed.Beside`); None with too few points.

    Non-negative least squares on relative errors of the time above that of the prompt alone.
    """
    found, header = terms.medians(), terms.header
    points = _points(found)
    alone = {(row.heads, row.kv_heads, row.new): row.time_s for row in points
             if row.term == "prefill" and row.batch == 1 and row.past == 0}
    width, bandwidth = precision(header.dtype).other_bytes, header.description.memory_bandwidth
    features, added = [], []
    for row in points:
        prompt = alone.get((row.heads, row.kv_heads, row.new))
        if row.term == "beside" and prompt is not None and row.time_s > prompt:
            lanes = row.batch * row.heads
            read = 2 * row.batch * row.context * row.heads * row.head_dim * width / bandwidth
            features.append([lanes, lanes * row.new, read])
            added.append(row.time_s - prompt)
    if len(added) < FEWEST_BESIDE:
        return None
    x, y = np.array(features, dtype=np.float64), np.array(added)
    per_seq, per_seq_token, share = solve(x, y)
    beside = Beside(per_seq=float(per_seq), per_seq_token=float(per_seq_token), read=min(float(share), 100.0))
    return BesideFit(beside, compare_times(x @ np.array([per_seq, per_seq_token, share]), y))


def fit_power(watts: Sequence[Watts], bandwidth: float, flops: float) -> DevicePower | None:
    """Fit a device's watts by utilisation to those under held loads; None with too few loads.

    Non-negative least squares on relative errors of serving + memory * share of the memory's rate + compute * share of
    the arithmetic; `most` is the highest that was read. A load that rests half of the time draws the mean of both.
    """
    loads = [found for found in watts if found.load != "idle"]
    if len(loads) < FEWEST_LOADS or {found.load for found in loads} != {"memory", "arithmetic"}:
        return None
    features = np.array([[1.0, found.rate / bandwidth if found.load == "memory" else 0.0,
                          found.rate / flops if found.load == "arithmetic" else 0.0] for found in loads])
    read = np.array([found.power_w for found in loads])
    serving, memory, compute = solve(features, read)
    return DevicePower(serving=round(float(serving), 1), memory=round(float(memory), 1),
                       compute=round(float(compute), 1), most=round(float(read.max()), 1))


# -- the check ---------------------------------------------------------------------------------------------------------


def model_of(terms: MeasuredTerms, tables: KernelTables, tp: int, beside: BesideFit | None,
             capture_sizes: tuple[int, ...] = ()) -> ComposedModel:
    """Return the composed model of the measured model and card, without an engine's own time."""
    header = terms.header
    kind = "bf16" if header.dtype == "fp16" else header.dtype
    options = RooflineOptions(tp=tp, dtype=kind)  # type: ignore[arg-type]  # a name of `DTYPES`
    base = RooflineModel(options, header.model, header.description, load_efficiency("ideal"))
    figures = (0.0, 0.0, 1.0)
    if beside is not None:
        lanes = header.model.num_heads / tp * header.model.num_layers * NS_PER_S
        shared = header.model.num_heads / header.model.num_kv_heads
        found = beside.beside
        figures = found.per_seq * lanes, found.per_seq_token * lanes, max(found.read * shared, 1.0)
    sources = Sources(capture_sizes, beside=figures, apart=beside is None, sampling_ns=float(header.model.top_p))
    return ComposedModel(base, tables, HostTime(), sources)


def _checked(found: pd.DataFrame, built: dict[int, ComposedModel]) -> dict[str, Errors]:
    """Return the composed model's errors at the measured points, by term."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for row in _points(found):
        for term, ours in _composed_ns(row, built):
            pairs.setdefault(term, []).append((ours, row.time_s * NS_PER_S))
    return {term: compare_times(*(np.array(side) for side in zip(*values, strict=True)))
            for term, values in pairs.items()}


def _composed_ns(row: Any, built: dict[int, ComposedModel]) -> Iterator[tuple[str, float]]:
    """Yield (term, nanoseconds of the composed model) for a measured point: of one layer, one launch."""
    if row.term in ROW_OPERATORS and row.term != "sampling":
        return   # one term of the model: their sum
    for tp, model in built.items():
        layers, of = model.base.model.num_layers, model.base.model
        if row.term in GEMMS:
            if (row.n, row.k) == Rank(of, tp).gemms()[row.term]:
                head = row.term == "lm_head"
                terms = model.fixed_terms(row.rows, row.rows if head else 0)
                yield row.term, terms[row.term] / (1 if head else layers)
                return
        elif row.term == "sampling":
            if not of.top_p:
                return
            yield row.term, model.fixed_terms(row.rows, row.rows)["sampling"]
            return
        elif row.term in ("prefill", "decode", "beside") and row.heads == of.num_heads // tp:
            name = "prefill with a past" if row.past else row.term
            yield name, float_sum(ns for term, ns in model.terms_ns(_stats(row)).items()
                                  if term.startswith(("attention", "decodes"))) / layers
            return


def _stats(row: Any) -> StepStats:
    prompts = {"prefill": row.batch, "beside": 1}.get(row.term, 0)
    decodes = 0 if row.term == "prefill" else row.batch
    return StepStats(
        prefill_seqs=prompts, prefill_tokens=prompts * row.new, prefill_past=prompts * row.past,
        prefill_attn=prompts * (row.new * row.past + row.new * (row.new + 1) // 2),
        prefill_max=row.new if prompts else 0, decode_seqs=decodes, decode_ctx=decodes * (row.context - 1),
        decode_ctx_max=row.context - 1 if decodes else 0)


def coded(ns: Any) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Nanoseconds as int16, 1000 * ln(nanoseconds): steps of 0.1%; -1 where nothing was measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(SCALE * np.log(np.asarray(ns, dtype=np.float64)))
    return np.where(np.isfinite(logs), np.maximum(logs, 0.0), -1).astype(np.int16)


def save_kernels(header: KernelsFile, arrays: Mapping[str, np.ndarray[Any, Any]], path: Path, comment: str = "") -> (
        KernelsFile):
    """Write `path` (YAML) and the .npz beside it; return the header as written. Same tables, same bytes.

    Args:
        arrays: Tables of nanoseconds (float64, nan where not measured) by name, and their axes (`NAME/AXIS`).
        comment: First lines of the YAML.
    """
    tables = [key for key, values in arrays.items() if _is_table(key, values)]
    stored = {key: coded(values) if key in tables else values.astype(np.int64) for key, values in arrays.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)  # type: ignore[arg-type]
    header = header.model_copy(update={"tables": tables, "sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})
    write_bytes(path.with_suffix(".npz"), buffer.getvalue())
    write_text(path, to_yaml(header.model_dump(), comment))
    return header


@dataclass(frozen=True)
class EngineFit:
    """The engine's own time, and how far a step made of kernels and it is off the measured one."""

    step: StepTime
    errors: Errors
    unexplained: float
    """Median share of a step that the kernels leave to the engine; below 0 the tables are too slow."""


def fit_engine(steps: MeasuredSteps, terms: MeasuredTerms, tables: KernelTables, beside: BesideFit | None) -> EngineFit:
    """Return the engine's own time. Raises `InputError` for steps of another model or without `overhead_s`."""
    header, measured = steps.header, terms.header
    for field, ours, theirs in (("model", measured.model.name, header.model), ("dtype", measured.dtype, header.dtype)):
        if ours != theirs:
            raise InputError(f"steps of the measured terms ({ours})", theirs, field=f"--steps: {field}")
    if header.tensor_parallel not in measured.tensor_parallel:
        raise InputError(f"steps of tensor parallelism {', '.join(map(str, measured.tensor_parallel))}, as the terms",
                         header.tensor_parallel, field="--steps: tensor_parallel")
    rows = steps.usable()
    rows = rows[np.isfinite(rows["overhead_s"])]
    if len(rows) < FEWEST_STEPS:
        raise InputError(f"at least {FEWEST_STEPS} steps with overhead_s", len(rows), field="--steps")
    sizes = captured_sizes(StepTime().largest_graph) if measured.description.type == "gpu" else ()
    model = model_of(terms, tables, header.tensor_parallel, beside, sizes)
    seconds, overhead = rows["time_s"].to_numpy(), rows["overhead_s"].to_numpy()
    seqs = (rows["prefill_seqs"] + rows["decode_seqs"]).to_numpy(np.float64)
    tokens, sampled = rows["prefill_tokens"] + rows["decode_seqs"], rows["sampled"].to_numpy(np.float64)
    kernels = np.array([
        float_sum(ns for term, ns in model.terms_ns(StepStats(**stats)).items() if term != "sampling") / NS_PER_S
        for stats in rows[list(BATCH_STATS)].to_dict("records")])
    weights = 1.0 / seconds**2
    ones = np.ones(len(rows))
    host, host_per_seq = solve(np.column_stack([ones, seqs]), overhead, weights, relative=False, huber=HUBER)
    beyond = (tokens > sizes[-1]).to_numpy(np.float64) if sizes else np.zeros(len(rows))
    features, left = np.column_stack([ones, sampled, beyond]), seconds - overhead - kernels
    exposed, per_seq, uncaptured = solve(features, left, weights, relative=False, huber=HUBER)
    step = StepTime(
        exposed=float(exposed), exposed_per_seq=float(per_seq), uncaptured=float(uncaptured), host=float(host),
        host_per_seq=float(host_per_seq), largest_graph=sizes[-1] if sizes else 0,
        source=f"{len(rows)} steps of {header.engine} {header.engine_version} on {header.hardware}, {header.date}, "
               "less the kernels' times")
    ours = kernels + features @ np.array([exposed, per_seq, uncaptured]) + host + host_per_seq * seqs
    return EngineFit(step, compare_times(ours, seconds), float(np.median(left / seconds)))
