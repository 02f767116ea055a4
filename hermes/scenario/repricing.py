"""Effects of alternatives to a scenario's defaults, found from one run whose batches are priced again.

First order: the schedule stays, and each step takes the alternative's time. A sample of each client group's steps is
priced by both hardware models; the difference, over the tokens of a step, is added to every step, and a request waits
for those of the steps between its arrival and its tokens. In an open loop that settles, slower steps also make larger
batches: at a given rate of tokens, a step that takes r times as long at one size takes r^(1 / (1 - e)) times as long in
the end, where e is how the time of a decode step grows with its batch (both in logarithms).

Queues for blocks or places that an alternative makes or clears are not in it: near a limit they need a simulation. A
test compares both over eight scenarios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray, log, power
from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.hardware.base import StepStats
from hermes.hardware.config import prices
from hermes.hardware.fitted.adjusted import AdjustedModel
from hermes.hardware.term_trust import WHOLE
from hermes.network.base import bandwidth_of
from hermes.results.assumes import Assumed, changes_between, headlines
from hermes.results.slo import slo_given, slo_groups, slo_summary, within_slo
from hermes.scenario.assumed_hits import hit_share, overloads, seconds_of_hits
from hermes.scenario.assumption import Assumption, Change
from hermes.sums import float_sum
from hermes.units import NS_PER_S
from hermes.workload.base import ClosedLoopProcess

if TYPE_CHECKING:
    from hermes.hardware.composed.composed_terms import ComposedModel
    from hermes.results.metrics import RequestMetrics
    from hermes.results.results import Results
    from hermes.scenario.schema import Scenario

__all__ = ["Repricing", "fullest"]


SAMPLES = 24         # priced steps of each kind (with prompts, without) and group
MORE_BATCH = 1.25    # factor of the batch by which the growth of a step's time is found
STEEPEST = 0.8       # most of that growth that is believed
FASTEST = 0.1        # of a step's time that an alternative leaves at least
NEAR = 0.02          # least change of which queues may make more
LARGE = 0.5          # change that moves the engine's load too far for first order
FULL = 0.95          # share of the KV blocks from which on memory decides
QUEUED = 0.5         # share of the TTFT p99 in queues above which they matter
_STATS = ("prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx",
          "decode_ctx_max", "sampled", "embed_tokens", "embedded", "lora_tokens", "lora_adapters")


@dataclass(frozen=True)
class _Sample:
    """Steps of one client group: two sets of points (with prompts, without) and each step's tokens and batch."""

    stats: list[list[StepStats]]
    tokens: list[FloatArray]
    before: list[FloatArray]   # nanoseconds by the run's own model
    terms: list[list[dict[str, float]]]   # nanoseconds by term; empty for other hardware
    growth: float              # of a decode step's time with its batch, in logarithms


