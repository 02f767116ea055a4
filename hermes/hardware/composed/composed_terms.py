"""Terms of a step on one kind of device, each with its source (hardware model `composed`).

    step = max(device, host)            (asynchronous scheduling; otherwise device + host)
    device = embedding and element-wise operators + qkv + o_proj + gate_up + down + lm_head
           + sampling + attention_of_prompts + attention_of_decodes + decodes_beside_prompt + all_reduce + engine
           + router + experts + dispatch + combine (mixtures) + hops (pipeline stages)

A term is filled from the best source there is for the device and the model: the card's kernel tables
(`hermes.hardware.composed.kernel_tables`), else the roofline with the card's efficiency factors
(`hermes.hardware.roofline`). `sources_of` says which. A scenario may change each of them alone (`TermOverride`).

Decode batches up to the engine's largest captured size run inside a CUDA graph and are padded to the next captured
size. Matrix products and element-wise operators then compute the padding too.

Data-parallel ranks of one engine (`parallel: {dp: ...}`) take their steps together: each layer's experts wait for the
tokens of all ranks (`dispatch`, an all-gather), and their results are added up and handed back (`combine`, a
reduce-scatter). A step is as long as its slowest rank's own terms and what all of them share (`lockstep_ns`). While
every rank's batch fits into a CUDA graph, all are padded to the largest; an idle rank computes padding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.compiled import mypyc_attr
from hermes.hardware.base import StepStats
from hermes.hardware.composed.kernel_curves import (
    GRAPH_LAUNCH_NS,
    DecodeTimes,
    Roof,
    cold_decode_times,
    decode_times,
    gemm_times,
    largest_sum,
    prefill_times,
    sunk_times,
)
from hermes.hardware.composed.kernel_tables import BORROWED, KernelTables
from hermes.hardware.composed.piecewise import Curve, Line, evened, interpolated, listed, row_grid, spaced
from hermes.hardware.composed.row_curves import elementwise_times, row_times
from hermes.hardware.composed.term_sources import HostTime, Reduces, Sources
from hermes.hardware.descriptions.models import precision
from hermes.hardware.fitted.ranges import Ranges, steps_outside
from hermes.hardware.history import Arithmetic, StepHistory
from hermes.hardware.info import HardwareInfo
from hermes.hardware.operators import kv_value_bytes
from hermes.hardware.roofline import RooflineModel
from hermes.hardware.trust import BY_BACKEND, GUESS, NEAR, Trust
from hermes.sums import float_sum
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.hardware.composed.spread import Spread

__all__ = ["ComposedModel"]

MOST_PAIRS = 2.0**38        # of new and past tokens that a step's grid reaches; proportional beyond
EIGHT_BIT = Trust("guess", 0.75, 1.2)   # 8-bit layers of the tables, narrowing included, which engines fuse with norms
EIGHT = ("fp8", "int8")
PRODUCTS = {"fp16": ("bf16",), "fp8-block": ("fp8_block", "fp8")}   # tables of products, the first that exists
COMPARED_RANKS = 2          # most data-parallel ranks of a mixture that were compared with a server
_STEPS = np.arange(1024, dtype=np.float64)
_IDLE = StepStats(decode_seqs=0)
_SAMPLED = ("lm_head", "sampling")   # terms whose rows are the sampled ones


@mypyc_attr(allow_interpreted_subclasses=True)
class ComposedModel:
    """Named terms of one model on one kind of device. All answers are in nanoseconds."""

    prices_drafts = True
    _decode: DecodeTimes | None = None

    def __init__(self, base: RooflineModel, kernels: KernelTables | None, host: HostTime, sources: Sources) -> None:
        """`base` gives the model's shapes, the device's rates and what the kernel tables do not hold."""
        self.base, self.kernels, self.host, self.sources = base, kernels, host, sources
        self.name = base.name
        self._fixed: dict[tuple[int, int], float] = {}
        device, model, options = base.device, base.model, base.options
        self._roof = Roof(device.peak(base.work.compute) / 1e9, device.memory_bandwidth / 1e9)
        self._expert_compute = next((one.compute for one in base.work.linears if one.kind == "experts"), "")
        self._expert_roof = Roof(device.peak(self._expert_compute) / 1e9, device.memory_bandwidth / 1e9)
        self._wide = Roof(device.peak(base.work.wide) / 1e9, device.memory_bandwidth / 1e9)
        self._rows = row_grid(2**17)
        self._row_list: list[float] = self._rows.tolist()
        self._sunk = np.zeros(len(self._rows))
        self._sunk_times: dict[int, float] = {}
        self._linears: list[tuple[str, list[float]]] = []
        self._products_said = ""
        self._attention_said: dict[str, str] = {}
        self._last: dict[str, float] = {}
        self._head: list[float] | None = None
        self._elementwise: list[float] | None = None
        self._sampler: list[float] | None = None
        self._prefill: tuple[Line, Line] | None = None
        self._latest_prompts = (-1.0, -1, 0.0)   # pairs, tokens, nanoseconds
        self._launches: dict[int, float] = {}
        self._alone: dict[int, tuple[float, float, float, float, float, float]] = {}
        self._own: dict[tuple[int, int, bool], float] = {}
        self._shared: dict[tuple[int, int, bool], float] = {}
        self._spreads: dict[tuple[int, int], Spread] = {}
        self._common_spreads: dict[tuple[int, int, bool, int, int], Spread] = {}
        self._experts: tuple[list[float], str] | None = None
        self._windowed = bool(base.work.windowed[1])
        self._skew = sources.skew
        if kernels is not None:
            self._read(kernels)
        self._link: Curve | None = None
        self._launched: Curve | None = None
        reduces = sources.reduces
        if reduces is None and kernels is not None and options.tp in kernels.all_reduce_ranks:
            found = kernels.all_reduce(options.tp, captured=True)
            reduces = Reduces(evened(found), evened(kernels.all_reduce(options.tp, captured=False)), "",
                              float(found[0][-1]))
        if reduces is not None:
            self._link, self._launched = listed(reduces.captured), listed(reduces.launched)
        self._reduces = base.work.all_reduces
        self._reduced_bytes = model.hidden_size * precision(options.dtype).other_bytes
        if self._reduces and reduces is not None and reduces.measured_bytes:   # a formula has no last point
            self._limit("tokens", reduces.measured_bytes / self._reduced_bytes)
        self._exchange = sources.exchange if model.num_experts else None
        self._gather: Curve | None = None
        self._scatter: Curve | None = None
        if self._exchange is not None:
            self._gather, self._scatter = listed(self._exchange.gather), listed(self._exchange.scatter)
        self._hops = [listed(hop) for hop in sources.hops]
        if sources.grouped:
            from hermes.hardware.composed.grouped import grouped_experts

            times, said = grouped_experts(base, sources, self._rows)
            self._experts = times.tolist(), said
        self._by_roof = self._asks_roof()
        self._between, self._moved_ns, self._launched_ns = base.work, base._elementwise, base._step
        work = base.work
        self._leave_out((work.narrowing if self._linears else ())
                        + (work.narrowing_experts if self._experts is not None else ())
                        + (work.activation_experts if sources.grouped else ()))
        self._ranges: Ranges = {name: (0.0, last) for name, last in self._last.items()}
        self._empty, self._empty_token, read = sources.beside
        self._beside = read * base.work.kv_bytes / self._roof.bytes
        group = model.num_heads / max(model.num_kv_heads, 1)
        self._one_tile = sources.tile_rows / group
        if self._decode is None:
            self._floor, self._per_token = base.operators_ns(StepStats(decode_seqs=1))["decode_attention"], base._slope
        else:
            layers = model.num_layers
            self._floor, self._per_token = GRAPH_LAUNCH_NS * layers, self._decode.per_token * layers

    def history(self) -> StepHistory | None:
        """Return what a client needs to price steps by those before them; None where they do not matter."""
        idle = round(self.sources.idle_ns) if self.host.asynchronous else 0
        if not idle and self.base.device.clocks is None:
            return None
        return StepHistory(self.base.device, Arithmetic.of(self.base.work, self.base.device), self._sunk_ns, idle)

    def _sunk_ns(self, tokens: int) -> float:
        """What the matrix products of a step take longer at the rate that the device sustains."""
        found = self._sunk_times.get(tokens)
        if found is None:
            found = self._sunk_times[tokens] = self._at(self._sunk.tolist(), self.rows(tokens))
        return found

    @property
    def info(self) -> HardwareInfo:
        """Properties besides step times: those of the roofline under it."""
        known, model = self.base.info, self.base.model
        uncompared = (("latent attention", model.mla is not None), ("sliding windows", model.window > 0),
                      (f"more than {COMPARED_RANKS} data-parallel ranks of experts",
                       model.num_experts > 0 and known.dp > COMPARED_RANKS))
        return replace(known, kind="composed", assumed_links=self.sources.assumed,
                       whole_experts=self.sources.whole_experts,
                       uncompared=tuple(name for name, holds in uncompared if holds))

    def _asks_roof(self) -> bool:
        """Whether the roofline prices a term that tables may hold."""
        by_link = not self._reduces or (self._link is not None and self._launched is not None)
        return not (self._linears and self._head is not None and by_link)

    def _limit(self, feature: str, last: float) -> None:
        """Note that some term was measured up to `last` of a feature of the batch."""
        self._last[feature] = min(last, self._last.get(feature, last))

    def _leave_out(self, kernels: tuple[tuple[float, int], ...]) -> None:
        """Leave out the element-wise kernels that other terms contain.

        Tables of 8-bit products hold whole layers, with the kernel that narrows their inputs; grouped products hold the
        activation too. What is left runs in 16 bits, and has the factors of 16 bits.
        """
        if not kernels:
            return
        base = self.base
        own, factors = base.efficiency, base.factors_file.of("bf16") if self._linears else base.efficiency
        self._between = left = base.work.without(kernels)
        rate = base.device.memory_bandwidth * factors.elementwise / NS_PER_S
        self._moved_ns = left.elementwise_bytes / rate
        overhead = base._step - own.kernel_latency * base.work.elementwise_kernels * NS_PER_S
        self._launched_ns = overhead + factors.kernel_latency * left.elementwise_kernels * NS_PER_S

    def _changed(self, name: str, ns: float, rows: float) -> float:
        """A term of so many rows as the scenario changes it."""
        change = self.sources.terms.get(name)
        return ns if change is None else change.scale * ns + (change.fixed + change.per_row * rows) * NS_PER_S

    def _read(self, kernels: KernelTables) -> None:
        """Fill what the kernel tables hold."""
        model, options = self.base.model, self.base.options
        kind = precision(options.dtype)
        tp, hidden = options.tp, model.hidden_size
        heads, kv_heads = model.num_heads // tp, max(model.num_kv_heads // tp, 1)
        gemm = None
        if not kind.dequantised:
            for key in PRODUCTS.get(options.dtype, (options.dtype,)):
                gemm = kernels.gemm(key)
                if gemm is not None:
                    self._products_said = kernels.said(f"gemm/{key}")
                    break
        if gemm is not None:
            for name, (n, k), count in self._products(heads, kv_heads):
                times = gemm_times(gemm, self._roof, kind.layer_bytes, self._rows, n, k)
                self._linears.append((name, (times * count).tolist()))
                self._sinks(times, count, n, k)
            self._limit("tokens", float(gemm.m[-1]))
        if model.num_experts:
            from hermes.hardware.composed.experts import ExpertSplit, expert_times  # most models have none

            split = ExpertSplit(1, tp * options.dp) if self.sources.whole_experts else ExpertSplit(tp * options.dp, 1)
            of_experts = None if self.sources.grouped else expert_times(
                kernels, self._expert_roof, model, model.expert_dtype or options.dtype, split,
                self.sources.routing_skew, self._rows)
            if of_experts is not None:
                self._experts = (of_experts[0] * model.expert_layers).tolist(), of_experts[1]
                self._sinks(of_experts[0], model.expert_layers, 3.0 * model.hidden_size * model.intermediate_size,
                            model.experts_per_token / tp, self._expert_roof)
            plain = kernels.gemm(self.base.work.wide)
            if gemm is not None and plain is not None:   # the router is not quantised
                times = gemm_times(plain, self._wide, kind.other_bytes, self._rows, model.num_experts, hidden)
                self._linears.append(("router", (times * model.expert_layers).tolist()))
        wide = kernels.gemm(self.base.work.wide)
        if wide is not None and model.output_head != "none":
            self._head = gemm_times(
                wide, self._wide, kind.other_bytes, self._rows, model.vocab_size / tp, hidden).tolist()
        elementwise = elementwise_times(kernels, self.base.work.wide, model, tp, self._rows)
        self._elementwise = None if elementwise is None else elementwise.tolist()
        sampler = kernels.rows("sampling", "fp32")
        if sampler is not None:
            self._sampler = row_times(sampler, self._rows, model.vocab_size).tolist()
        self._attends(kernels, heads, kv_heads)

    def _attends(self, kernels: KernelTables, heads: int, kv_heads: int) -> None:
        """Fill attention, as far as the kernel tables hold it."""
        model, options = self.base.model, self.base.options
        kv_bytes = kv_value_bytes(options.kv_dtype, options.dtype)
        kv = {1.0: "fp8", 4.0: "fp32"}.get(kv_bytes, "bf16")
        if not model.causal:
            return
        if model.mla is not None:
            # a pair takes 2 * (width of a query + of a value) operations, a cached token has one latent vector
            pair = (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim) / 2.0
            cached = model.mla.cached / 2.0
            self._prompts(kernels, f"latent_prefill/{kv}", heads, 1, pair, pair)
            self._decodes(kernels, f"latent_decode/{kv}", heads, 1, cached, cached)
            return
        dims = kernels.head_dims("decode", kv)
        if dims:
            measured = next((dim for dim in dims if dim >= model.head_dim), dims[-1])
            self._prompts(kernels, f"prefill/{measured}/{kv}", heads, kv_heads, model.head_dim, measured)
            self._decodes(kernels, f"decode/{measured}/{kv}", heads, kv_heads, model.head_dim, measured)

    def _prompts(self, kernels: KernelTables, key: str, heads: int, kv_heads: int, width: float, of_table: float
                 ) -> None:
        """Fill the attention of prompts. width: of a head; of_table: of the table's heads."""
        table = kernels.attention(key)
        if table is None:
            return
        layers, longest = self.base.model.num_layers, float(table.length[-1])
        found = prefill_times(table, self._wide, heads, kv_heads, width, of_table, spaced(MOST_PAIRS),
                              spaced(2**17))
        self._limit("prefill_attn", longest * (longest + 1.0) / 2.0)
        self._prefill = Line(found.pairs, found.of_pairs * layers), Line(found.tokens, found.of_tokens * layers)
        self._attention_said["attention_of_prompts"] = kernels.said(key)

    def _decodes(self, kernels: KernelTables, key: str, heads: int, kv_heads: int, width: float, of_table: float
                 ) -> None:
        """Fill the attention of decodes; arguments as for `_prompts`."""
        table = kernels.attention(key)
        if table is None:
            return
        value, seqs = kv_value_bytes(self.base.options.kv_dtype, self.base.options.dtype), spaced(2048)
        self._limit("decode_ctx", largest_sum(table) / kv_heads)
        self._decode = (
            cold_decode_times(table, heads, kv_heads, width, of_table, value, seqs) if kernels.file.cold
            else decode_times(table, self._wide, heads, kv_heads, width, of_table, value, seqs))
        self._attention_said["attention_of_decodes"] = kernels.said(key)

    def _sinks(self, times: FloatArray, layers: int, n: float, k: float, roof: Roof | None = None) -> None:
        """Add what products of so many layers, n * k weights each, take longer where the device's clocks sank."""
        clocks = self.base.device.clocks
        if clocks is not None:
            self._sunk += layers * sunk_times(times, roof or self._roof, clocks.sustained, self._rows, n, k)

    def _products(self, heads: int, kv_heads: int) -> Iterator[tuple[str, tuple[float, float], int]]:
        """Yield (name, (outputs, inputs), layers) of the products of a layer on one device, but experts and router."""
        model, tp = self.base.model, self.base.options.tp
        hidden, hd, layers = model.hidden_size, model.head_dim, model.num_layers
        if model.mla is None:
            yield "qkv", ((heads + 2 * kv_heads) * hd, hidden), layers
        else:
            for name, shape in model.mla_shapes(tp).items():
                yield name, shape, layers
        yield "o_proj", (hidden, heads * model.v_dim), layers
        sparse, gates = model.expert_layers, 2 if model.gated_ffn else 1
        inner = (model.dense_intermediate_size if sparse else model.intermediate_size) / tp
        if layers > sparse:
            yield "gate_up" if model.gated_ffn else "up", (inner * gates, hidden), layers - sparse
            yield "down", (hidden, inner), layers - sparse
        if model.shared_intermediate_size:
            inner = model.shared_intermediate_size / tp
            yield "shared_gate_up", (inner * gates, hidden), sparse
            yield "shared_down", (hidden, inner), sparse

    def rows(self, tokens: int) -> int:
        """Tokens that the linear operators compute: the next captured size."""
        sizes = self.sources.capture_sizes
        return tokens if not sizes or tokens > sizes[-1] else sizes[bisect_right(sizes, tokens - 1)]

    def _at(self, times: list[float], rows: float) -> float:
        """The value of a curve over `_rows` at a number of rows."""
        return interpolated(self._row_list, times, rows)

    def fixed_terms(self, tokens: int, sampled: int) -> dict[str, float]:
        """All terms but attention and host, by name; of data-parallel ranks with as many tokens on each."""
        rows, captured = self.rows(tokens), self._captured(tokens)
        return self._own_terms(rows, sampled, captured) | (
            self._shared_terms(rows * self.base.options.dp, rows, captured))

    def _captured(self, tokens: int) -> bool:
        return not self.sources.capture_sizes or tokens <= self.sources.capture_sizes[-1]

    def _shared_terms(self, tokens: int, most: int, captured: bool) -> dict[str, float]:
        """Terms that the ranks share, of so many tokens of all of them, and of the rank that has the most."""
        base, out = self.base, {}
        if not base.model.num_experts:
            return {}
        way = self.sources.all_to_all
        pieces = [1.0] if way is None else way.pieces(most)
        if self._experts is not None:
            out["experts"] = float_sum(self._at(self._experts[0], tokens * piece) for piece in pieces)
        else:
            out["experts"] = base.operators_ns(StepStats(decode_seqs=round(tokens / base.options.dp)))["experts"]
        if way is not None:
            times = [way.times_ns(tokens * piece, most * piece) for piece in pieces]
            out["dispatch"], out["combine"] = (
                base.model.expert_layers * float_sum(part) for part in zip(*times, strict=True))
        elif self._gather is not None and self._scatter is not None:
            size = tokens * self._reduced_bytes
            out["dispatch"] = base.model.expert_layers * interpolated(*self._gather, size)
            out["combine"] = base.model.expert_layers * interpolated(*self._scatter, size)
        for name in self.sources.terms.keys() & out.keys():
            out[name] = self._changed(name, out[name], tokens)
        return out

    def _own_terms(self, rows: int, sampled: int, captured: bool) -> dict[str, float]:
        """Terms of one rank, of so many rows, padding included."""
        base = self.base
        roof = base.operators_ns(StepStats(decode_seqs=rows, sampled=sampled)) if self._by_roof else {}
        out: dict[str, float] = {}
        if self._linears:
            for name, times in self._linears:
                out[name] = self._at(times, rows)
        else:
            out.update((name, roof[name]) for name, *_ in base._linears if name != "experts")
        if self._elementwise is not None:
            out["elementwise"] = self._at(self._elementwise, rows)
        else:
            moved = self._moved_ns * rows
            if base.device.cache is not None:
                from hermes.hardware.composed.elementwise import elementwise_ns  # few devices have operator tables

                moved = elementwise_ns(self._between, base.device, rows)
            out["elementwise"] = moved + self._launched_ns
        out["engine"] = self.sources.exposed_ns + self.sources.exposed_seq_ns * sampled
        if not captured:
            out["engine"] += self.sources.uncaptured_ns
        if sampled:
            out["lm_head"] = roof["lm_head"] if self._head is None else self._at(self._head, sampled)
            out["sampling"] = self.sources.sampling_ns * sampled
            if self._sampler is not None and self.sources.sampling_ns > 0:
                out["sampling"] = self._at(self._sampler, sampled)
        if self._reduces:
            link = self._link if captured else self._launched
            if link is None:
                out["all_reduce"] = roof["all_reduce"]
            else:
                out["all_reduce"] = self._reduces * interpolated(*link, rows * self._reduced_bytes)
        if self._hops:
            out["hops"] = float_sum(self._hops_ns(rows))
        for name in self.sources.terms.keys() & out.keys():
            out[name] = self._changed(name, out[name], sampled if name in _SAMPLED else rows)
        return out

    def _hops_ns(self, rows: float) -> list[float]:
        """Nanoseconds of the way to each stage but the first: every device sends its share of the rows' values."""
        size = rows * self._reduced_bytes / self.base.options.tp
        return [interpolated(*hop, size) for hop in self._hops]

    def stages_ns(self, stats: StepStats) -> list[int]:
        """Return the nanoseconds of a batch in each pipeline stage, the way there included; their sum is `step_ns`.

        Layers are spread as vLLM does (get_pp_indices in vllm/distributed/utils.py): what is left over goes to the
        stages before the last, which has the output head.
        """
        key = tokens, sampled = stats.prefill_tokens + stats.decode_seqs + stats.drafts, stats.sampled
        spread = self._spreads.get(key)
        if spread is None:
            spread = self._spreads[key] = self._spread(self.fixed_terms(tokens, sampled), self.rows(tokens))
        total, seqs = self.step_ns(stats), stats.decode_seqs
        lines = None if stats.prefill_tokens or seqs != sampled or stats.lora_adapters else self._alone.get(seqs)
        if not seqs or lines is None:
            return spread.of_batch(self._work_terms(stats).values(), total)
        (_, _, a, b, c, d), contexts = lines, self._contexts(stats)   # the attention of `step_ns`
        read, launch = c + d * contexts, a + b * contexts
        return spread.of_batch((read if read > launch else launch,), total)

    def lockstep_stages_ns(self, batches: Sequence[StepStats | None]) -> list[int]:
        """Return the nanoseconds of one step of all data-parallel ranks by pipeline stage, in sum `lockstep_ns`.

        Ranks meet in every stage, whose layers' experts they share. The terms are spread as those of the slowest rank.
        """
        rows, captured = self._common_rows(batches)
        own = [self._rank_ns(_IDLE if batch is None else batch, n, captured, 1)[0]
               for batch, n in zip(batches, rows, strict=True)]
        slowest = int(np.argmax(own))
        stats = batches[slowest] or _IDLE
        key = rows[slowest], stats.sampled, captured, sum(rows), max(rows)
        spread = self._common_spreads.get(key)
        if spread is None:
            terms = self._own_terms(*key[:3]) | self._shared_terms(key[3], key[4], captured)
            spread = self._common_spreads[key] = self._spread(terms, key[0])
        return spread.of_batch(self._work_terms(stats).values(), int(self.lockstep_ns(batches, 1)[0]))

    def _spread(self, terms: dict[str, float], rows: int) -> Spread:
        from hermes.hardware.composed.spread import Spread  # few engines have pipeline stages

        return Spread.of(terms, self._hops_ns(rows), self.base.model.num_layers, _SAMPLED)

    def _fixed_ns(self, tokens: int, sampled: int) -> float:
        key = tokens, sampled
        ns = self._fixed.get(key)
        if ns is None:
            ns = self._fixed[key] = float_sum(self.fixed_terms(tokens, sampled).values())
        return ns

    def _prefill_ns(self, stats: StepStats) -> float:
        tokens = stats.prefill_tokens
        if self._prefill is None:
            return float(self.base.operators_ns(stats)["prefill_attention"])
        by_pairs, by_tokens = self._prefill
        pairs = stats.prefill_attn if not self._windowed else self.base.work.within(stats.prefill_attn, tokens)
        known = self._latest_prompts   # a step with decodes asks twice
        if known[0] == pairs and known[1] == tokens:
            return known[2]
        ns = max(by_pairs.at(pairs), by_tokens.at(tokens))
        self._latest_prompts = pairs, tokens, ns
        return ns

    def _prompts_ns(self, stats: StepStats) -> float:
        """Attention of the prompts of one step, as the scenario changes it."""
        if not stats.prefill_tokens:
            return 0.0
        return self._changed("attention_of_prompts", self._prefill_ns(stats), stats.prefill_tokens)

    def _launch_ns(self, seqs: int) -> float:
        """Attention of so many decodes with next to no context, of all layers."""
        if self._decode is None:
            return float(self.base.operators_ns(StepStats(decode_seqs=seqs))["decode_attention"])
        if seqs not in self._launches:
            curve = self._decode
            one = float(np.interp(seqs, curve.seqs, curve.launch)) * max(1.0, seqs / curve.seqs[-1])
            self._launches[seqs] = one * self.base.model.num_layers
        return self._launches[seqs]

    def _decode_lines(self, stats: StepStats) -> tuple[float, float, float, float]:
        """(a, b, c, d): attention of the decodes takes max(a + b * contexts, c + d * contexts) nanoseconds."""
        a, b, c, d = self._measured_lines(stats)
        change = self.sources.terms.get("decodes_beside_prompt" if stats.prefill_tokens else "attention_of_decodes")
        if change is not None:
            more = (change.fixed + change.per_row * stats.decode_seqs) * NS_PER_S
            a, b, c, d = change.scale * a + more, change.scale * b, change.scale * c + more, change.scale * d
        return a, b, c, d

    def _measured_lines(self, stats: StepStats) -> tuple[float, float, float, float]:
        """The same before a scenario's change."""
        seqs = stats.decode_seqs
        launch = self._launch_ns(seqs)
        floor = launch if self._decode is not None and self._decode.added else self._floor
        if stats.prefill_tokens and not self.sources.apart:
            prompt = stats.prefill_max or stats.prefill_tokens / stats.prefill_seqs
            tiles = seqs * (self._empty + self._empty_token * prompt)
            return launch, 0.0, max(tiles, floor), max(self._beside, self._per_token)
        return launch, 0.0, floor, self._per_token

    def _beside_packed(self, stats: StepStats, contexts: float) -> float:
        """What decodes add to the launch of a prompt whose kernel packs the query heads of a KV head into tiles.

        A decode has one tile, computed against its whole context as a tile of a prompt is: as many pairs of tokens as
        that many tokens of a prompt. The launch takes at least as long as the decodes alone, and longer by what
        each of its tiles takes besides its arithmetic.
        """
        launch = self._launch_ns(stats.decode_seqs)
        floor = launch if self._decode is not None and self._decode.added else self._floor
        more = max(launch, floor + self._per_token * contexts)
        if self._prefill is not None:
            own = self._prefill_ns(stats)
            pairs = stats.prefill_attn if not self._windowed else (
                self.base.work.within(stats.prefill_attn, stats.prefill_tokens))
            more = max(more, self._prefill[0].at(pairs + self._one_tile * contexts), own) - own
            more += stats.decode_seqs * self._empty
        return self._changed("decodes_beside_prompt", more, stats.decode_seqs)

    def _decodes_ns(self, stats: StepStats) -> float:
        """Attention of the decodes of one step."""
        contexts = self._contexts(stats)
        if stats.prefill_tokens and self.sources.tile_rows:
            return self._beside_packed(stats, contexts)
        a, b, c, d = self._decode_lines(stats)
        return max(a + b * contexts, c + d * contexts)

    def _contexts(self, stats: StepStats) -> float:
        """Sum of the decodes' contexts, the token of this step included, with what unequal contexts add."""
        contexts = stats.decode_ctx + stats.decode_seqs + self._uneven(stats)
        return float(self.base.work.within(contexts, stats.decode_seqs)) if self._windowed else contexts

    def _uneven(self, stats: StepStats) -> float:
        """Tokens that unequal contexts add to the sum; the same in every step of a run."""
        return self._skew * (stats.decode_ctx_max * stats.decode_seqs - stats.decode_ctx)

    def sources_of(self) -> dict[str, str]:
        """Return where each term comes from, by its name in `terms_ns`."""
        return _sources_of(self)

    def trust_of(self) -> dict[str, Trust]:
        """Return class and range of each term, by its name in `terms_ns`."""
        from hermes.hardware.term_trust import Grounds, term_trust

        base, sources = self.base, self.sources_of()
        tabled = {name for name, text in sources.items() if text.startswith(("kernel tables", "operator tables, "))}
        experts = sources.get("experts", "")
        kernels, device, group = self.kernels, base.device, base.options.tp
        found = term_trust(sources, Grounds(
            frozenset(tabled), kernels is not None and kernels.file.device == device.name and not kernels.of_others,
            device.efficiency == device.name, "nearest shape" in experts,
            bool(self.sources.tile_rows or self.sources.apart) or device.name in ("rtx-4090", "rtx-pro-6000"),
            bool(device.compared), not self.info.uncompared,
            self.sources.engine.startswith("engine vllm"), group))
        found |= {name: NEAR for name, text in sources.items() if BORROWED in text and found[name].kind == "measured"}
        found |= {name: trust for name, trust in self.sources.links.items() if name in found}
        if base.work.compute in EIGHT:
            found |= {name: EIGHT_BIT for name, *_ in self._linears if name != "router"}
        if self._expert_compute in EIGHT and self._experts is not None:
            whole = self.sources.whole_experts and self.sources.engine.startswith("engine vllm")
            found["experts"] = BY_BACKEND if whole else EIGHT_BIT
        return {**found, "experts": GUESS} if self.sources.grouped else found

    def ranges(self) -> dict[str, float]:
        """Return the largest measured value of each statistic of a batch that some term was measured over."""
        return dict(self._last)

    def terms_ns(self, stats: StepStats) -> dict[str, float]:
        """Return nanoseconds by term; `step_ns` is their sum, but for what the host hides."""
        return self.fixed_terms(stats.prefill_tokens + stats.decode_seqs + stats.drafts, stats.sampled) | (
            self._work_terms(stats))

    def _work_terms(self, stats: StepStats) -> dict[str, float]:
        """Terms that depend on more of a batch than its rows, by name."""
        out: dict[str, float] = {}
        if stats.prefill_tokens:
            out["attention_of_prompts"] = self._prompts_ns(stats)
        if stats.decode_seqs:
            name = "decodes_beside_prompt" if stats.prefill_tokens else "attention_of_decodes"
            out[name] = self._decodes_ns(stats)
        return out

    def _parts(self, stats: StepStats) -> tuple[float, float]:
        """Return device time without the decodes' attention, and host time."""
        tokens = stats.prefill_tokens + stats.decode_seqs + stats.drafts
        fixed = self._fixed_ns(tokens, stats.sampled) + self._prompts_ns(stats)
        return fixed, self.host.fixed_ns + self.host.per_seq_ns * (stats.decode_seqs + stats.prefill_seqs)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        if not stats.decode_seqs:
            return np.full(num_steps, self.step_ns(stats), dtype=np.int64)
        fixed, host = self._parts(stats)
        steps = _STEPS[:num_steps] if num_steps <= len(_STEPS) else np.arange(num_steps, dtype=np.float64)
        contexts = steps * stats.decode_seqs
        contexts += stats.decode_ctx + stats.decode_seqs
        contexts += self._uneven(stats)
        if self._windowed:
            contexts = self.base.work.within(contexts, stats.decode_seqs, np.minimum)
        if stats.prefill_tokens and self.sources.tile_rows:
            ns = np.array([self._beside_packed(stats, float(each)) for each in contexts])
        else:
            a, b, c, d = self._decode_lines(stats)
            first = float(contexts[0])
            ns = contexts * d
            ns += c
            if first * d + c < a + b * first:
                np.maximum(ns, a + b * contexts, out=ns)
        ns += fixed
        if not self.host.asynchronous:
            ns += host
        elif ns[0] < host:
            np.maximum(ns, host, out=ns)
        np.rint(ns, out=ns)
        return ns.astype(np.int64)

    def write_ends(self, stats: StepStats, num_steps: int, ends: memoryview[int], pos: int, now_ns: int) -> int:
        """Write the end times of a short run of decodes to `ends[pos:]`; return the last. `run_ns` in plain floats."""
        seqs, windowed = stats.decode_seqs, self._windowed
        lines = self._alone.get(seqs) if seqs == stats.sampled and not stats.lora_adapters else None
        fixed, host, a, b, c, d = lines or (*self._parts(stats), *self._decode_lines(stats))
        added, least = (0.0, host) if self.host.asynchronous else (host, 1.0)
        context, uneven = stats.decode_ctx + seqs, self._uneven(stats)
        for index in range(pos, pos + num_steps):
            contexts = self.base.work.within(context + uneven, seqs) if windowed else context + uneven
            read, launch = c + d * contexts, a + b * contexts
            ns = fixed + (read if read > launch else launch) + added
            if ns < least:
                ns = least
            now_ns += round(ns) if ns > 1.0 else 1
            ends[index] = now_ns
            context += seqs
        return now_ns

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        seqs = stats.decode_seqs
        if not stats.prefill_tokens and seqs == stats.sampled and not stats.lora_adapters:   # what engines do most
            lines = self._alone.get(seqs)
            if lines is None:
                lines = self._alone[seqs] = (*self._parts(stats), *self._decode_lines(stats))
            ns, host, a, b, c, d = lines
            if seqs:
                context = stats.decode_ctx
                contexts = context + seqs + self._skew * (stats.decode_ctx_max * seqs - context)
                if self._windowed:
                    contexts = self.base.work.within(contexts, seqs)
                read = c + d * contexts
                launch = a + b * contexts
                ns += read if read > launch else launch
        else:
            ns, host = self._parts(stats)
            if seqs:
                ns += self._decodes_ns(stats)
        if not self.host.asynchronous:
            ns += host
        elif ns < host:
            ns = host
        return round(ns) if ns > 1.0 else 1

    def lockstep_ns(self, batches: Sequence[StepStats | None], num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps that all data-parallel ranks take together, int64.

        batches: The batch of each rank, None of an idle one, which computes padding.
        """
        rows, captured = self._common_rows(batches)
        slowest: FloatArray = np.zeros(num_steps)
        host = 0.0
        for batch, own_rows in zip(batches, rows, strict=True):
            stats = _IDLE if batch is None else batch
            slowest = np.maximum(slowest, self._rank_ns(stats, own_rows, captured, num_steps))
            seqs = stats.decode_seqs + stats.prefill_seqs
            host = max(host, self.host.fixed_ns + self.host.per_seq_ns * seqs)
        slowest += self._shared_ns(sum(rows), max(rows), captured)
        slowest = np.maximum(slowest, host) if self.host.asynchronous else slowest + host
        return np.asarray(np.maximum(np.rint(slowest), 1.0).astype(np.int64))

    def _common_rows(self, batches: Sequence[StepStats | None]) -> tuple[list[int], bool]:
        """Return the rows that each rank computes, and whether all of them fit into a CUDA graph."""
        tokens = [1 if batch is None else batch.prefill_tokens + batch.decode_seqs for batch in batches]
        captured = self._captured(max(tokens))
        return [self.rows(max(tokens))] * len(tokens) if captured else tokens, captured

    def _shared_ns(self, tokens: int, most: int, captured: bool) -> float:
        key = tokens, most, captured
        ns = self._shared.get(key)
        if ns is None:
            ns = self._shared[key] = float_sum(self._shared_terms(tokens, most, captured).values())
        return ns

    def _rank_ns(self, stats: StepStats, rows: int, captured: bool, num_steps: int) -> FloatArray:
        """Nanoseconds of one rank's own terms in each step of a run."""
        key = rows, stats.sampled, captured
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = float_sum(self._own_terms(rows, stats.sampled, captured).values())
        own += self._prompts_ns(stats)
        if not stats.decode_seqs:
            return np.full(num_steps, own)
        contexts = np.arange(num_steps, dtype=np.float64) * stats.decode_seqs + (
            stats.decode_ctx + stats.decode_seqs + self._uneven(stats))
        if self._windowed:
            contexts = self.base.work.within(contexts, stats.decode_seqs, np.minimum)
        if stats.prefill_tokens and self.sources.tile_rows:
            return np.array([self._beside_packed(stats, float(each)) for each in contexts]) + own
        a, b, c, d = self._decode_lines(stats)
        return np.asarray(np.maximum(a + b * contexts, c + d * contexts) + own)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return how many steps of each run are larger than what was measured, int64, shape (runs,).

        Zeros where every term comes from the roofline, which has no range.
        """
        if not self._ranges:
            return np.zeros(len(num_steps), dtype=np.int64)
        return steps_outside(self._ranges, columns, num_steps)


def _sources_of(model: ComposedModel) -> dict[str, str]:
    base, kernels = model.base, model.kernels
    priced = base.sources_of()
    roof = priced["lm_head"]
    tables = roof if kernels is None else f"kernel tables {kernels.file.name} ({kernels.file.engine})"
    cached = roof if base.device.cache is None else f"operator tables, cache of {base.device.name}"
    found = {"elementwise": cached if model._elementwise is None else tables,
             "lm_head": roof if model._head is None else tables, "engine": model.sources.engine,
             "sampling": tables if model._sampler is not None else "fitted: top-p, 335 bytes of traffic a logit"}
    linears = model._linears or base._linears
    found |= {name: model._products_said or priced[name] for name, *_ in linears}
    if base.model.num_experts:
        found["experts"] = priced["experts"] if model._experts is None else model._experts[1]
    exchange = model.sources.all_to_all or model._exchange
    if exchange is not None:
        found["dispatch"] = found["combine"] = exchange.source
    found |= dict.fromkeys(("attention_of_prompts", "attention_of_decodes"), roof) | model._attention_said
    beside = "operator tables of RTX PRO 6000 and RTX 4090, by query head"
    if model.sources.tile_rows:
        beside = f"{found['attention_of_prompts']}: {model.sources.tile_rows} rows for each decode and KV head"
    elif model.sources.apart:
        beside = f"{found['attention_of_decodes']}, in a launch of their own"
    found["decodes_beside_prompt"] = beside
    found["all_reduce"] = model.sources.reduces.source if model.sources.reduces is not None else (
        tables if model._link is not None else f"datasheet of {base.device.name}")
    if model.sources.hops:
        found["hops"] = model.sources.hop_text
    for name in model.sources.terms.keys() & found.keys():
        change = model.sources.terms[name]
        found[name] = f"{found[name]}, {change.text()}"
    return found
