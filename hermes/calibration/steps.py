"""Measured steps (`hermes-steps/1`): the one format that collectors and importers produce and fits read.

`NAME.yaml` is the header: the source of the steps. `NAME.parquet` beside it holds one row per measured step: the batch
statistics of `StepStats`, the time, and further observations. One pair of files is one hardware, engine, model,
parallelism and precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.calibration.table_files import MeasuredHeader, MeasuredTable, typed_rows
from hermes.errors import InputError
from hermes.hardware.base import BATCH_STATS
from hermes.hardware.fitted.profile import ProfileMemory

__all__ = [
    "COLUMNS", "STATS", "STEP", "MeasuredSteps", "StepsHeader", "load_steps", "phase_of", "save_steps", "tidy_rows",
]

STATS: tuple[str, ...] = BATCH_STATS
"""The batch statistics, int64: see `StepStats`. Every sequence with one new token and a context is a decode."""

STEP = ["configuration", *STATS]
"""Columns that say which step a row measured: rows with equal ones repeat each other."""

COLUMNS: dict[str, str] = dict.fromkeys(STATS, "int64") | {
    "time_s": "float64",         # the whole step, scheduling and launches included; fits predict it
    "cpu_time_s": "float64",     # CPU time the process spent in it; NaN where unknown
    "overhead_s": "float64",     # the part of time_s outside the model's forward pass; NaN where unknown
    "power_w": "float64",        # mean watts of one device while it ran; NaN where unknown
    "configuration": "string",   # rows of one configuration are held out together in cross-validation
    "repetition": "int64",       # 0, 1, ...: measurements of the very same step
    "sequence": "int64",         # order in time over the whole collection, to see drift
    "excluded": "string",        # reason against using the row in a fit ("": usable); rejected rows are kept
}
"""Columns of the Parquet file."""


class StepsHeader(MeasuredHeader):
    """Source of measured steps."""

    format: Literal["hermes-steps/1"] = "hermes-steps/1"
    model: str
    """Name of a model description (`hw_profiles/models`), or free text."""
    model_config_json: dict[str, Any] = Field(default_factory=dict)
    """The Hugging Face config.json it was built from, if one was."""
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    pipeline_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    dtype: str
    kv_dtype: str = ""
    memory: ProfileMemory | None = None
    """Memory of the engine besides KV blocks, if the source states it; `hermes fit` hands it to the profile."""
    idle_w: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Watts of one idle device, if measured; needed to turn `power_w` into a profile's power."""


class MeasuredSteps(MeasuredTable[StepsHeader]):
    """A header and its rows (columns as in `COLUMNS`)."""

    header_class: ClassVar[type[Any]] = StepsHeader
    columns: ClassVar[Mapping[str, str]] = COLUMNS

    @classmethod
    def tidy(cls, rows: pd.DataFrame, what: str) -> pd.DataFrame:
        """Return `rows` with all columns in order and of their types; optional ones filled in. Raises `InputError`."""
        defaults: dict[str, Any] = {
            "cpu_time_s": math.nan, "overhead_s": math.nan, "power_w": math.nan, "repetition": 0,
            "sequence": np.arange(len(rows)), "excluded": "",
        }
        given = {name: value for name, value in defaults.items() if name not in rows}
        out = typed_rows(rows.assign(**given), COLUMNS, what)
        used = out[out["excluded"] == ""]
        good = (used["time_s"] > 0) & np.isfinite(used["time_s"]) & (used[list(STATS)] >= 0).all(axis=1)
        good &= used["prefill_tokens"] + used["decode_seqs"] > 0
        good &= (used["prefill_seqs"] > 0) == (used["prefill_tokens"] > 0)
        if not good.all():
            row = int(good.index[~good][0])
            raise InputError(
                "times above 0, statistics of at least 0, at least one token, prompts where there are prompt tokens",
                out.loc[row, [*STATS, "time_s"]].to_dict(), file=what, field=f"row {row}",
            )
        return out


tidy_rows, load_steps, save_steps = MeasuredSteps.tidy, MeasuredSteps.load, MeasuredSteps.save


def phase_of(rows: pd.DataFrame | Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.str_]]:
    """Return `prefill` (no decodes), `decode` (decodes only) or `mixed`, shape (rows,)."""
    prefill, decode = np.asarray(rows["prefill_tokens"]) > 0, np.asarray(rows["decode_seqs"]) > 0
    return np.where(prefill & decode, "mixed", np.where(decode, "decode", "prefill"))
