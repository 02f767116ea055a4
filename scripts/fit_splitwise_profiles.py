"""Fit hardware profiles and interpolation tables from splitwise-sim's perf_model.csv.

    python scripts/fit_splitwise_profiles.py perf_model.csv [--out hw_profiles]

Writes `<model>-<device>-tp<n>.yaml` (polynomials, format hermes-profile/1) for Llama-2-70B and Bloom-176B on A100 and
H100 at every measured degree of tensor parallelism, and `tables/splitwise-<model>-<device>-tp<n>.yaml` (medians, format
hermes-table/1) that interpolate exactly as splitwise-sim does. The CSV is from github.com/Mutinifni/splitwise-sim
(MIT); it is not part of this project.

What the CSV can tell and what it cannot:
- every row is one batch of equal requests: prompts of 128-8192 tokens at batch 1, batches of 1-64 at prompt 512 only;
- `prompt_time` is one prefill step; `token_time` is the mean over the decode steps, whose context grows from
  `prompt_size` by one per step, so the mean context is prompt_size + (token_size - 2) / 2;
- attention in prefill shows only as the difference between B prompts of 512 and one prompt of 512 * B, which is about
  as large as the noise; steps with past tokens, and steps that mix prefill and decode, were not measured;
- batch size and total context rise together except at batch 1, where 8,000 tokens of context cost as much as the
  noise: the slope of the context is uncertain, and large batches with long contexts are extrapolation.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from hermes.hardware.base import FloatArray
from hermes.hardware.fitting import FeatureSet, phase_profile
from hermes.hardware.profile import PhaseProfile, Phases, Profile, Provenance, dump_yaml
from hermes.hardware.table import TableData, Tables

MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
DEVICES = {"a100-80gb": ("a100", "A100 80GB SXM"), "h100-80gb": ("h100", "H100 80GB SXM")}
PCAP = "hardware h100-80gb-pcap (420 rows): synthetic, prompt times are those of h100-80gb times 1.3 exactly"
CORRUPT = (
    "model llama2-70b, tensor_parallel 2, prompt 512, batch 64 (5 rows): prompt_time is shorter than at batch 8, "
    "as if the batch had been cut; corrupt"
)
PREFILL_KNOTS: tuple[tuple[float, ...], ...] = (
    (), (512,), (2048,), (256, 2048), (512, 2048), (512, 2048, 4096), (256, 512, 2048, 4096), (512, 2048, 4096, 8192),
)
DECODE_KNOTS: tuple[tuple[float, ...], ...] = ((), (16,), (32,))
NOTES = [
    "prefill: past tokens were never measured; they enter through attention pairs only, and cost nothing where the fit "
    "gives those no weight",
    "decode: context slope comes from batch 1 (noise as large as the effect) and from batches at prompt 512, where "
    "context and batch size are proportional; it is uncertain by a factor of several",
    "mixed: no step with prefill and decode was measured; such steps are composed (hermes.hardware.polynomial); "
    "prefills below 128 tokens were not measured either, so a small chunk costs what the shortest prompts cost",
    "the feature sets were chosen on the same cross-validation that is reported",
]

TABLE_NOTES = [
    "median time per prompt_size * batch_size over all remaining rows, as splitwise-sim's performance_model.py",
    "splitwise-sim reads the decode table at the number of decodes, although its x are prompt_size * batch_size of "
    "the measurement: fewer than 128 decodes lie on the extended first line, and context length is ignored",
]


def usable(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured and are not corrupt."""
    corrupt = (rows.model == "llama2-70b") & (rows.tensor_parallel == 2) & (rows.batch_size == 64)
    return rows[(rows.hardware != "h100-80gb-pcap") & ~corrupt]


def prefill_phase(rows: pd.DataFrame) -> PhaseProfile:
    """Polynomial of the prompt times of one model, device and degree."""
    prompt, batch = (rows[name].to_numpy(np.float64) for name in ("prompt_size", "batch_size"))
    pairs = batch * prompt * (prompt + 1) / 2
    columns: dict[str, FloatArray] = {"prefill_tokens": prompt * batch, "prefill_attn": pairs}
    label = np.array([f"{p:.0f} x {b:.0f}" for p, b in zip(prompt, batch, strict=True)])
    candidates = [FeatureSet(("1", "prefill_attn"), (("prefill_tokens", knots),)) for knots in PREFILL_KNOTS]
    ranges = {name: (values.min(), values.max()) for name, values in columns.items()}
    return phase_profile(candidates, columns, rows.prompt_time.to_numpy(np.float64) / 1e3, label, label, ranges)