class Repricing:
    """One run, to be priced under alternatives."""

    def __init__(self, scenario: Scenario, results: Results) -> None:
        self.scenario, self.record, self.metrics = scenario, results.record, results.metrics
        self.summary, self.slo = results.summary_of_run, results.slo
        self.groups = _groups(scenario, self.record)
        self.completed = self.record.status == STATUS_COMPLETED
        self.closed = any(isinstance(workload.arrivals, ClosedLoopProcess) for workload in scenario.workload)
        self._samples: dict[int, _Sample] = {}
        self._prompt_seqs = self.record.runs["prefill_seqs"]

    def effect(self, one: Assumption) -> Assumed | None:
        """Return what the alternative changes to first order; None if it needs a simulation."""
        change = one.change
        if change == Change():
            return None
        if change.unpriced_dollars:
            return self._priced(one)
        if change.whole_prompts:
            return self._without_hits(one)
        if change.watts:
            return self._drawing(one)
        after, slower = self._after(change)
        if after is None:
            return None
        effect, turns = self._compared(after, slower)
        if self._moves_full_memory(change):
            return Assumed(one.name, one.default, one.alternative, method="not simulated")
        if not self._near_limit(effect):
            return Assumed(one.name, one.default, one.alternative, effect, turns)
        turns = turns or self._compared(_stretched(self.metrics, after), slower)[1]
        return Assumed(one.name, one.default, one.alternative, effect, turns, "rough")

    def _without_hits(self, one: Assumption) -> Assumed | None:
        """Prompts computed whole; None if there were no hits. Engines that could not keep up may turn the verdict."""
        prompt_s, share, overload = {}, 0.0, False
        for group in one.change.whole_prompts:
            clients, model = self.groups[group], self.scenario.source.hardware.get(group)
            share = max(share, hit_share(self.record, clients))
            seqs = int(self._prompt_seqs[np.isin(self.record.runs["client"], clients)].sum())
            if model is not None and seqs:
                step_ns = partial(_step_ns, model, ranks=self.scenario.clients[group].parallel.dp)
                seconds = seconds_of_hits(self.record, clients, step_ns)
                prompt_s[group] = seconds / seqs
                overload = overload or (not self.closed and overloads(self.record, clients, seconds))
        if not share:
            return None
        one = replace(one, default=f"{one.default}, {share:.0%} of prompt tokens hit")
        found = self.effect(replace(one, change=Change(prompt_s=prompt_s, larger_batches=not overload)))
        if found is None or not prompt_s:
            return Assumed(one.name, one.default, one.alternative, method="not simulated")
        turns = found.turns_verdict or (overload and self.summary["slo"]["pass"] is True)
        return replace(found, turns_verdict=turns, method="rough" if overload else found.method)

    def _moves_full_memory(self, change: Change) -> bool:
        """Whether a group whose KV memory was full gets another size of it."""
        return any("kv_dtype" in keys and fullest(self.record, self.groups[group]) >= FULL
                   for group, keys in change.hardware.items())

    def _near_limit(self, effect: Mapping[str, float]) -> bool:
        """Whether queues that the first order leaves out may make a change larger or smaller."""
        latency = self.summary["latency"]
        queue, ttft = latency["queue_s"]["p99"] or 0.0, latency["ttft_s"]["p99"] or 0.0
        largest = max((abs(change) for change in effect.values()), default=0.0)
        return largest >= NEAR and (largest > LARGE or queue > QUEUED * ttft)

    def _priced(self, one: Assumption) -> Assumed | None:
        """The cost with a price for each client that has none; None if all or none have one."""
        prices = [info.price_per_hour for info in self.record.clients]
        free = sum(info.num_devices for info in self.record.clients if not info.price_per_hour)
        if not free or not float_sum(prices):
            return None
        more = free * one.change.unpriced_dollars / math.fsum(prices)
        names = dict.fromkeys(info.group or info.name for info in self.record.clients if not info.price_per_hour)
        return Assumed(one.name, f"{', '.join(names)}: no price, no cost", one.alternative,
                       {"dollars_per_million": more}, method="exact")

    def _drawing(self, one: Assumption) -> Assumed | None:
        """Other watts of some groups: no time changes. None where nothing draws any."""
        joules = [self.summary["clients"][info.name]["energy_j"] or 0.0 for info in self.record.clients]
        more = math.fsum(joules[int(client)] * (factor - 1.0)
                         for group, factor in one.change.watts.items() for client in self.groups[group])
        if not more:
            return None
        effect = {"tokens_per_j": 1.0 / (1.0 + more / math.fsum(joules)) - 1.0}
        return Assumed(one.name, one.default, one.alternative, effect, method="exact")

    def _after(self, change: Change) -> tuple[RequestMetrics | None, float]:
        """Return the requests' metrics under a change, and how much longer all busy steps take, relative."""
        metrics, record = self.metrics, self.record
        first, last = np.zeros(len(record.status)), np.zeros(len(record.status))
        more, busy = 0.0, 0.0
        for group in sorted({*change.hardware, *change.scales, *change.fixed_s, *change.prompt_s}):
            added = self._added(group, change)
            if added is None:
                return None, 0.0
            mine = np.isin(record.runs["client"], self.groups[group])
            more += float((added * record.runs["num_steps"])[mine].sum())
            busy += float((record.runs["end_ns"] - record.runs["start_ns"])[mine].sum())
            _waits(record, metrics, self.groups[group], added, first, last)
        for group, seconds in change.request_s.items():
            rows = np.isin(record.stages["client"], self.groups[group]) & (record.stages["branch"] <= 0)
            self._add(np.flatnonzero(rows), np.full(int(rows.sum()), seconds * NS_PER_S), "stages", first, last)
        if (change.kv_bytes_per_s or change.other_bytes_per_s) and not self._transfers(change, first, last):
            return None, 0.0
        span = (metrics.last_token_ns - metrics.first_token_ns).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            stretch = np.where(span > 0, (last - first) / span, 0.0)
        return replace(
            metrics, ttft_ns=np.where(metrics.ttft_ns >= 0, np.rint(metrics.ttft_ns + first), -1).astype(np.int64),
            e2e_ns=np.where(metrics.e2e_ns >= 0, np.rint(metrics.e2e_ns + last), -1).astype(np.int64),
            tpot_s=metrics.tpot_s * (1.0 + stretch)), more / busy if busy else 0.0

    def _add(self, rows: IntArray, ns: FloatArray, table: str, first: FloatArray, last: FloatArray) -> None:
        """Add times of rows of a table to their requests: before the first token if the row begins before it."""
        columns: Any = getattr(self.record, table)
        request = columns["request"][rows]
        begins = columns["assigned_ns" if table == "stages" else "start_ns"][rows]
        after = self.record.sent_after(rows) if table == "stages" else np.array(
            self.record.after_ns or [0] * len(self.record.clients))[columns["src"][rows]]
        before = begins < self.metrics.first_token_ns[request] - after
        np.add.at(first, request[before], ns[before])
        np.add.at(last, request, ns)

    def _transfers(self, change: Change, first: FloatArray, last: FloatArray) -> bool:
        """Add what transfers take longer; return whether any is changed."""
        sent = self.record.transfers
        prefills = np.array([info.role == "prefill" for info in self.record.clients])
        decodes = np.array([info.role == "decode" for info in self.record.clients])
        moved = (sent["src"] != sent["dst"]) & (sent["bytes"] > 0)
        kv = moved & prefills[sent["src"]] & decodes[sent["dst"]]
        rows = np.flatnonzero(kv if change.kv_bytes_per_s else moved & ~kv)
        rate = change.kv_bytes_per_s or change.other_bytes_per_s or 1.0
        took = (sent["end_ns"] - sent["start_ns"])[rows]
        now = bandwidth_of(self.scenario.network) if change.kv_bytes_per_s else None
        alone = np.zeros(len(rows)) if now is None else sent["bytes"][rows] / now * NS_PER_S
        ns = np.maximum(sent["bytes"][rows] / rate * NS_PER_S - np.minimum(alone, took), 0.0)
        self._add(rows, ns, "transfers", first, last)
        return len(rows) > 0

    def _added(self, group: int, change: Change) -> FloatArray | None:
        """Return nanoseconds that each step of a group's runs takes longer, shape (runs,); None if it is unknown."""
        runs = self.record.runs
        added = np.full(len(runs["client"]), change.fixed_s.get(group, 0.0) * NS_PER_S)
        added += change.prompt_s.get(group, 0.0) * NS_PER_S * self._prompt_seqs / np.maximum(runs["num_steps"], 1)
        sample = self._sample(group)
        if group in change.hardware or group in change.scales:
            if sample is None:
                return None
            tokens = (runs["prefill_tokens"] + runs["decode_seqs"]).astype(np.float64)
            for kind, mask in enumerate((runs["prefill_tokens"] == 0, runs["prefill_tokens"] > 0)):
                if sample.stats[kind]:
                    more = self._more(group, change, sample, kind)
                    added[mask] += np.interp(tokens[mask], sample.tokens[kind], more)
        settles = change.larger_batches and not self.closed
        if not settles or sample is None or (self.summary.get("headline") or {}).get("stable") is not True:
            return added
        took = (runs["end_ns"] - runs["start_ns"]) / np.maximum(runs["num_steps"], 1)
        ratio = np.maximum(1.0 + added / np.maximum(took, 1.0), FASTEST)
        return np.asarray(took * (power(ratio, 1.0 / (1.0 - sample.growth)) - 1.0))

    def _more(self, group: int, change: Change, sample: _Sample, kind: int) -> FloatArray:
        """Return the nanoseconds that the sampled steps take longer."""
        config = self.scenario.clients[group]
        if group in change.hardware:
            hardware = config.hardware.model_validate({**config.hardware.model_dump(), **change.hardware[group]})
            model = config.adjust.apply(hardware.build(self.scenario.source.base_dir))
            after = np.array([_step_ns(model, stats, config.parallel.dp) for stats in sample.stats[kind]])
            return np.asarray(after - sample.before[kind])
        more = np.array([float_sum(terms[name] * (factor - 1.0) for name, factor in change.scales[group].items()
                                   if name in terms) for terms in sample.terms[kind]])
        host = self._hidden(group, sample.stats[kind])
        return np.where(host > 0, np.maximum(sample.before[kind] + more, host) - sample.before[kind], more)

    def _hidden(self, group: int, stats: list[StepStats]) -> FloatArray:
        """Return the host's nanoseconds of each step, which no step is shorter than; 0 where they are added."""
        model = _terms_of(self.scenario.source.hardware[group])
        if model is None or not model.host.asynchronous:
            return np.zeros(len(stats))
        return np.array([model.host.fixed_ns + model.host.per_seq_ns * (one.decode_seqs + one.prefill_seqs)
                         for one in stats])

    def _sample(self, group: int) -> _Sample | None:
        """Return priced steps of a group; None for hardware that is not built, or a group that did nothing."""
        if group not in self._samples:
            model, config = self.scenario.source.hardware.get(group), self.scenario.clients[group]
            mine = np.flatnonzero(np.isin(self.record.runs["client"], self.groups[group]))
            if model is None or not len(mine):
                return None
            prompts = self.record.runs["prefill_tokens"][mine] > 0
            stats = [self._chosen(mine[~prompts]), self._chosen(mine[prompts])]
            before = [np.array([_step_ns(model, one, config.parallel.dp) for one in part]) for part in stats]
            tokens = [np.array([float(one.prefill_tokens + one.decode_seqs) for one in part]) for part in stats]
            own = _terms_of(model)
            terms = [[{} if own is None else own.terms_ns(one) for one in part] for part in stats]
            growth = self._growth(model, group, stats[0], before[0])
            self._samples[group] = _Sample(stats, tokens, before, terms, growth)
        return self._samples[group]

    def term_seconds(self, group: int) -> tuple[dict[str, float], Any]:
        """Return the seconds of a group's steps by term, from the sampled ones, and the model that priced them without
        its adjustment; no terms where nothing is known."""
        sample, model = self._sample(group), self.scenario.source.hardware.get(group)
        out: dict[str, float] = {}
        if sample is None:
            return out, None
        runs = self.record.runs
        mine = np.isin(runs["client"], self.groups[group])
        prompts = runs["prefill_tokens"] > 0
        for kind, mask in enumerate((~prompts, prompts)):
            count = len(sample.stats[kind])
            each = float(runs["num_steps"][mine & mask].sum()) / max(count, 1) / NS_PER_S
            for terms, whole in zip(sample.terms[kind], sample.before[kind], strict=True):
                for name, ns in (terms or {WHOLE: float(whole)}).items():
                    out[name] = out.get(name, 0.0) + ns * each
        return out, model.base if isinstance(model, AdjustedModel) else model

    def _chosen(self, rows: IntArray) -> list[StepStats]:
        """Return the batches of runs at even distances in the order of their tokens, in the middle of each run."""
        runs = self.record.runs
        if not len(rows):
            return []
        order = rows[np.argsort((runs["prefill_tokens"] + runs["decode_seqs"])[rows], kind="stable")]
        picked = order[np.unique(np.linspace(0, len(order) - 1, SAMPLES).astype(np.int64))]
        out = []
        for row in picked.tolist():
            values = {name: int(runs[name][row]) for name in _STATS}
            half = int(runs["num_steps"][row]) // 2
            values["decode_ctx"] += half * values["decode_seqs"]
            values["decode_ctx_max"] += half
            out.append(StepStats(**values))
        return out

    def _growth(self, model: Any, group: int, stats: list[StepStats], before: FloatArray) -> float:
        """Return how a decode step's time grows with its batch, in logarithms; 0 where the batch is full."""
        dp, clients = self.scenario.clients[group].parallel.dp, self.groups[group]
        most = self.record.clients[int(clients[0])].max_num_seqs if len(clients) else 0
        if not stats:
            return 0.0
        larger = [StepStats(decode_seqs=round(MORE_BATCH * one.decode_seqs), decode_ctx=round(
            MORE_BATCH * one.decode_ctx), decode_ctx_max=one.decode_ctx_max, sampled=round(MORE_BATCH * one.sampled),
            lora_tokens=round(MORE_BATCH * one.lora_tokens), lora_adapters=one.lora_adapters)
            for one in stats]
        if most and np.median([one.decode_seqs for one in stats]) >= 0.95 * most:
            return 0.0
        after = np.array([_step_ns(model, one, dp) for one in larger])
        weights = np.array([one.decode_seqs for one in stats], dtype=np.float64)
        ratios = log(after / before) / math.log(MORE_BATCH)
        return float(min(max(np.average(ratios, weights=weights), 0.0), STEEPEST))

    def _compared(self, after: RequestMetrics, slower: float) -> tuple[dict[str, float], bool]:
        """Return the relative change of each headline, and whether the verdict turns."""
        done, groups = self.completed, slo_groups(self.slo, self.record)
        before = headlines(self.summary)
        now = dict(before)
        now |= _latencies(after, done)
        good = None
        if slo_given(groups):
            rejected = self.record.status == STATUS_REJECTED
            verdict = slo_summary(groups, after, done, rejected)["slo"]["pass"]
            old = int(within_slo(groups, self.metrics, done).sum())
            good = int(within_slo(groups, after, done).sum()) / old if old else None
            turns = verdict is not None and verdict != self.summary["slo"]["pass"]
        else:
            turns = False
        bound = self.closed or (self.summary.get("headline") or {}).get("stable") is False
        if bound and slower:
            for name, power in (("served_per_s", -1.0), ("dollars_per_million", 1.0)):
                value = now[name]
                now[name] = None if value is None else value * (1.0 + slower) ** power
        if good is not None and now["goodput_per_s"] is not None:
            now["goodput_per_s"] *= good
        return changes_between(before | _latencies(self.metrics, done), now), turns


