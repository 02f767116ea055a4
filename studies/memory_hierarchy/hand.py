"""The study's break-even points by arithmetic, independently of the simulator.

    recomputing n tokens     (2 P n + 2 L h n^2) flops at half of the devices' peak; P parameters, L layers, h width
    loading n tokens         n k bytes at the tier's bytes/s, k bytes of KV a token
    what a store keeps       capacity / bytes written per second = its memory in seconds; a turn after a gap that is
                             exponential with mean g finds its past with probability 1 - exp(-memory / (g + answer))
    what it costs            gigabytes x dollars / hours of its years

P, L, h, k are those of Llama-3.1-70B; the peak is that of the H100's data sheet.
"""

from __future__ import annotations

import math

__all__ = ["KV_BYTES", "bandwidth_to_break_even", "found_share", "gap_kept", "recompute_s"]

PARAMETERS, LAYERS, WIDTH = 70.55e9, 80, 8192
KV_BYTES = 2 * LAYERS * 8 * 128 * 2    # keys and values of eight heads of 128, two bytes each
PEAK, SHARE = 989.4e12, 0.5            # FLOP/s of one H100 in bf16; half of it reached, assumed


def recompute_s(tokens: int, devices: int = 4) -> float:
    """Return the seconds of a prefill."""
    return (2 * PARAMETERS * tokens + 2 * LAYERS * WIDTH * tokens**2) / (devices * PEAK * SHARE)


def bandwidth_to_break_even(tokens: int) -> float:
    """Return the bytes/s at which a lone load takes as long as recomputing."""
    return tokens * KV_BYTES / recompute_s(tokens)


def found_share(capacity: float, written_per_s: float, gap_s: float, answer_s: float) -> float:
    """Return the share of turns that find their past in a store, least recently used out first."""
    return 1 - math.exp(-capacity / written_per_s / (gap_s + answer_s))


def gap_kept(capacity: float, written_per_s: float, share: float = 0.9) -> float:
    """Return the longest mean gap, answer included, of which a store still finds `share`."""
    return capacity / written_per_s / -math.log(1 - share)
