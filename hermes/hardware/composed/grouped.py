"""Grouped matrix products of a mixture's experts (DeepGEMM, CUTLASS): a roofline at published rates.

Kernel tables hold the Triton kernels of the experts. vLLM takes grouped products instead where devices have whole
experts of FP8 blocks (its choice of kernels for FP8: on Hopper Triton for tensor parallelism,
CUTLASS or DeepGEMM for expert parallelism), and always behind DeepEP. No table of them is at hand. A layer takes

    max(bytes / (0.71 x memory bandwidth), flops / (0.62 x peak FP8)) + bytes of kernels between / (0.71 x bandwidth)

on the device with the most to do. Rows of each expert that is read are filled up to tiles, by half a tile on average.

The shares are what DeepGEMM's README of 2025 reports for an H800 (3.35 TB/s, 1,979 TFLOP/s): memory from six dense
products of 64 rows (1,688 to 2,668 GB/s, median 2,388), arithmetic from four grouped ones of 4,096 and 8,192 rows
(1,093 to 1,297 TFLOP/s). Of its six masked grouped products of 256 to 1,024 rows, which neither share was found on, the
formula gives 75 to 101% of the time (tests/hardware/composed/test_all_to_all.py). Other cards' shares are assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import FloatArray
from hermes.hardware.composed.kernel_curves import Roof
from hermes.hardware.composed.term_sources import GROUPED_DTYPE
from hermes.hardware.descriptions.models import precision
from hermes.hardware.fitted.operator_curves import rising
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.hardware.composed.experts import ExpertSplit
    from hermes.hardware.composed.term_sources import Sources
    from hermes.hardware.descriptions.models import ModelDescription
    from hermes.hardware.roofline import RooflineModel

__all__ = ["grouped_experts", "grouped_times", "product_ns"]

COMPUTE = 0.62                # of the peak of FP8
MEMORY = 0.71                 # of the peak bandwidth
TILE_ROWS = 128               # to which the rows of each expert are filled up


def grouped_experts(base: RooflineModel, sources: Sources, tokens: FloatArray) -> tuple[FloatArray, str]:
    """Return the nanoseconds of all layers' experts, over tokens of all ranks, and their source."""
    from hermes.hardware.composed.experts import ExpertSplit

    device, model, way = base.device, base.model, sources.all_to_all
    devices = base.options.tp * base.options.dp
    split = ExpertSplit(1, devices) if sources.whole_experts else ExpertSplit(devices, 1)
    roof = Roof(device.peak("fp8") / NS_PER_S, device.memory_bandwidth / NS_PER_S)
    permuted = way is None or not way.low_latency
    times = grouped_times(roof, model, split, sources.routing_skew, tokens, permuted)
    return times * model.expert_layers, (
        f"roofline of {device.name}, grouped products at DeepGEMM's published rates (routing skew "
        f"{sources.routing_skew:g})")


def product_ns(roof: Roof, groups: float, rows: float, outputs: float, inputs: float) -> float:
    """Return the nanoseconds of one grouped product: `rows` of each of `groups` matrices, FP8 in and bfloat16 out."""
    moved = groups * (outputs * inputs + rows * (inputs + 2.0 * outputs))
    flops = 2.0 * groups * rows * outputs * inputs
    return float(max(moved / (MEMORY * roof.bytes), flops / (COMPUTE * roof.flops)))


def grouped_times(roof: Roof, model: ModelDescription, split: ExpertSplit, skew: float, tokens: FloatArray,
                  permuted: bool) -> FloatArray:
    """Return the nanoseconds of one layer's experts on the slowest device, over tokens of all ranks together.

    roof: peak FP8 operations and bytes of a device, for each nanosecond
    permuted: whether rows are gathered by expert first, and their results weighted and added up after (not behind the
        low-latency kernels of DeepEP, which do both)
    """
    from hermes.hardware.composed.experts import dealt

    hidden, inner = float(model.hidden_size), model.intermediate_size / split.tp
    matrices = 3.0 if model.gated_ffn else 2.0
    weights = matrices * hidden * inner
    gates = matrices - 1.0
    between = (2.0 * gates + 1.0) * inner + (4.0 * hidden if permuted else 0.0)   # activation; rows there and back
    total: FloatArray = np.zeros(len(tokens))
    deals = dealt(model, split.ep, skew, tokens)
    for most, share in deals:
        rows = share.max() * model.experts_per_token / split.ep * tokens
        filled = np.maximum(rows + most * TILE_ROWS / 2.0, most * TILE_ROWS)
        own = rows * (2.0 * hidden + hidden + (2.0 * gates + 1.0) * inner)
        moved = most * weights * precision(GROUPED_DTYPE).layer_bytes + own
        total += np.maximum(moved / (MEMORY * roof.bytes), 2.0 * weights * filled / (COMPUTE * roof.flops))
        total += rows * between / (MEMORY * roof.bytes)
    return rising(total / len(deals))