def fullest(record: RunRecord, clients: IntArray) -> float:
    """Return the largest share of their KV blocks that clients had in use after a step."""
    runs = record.runs
    blocks = np.array([info.num_blocks for info in record.clients], dtype=np.float64)
    mine = np.isin(runs["client"], clients) & (blocks[runs["client"]] > 0)
    if not mine.any():
        return 0.0
    return float((runs["used_blocks"][mine] / blocks[runs["client"][mine]]).max())


def _stretched(before: RequestMetrics, after: RequestMetrics) -> RequestMetrics:
    """Return metrics that are as far from `after` as `after` is from `before`."""
    return replace(after, ttft_ns=np.where(after.ttft_ns >= 0, 2 * after.ttft_ns - before.ttft_ns, -1),
                   e2e_ns=np.where(after.e2e_ns >= 0, 2 * after.e2e_ns - before.e2e_ns, -1),
                   tpot_s=2.0 * after.tpot_s - before.tpot_s)


def _latencies(metrics: RequestMetrics, done: BoolArray) -> dict[str, float | None]:
    answered = done & (metrics.ttft_ns >= 0)
    columns = {"ttft_p99": metrics.ttft_ns[answered] / NS_PER_S, "tpot_p99": metrics.tpot_s[done],
               "e2e_p99": metrics.e2e_ns[done] / NS_PER_S}
    out: dict[str, float | None] = {}
    for name, values in columns.items():
        known = values[~np.isnan(values)]
        out[name] = float(np.percentile(known, 99)) if len(known) else None
    return out


