"""Fit of the roofline's efficiency factors to measured steps of one card.

All steps of a card are fitted together, across models and parallelism: least squares of the logarithm of predicted /
measured time (relative errors), with equal weight for every data set and kind of step (prefill, decode, mixed). Factors
are bounded (shares in 0..1) and held by a weak prior, so that a factor that the steps do not determine stays at a
typical value instead of wandering. Steps of 8-bit weights get their own factors of the linear layers, fitted after
those of 16 bits, with all other factors fixed at the values found there.

The quality of the factors is measured on models they were not fitted on: each model is left out in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from hermes.arrays import FloatArray, IntArray
from hermes.calibration.comparison import compare_times
from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader, phase_of
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.models import ModelDescription, load_model, precision
from hermes.hardware.efficiency import Efficiency, EfficiencyFile, HeldOut
from hermes.hardware.roofline import RooflineModel, RooflineOptions
from hermes.sums import float_sum

__all__ = ["DataSet", "data_set", "efficiency_file", "errors", "fit_card", "fit_efficiency"]

DTYPES = {"fp8-static": "fp8", "fp8-block": "fp8", "int4": "int4-awq", "bfloat16": "bf16", "float16": "fp16"}
# chosen from 0.02-0.3 on held-out models: a factor 10% from its prior costs as much as 1% more error everywhere
PRIOR_WEIGHT = 0.1
MICROSECOND = 1e-6
FOLDS = 5


@dataclass(frozen=True)
class DataSet:
    """Measured steps, and the roofline options that price them."""

    name: str
    model: ModelDescription
    options: dict[str, Any]          # tp, pp, dtype, kv_dtype of `RooflineOptions`
    columns: dict[str, Any]          # StepStats fields, int64 arrays
    seconds: FloatArray
    weights: FloatArray              # of squared errors; 1 in all for each kind of step
    groups: IntArray                 # configuration of each step, numbered from 0

    def part(self, rows: Any) -> DataSet:
        """Return some of the steps."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, columns=columns, seconds=self.seconds[rows], weights=self.weights[rows],
                       groups=self.groups[rows])

    @property
    def narrow(self) -> bool:
        """Whether weights are multiplied in 8 bits."""
        return precision(self.options["dtype"]).compute in ("fp8", "int8")

    def predict(self, device: DeviceDescription, factors: Efficiency) -> FloatArray:
        """Return seconds by the roofline, shape (steps,)."""
        file = EfficiencyFile(format="hermes-efficiency/1", name="fit", sources=[], factors=factors)
        return RooflineModel(RooflineOptions(**self.options), self.model, device, file).seconds(self.columns)


def data_set(steps: MeasuredSteps, model: ModelDescription | None = None) -> DataSet:
    """Return measured steps ready to fit. Raises `InputError` for an undescribed model or an unknown precision."""
    header, rows = steps.header, steps.usable()
    if model is None:
        model = load_model(header.model)
    dtype = DTYPES.get(header.dtype, header.dtype)
    precision(dtype)
    phases = phase_of(rows)
    weights = np.ones(len(rows))
    for phase in np.unique(phases):
        weights[phases == phase] /= (phases == phase).sum()
    kv_dtype = header.kv_dtype or "auto"
    options = {
        "tp": header.tensor_parallel, "pp": header.pipeline_parallel, "dtype": dtype,
        "kv_dtype": "auto" if kv_dtype == "bf16" else kv_dtype,
    }
    columns = {name: rows[name].to_numpy() for name in STATS}
    groups = np.unique(rows["configuration"].to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)
    return DataSet(header.name, model, options, columns, rows["time_s"].to_numpy(), weights, groups)


@dataclass(frozen=True)
class _Parameter:
    """One number of an `Efficiency`: its place, its bounds, its prior."""

    path: tuple[Any, ...]
    low: float
    high: float
    prior: float
    scale: float = 1.0  # value in the file = scale * parameter

    def penalty(self, value: float) -> float:
        return (value - self.prior) / self.prior


def _share(*path: Any, prior: float) -> _Parameter:
    return _Parameter(path, 0.01, 1.0, prior)


_TYPICAL: dict[str, Any] = {
    **{kind: {"compute": 0.75, "memory": 0.8} for kind in ("qkv_o", "ffn", "experts", "lm_head")},
    "prefill_attention": {"compute": 0.6, "memory": 0.8}, "decode_attention": {"compute": 0.6, "memory": 0.8},
    "elementwise": 0.8, "overlap": 0.8, "attention_tile": 128.0, "kernel_latency": 3e-6,
    "prefill_attention_latency": 2e-5, "decode_attention_latency": 1e-5, "all_reduce": [], "step_overhead": 0.0,
}


