"""Importer of scheduler steps of a real vLLM engine on a CPU, one row per engine step (CSV).

The columns are instants and durations of each step in seconds, its batch (prefill and decode tokens, attention pairs,
contexts), and the engine's configuration: `mnbt` (max_num_batched_tokens) and `mns` (max_num_seqs). Rows of one
configuration are held out together.

Rows excluded from fits, by rules fixed before looking at any fit, but for the second, which residuals of steps showed:

- warm-up: the first step of each configuration, taken by an engine that has just been started;
- warm-up: the first step of each number of tokens: kernels are made for the size then. Decode steps of 17 to 64
  sequences take 2.5 ms longer the first time than the second, and steps of more tokens up to 40 ms;
- contended: more than 2 ms outside the model's execution, ten times the median: the process was off its processor;
- contended: a decode step more than 1.2 times as long as the steps before and after it with the same sequences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, no_progress, read_csv, sha256
from hermes.calibration.steps import MeasuredSteps, StepsHeader
from hermes.errors import InputError
from hermes.hardware.files import read_json

__all__ = ["VllmCpu"]

COLUMNS = {
    "prefill_seqs": "prefill_seqs", "prefill_tokens": "prefill_tokens", "prefill_past": "prefill_ctx",
    "prefill_attn": "prefill_attn", "decode_seqs": "decode_seqs", "decode_ctx": "decode_ctx",
    "decode_ctx_max": "max_dec_ctx", "sampled": "n_sampled",
}
"""Our statistics -> columns of the file."""
WARM_UP = "warm-up: first step of a configuration"
NEW_SIZE = "warm-up: first step of a number of tokens"
OFF_CPU = "contended: more than 2 ms outside the model's execution"
SPIKE = "contended: a decode step more than 1.2 times as long as both neighbours with the same sequences"
OUTSIDE_S, SPIKE_RATIO = 2e-3, 1.2


def _excluded(rows: pd.DataFrame, outside_s: pd.Series) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the reason against each row, "" for a usable one, shape (rows,). `rows` are in order of time, with
    `configuration`, and `outside_s`, their time outside the model's execution."""
    by_configuration = rows.groupby("configuration", sort=False)
    decode_only = (rows["prefill_tokens"] == 0) & (rows["decode_seqs"] > 0)
    spike = decode_only.copy()
    for shift in (1, -1):
        neighbour = by_configuration[["step_s", "decode_seqs", "prefill_tokens"]].shift(shift)
        spike &= (neighbour["prefill_tokens"] == 0) & (neighbour["decode_seqs"] == rows["decode_seqs"])
        spike &= rows["step_s"] > SPIKE_RATIO * neighbour["step_s"]
    tokens = rows["prefill_tokens"] + rows["decode_seqs"]
    out = np.full(len(rows), "", dtype=object)
    out[spike.to_numpy()] = SPIKE
    out[(tokens.groupby(tokens).cumcount() == 0).to_numpy()] = NEW_SIZE
    out[(outside_s > OUTSIDE_S).to_numpy()] = OFF_CPU
    out[(by_configuration.cumcount() == 0).to_numpy()] = WARM_UP
    return out


@IMPORTERS.register("vllm-cpu")
class VllmCpu(ImporterConfig):
    """Steps of a vLLM engine on a CPU (CSV with t0, t_exec, step_s, prefill_tokens, decode_seqs, mnbt, mns, ...)."""

    kind: Literal["vllm-cpu"] = "vllm-cpu"
    source: str
    """steps.csv."""
    model_config_file: str
    """The model's config.json."""
    hardware: str = "CPU, one thread"
    """The machine, in words."""
    engine_version: str = "0.32.0"
    """Version of vLLM."""
    dtype: str = "bf16"
    """Precision of weights and arithmetic."""
    licence: str = "origin and licence not stated"
    """Origin and licence of the file, in words."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per row, in order of time."""
        path = Path(self.source)
        timing = ("t0", "t_sched", "t_exec", "step_s", "mnbt", "mns")
        raw = read_csv(path, (*timing, *COLUMNS.values())).sort_values("t0", kind="stable", ignore_index=True)
        config = read_json(Path(self.model_config_file)) if Path(self.model_config_file).is_file() else None
        if not isinstance(config, dict):
            raise InputError("an existing config.json", self.model_config_file, field="model_config_file")
        raw["configuration"] = [f"mnbt {b:.0f}, mns {s:.0f}" for b, s in zip(raw["mnbt"], raw["mns"], strict=True)]
        rows = pd.DataFrame({name: raw[column].astype("int64") for name, column in COLUMNS.items()})
        # a busy engine hands out a step's tokens before the next step: that time is part of the step
        between = raw.groupby("configuration", sort=False)["t0"].shift(-1) - (raw["t0"] + raw["step_s"])
        rows["time_s"] = raw["step_s"] + between.fillna(between.median()).clip(lower=0.0).fillna(0.0)
        rows["overhead_s"] = rows["time_s"] - raw["t_exec"]
        rows["configuration"] = raw["configuration"]
        rows["excluded"] = _excluded(raw, rows["overhead_s"])
        rows["sequence"] = np.arange(len(rows))
        return MeasuredSteps(self._header(config, rows), rows)

    def _header(self, config: dict[str, Any], rows: pd.DataFrame) -> StepsHeader:
        used = int((rows["excluded"] == "").sum())
        layers, width = config.get("num_hidden_layers", "?"), config.get("hidden_size", "?")
        return StepsHeader(
            name=f"vllm-{self.engine_version}-cpu", hardware=self.hardware, engine="vllm",
            engine_version=self.engine_version,
            model=f"{config.get('model_type', 'model')}, {layers} layers of width {width}", model_config_json=config,
            dtype=self.dtype, date="2026-11", clock="wall clock from each engine step to the next",
            source=f"{Path(self.source).name} ({self.licence})", source_sha256=sha256(Path(self.source)),
            collected_by=self.command(), options={"enforce_eager": True, "threads": 1, "used_rows": used},
            notes=[
                "CPU time per step is not in the file: contention shows only in the rules above a row's `excluded`",
                "time_s runs to the start of the next step, beyond the file's step_s; the last step of a configuration "
                "gets the median of what the others have there",
                "overhead_s is the step's time outside the model's execution (scheduling, handing out tokens)",
                "nothing was repeated: noise can only be judged from steps with nearly the same batch",
            ],
        )
