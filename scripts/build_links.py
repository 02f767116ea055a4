"""Fit the links between devices that ship (`hw_profiles/links`) to the all-reduces of the kernel tables.

    python scripts/build_links.py          # prints the errors, writes the files
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hermes.calibration.fit.estimators import solve
from hermes.hardware.composed.kernel_tables import load_kernels

FOLDER = Path(__file__).resolve().parent.parent / "hw_profiles" / "links"
SMALLEST, LARGEST = 1024, 2**25      # bytes: a row of a small model, 2,048 rows of a large one
# name, card that the figures are fitted to, whether its all-reduces run inside CUDA graphs, cards to check on, title
LINKS = [
    ("nvlink-3", "a100-80gb", True, [], "NVLink of the A100's generation"),
    ("nvlink-4", "h100-sxm", True, ["h200"], "NVLink of the H100's generation"),
    ("nvlink-5", "b200", True, [], "NVLink of the B200's generation"),
    ("pcie-5-peer", "rtx-pro-6000", False, [], "PCIe 5 x16 with peer access, by NCCL"),
]


def points(card: str, captured: bool) -> tuple[np.ndarray, np.ndarray]:
    """(features, seconds) of a card's all-reduces: 1, doublings beyond two ranks, bytes through one link."""
    tables = load_kernels(card)
    rows, seconds = [], []
    for ranks in tables.all_reduce_ranks:
        for size, ns in zip(*tables.all_reduce(ranks, captured), strict=True):
            if SMALLEST <= size <= LARGEST:
                rows.append([1.0, math.log2(ranks) - 1.0, 2.0 * (ranks - 1) / ranks * size])
                seconds.append(ns * 1e-9)
    return np.array(rows), np.array(seconds)


def errors(card: str, captured: bool, found: np.ndarray) -> str:
    """Return the errors of the formula on a card, in words."""
    features, seconds = points(card, captured)
    error = np.abs(features @ found / seconds - 1.0)
    return f"{error.mean():.0%} on average, {error.max():.0%} at worst ({card})"


def main() -> None:
    """Write the files."""
    for name, card, captured, others, title in LINKS:
        features, seconds = points(card, captured)
        found = solve(features, seconds)
        text = "; ".join(errors(other, captured, found) for other in (card, *others))
        latency, doubling, slope = found
        (FOLDER / f"{name}.yaml").write_text(
            f"# {title}; fitted by scripts/build_links.py.\n"
            f"format: hermes-interconnect/1\nname: {name}\n"
            f"latency: {latency * 1e6:.3g} us\nlatency_per_doubling: {doubling * 1e6:.3g} us\n"
            f"bandwidth: {1e-9 / slope:.3g} GB/s\n"
            "sources:\n"
            f'- "all-reduces of 2, 4 and 8 {card}, {SMALLEST:,} bytes to {LARGEST:,}, '
            f'{"inside CUDA graphs" if captured else "launched by the host"}, of aiconfigurator-core 0.12.0 '
            '(NVIDIA, Apache-2.0)"\n'
            f'- "errors of the formula: {text}"\n')
        print(f"{name}: {latency * 1e6:.3g} us, {doubling * 1e6:.3g} us, {1e-9 / slope:.3g} GB/s; {text}")


if __name__ == "__main__":
    main()