def _linear_parameters(moe: bool, dense: bool, prior: Mapping[str, Any] = _TYPICAL) -> list[_Parameter]:
    """Return the factors of the linear layers."""
    kinds = ["qkv_o", *(["ffn"] if dense else []), *(["experts"] if moe else [])]
    return [_share(kind, side, prior=prior[kind][side]) for kind in kinds for side in ("compute", "memory")]


def _parameters(sets: Sequence[DataSet]) -> list[_Parameter]:
    """Return the factors that the data sets can determine."""
    moe, dense = (any(bool(one.model.num_experts) == kind for one in sets) for kind in (True, False))
    out = _linear_parameters(moe, dense)
    out += [_share("lm_head", "compute", prior=0.75), _share("lm_head", "memory", prior=0.8)]
    out += [_share("prefill_attention", "compute", prior=0.6), _share("prefill_attention", "memory", prior=0.8),
            _share("decode_attention", "memory", prior=0.8), _share("elementwise", prior=0.8)]
    out += [
        _Parameter(("overlap",), 0.0, 1.0, 0.8),
        _Parameter(("attention_tile",), 0.0, 1024.0, 128.0),
        _Parameter(("kernel_latency",), 0.0, 50.0, 3.0, MICROSECOND),
        _Parameter(("prefill_attention_latency",), 0.0, 500.0, 20.0, MICROSECOND),
        _Parameter(("decode_attention_latency",), 0.0, 500.0, 10.0, MICROSECOND),
    ]
    for tp in sorted({one.options["tp"] for one in sets if one.options["tp"] > 1}):
        out.append(_share("all_reduce", tp, "bandwidth", prior=0.7))
        out.append(_Parameter(("all_reduce", tp, "latency"), 0.0, 500.0, 10.0, MICROSECOND))
    return out


_TYPICAL_ALL_REDUCE = {"devices": 2, "bandwidth": 0.7, "latency": 1e-5}


def _assembled(base: Mapping[str, Any], parameters: Sequence[_Parameter], values: Sequence[float]) -> Efficiency:
    data: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    data["all_reduce"] = {part["devices"]: dict(part) for part in base["all_reduce"]}
    for parameter, value in zip(parameters, values, strict=True):
        place: Any = data
        for key in parameter.path[:-1]:
            place = place.setdefault(key, {})
        place[parameter.path[-1]] = float(value) * parameter.scale
    measured = sorted(data["all_reduce"].items())
    data["all_reduce"] = [part | {"devices": tp} for tp, part in measured] or [_TYPICAL_ALL_REDUCE]
    return Efficiency(**data)