def _groups(scenario: Scenario, record: RunRecord) -> list[IntArray]:
    """Return the numbers of the clients of each group."""
    out, first = [], 0
    for config in scenario.clients:
        count = len(config.names)
        out.append(np.arange(first, first + count))
        first += count
    assert first == len(record.clients)
    return out


def _terms_of(model: Any) -> ComposedModel | None:
    """Return the hardware of named terms under any adjustment."""
    own: Any = model.base if isinstance(model, AdjustedModel) else model
    return own if prices(own, "terms_ns") else None


def _step_ns(model: Any, stats: StepStats, ranks: int) -> float:
    """Return the nanoseconds of a step; of data-parallel ranks with a batch like this on each."""
    if ranks > 1:
        return float(model.lockstep_ns([stats] * ranks, 1)[0])
    return float(model.step_ns(stats))


def _by_client(column: IntArray) -> Callable[[int], IntArray]:
    """Return a function that returns the rows of a client."""
    order = np.argsort(column, kind="stable")
    of_order = column[order]

    def rows(client: int) -> IntArray:
        low, high = np.searchsorted(of_order, (client, client + 1))
        return order[low:high]

    return rows


def _waits(record: RunRecord, metrics: RequestMetrics, clients: IntArray, added: FloatArray, first: FloatArray,
           last: FloatArray) -> None:
    """Add what requests wait longer for the first token and in all, if each step of a run takes `added` longer."""
    runs, stages = record.runs, record.stages
    whole_runs, whole_stages = _by_client(runs["client"]), _by_client(stages["client"])
    for client in clients.tolist():
        mine, rows = whole_runs(client), whole_stages(client)
        rows, ends = rows[stages["branch"][rows] <= 0], record.step_ends[client]
        if not len(mine) or not len(rows) or not len(ends):
            continue
        mine = mine[np.argsort(runs["first_step"][mine], kind="stable")]
        steps = np.append(runs["first_step"][mine], runs["first_step"][mine[-1]] + runs["num_steps"][mine[-1]])
        total = np.append(0.0, np.cumsum(added[mine] * runs["num_steps"][mine]))

        def upto(step: Any, steps: IntArray = steps, total: FloatArray = total) -> FloatArray:
            return np.asarray(np.interp(step, steps, total))

        start = upto(np.searchsorted(ends, stages["assigned_ns"][rows], side="right"))
        whole = upto(np.searchsorted(ends, stages["end_ns"][rows], side="right")) - start
        request = stages["request"][rows]
        token, until = stages["first_token_ns"][rows], metrics.first_token_ns[request]
        after = np.where(until >= 0, until - record.sent_after(rows), -1)
        gives = (token >= 0) & (np.abs(token - after) <= 1)
        early = ~gives & (stages["end_ns"][rows] <= until)
        np.add.at(first, request[early], whole[early])
        np.add.at(first, request[gives], (upto(stages["first_step"][rows] + 1) - start)[gives])
        np.add.at(last, request, whole)
