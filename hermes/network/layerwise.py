"""Moving a KV cache layer by layer while the prefill is still computing."""

from __future__ import annotations

import math

__all__ = ["exposed_bytes"]


def exposed_bytes(num_bytes: int, layers: int, compute_s: float, bandwidth: float) -> int:
    """Bytes of a KV cache that are still to be moved when the prefill ends, rounded up.

    num_bytes: the whole cache, in equal parts per layer; layers: at least 1; compute_s: duration of the prefill, in
    equal parts per layer; bandwidth: bytes/s while the prefill runs, with no other transfer in the way.

    Layer i moves while layer i+1 computes, as in Splitwise (arXiv 2311.18677). The first layer is ready after T/L, so
    there are T * (L-1)/L in which to move; the last is ready only at the end, so that at least V/L are left:

        max(V / L, V - bandwidth * T * (L-1) / L)
    """
    if num_bytes < 0 or layers < 1 or compute_s < 0 or not bandwidth > 0:
        raise ValueError(f"not a transfer: {num_bytes} bytes, {layers} layers, {compute_s} s, {bandwidth} bytes/s")
    last_layer = -(-num_bytes // layers)
    hidden = bandwidth * compute_s * (layers - 1) / layers
    return max(last_layer, num_bytes - math.floor(hidden)) if hidden < num_bytes else last_layer
