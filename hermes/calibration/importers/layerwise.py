"""Importer of layer-wise vLLM profiles: per-operator tables, composed into steps by `hermes.hardware.fitted.layerwise`.

The tables price steps directly (hardware kind `layerwise`). As steps they can also be fitted, which is faster and gives
a monotone curve. The grid stays inside the tables. If the folder has skew tables, decodes of unequal context are priced
too. The tables lack the engine's own time per step, and the importer does not add it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, no_progress
from hermes.calibration.importers.priced import Batches, row_of
from hermes.calibration.steps import MeasuredSteps, StepsHeader
from hermes.config.yaml_document import load_yaml
from hermes.errors import InputError, inside
from hermes.hardware.base import BATCH_STATS, StepStats
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.fitted.layerwise import LayerwiseModel
from hermes.hardware.fitted.operator_tables import OperatorTables, load_operator_tables
from hermes.units import NS_PER_S

__all__ = ["Layerwise"]

NEW = (16, 32, 64, 100, 128, 200, 256, 384, 512, 700, 1024, 1300, 1536, 2048)
PAST = (0, 256, 1024, 2048, 4096, 8192, 12288)
TOGETHER, TOGETHER_NEW = (2, 4, 8), (32, 100, 256, 512, 1024)
DECODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
CONTEXTS = (64, 128, 256, 512, 768, 1024, 1500, 2048, 4096, 8192, 16384)
SPREAD = (1, 2, 4)  # longest context over the mean one
MIXED_NEW, MIXED_PAST, MIXED_DECODES = (16, 64, 128, 256, 512, 1000, 1500, 1900), (0, 1024, 4096), (1, 4, 16, 48, 128)
MIXED_CONTEXTS = (128, 512, 2048, 8192)
FILES = ("dense.csv", "per_sequence.csv", "attention.csv", "skew.csv")


def _grid(tables: OperatorTables) -> Batches:
    """Return the batches whose contexts and decodes the tables hold."""
    _, pasts, decodes, contexts = (float(axis[-1]) for axis in tables.attention.axes)
    spread = SPREAD if tables.skew is not None else (1,)
    prefill = [[1, new, past] for new in NEW for past in PAST if past <= pasts]
    prefill += [[seqs, new, 0] for seqs in TOGETHER for new in TOGETHER_NEW]
    decode = [
        [batch, context, context * ratio] for batch in DECODES for context in CONTEXTS for ratio in spread
        if batch <= decodes and context * ratio <= contexts and (batch > ratio or ratio == 1)
    ]
    mixed = [
        [1, new, past, batch, context, context] for new in MIXED_NEW for past in MIXED_PAST for batch in MIXED_DECODES
        for context in MIXED_CONTEXTS if past <= pasts and context <= contexts
    ]
    return Batches(prefill, decode, mixed)


def _inside(tables: OperatorTables) -> list[dict[str, Any]]:
    """Return rows, without times, of the batches whose tokens are inside the tables."""
    rows = [row_of(phase, batch) for phase, part in _grid(tables)._asdict().items() for batch in part]
    most = min(float(xs[-1]) for xs, _ in tables.dense.values())
    return [row for row in rows if row["prefill_tokens"] + row["decode_seqs"] <= most
            and row["prefill_tokens"] <= tables.attention.axes[0][-1]]


@IMPORTERS.register("layerwise")
class Layerwise(ImporterConfig):
    """Per-operator tables of a layer-wise vLLM profile, composed into steps."""

    kind: Literal["layerwise"] = "layerwise"
    source: str
    """Folder with dense.csv, per_sequence.csv, attention.csv, meta.yaml and, optionally, skew.csv."""
    model: str
    """The profiled model: its number of layers multiplies the tables (llama-3.1-8b, or a config.json)."""
    licence: str = "origin and licence not stated"
    """Origin and licence of the tables, in words."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per batch of a grid inside the tables."""
        folder = Path(self.source)
        if not folder.is_dir():
            raise InputError("an existing folder", self.source, field="source")
        with inside("model"):
            description = load_model(self.model)
        tables = load_operator_tables(folder)
        model = LayerwiseModel(tables, description.num_layers)
        rows = _inside(tables)
        for index, row in enumerate(rows):
            row["time_s"] = model.step_ns(StepStats(**{name: row[name] for name in BATCH_STATS})) / NS_PER_S
            if index % 50 == 0:
                progress(index, len(rows))
        return MeasuredSteps(self._header(description.name, tables), pd.DataFrame(rows))

    def _header(self, model: str, tables: OperatorTables) -> StepsHeader:
        path = Path(self.source) / "meta.yaml"
        meta = load_yaml(path).plain()
        if not isinstance(meta, dict):
            raise InputError("a mapping", meta, file=str(path))
        engine = meta.get("engine_effective") or {}
        device = str(meta.get("gpu", "not stated"))
        digest = hashlib.sha256()
        for name in FILES:
            if (Path(self.source) / name).is_file():
                digest.update((Path(self.source) / name).read_bytes())
        notes = [
            "composed: the sum of operators measured one by one, eagerly; the engine's own time per step, gaps between "
            "kernels and prefix hits are not in it",
            "several prefills in one step look up attention once, as one prefill of as many pairs of tokens",
        ]
        if tables.skew is None:
            notes.append("decodes of unequal context were not measured")
        return StepsHeader(
            name=f"{model}-{str(meta.get('hardware', device)).lower().replace(' ', '-')}-layerwise", hardware=device,
            engine="vllm", engine_version=str(meta.get("vllm_version", "")), model=model,
            tensor_parallel=1, dtype=str(meta.get("variant", "not stated")),
            date=str(meta.get("profiled_at", "not stated"))[:10], clock="composed from per-operator tables",
            source=f"operator tables of a layer-wise vLLM profile ({self.licence})", source_sha256=digest.hexdigest(),
            collected_by=self.command(),
            options={name: value for name, value in engine.items() if isinstance(value, bool | int | float | str)},
            environment={"cuda": str(meta.get("cuda_version", "not stated"))}, notes=notes,
        )
