"""Set the roofline's shares of 8-bit experts by the kernel tables of a card, in `hw_profiles/efficiency`.

    python scripts/build_expert_factors.py [CARD ...]

The other factors are fitted to whole steps (`build_efficiency.py`). On Hopper, their 8-bit mixtures had the times of a
table that `build_kernels.py` refuses since: shares of 0.12 to 0.17, a roofline of eight times the bytes. Here they are
the shares of 16 bits times the median, over shapes that both tables have, of how much faster 8 bits are: the share of
memory with up to `FEW` tokens, that of arithmetic from `MANY` on. (The median of roofline over measured time, tried
first, gave 0.15 to 0.27 of the arithmetic: shares of single kernels with tiles that are not full.)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from hermes.hardware.composed.kernel_tables import KernelTables, load_kernels
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import precision
from hermes.hardware.efficiency import load_efficiency

CARDS = ("h100-sxm", "h200")
FEW, MANY = 16, 16384   # tokens
TABLE, DTYPE = "fp8_block", "fp8-block"
FOLDER = Path(__file__).parents[1] / "hw_profiles" / "efficiency"


def by_shape(tables: KernelTables, name: str) -> tuple[dict[tuple[int, ...], np.ndarray], np.ndarray]:
    table = tables.experts(name, "balanced")
    assert table is not None
    return {tuple(shape): ns for shape, ns in zip(table.shapes.tolist(), table.ns, strict=True)}, table.tokens


def fitted(card: str) -> tuple[float, float]:
    """Return the shares of arithmetic and memory."""
    device, tables, wide = load_device(card), load_kernels(card), load_efficiency(card).of("bf16").experts
    (narrow, tokens), (full, others) = by_shape(tables, TABLE), by_shape(tables, "bf16")
    faster = np.array([np.interp(tokens, others, full[shape]) / ns for shape, ns in narrow.items() if shape in full])
    compute = np.nanmedian(faster[:, tokens >= MANY]) * device.peak("bf16") / device.peak("fp8")
    memory = np.nanmedian(faster[:, tokens <= FEW]) * precision(DTYPE).layer_bytes / precision("bf16").layer_bytes
    return round(float(wide.compute * compute), 3), round(min(float(wide.memory * memory), 1.0), 3)


def main() -> None:
    for card in sys.argv[1:] or CARDS:
        compute, memory = fitted(card)
        path = FOLDER / f"{card}.yaml"
        head, narrow = path.read_text(encoding="utf-8").split("factors_8bit:\n")
        line = f"  experts: {{compute: {compute}, memory: {memory}}}"
        narrow = re.sub(r"(?m)^  experts: \{.*\}$", line, narrow, count=1)
        path.write_text(f"{head}factors_8bit:\n{narrow}", encoding="utf-8")
        print(f"{card}: compute {compute}, memory {memory}")


if __name__ == "__main__":
    main()
