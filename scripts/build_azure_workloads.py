"""Compute the built-in workload profiles from the Azure LLM inference traces 2023.

    python scripts/build_azure_workloads.py FOLDER [--out traces]

FOLDER holds AzureLLMInferenceTrace_conv.csv and AzureLLMInferenceTrace_code.csv of Azure/AzurePublicDataset
(CC-BY 4.0). The rows themselves are not redistributed; the profiles hold quantiles and figures derived from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.workload.importers import import_trace
from hermes.workload.profiles import load_workload_profile
from hermes.workload.traces import describe_frame

# Half per cents throughout, and ten times as fine in the outer per cents, where the mean of a heavy tail is decided.
LEVELS = np.unique(np.round(np.concatenate([
    np.linspace(0.0, 1.0, 201), np.linspace(0.0, 0.01, 21), np.linspace(0.99, 1.0, 21),
    [0.0001, 0.0002, 0.9998, 0.9999],
]), 6))

HEADER = """\
# Quantiles and figures of a trace, computed by scripts/build_azure_workloads.py. Do not edit.
# Derived from the Azure LLM inference traces 2023 (Azure/AzurePublicDataset), licensed under CC-BY 4.0:
# https://creativecommons.org/licenses/by/4.0/
"""


def numbers(values: npt.NDArray[np.float64]) -> str:
    """A YAML flow list, wrapped, with no more digits than needed."""
    lines, line = [], ""
    for value in values:
        text = f"{float(value):.6f}".rstrip("0").rstrip(".")
        if len(line) + len(text) > 108:
            lines.append(line.rstrip())
            line = ""
        line += f"{text}, "
    return "[\n    " + "\n    ".join([*lines, line.rstrip(", ")]) + "]"


def counts(name: str, tokens: npt.NDArray[np.int64], figures: dict[str, Any]) -> str:
    rows = "".join(f"  {key}: {figures[key]:.6g}\n" for key in ("mean", "std", "p50", "p90", "p99"))
    quantiles = np.quantile(tokens, LEVELS)
    return f"{name}:\n{rows}  levels: {numbers(LEVELS)}\n  values: {numbers(quantiles)}\n"


def profile(kind: str, path: Path) -> str:
    """The text of one profile."""
    frame = import_trace("azure", path)
    figures = describe_frame(frame)
    arrivals = figures["arrivals"]
    return (
        f"{HEADER}format: hermes-workload/1\nname: azure-{kind}-2023\nsource:\n"
        f"  title: AzureLLMInferenceTrace 2023, {path.name}\n"
        "  url: https://github.com/Azure/AzurePublicDataset/blob/master/AzureLLMInferenceDataset2023.md\n"
        "  licence: CC-BY-4.0\n"
        "  attribution: Azure Public Dataset, Microsoft; described in Patel et al., Splitwise, ISCA 2024\n"
        "  changes: reduced to quantiles (linear interpolation) and summary figures\n"
        f"requests: {figures['requests']}\narrivals:\n"
        + "".join(f"  {key}: {arrivals[key]:.6g}\n" for key in ("duration_s", "rate_per_s", "interarrival_cv"))
        + f"spearman: {figures['spearman']:.6f}\n"
        + counts("prompt_tokens", frame["prompt_tokens"].to_numpy(), figures["prompt_tokens"])
        + counts("output_tokens", frame["output_tokens"].to_numpy(), figures["output_tokens"])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the two CSV files")
    parser.add_argument("--out", type=Path, default=Path("traces"), help="where the profiles go")
    arguments = parser.parse_args()
    for kind in ("conv", "code"):
        text = profile(kind, arguments.folder / f"AzureLLMInferenceTrace_{kind}.csv")
        target = arguments.out / f"azure-{kind}-2023.yaml"
        target.write_text(text, encoding="utf-8")
        load_workload_profile(target)  # a profile that does not load is worse than none
        print(target)


if __name__ == "__main__":
    main()
