"""Importer of splitwise-sim's perf_model.csv: whole-model times of Llama-2-70B and Bloom-176B on A100 and H100.

Content and limits of the file:

- every row is one batch of equal requests: prompts of 128-8192 tokens at batch 1, batches of 1-64 at prompt 512 only;
- `prompt_time` is one prefill step; `token_time` is the mean over the decode steps, whose context grows from
  `prompt_size` by one per step, so it is imported as one step at the mean context prompt_size + (token_size - 2) / 2;
- attention in prefill shows only as the difference between B prompts of 512 and one prompt of 512 * B, which is about
  as large as the noise; steps with past tokens, and steps that mix prefill and decode, were not measured;
- batch size and total context rise together except at batch 1, where 8,000 tokens of context cost as much as the noise:
  the slope of the context is uncertain, and large batches with long contexts are extrapolation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.calibration.importers.base import (
    IMPORTERS,
    ImporterConfig,
    Progress,
    no_progress,
    one_of,
    read_csv,
    sha256,
)
from hermes.calibration.steps import MeasuredSteps, StepsHeader

__all__ = ["Splitwise", "usable"]

MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
"""The file's model names -> our model descriptions."""
DEVICES = {"a100-80gb": ("a100", "A100 80GB SXM"), "h100-80gb": ("h100", "H100 80GB SXM")}
"""The file's hardware names -> short name, device."""
SYNTHETIC = {
    "h100-80gb-pcap": "hardware h100-80gb-pcap: synthetic, its prompt times are those of h100-80gb times 1.3 exactly",
}
TIMES = ("prompt_time", "token_time")
NUMBERS = ("prompt_size", "batch_size", "token_size", "tensor_parallel", *TIMES)
KEYS = ["model", "hardware", "tensor_parallel", "prompt_size"]
CUT = "corrupt: prompt_time is less than half of what a smaller batch of the same prompts takes, as if it was cut"
NOTES = [
    "prefill: past tokens were never measured; they enter through attention pairs only, and cost nothing where the fit "
    "gives those no weight",
    "decode: one row is the mean of all steps of a generation, at its mean context; context slope comes from batch 1 "
    "(noise as large as the effect) and from batches at prompt 512, where context and batch size are proportional; it "
    "is uncertain by a factor of several",
    "mixed: no step with prefill and decode was measured; prefills below 128 tokens were not measured either, so a "
    "small chunk costs what the shortest prompts cost",
]


def _corrupt(rows: pd.DataFrame) -> pd.Series:
    """Return rows whose prompt time is less than half the median of a smaller batch of equal prompts, bool, shape
    (rows,)."""
    out = pd.Series(False, index=rows.index)
    for _, part in rows.groupby(KEYS):
        medians = part.groupby("batch_size")["prompt_time"].median().sort_index()
        longest_before = medians.cummax().shift(1)
        cut = medians.index[medians < longest_before / 2]
        out[part.index[part["batch_size"].isin(cut)]] = True
    return out


def usable(path: Path) -> pd.DataFrame:
    """Return the measured rows of a perf_model.csv that are not corrupt, unchanged. Raises `InputError`."""
    rows = read_csv(path, NUMBERS, ("model", "hardware"))
    return rows[~rows["hardware"].isin(SYNTHETIC) & ~_corrupt(rows)]


@IMPORTERS.register("splitwise")
class Splitwise(ImporterConfig):
    """splitwise-sim's perf_model.csv (github.com/Mutinifni/splitwise-sim, MIT)."""

    kind: Literal["splitwise"] = "splitwise"
    source: str
    """perf_model.csv."""
    model: str
    """Model, as the file names it: llama2-70b, bloom-176b."""
    hardware: str
    """Hardware, as the file names it: a100-80gb, h100-80gb."""
    tp: Annotated[int, Field(ge=1, le=1024)]
    """Degree of tensor parallelism: 2, 4 or 8."""

    def _rows(self) -> pd.DataFrame:
        path = Path(self.source)
        rows = read_csv(path, NUMBERS, ("model", "hardware"))
        one_of(self.model, sorted(rows["model"].unique()), "model", self.source)
        rows = rows[rows["model"] == self.model]
        one_of(self.hardware, [h for h in sorted(rows["hardware"].unique()) if h not in SYNTHETIC], "hardware",
               self.source)
        rows = rows[rows["hardware"] == self.hardware]
        degrees = sorted(int(degree) for degree in rows["tensor_parallel"].unique())
        one_of(self.tp, degrees, "tp", self.source)
        return rows[rows["tensor_parallel"] == self.tp].reset_index(drop=True)

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return two steps per row of the file: its prompt, and its mean token."""
        rows = self._rows()
        reason = np.where(_corrupt(rows), CUT, "")
        prompt, batch, tokens = (rows[name].to_numpy(np.int64) for name in ("prompt_size", "batch_size", "token_size"))
        zero, context = np.zeros_like(prompt), prompt + (tokens - 2) // 2
        repetition = rows.groupby(["prompt_size", "batch_size", "token_size"]).cumcount().to_numpy()
        prefill = pd.DataFrame({
            "prefill_seqs": batch, "prefill_tokens": prompt * batch, "prefill_past": zero,
            "prefill_attn": batch * prompt * (prompt + 1) // 2, "decode_seqs": zero, "decode_ctx": zero,
            "decode_ctx_max": zero, "sampled": batch, "time_s": rows["prompt_time"].to_numpy() / 1e3,
            "configuration": [f"{p} x {b}" for p, b in zip(prompt, batch, strict=True)],
            "excluded": reason,
        })
        prefill["repetition"] = prefill.groupby("configuration").cumcount()
        decode = pd.DataFrame({
            "prefill_seqs": zero, "prefill_tokens": zero, "prefill_past": zero, "prefill_attn": zero,
            "decode_seqs": batch, "decode_ctx": batch * context, "decode_ctx_max": context, "sampled": batch,
            "time_s": rows["token_time"].to_numpy() / 1e3,
            "configuration": [f"{p} x {b} + {t}" for p, b, t in zip(prompt, batch, tokens, strict=True)],
            "repetition": repetition, "excluded": reason,
        })
        return MeasuredSteps(self._header(int((reason != "").sum())), pd.concat([prefill, decode], ignore_index=True))

    def _header(self, corrupt: int) -> StepsHeader:
        model = MODELS.get(self.model, self.model)
        short, device = DEVICES.get(self.hardware, (self.hardware, self.hardware))
        excluded = [f"{text} ({self._synthetic_rows(name)} rows)" for name, text in SYNTHETIC.items()]
        if corrupt:
            excluded.append(f"{corrupt} rows of the file (prompt and token times) are {CUT}")
        return StepsHeader(
            name=f"splitwise-2023-{model}-{short}-tp{self.tp}", hardware=device, model=model,
            tensor_parallel=self.tp, dtype="fp16",
            engine="not stated in the file; the Splitwise paper (ISCA 2024, arXiv 2311.18677) used vLLM of 2023",
            date="2023 (not given in the file)", clock="not stated in the file",
            source="perf_model.csv of github.com/Mutinifni/splitwise-sim (MIT)",
            source_sha256=sha256(Path(self.source)), collected_by=self.command(), excluded=excluded, notes=NOTES,
        )

    def _synthetic_rows(self, hardware: str) -> int:
        rows = pd.read_csv(self.source, usecols=["hardware"])
        return int((rows["hardware"] == hardware).sum())
