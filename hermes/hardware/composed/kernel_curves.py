"""Curves of one model's operators, read off the kernel tables of a card. All times are nanoseconds.

A table has its own sizes, a model has others. Between measured sizes the *slowdown*, the time over the roofline's time,
is interpolated linearly in the logarithms of the sizes; beyond them the last slowdown holds. What a curve returns never
falls as work grows: `rising` (`hermes.hardware.fitted.operator_curves`) evens out the measured falls.

Attention is looked up by *lanes*. A kernel spreads over (sequence, head) pairs, so a batch of b sequences with h heads
takes the time of b/2 sequences with 2 h heads. This covers models whose number of key-value heads was not measured, as
those with multi-head attention. Prompts count query heads, decodes key-value heads: these are what their kernels share
out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hermes.arrays import FloatArray, exp, log
from hermes.hardware.composed.kernel_tables import AttentionTable, GemmTable
from hermes.hardware.fitted.operator_curves import rising

__all__ = [
    "DecodeTimes", "PrefillTimes", "Roof", "cold_decode_times", "decode_times", "gemm_times", "largest_sum",
    "prefill_times", "sunk_times", "tile_edges",
]

LARGE_BYTES = 2.0**29       # KV beyond every second-level cache
BEST = 0.9                  # quantile of the measured efficiencies that counts: waste differs, the memory does not
DEFAULT_EFFICIENCY = 0.85   # of reading KV, where no large cache was measured
SHORT = 128.0               # tokens of a tile of queries
FEWEST_LANES = 32.0         # of a launch that can fill a card
SMALL_TILE, TILE = 64.0, 128.0   # rows of a tile of a product, of up to and of more than `SMALL_TILES` rows
FREE_ROWS, SMALL_TILES = 256.0, 1024.0
LAST_EDGE = 2.0**14         # rows up to which the stairs of the tiles show
GRAPH_LAUNCH_NS = 4000.0    # of a kernel in a CUDA graph; what the tables show for next to no work is a launch alone


class Roof(NamedTuple):
    """Peak rates of a device, per nanosecond."""

    flops: float
    bytes: float


def gemm_times(table: GemmTable, roof: Roof, value_bytes: float, m: FloatArray, n: float, k: float) -> FloatArray:
    """Nanoseconds of products of m x k by k x n, for each number of rows in `m` (ascending); rises with m.

    Rows are computed in tiles: a product of 1,025 rows takes as long as one of 1,152. Tables hold both sides of an
    edge, so a measured point stands for its whole tile.
    """
    def ideal(rows: FloatArray, columns: FloatArray, inner: FloatArray) -> FloatArray:
        moved = value_bytes * columns * inner + 2 * rows * (columns + inner)
        return np.asarray(np.maximum(2 * rows * columns * inner / roof.flops, moved / roof.bytes))

    (j, b), (i, c) = _bracket(table.n, n), _bracket(table.k, k)
    near = ideal(table.m[:, None, None], table.n[None, j:j + 2, None], table.k[None, None, i:i + 2])
    corners = log(_least(table.ns)[:, j:j + 2, i:i + 2] / near)
    weights = np.array([1 - b, b])[:, None] * np.array([1 - c, c])
    weights = np.where(np.isnan(corners), 0.0, weights)
    total = weights.sum(axis=(1, 2))
    known = total > 0
    at_m = (np.nan_to_num(corners) * weights).sum(axis=(1, 2))[known] / total[known]
    columns, inner = np.asarray(n), np.asarray(k)
    if not known.any():   # a measurement that was cut off has no product of this shape: the roofline's time
        return rising(ideal(_in_tiles(m), columns, inner))
    measured = exp(at_m) * ideal(table.m[known], columns, inner)
    rows = _in_tiles(table.m[known])
    last = np.append(np.diff(rows) > 0, True)   # of several points in a tile, the one with most rows
    slow = log(measured / ideal(rows, columns, inner))[last]
    m = _in_tiles(m)
    return rising(exp(np.interp(log(m), log(rows[last]), slow)) * ideal(m, columns, inner))


def _in_tiles(rows: FloatArray) -> FloatArray:
    """Rows with those that fill the last tile. Up to `FREE_ROWS`, tables hold the stairs themselves."""
    tile = np.where(rows > SMALL_TILES, TILE, SMALL_TILE)
    return np.where(rows > FREE_ROWS, np.ceil(rows / tile) * tile, rows)


def tile_edges() -> FloatArray:
    """Numbers of rows on both sides of the edges of all tiles."""
    edges = np.concatenate([np.arange(FREE_ROWS, SMALL_TILES, SMALL_TILE), np.arange(SMALL_TILES, LAST_EDGE + 1, TILE)])
    return np.concatenate([edges, edges + 1.0])


def sunk_times(times: FloatArray, roof: Roof, share: float, m: FloatArray, n: float, k: float) -> FloatArray:
    """Nanoseconds that products of m x k by k x n take beyond `times` where they are no faster than a `share` of the
    peak arithmetic."""
    return np.asarray(np.maximum(2 * _in_tiles(m) * n * k / roof.flops / share - times, 0.0))


def _least(ns: FloatArray) -> FloatArray:
    """The least time of a product at least as large, for each measured one.

    A smaller product never needs longer than a larger one, which could serve it. What is measured above that is noise
    of one sign: clocks that fell, memory that others used (H100: products bound by memory take either 1.15 or 1.35
    times the roofline's time, without order).
    """
    least = np.where(np.isnan(ns), np.inf, ns)
    for axis in range(3):
        least = np.flip(np.minimum.accumulate(np.flip(least, axis), axis=axis), axis)
    return np.where(np.isinf(least), np.nan, least)


def _bracket(axis: FloatArray, value: float) -> tuple[int, float]:
    """Left neighbour of a value on an axis and the logarithmic weight of the right one, within the axis."""
    value = min(max(value, axis[0]), axis[-1])
    i = min(int(np.searchsorted(axis, value, side="right")) - 1, len(axis) - 2)
    return i, math.log(value / axis[i]) / math.log(axis[i + 1] / axis[i])


def _by_lanes(table: AttentionTable, heads: float, kv_heads: float, by_kv: bool) -> tuple[FloatArray, FloatArray]:
    """(lanes, nanoseconds by (lanes, length)) of the pairs with the nearest ratio of query to key-value heads; where
    several measurements have the same lanes, that of the nearest number of heads counts."""
    def far(pair: tuple[int, int]) -> tuple[float, float]:
        ratio = abs(math.log(pair[0] / pair[1] / (heads / kv_heads)))
        return round(ratio, 6), abs(math.log(pair[0] / heads))

    order = sorted(range(len(table.heads)), key=lambda i: far(table.heads[i]))
    nearest = far(table.heads[order[0]])[0]
    found: dict[float, FloatArray] = {}
    for i in order:
        if far(table.heads[i])[0] > nearest:
            break
        count = table.heads[i][1 if by_kv else 0]
        for batch, times in zip(table.batch, table.ns[i].T, strict=True):
            known = found.get(batch * count)
            found[batch * count] = times if known is None else np.where(np.isnan(known), times, known)
    lanes = np.array(sorted(lane for lane, times in found.items() if not np.isnan(times).all()))
    return lanes, np.array([found[lane] for lane in lanes])


def _filled(logs: FloatArray, axis: FloatArray) -> FloatArray:
    """Each row with its gaps filled: on a line between known points, the nearest known one beyond them."""
    out = logs.copy()
    for row in out:
        known = ~np.isnan(row)
        row[~known] = np.interp(axis[~known], axis[known], row[known])
    return out


def _lookup(lanes: FloatArray, lengths: FloatArray, slowdown: FloatArray, at_lanes: FloatArray,
            at_lengths: FloatArray) -> FloatArray:
    """exp of the slowdown at lanes x lengths (arrays that broadcast), linear in the logarithms, held at the ends."""
    x, y = log(lanes), log(lengths)
    u = np.clip(log(at_lanes), x[0], x[-1])
    v = np.clip(log(at_lengths), y[0], y[-1])
    i = np.clip(np.searchsorted(x, u, side="right") - 1, 0, len(x) - 2)
    j = np.clip(np.searchsorted(y, v, side="right") - 1, 0, len(y) - 2)
    a, b = (u - x[i]) / (x[i + 1] - x[i]), (v - y[j]) / (y[j + 1] - y[j])
    low = slowdown[i, j] * (1 - b) + slowdown[i, j + 1] * b
    high = slowdown[i + 1, j] * (1 - b) + slowdown[i + 1, j + 1] * b
    return np.asarray(exp(low * (1 - a) + high * a))


class PrefillTimes(NamedTuple):
    """Attention of one layer's prompts: the larger of `of_pairs` (over `pairs`) and `of_tokens` (over `tokens`).

    Both rise, so that more work never makes a step cheaper, whichever prompts it is made of.
    """

    pairs: FloatArray
    of_pairs: FloatArray
    tokens: FloatArray
    of_tokens: FloatArray


def prefill_times(table: AttentionTable, roof: Roof, heads: float, kv_heads: float, head_dim: float,
                  measured_dim: float, pairs: FloatArray, tokens: FloatArray) -> PrefillTimes:
    """Times of prompts from the sums over a step, which do not tell one long prompt from several.

    Pairs of tokens take as long as in one prompt that has as many: its kernel has as many tiles to multiply. Tokens
    take at least as long as prompts of `SHORT` tokens with as many in all: their tiles are not full.
    """
    lanes, ns = _by_lanes(table, heads, kv_heads, by_kv=False)

    def ideal(lane: FloatArray, length: FloatArray) -> FloatArray:
        flops = 2 * lane * length * (length + 1) * measured_dim
        moved = 2 * lane * length * measured_dim * (2 + 2 * kv_heads / heads)
        return np.asarray(np.maximum(flops / roof.flops, moved / roof.bytes))

    slowdown = _filled(log(ns / ideal(lanes[:, None], table.length[None, :])), log(table.length))

    def times(lane: FloatArray, length: FloatArray) -> FloatArray:
        factor = _lookup(lanes, table.length, slowdown, lane, length)
        return rising(factor * ideal(lane, length) * (head_dim / measured_dim))

    length = np.maximum(np.sqrt(2.0 * pairs), 1.0)
    short = np.minimum(tokens, SHORT)
    return PrefillTimes(pairs, times(np.full(len(pairs), float(heads)), length), tokens,
                        times(heads * tokens / short, short))


class DecodeTimes(NamedTuple):
    """Attention of one layer's decodes: the larger of `launch` (over `seqs`; rises) and the time to read the KV.

    That is `GRAPH_LAUNCH_NS` + per_token * sum of contexts. Where `added`, it is their sum, without the constant.
    """

    seqs: FloatArray
    launch: FloatArray
    per_token: float
    added: bool = False


def largest_sum(table: AttentionTable) -> float:
    """Largest measured sum of contexts over all decodes, times their key-value heads."""
    heads = np.array([kv for _, kv in table.heads], dtype=np.float64)
    sums = heads[:, None, None] * table.length[None, :, None] * table.batch[None, None, :]
    return float(sums[~np.isnan(table.ns)].max())


def decode_times(table: AttentionTable, roof: Roof, heads: float, kv_heads: float, head_dim: float, measured_dim: float,
                 value_bytes: float, seqs: FloatArray) -> DecodeTimes:
    """Times of `seqs` decodes.

    The launch is the time over the shortest contexts. The context adds the time to read it, at the efficiency of the
    largest measured caches (`LARGE_BYTES`): smaller ones were measured with the KV in the second-level cache, where it
    is not in a model, whose weights pass through the cache between two layers.
    """
    lanes, ns = _by_lanes(table, heads, kv_heads, by_kv=True)
    size = 2 * measured_dim * value_bytes
    read = lanes[:, None] * table.length[None, :] * size
    shortest = _filled(log(ns), log(table.length))[:, 0]
    alone = max(float(exp(shortest[0])) - GRAPH_LAUNCH_NS, 0.0)
    large = (read >= LARGE_BYTES) & ~np.isnan(ns) & (lanes[:, None] >= FEWEST_LANES)
    efficiencies = (read / roof.bytes / (ns - alone))[large]
    efficiency = min(1.0, float(np.quantile(efficiencies, BEST))) if large.any() else DEFAULT_EFFICIENCY
    launch = exp(np.interp(log(kv_heads * seqs), log(lanes), shortest)) - alone
    per_sum = kv_heads * 2 * head_dim * value_bytes
    return DecodeTimes(seqs, rising(launch), per_sum / roof.bytes / efficiency)


def cold_decode_times(table: AttentionTable, heads: float, kv_heads: float, head_dim: float, measured_dim: float,
                      value_bytes: float, seqs: FloatArray) -> DecodeTimes:
    """Times of `seqs` decodes from a table whose launches read KV that no cache held.

    Such times are a launch for each number of sequences plus the KV's bytes at one rate: relative least squares, the
    rate from the launches that can fill a card. Beyond the largest launch in proportion.
    """
    lanes, ns = _by_lanes(table, heads, kv_heads, by_kv=True)
    read = lanes[:, None] * table.length[None, :] * 2 * measured_dim * value_bytes
    wide = ~np.isnan(ns) & (lanes >= min(FEWEST_LANES, lanes[-1]))[:, None]
    weights = np.where(np.isnan(ns), 0.0, 1.0 / ns**2)
    ns = np.nan_to_num(ns)

    def mean(values: FloatArray) -> FloatArray:
        return np.asarray((weights * values).sum(axis=1) / weights.sum(axis=1))

    x, y = read - mean(read)[:, None], ns - mean(ns)[:, None]
    spread = float((weights * x * x)[wide].sum())
    per_byte = max(float((weights * x * y)[wide].sum()) / spread, 0.0) if spread > 0 else 0.0
    found = np.maximum(mean(ns - per_byte * read), 0.0)
    at = kv_heads * seqs
    launch = np.interp(at, lanes, found) * np.maximum(at / lanes[-1], 1.0)
    return DecodeTimes(seqs, rising(launch), per_byte * kv_heads * 2 * head_dim * value_bytes, added=True)