def decode_phase(rows: pd.DataFrame) -> PhaseProfile:
    """Polynomial of the token times of one model, device and degree."""
    prompt, batch, tokens = (rows[name].to_numpy(np.float64) for name in ("prompt_size", "batch_size", "token_size"))
    mean_context = prompt + (tokens - 2) / 2
    columns: dict[str, FloatArray] = {"decode_seqs": batch, "decode_ctx": batch * mean_context}
    label = np.array([f"{p:.0f} x {b:.0f} + {t:.0f}" for p, b, t in zip(prompt, batch, tokens, strict=True)])
    candidates = [FeatureSet(("1", "decode_ctx"), (("decode_seqs", knots),)) for knots in DECODE_KNOTS]
    last = prompt + tokens - 2  # cached tokens at the last decode step
    ranges = {
        "decode_seqs": (batch.min(), batch.max()),
        "decode_ctx": ((batch * prompt).min(), (batch * last).max()),
        "decode_ctx_max": (prompt.min(), last.max()),
    }
    return phase_profile(candidates, columns, rows.token_time.to_numpy(np.float64) / 1e3, label, label, ranges)


def medians(rows: pd.DataFrame, time: str, x: Literal["prefill_tokens", "decode_seqs"]) -> TableData:
    """Median time per prompt_size * batch_size: splitwise-sim's table."""
    points = (rows[time] / 1e3).groupby(rows.prompt_size * rows.batch_size).median()
    return TableData(x=x, points=np.column_stack([points.index, points]).tolist())


def provenance(model: str, hardware: str, degree: int, sha256: str, notes: list[str]) -> Provenance:
    """Where the numbers of one profile come from."""
    return Provenance(
        source="perf_model.csv of github.com/Mutinifni/splitwise-sim (MIT)", sha256=sha256, hardware=hardware,
        engine="not stated in the file; the Splitwise paper (ISCA 2024, arXiv 2311.18677) used vLLM of 2023",
        model=MODELS[model], tensor_parallel=degree, dtype="fp16",
        date="2023 (not given in the file)", fitted_by="scripts/fit_splitwise_profiles.py",
        excluded=[PCAP, *([CORRUPT] if degree == 2 else [])], notes=notes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, default=Path("hw_profiles"))
    options = parser.parse_args()
    sha256 = hashlib.sha256(options.csv.read_bytes()).hexdigest()
    rows = usable(pd.read_csv(options.csv))
    for key, part in rows.groupby(["model", "hardware", "tensor_parallel"]):
        model, device, degree = (str(value) for value in key)
        short, hardware = DEVICES[device]
        name = f"{MODELS[model]}-{short}-tp{degree}"
        title = f"{MODELS[model]} on {hardware}, TP{degree}; times in seconds."
        prefill, decode = prefill_phase(part), decode_phase(part)
        profile = Profile(
            format="hermes-profile/1", name=name, phases=Phases(prefill=prefill, decode=decode),
            provenance=provenance(model, hardware, int(degree), sha256, NOTES),
        )
        dump_yaml(profile, options.out / f"{name}.yaml", title)
        tables = Tables(
            format="hermes-table/1", name=f"splitwise-{name}",
            provenance=provenance(model, hardware, int(degree), sha256, TABLE_NOTES),
            prefill=medians(part, "prompt_time", "prefill_tokens"), decode=medians(part, "token_time", "decode_seqs"),
        )
        dump_yaml(tables, options.out / "tables" / f"splitwise-{name}.yaml", title)
        for phase, result in (("prefill", prefill), ("decode", decode)):
            error = result.error
            assert error is not None
            print(
                f"{name:24s} {phase:8s} MAPE {error.mape:6.1%} (in sample {error.in_sample_mape:6.1%}), "
                f"worst {error.worst:6.1%}, MSE {error.mse_s2:.3g} s^2, {result.points} points: "
                + " + ".join(entry.term for entry in result.terms)
            )


if __name__ == "__main__":
    main()