def _solve(
    sets: Sequence[DataSet], device: DeviceDescription, base: Mapping[str, Any], parameters: Sequence[_Parameter]
) -> Efficiency:
    """Fit the factors by least relative squares."""

    held = PRIOR_WEIGHT * float_sum(float(one.weights.sum()) for one in sets) ** 0.5

    def residuals(values: FloatArray) -> FloatArray:
        factors = _assembled(base, parameters, values.tolist())
        parts = [np.log(one.predict(device, factors) / one.seconds) * np.sqrt(one.weights) for one in sets]
        penalties = [held * parameter.penalty(value) for parameter, value in zip(parameters, values, strict=True)]
        return np.concatenate([*parts, penalties])

    low, high, start = (np.array([getattr(p, name) for p in parameters]) for name in ("low", "high", "prior"))
    start = np.clip(start, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
    found = least_squares(residuals, start, bounds=(low, high), x_scale=np.maximum(np.abs(start), 1e-3), max_nfev=60)
    return _assembled(base, parameters, found.x.tolist())


def fit_efficiency(sets: Sequence[DataSet], device: DeviceDescription) -> tuple[Efficiency, Efficiency | None]:
    """Return (factors, factors of 8-bit weights or None). Raises `InputError` without steps of 16-bit weights."""
    wide, narrow = ([one for one in sets if one.narrow == kind] for kind in (False, True))
    if not wide:
        raise InputError("at least one data set with weights of 16 bits", [one.options["dtype"] for one in sets])
    factors = _solve(wide, device, _TYPICAL, _parameters(wide))
    base = factors.model_dump()
    if not any(one.model.num_experts for one in wide):   # not measured: as the dense layers
        base["experts"] = base["ffn"]
    elif all(one.model.num_experts for one in wide):
        base["ffn"] = base["experts"]
    factors = Efficiency(**base)
    if not narrow:
        return factors, None
    moe, dense = (any(bool(one.model.num_experts) == kind for one in narrow) for kind in (True, False))
    parameters = [
        *_linear_parameters(moe, dense, base), _share("elementwise", prior=base["elementwise"]),
        _Parameter(("kernel_latency",), 0.0, 50.0, max(base["kernel_latency"] / MICROSECOND, 0.5), MICROSECOND),
    ]
    eight = _solve(narrow, device, base, parameters).model_dump()
    if not moe:
        eight["experts"] = eight["ffn"]
    return factors, Efficiency(**eight)


def errors(
    one: DataSet, device: DeviceDescription, factors: Efficiency, steps: str = ""
) -> HeldOut:
    """Return the error of `factors` on a data set; every kind of step has the same weight."""
    return _error_of(one, one.predict(device, factors), steps or one.name)


def _error_of(one: DataSet, predicted: FloatArray, steps: str) -> HeldOut:
    found = compare_times(predicted, one.seconds, one.weights)
    return HeldOut(steps=steps, points=found.points, mape=found.mape, bias=found.mean, worst=abs(found.worst))


def fit_card(
    sets: Sequence[DataSet], device: DeviceDescription, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Efficiency, Efficiency | None, list[HeldOut]]:
    """Fit the factors of a card from all data sets; also return the error on each with its model left out of the fit.

    With a single model, configurations are held out instead, in `FOLDS` parts: that measures how well the formula
    follows this model, not how the factors carry over to another.
    """
    models = list(dict.fromkeys(one.model.name for one in sets))
    alone = len(models) == 1
    parts = [one.groups % FOLDS if alone else np.full(len(one.seconds), models.index(one.model.name)) for one in sets]
    count = len(np.unique(np.concatenate(parts)))
    predicted = [np.full(len(one.seconds), np.nan) for one in sets]
    for done, left_out in enumerate(np.unique(np.concatenate(parts)) if count > 1 else ()):
        progress(done, count + 1)
        kept = [one.part(part != left_out) for one, part in zip(sets, parts, strict=True) if (part != left_out).any()]
        if all(one.narrow for one in kept):
            continue
        wide, narrow = fit_efficiency(kept, device)
        for one, part, out in zip(sets, parts, predicted, strict=True):
            rows = part == left_out
            if rows.any():
                out[rows] = one.part(rows).predict(device, narrow if one.narrow and narrow is not None else wide)
    how = f" (configurations in {FOLDS} parts)" if alone else ""
    found = [_error_of(one, out, one.name + how) for one, out in zip(sets, predicted, strict=True)
             if not np.isnan(out).any()]
    progress(count, count + 1)
    factors, eight = fit_efficiency(sets, device)
    return factors, eight, found


Fit = tuple[Efficiency, Efficiency | None, list[HeldOut]]


def efficiency_file(
    name: str, device: DeviceDescription, headers: Sequence[StepsHeader], sets: Sequence[DataSet], fit: Fit
) -> EfficiencyFile:
    """Return the result of `fit_card`, with its provenance."""
    factors, eight, held_out = fit
    notes = [f"fitted on {sum(len(one.seconds) for one in sets)} steps of {', '.join(one.name for one in sets)}"]
    if not any(one.model.num_experts for one in sets):
        notes.append("experts: no mixture was measured; as ffn")
    if all(one.options["tp"] == 1 for one in sets):
        notes.append("all_reduce: nothing was measured on several devices; typical values")
    return EfficiencyFile(
        format="hermes-efficiency/1", name=name, device=device.name,
        sources=list(dict.fromkeys(header.source for header in headers)),
        date=", ".join(dict.fromkeys(str(header.date) for header in headers)), fitted_by="hermes fit-roofline",
        factors=_rounded(factors), factors_8bit=None if eight is None else _rounded(eight),
        held_out=[row.model_copy(update={name: round(getattr(row, name), 4) for name in ("mape", "bias", "worst")})
                  for row in held_out], notes=notes,
    )


def _rounded(factors: Efficiency) -> Efficiency:
    """Round to three significant digits: the steps determine no more."""
    def tidy(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tidy(item) for key, item in value.items()}
        if isinstance(value, list):
            return [tidy(item) for item in value]
        return value if isinstance(value, int) else float(f"{value:.3g}")

    return Efficiency(**tidy(factors.model_dump()))
