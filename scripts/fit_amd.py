"""Fit the efficiency factors of AMD's cards on servers of eight MI355X in FP8, and test them on those in four bits.

    python scripts/fit_amd.py DATA [-o hw_profiles/efficiency/cdna.yaml]

DATA holds `inferencex/deepseek-r1-fp8-sglang.csv` and `deepseek-r1-more.csv`. No kernel of these cards was measured, so
the generic factors (NVIDIA's cards) are scaled by two figures: arithmetic, and the time of a kernel. They are those
with the least mean of |ln(predicted / measured)| over the medians of TPOT and, a third of its weight, over those of
TTFT of long prompts, of the FP8 rows: a decode step at the mean context; a prompt of mean length and the front end.
Medians of TTFT of short prompts have a part that does not grow with the prompt, which is not known; a scale of the
memory, tried as a third figure, left its bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from hermes.config.yaml_writer import to_yaml
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.engines import load_engine
from hermes.hardware.efficiency import Efficiency, EfficiencyFile, load_efficiency

CARD, ENGINE = "mi355x", "sglang-0.5"
MEAN = 0.9            # of the nominal lengths, which are drawn between 0.8 and 1.0 of them
CLASSES = ("qkv_o", "ffn", "experts", "lm_head", "prefill_attention", "decode_attention")
OF_TTFT = 1 / 3
LONG = 4096           # tokens


def scaled(factors: Efficiency, arithmetic: float, kernel: float) -> Efficiency:
    fields = factors.model_dump()
    for name in CLASSES:
        one = fields[name]
        fields[name] = one | {"compute": min(round(one["compute"] * arithmetic, 3), 1.0)}
    for name in ("kernel_latency", "prefill_attention_latency", "decode_attention_latency"):
        fields[name] = float(f"{fields[name] * kernel:.3g}")
    return Efficiency(**fields)


def file_of(scales: Sequence[float]) -> EfficiencyFile:
    generic = load_efficiency("generic")
    narrow = generic.factors_8bit
    return generic.model_copy(update={
        "name": "cdna", "device": "", "factors": scaled(generic.factors, *scales),
        "factors_8bit": None if narrow is None else scaled(narrow, *scales)})


def errors(rows: pd.DataFrame, dtype: str, file: EfficiencyFile) -> np.ndarray:
    """ln(predicted / measured) of TPOT and TTFT, shape (rows, 2)."""
    front, out = load_engine(ENGINE).frontend, []
    with mock.patch("hermes.hardware.roofline.load_efficiency", return_value=file):
        models = {tp: Composed(model="deepseek-v3", device=CARD, tp=int(tp), dtype=dtype, engine=ENGINE).build()
                  for tp in rows.tp.unique()}
    for row in rows.itertuples():
        prompt, context = int(MEAN * row.input_tokens), int(MEAN * (row.input_tokens + row.output_tokens / 2))
        users = row.concurrency
        decode = models[row.tp].step_ns(StepStats(decode_seqs=users, decode_ctx=users * context,
                                                  decode_ctx_max=context, sampled=users))
        first = models[row.tp].step_ns(StepStats(prefill_seqs=1, prefill_tokens=prompt, prefill_max=prompt, sampled=1,
                                                 prefill_attn=prompt * (prompt + 1) // 2))
        out.append((decode / 1e9 / row.tpot_s, (first / 1e9 + front.before + front.after) / row.ttft_s))
    return np.log(np.array(out))


def table(path: Path, scale: float, unit: str) -> pd.DataFrame:
    rows = pd.read_csv(path)
    rows = rows[rows.card == CARD]
    return rows.assign(tpot_s=rows[f"median_tpot_{unit}"] * scale, ttft_s=rows[f"median_ttft_{unit}"] * scale)


def shown(name: str, found: np.ndarray) -> str:
    percent = 100 * np.expm1(found)
    parts = [f"{metric} median {np.median(np.abs(values)):.0f}%, {values.min():+.0f} to {values.max():+.0f}%"
             for metric, values in zip(("TPOT", "TTFT"), percent.T, strict=True)]
    return f"{name}: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])   # type: ignore[union-attr]
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    folder = args.data / "inferencex"
    fitted = table(folder / "deepseek-r1-fp8-sglang.csv", 1.0, "s")
    held = table(folder / "deepseek-r1-more.csv", 1e-3, "ms")

    def loss(logs: np.ndarray) -> float:
        found = np.abs(errors(fitted, "fp8-block", file_of(np.exp(logs))))
        return float(found[:, 0].mean() + OF_TTFT * found[long, 1].mean())

    long = (fitted.input_tokens >= LONG).to_numpy()
    best = minimize(loss, np.log([0.4, 1.4]), method="Nelder-Mead", options={"xatol": 0.01, "fatol": 1e-4})
    scales = np.exp(best.x)
    file = file_of(scales)
    words = [f"arithmetic x {scales[0]:.2f}, time of a kernel x {scales[1]:.2f} of the generic factors"]
    for name, factors in (("generic factors", load_efficiency("generic")), ("these", file)):
        words += [shown(f"{name}, fp8 (fitted)", errors(fitted, "fp8-block", factors)),
                  shown(f"{name}, 4 bits (held out)", errors(held, "nvfp4", factors))]
    print(*words, sep="\n")
    if args.out is not None:
        fields = file.model_dump(exclude_none=True, mode="json") | {
            "sources": ["medians of DeepSeek-R1 in FP8 on eight MI355X, SGLang 0.5.9 and 0.5.12 (SemiAnalysisAI/"
                        "InferenceX)", *load_efficiency("generic").sources],
            "fitted_by": "scripts/fit_amd.py", "notes": words, "held_out": []}
        args.out.write_text("# Shares of the peak rates that AMD's CDNA cards reach; no kernel was measured.\n"
                            + to_yaml({key: value for key, value in fields.items() if value not in ([], "")}),
                            encoding="utf-8")


if __name__ == "__main__":
    main()
