"""Importer of GenZ (genz-llm): step times of an analytical model, which the paper on HERMES uses with measured ones.

GenZ computes a roofline per operator. It lacks launches, element-wise kernels and the engine's own time, and has one
precision for weights, activations and KV cache. The package is an optional extra and may live in another interpreter
(`--python`); times that were computed elsewhere come as a CSV file (`--times`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, known_model, no_progress
from hermes.calibration.importers.priced import Batches, ask, rows_of, step_grid
from hermes.calibration.steps import MeasuredSteps, StepsHeader
from hermes.calibration.table_files import sha256
from hermes.config.columns import Column
from hermes.config.tables import csv_table
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import names_in

__all__ = ["TIMES_COLUMNS", "Genz", "batches_in"]

THIN = 5   # every fifth batch of the grid: a query takes tens of milliseconds, one with 256 decodes seconds
TIMES_COLUMNS = (
    "prefill_seqs", "prefill_new_tokens", "prefill_past_tokens", "decode_seqs", "decode_ctx_tokens", "time_s")
LARGEST = 2**31


@IMPORTERS.register("genz")
class Genz(ImporterConfig):
    """Step times computed by the analytical model GenZ (genz-llm, MIT)."""

    kind: Literal["genz"] = "genz"
    model: str
    """A model that GenZ knows: meta-llama/llama-3.1-8b, Qwen/Qwen2.5-32B, ..."""
    device: str
    """A system that GenZ knows (H100_GPU, A100_80GB_GPU, MI300X, ...), or a device description of HERMES (h100-sxm)."""
    tp: Annotated[int, Field(ge=1, le=64)] = 1
    """Degree of tensor parallelism."""
    dtype: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    """Precision of weights, activations and KV cache together."""
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Share of peak arithmetic and of peak bandwidth that every operator reaches."""
    times_file: str | None = None
    """CSV file of GenZ's times, one batch a row, instead of the package. Columns: prefill_seqs, prefill_new_tokens and
    prefill_past_tokens (of each prompt), decode_seqs, decode_ctx_tokens (of each decode), time_s."""
    python: str | None = None
    """Interpreter that has genz-llm (default: this one)."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per batch of a thinned grid that fits into the memory, or one per row of the CSV file."""
        if self.times_file is not None:
            path = Path(self.times_file)
            rows, _, _ = rows_of(*batches_in(path))
            header = self._header("", f"{path.name} (times of genz-llm, MIT)", [])
            return MeasuredSteps(header.model_copy(update={"source_sha256": sha256(path)}), rows)
        batches = Batches(*(part[::THIN] for part in step_grid()))
        request = {
            "model": self.model, "system_name": self._system(), "system_eff": self.efficiency, "bits": self.dtype,
            "tp": self.tp, "batches": batches._asdict(),
        }
        answer = ask("ask_genz.py", request, self.python, "genz", progress)
        rows, _, refused = rows_of(batches, answer["seconds"])
        if rows.empty:
            raise InputError("a system that holds the model", "no batch fits into its memory", field="device")
        excluded = [f"{refused} batches of the grid that GenZ refuses (they do not fit into the memory)"]
        source = f"genz-llm {answer['version']} (PyPI, MIT)"
        return MeasuredSteps(self._header(answer["version"], source, excluded if refused else []), rows)

    def _system(self) -> str | dict[str, float]:
        """Return GenZ's name, or the figures of a description (TFLOP/s, GiB, GB/s), which it takes as well."""
        if self.device not in names_in("devices"):
            return self.device
        device = load_device(self.device)
        return {
            "Flops": device.peak("bf16") / 1e12, "Memory_size": device.memory / 2**30, "real_values": True,
            "Memory_BW": device.memory_bandwidth / 1e9, "ICN": device.link_bandwidth / 1e9,
        }

    def _header(self, version: str, source: str, excluded: list[str]) -> StepsHeader:
        model = known_model(self.model)
        return StepsHeader(
            name=f"{model.rsplit('/', 1)[-1]}-{self.device}-tp{self.tp}-{self.dtype}-genz".lower(),
            hardware=self.device, engine="genz-llm", engine_version=version, model=model, tensor_parallel=self.tp,
            dtype=self.dtype, kv_dtype=self.dtype, date="computed, not measured", clock="analytical model",
            source=source, collected_by=self.command(),
            options={"efficiency": self.efficiency, "system": self._system()},
            environment={"genz-llm": version} if version else {}, excluded=excluded,
            notes=["a roofline per operator; nothing was measured. Launches, element-wise kernels and the engine's own "
                   "time are not in it"],
        )


def batches_in(path: Path) -> tuple[Batches, dict[str, list[float | None]]]:
    """Return the batches of a CSV file by phase, and their seconds. Raises `InputError`."""
    table = csv_table(path)
    table.need(TIMES_COLUMNS)
    frame = pd.DataFrame({
        name: table.typed(Column(name) if name == "time_s" else Column(name, "integer", 0, LARGEST))
        for name in TIMES_COLUMNS})
    if frame.empty:
        raise InputError("at least one row", file=str(path))
    batches, seconds = Batches([], [], []), {name: list[float | None]() for name in Batches._fields}
    for line, (seqs, new, past, decodes, context, time_s) in zip(
            table.lines or (), frame.itertuples(index=False), strict=True):
        wrong = ""
        if not time_s > 0:
            wrong = "time_s above 0"
        elif not seqs + decodes:
            wrong = "at least one sequence (prefill_seqs, decode_seqs)"
        elif bool(seqs) != bool(new) or (past and not seqs):
            wrong = "prefill_new_tokens where there are prefill_seqs, and no prefill tokens where there are none"
        elif bool(decodes) != bool(context):
            wrong = "decode_ctx_tokens where there are decode_seqs, and none where there are none"
        if wrong:
            raise InputError(wrong, file=str(path), line=line)
        prefill, decode = [seqs, new, past], [decodes, context, context]
        phase, batch = ("mixed", prefill + decode) if seqs and decodes else (
            ("prefill", prefill) if seqs else ("decode", decode))
        getattr(batches, phase).append(batch)
        seconds[phase].append(time_s)
    return batches, seconds
