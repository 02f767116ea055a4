"""Options of an LLM client, each with the counter that shows that it acts, and the bases that they are set on.

`test_option_pairs.py` and `test_option_triples.py` combine the options of a base: a model, its memory, and loads that
make options act. An option says which keys it sets, so that a refusal can be checked to name one of them, and how often
it acted in a run: where a record has a figure of its own for it, that figure must be above zero; where it has none, the
run must differ from the one without the option.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import found_parts
import numpy as np
from outcomes import Outcome

from hermes.core.record import DRAINING, GONE, READY, STATUS_COMPLETED
from hermes.gateway.breakers import Circuits
from hermes.gateway.gateway import Gateway
from hermes.memory.windows import WindowPool, WindowPrefixPool
from hermes.schedulers.host_offload import HostOffload
from hermes.schedulers.parts import part_of

Data = dict[str, Any]
Counter = Callable[[Outcome], int]

OF_BASE = "the client's model"
ALL = "all devices"   # of a client
COMPLETED = 50
REQUESTS = 80

DENSE: Data = {
    "seed": 3,
    "workload": {
        "name": "main", "requests": REQUESTS, "arrivals": {"kind": "gamma", "rate": 90, "cv": 2},
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 150},
                    "output": {"kind": "uniform", "min": 2, "max": 40}},
        "prefixes": {"groups": 20, "tokens": 48}},
    "client": {"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm",
               "memory": {"num_blocks": 60, "block_size": 16},
               "scheduler": {"kind": "chunked", "max_num_batched_tokens": 192, "max_num_seqs": 16}},
}
"""Little memory: sequences are preempted, and the prefix cache evicts."""

LOADS: tuple[Data, ...] = (
    {},
    {"workload.arrivals": {"kind": "gamma", "rate": 45, "cv": 3}, "client.memory.num_blocks": 40},
    {"workload.arrivals": {"kind": "at_once"}, "client.memory.num_blocks": 50},
    {"workload.arrivals": {"kind": "poisson", "rate": 30}, "workload.requests": 160,
     "workload.prefixes": {"groups": 6, "tokens": 80}},
    {"workload.arrivals": {"kind": "gamma", "rate": 200, "cv": 2}, "workload.requests": 160,
     "workload.prefixes": {"groups": 40, "tokens": 64}},
    {"workload.arrivals": {"kind": "gamma", "rate": 60, "cv": 2}, "client.memory.num_blocks": 90, "workload.lengths": {
        "kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 700},
        "output": {"kind": "uniform", "min": 2, "max": 20}}},
    {"workload.requests": 200, "workload.arrivals": {"kind": "mmpp", "rates": [10, 400], "dwells": [3, 0.2]},
     "client.memory.num_blocks": 24, "workload.prefixes": {"groups": 10, "tokens": 16}, "workload.lengths": {
        "kind": "independent", "prompt": {"kind": "uniform", "min": 8, "max": 50},
        "output": {"kind": "uniform", "min": 2, "max": 40}}},
    {"workload.requests": 200, "workload.arrivals": {"kind": "gamma", "rate": 15, "cv": 2}},
    {"workload.requests": 200, "workload.arrivals": {"kind": "gamma", "rate": 12, "cv": 2}},
    {"workload.requests": 400, "workload.arrivals": {"kind": "gamma", "rate": 12, "cv": 2}},
)
"""Changes of the load, tried in turn until both options of a pair act: one with little memory at the same time makes
some rare, and one that turns requests away leaves too little for others."""


@dataclass(frozen=True, eq=False)
class Option:
    """One option: the settings that turn it on, and how often it acted.

    Attributes:
        settings: Values by dotted key of `DENSE`; None takes a key away.
        keys: Words of which a refusal must contain one; left out, the settings' own keys.
        acted: Reads its counter from a run; None: the run must differ from the one without it.
        roles: Whether the client becomes two, one that prefills and one that decodes.
    """

    name: str
    settings: Data
    keys: tuple[str, ...] = ()
    acted: Counter | None = None
    roles: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        own = tuple(key.split(".", 1)[1] for key in self.settings if key.startswith("client."))
        object.__setattr__(self, "names", self.keys or own)


def _runs(column: str) -> Counter:
    return lambda outcome: int(outcome.record.runs[column].sum())


def _rejected(reason: str) -> Counter:
    return lambda outcome: sum(text.startswith(reason) for text in outcome.record.reject_reasons.values())


def _drafts(outcome: Outcome) -> int:
    runs = outcome.record.runs
    return int((runs["sampled"] - runs["decode_seqs"] - runs["prefill_seqs"]).clip(min=0).sum())


def _transfers(outcome: Outcome) -> int:
    return len(outcome.record.transfers["start_ns"])


def _host_tokens(outcome: Outcome) -> int:
    parts = [part_of(client.scheduler, HostOffload) for client in outcome.simulation.clients]
    return sum(part.loaded_tokens for part in parts if part is not None)


def _tier_hits(outcome: Outcome) -> int:
    return sum(tier.store.hits for client in outcome.simulation.clients for tier in client.tiers)


def _ended_turns(outcome: Outcome) -> int:
    sessions = outcome.record.session[outcome.record.status == STATUS_COMPLETED]
    return len(sessions) - len(set(sessions.tolist()))


def _held_up(outcome: Outcome) -> int:
    return int((outcome.record.runs["overhead_ns"] > 0).sum())


def _sent_late(outcome: Outcome) -> int:
    return sum(int((late > 0).sum()) for late in outcome.record.late_ns.values())


def _joins_and_leaves(outcome: Outcome) -> int:
    """Count the replicas that started in a slot that another one had left, if others drained."""
    rows = outcome.record.membership
    again = int(((rows[:, 1] > 0) & (rows[:, 3] == READY)).sum())
    return again if (rows[:, 3] == DRAINING).any() else 0


def _failures(outcome: Outcome) -> int:
    """Count the attempts that failed while a client had them, if a later attempt was completed."""
    table = outcome.record.attempts
    failed = (table["outcome"] == 2) & (table["end_ns"] > table["start_ns"])
    return int(failed.sum()) if ((table["outcome"] == 1) & (table["number"] > 1)).any() else 0


def _migrations(outcome: Outcome) -> int:
    """Count the attempts with whose tokens another one went on, if it ended with an answer; or that were made anew."""
    found = outcome.record.migrations
    return int((found["to"] >= 0).sum()) if found else 0


def _retries(outcome: Outcome) -> int:
    """Count the attempts that timed out before another one was made."""
    table = outcome.record.attempts
    again = table["call"][table["number"] > 1]
    return int(((table["outcome"] == 3) & np.isin(table["call"], again)).sum())


def _late_bound(outcome: Outcome) -> int:
    """Count the calls that waited at the gateway before they were dispatched."""
    held = outcome.record.held
    return int(((held["outcome"] == 1) & (held["left_ns"] > held["asked_ns"])).sum())


def _ranks(outcome: Outcome) -> int:
    """Count the ranks that computed, but for the first one."""
    return len(set(outcome.record.runs["client"].tolist())) - 1


def window_blocks_freed(outcome: Outcome) -> int:
    """Count the blocks that sequences left behind in groups of layers with a sliding window."""
    freed, stages = 0, outcome.record.stages
    for client in outcome.simulation.clients:
        pool = client.scheduler.pool
        if not isinstance(pool, WindowPool | WindowPrefixPool):
            continue
        served = (stages["client"] == client.index) & (stages["first_step"] >= 0)
        for tokens in (stages["prompt_tokens"] + stages["output_tokens"])[served].tolist():
            freed += pool.groups.windowed * pool.blocks_for(tokens) - pool.groups.blocks(tokens, pool.block_size)
    return freed


def _retrying(per_try: str) -> Option:
    """Return the option by which attempts that take longer are made again, while their engine goes on."""
    own = {"retries": 1, "per_try": per_try, "cancel_delay": "20ms", "begun": "restart"}
    return Option("retrying", {f"gateway.{key}": value for key, value in own.items()}, keys=("gateway",),
                  acted=_retries)


def _offers(outcome: Outcome) -> int:
    """Count the requests that their clients have offered again."""
    offers = outcome.record.notes.get("client_tries")
    return 0 if offers is None else int((offers > 1).sum())


def _offered_again(per_try: str) -> Option:
    """Return the option by which clients offer requests again that take longer."""
    return Option("offered_again", {"workload.retry": {"kind": "openai", "retries": 1, "backoff": "5ms",
                                                       "per_try": per_try, "begun": "restart"}},
                  keys=("retry",), acted=_offers)


def _gateways(outcome: Outcome) -> int:
    """Count the requests that waited for the capacity of one of two gateways."""
    notes = outcome.record.notes
    return int((notes["gateway_wait_s"] > 0).sum()) if len(set(notes["gateway"].tolist())) == 2 else 0


def _updated(outcome: Outcome) -> int:
    """Count the replicas that a rolling update has started in place of others that left."""
    rows = outcome.record.membership
    return int((rows[:, 3] == GONE).sum()) if ((rows[:, 2] > 0) & (rows[:, 3] == READY)).any() else 0


def _queued(outcome: Outcome) -> int:
    """Count the calls that waited at the gateway because no replica was ready."""
    return len(outcome.record.queued.get("left_ns", ()))


def _circuits_opened(outcome: Outcome) -> int:
    gateway = found_parts.part_of(outcome.simulation.coordinator.parts, Gateway)
    return int(found_parts.part_of(gateway.parts, Circuits).breakers.opened)


def _spread(outcome: Outcome) -> int:
    """Count the clients that computed, but for the first one."""
    return len(set(outcome.record.runs["client"].tolist())) - 1


SPECULATIVE = {"num_speculative_tokens": 3, "acceptance_rate": 0.6}

OPTIONS: tuple[Option, ...] = (
    Option("priority", {"client.scheduler.policy": "priority", "workload.priorities": {"values": [0, 1, 2]}}),
    Option("shortest_job_first", {"client.scheduler.policy": "shortest_job_first"}),
    Option("synchronous", {"client.scheduler.async_scheduling": False}),
    Option("unchunked", {"client.scheduler.enable_chunked_prefill": False}),
    Option("cap", {"client.scheduler.long_prefill_token_threshold": 24}),
    Option("adaptive_cap", {"client.scheduler.long_prefill_token_threshold": 8,
                            "client.scheduler.adaptive_long_prefill_threshold": True}),
    Option("first_chunk", {"client.scheduler.reserve_full_isl": False}),
    Option("watermark", {"client.scheduler.watermark": 0.25}),
    Option("scheduled_tokens", {"client.scheduler.max_num_scheduled_tokens": 64}),
    Option("active_seqs", {"client.scheduler.max_num_active_seqs": 4}),
    Option("queued_reqs", {"client.scheduler.max_num_queued_reqs": 20}, acted=_rejected("")),
    Option("queued_tokens", {"client.scheduler.max_num_queued_tokens": 1500}, acted=_rejected("")),
    Option("loras", {"client.scheduler.max_loras": 2, "workload.adapters": {"count": 4, "fraction": 0.7}},
           acted=_runs("lora_tokens")),
    Option("adapter_loads", {"client.scheduler.max_loras": 2, "client.adapter_bytes": "200MB",
                             "workload.adapters": {"count": 4, "fraction": 0.7}}),
    Option("ngram", {"client.scheduler.speculative": {"method": "ngram", **SPECULATIVE}}, acted=_drafts),
    Option("eagle", {"client.scheduler.speculative": {"method": "eagle", **SPECULATIVE}}, acted=_drafts),
    Option("engine", {"client.engine": "vllm-0.18"}),
    Option("uncached", {"client.memory.prefix_caching": False}),
    Option("gdsf", {"client.memory.prefix_eviction": "gdsf"}),
    Option("tamm", {"client.memory.prefix_eviction": "tamm"}),
    Option("warm", {"client.memory.prefix_start": "warm"}),
    Option("host_offload", {"client.memory.kv_offload": {"cpu_bytes_to_use": "4GB"}}, acted=_host_tokens),
    Option("tiers", {"client.tiers": {"levels": [{"name": "host", "capacity": "8GB", "bandwidth": "50GB/s"}],
                                      "block_tokens": 32}}, acted=_tier_hits),
    Option("block_size", {"client.memory.block_size": 8}),
    Option("roles", {}, keys=("role",), acted=_transfers, roles=True),
    Option("stages", {"client.parallel.pp": 2}),
    Option("ranks", {"client.model": "mixtral-8x7b", "client.parallel.dp": 2}),
    Option("tp", {"client.parallel.tp": 2}),
    Option("serial_overhead", {"client.request_overhead": {"generate": "2ms"}}, acted=_held_up),
    Option("overlapped_overhead", {"client.request_overhead": {"mode": "overlapped", "generate": "2ms"}}),
    Option("api_servers", {"client.api_servers": {"per_request": "2ms", "per_token": "1ms", "per_chunk": "37us"}},
           acted=_sent_late),
    Option("frontend", {"client.frontend": {"before": "3ms", "after": "1ms"}}),
    Option("adjust", {"client.adjust": {"decodes": 1.3}}),
    Option("fleet", {"client.count": 3, "client.fleet": {
        "start": 1, "start_up": {"total": "60ms"}, "autoscaler": {"kind": "schedule", "changes": [
            {"at": "100ms", "replicas": 3}, {"at": "400ms", "replicas": 1}, {"at": "600ms", "replicas": 2}]}}},
           keys=("fleet", "count"), acted=_joins_and_leaves),
    Option("failing", {"client.count": 3, "gateway.retries": 5, "gateway.backoff": "30ms", "gateway.begun": "restart",
                       "client.fleet": {
                           "start": 3, "start_up": {"total": "60ms"}, "restarts": {"backoff": 0},
                           "probe": {"period": "20ms", "failures": 1, "delay": "0s"},
                           "crashes": [{"at": "150ms", "replica": 0}, {"at": "200ms", "replica": 1},
                                       {"at": "400ms", "replica": 2}, {"at": "600ms", "replica": 0}]}},
           keys=("fleet", "count"), acted=_failures),
    Option("faulty", {"client.count": 3, "gateway.retries": 5, "gateway.backoff": "30ms", "gateway.begun": "restart",
                      "client.fleet": {
                          "start": 3, "start_up": {"total": "60ms"}, "restarts": {"backoff": "20ms"},
                          "probe": {"period": "20ms", "failures": 1, "delay": "0s", "timeout": "5ms"},
                          "liveness": {"period": "20ms", "failures": 2, "timeout": "5ms", "grace": "10ms"},
                          "failures": [{"kind": "straggler", "at": "80ms", "replica": 1, "factor": 1.7,
                                        "lasts": "300ms"}, {"kind": "hang", "at": "120ms"},
                                       {"kind": "hang", "at": "450ms", "replica": 2},
                                       {"kind": "reclaim", "at": "250ms", "replica": 2, "notice": "10ms"},
                                       {"kind": "node", "at": "600ms", "replica": 0, "repair": "90ms"}]}},
           keys=("fleet", "count"), acted=_failures),
    Option("outages", {"client.count": 3, "gateway.retries": 5, "gateway.backoff": "30ms", "gateway.begun": "restart",
                       "client.fleet": {
                           "start": 3, "start_up": {"total": "60ms"}, "restarts": {"group_policy": "recreate_group"},
                           "probe": {"period": "20ms", "failures": 1, "delay": "5ms"}, "nodes": {"zone": "z{i%2}"},
                           "failures": [{"kind": "device", "at": "150ms", "repair": "80ms"},
                                        {"kind": "zone", "at": "300ms", "zone": "z0", "repair": "120ms",
                                         "notice": "10ms"},
                                        {"kind": "device", "at": "550ms", "replica": 1, "repair": "50ms"}]}},
           keys=("fleet", "count"), acted=_failures),
    Option("failing_links", {"network": {"kind": "link", "bandwidth": "2 GB/s", "failures": [
        {"every": {"mean": "100ms"}, "lasts": "50ms", "factor": 4}, {"every": {"mean": "300ms"}, "lasts": "30ms"}]}},
           keys=("network", "role"), acted=_transfers, roles=True),
    Option("migrating", {"client.count": 3, "gateway.migration": {"limit": 4, "idle": "150ms"}, "client.fleet": {
        "start": 3, "start_up": {"total": "60ms"}, "restarts": {"backoff": 0},
        "probe": {"period": "20ms", "failures": 1, "delay": "0s"}, "drain": {"grace": "50ms", "end": "migrate"},
        "crashes": [{"at": "150ms", "replica": 0}, {"at": "200ms", "replica": 1}, {"at": "400ms", "replica": 2}],
        "autoscaler": {"kind": "schedule", "changes": [{"at": "500ms", "replicas": 2}, {"at": "700ms", "replicas": 3}]},
    }}, keys=("fleet", "count", "migration"), acted=_migrations),
    _retrying("350ms"),
    Option("flow_control", {
        "gateway.flow_control": {"detector": {"kind": "utilization", "queue": 2, "kv": 0.7, "scrape": "10ms",
                                              "stale": "40ms"}, "fairness": {"kind": "deficit_round_robin"}},
        "gateway.classes": {"gold": {"priority": 1}, "basic": {}}, "workload.tenants": {"values": ["a", "b", "c"]},
        "workload.classes": {"values": ["gold", "basic"]}}, keys=("gateway", "flow_control"), acted=_late_bound),
    Option("gateways", {"gateway.delay": "2ms", "gateway.capacity": "200 /s", "gateway.replicas": 2}, keys=("gateway",),
           acted=_gateways),
    _offered_again("360ms"),
    Option("updating", {"client.count": 3, "client.fleet": {
        "start": 2, "start_up": {"total": "60ms"}, "updates": [{"at": "150ms"}]}}, keys=("fleet", "count"),
           acted=_updated),
    Option("from_zero", {"client.count": 2, "gateway.queue": {"ttl": "60s"}, "client.fleet": {
        "start": 0, "start_up": {"total": "60ms"}, "autoscaler": {"kind": "schedule", "changes": [
            {"at": "50ms", "replicas": 1}, {"at": "300ms", "replicas": 2}]}}},
           keys=("fleet", "count", "queue"), acted=_queued),
    Option("breaking", {"client.count": 3, "router.kind": "least_loaded", "gateway.retry": {"kind": "sglang"},
                        "client.fleet": {"start": 3, "start_up": {"total": "400ms"}, "probe": {"period": "1s"},
                                         "crashes": [{"at": "150ms", "replica": 1}]}},
           keys=("fleet", "count", "retry"), acted=_circuits_opened),
    Option("views", {"client.count": 2, "router": {"kind": "least_loaded", "load": "kv_tokens",
                                                   "view": {"kind": "scraped", "period": "100ms"}}},
           keys=("count", "router", "view"), acted=_spread),
    Option("max_model_len", {"client.max_model_len": 170}, acted=_rejected("")),
    Option("patience", {"workload.patience": {"total": "400ms"}}, keys=("patience",),
           acted=_rejected("its client gave up")),
    Option("conversations", {"workload.lengths": {
        "kind": "conversations", "turns": 3, "message": {"kind": "uniform", "min": 10, "max": 40},
        "output": {"kind": "uniform", "min": 2, "max": 30}, "system_tokens": 48, "think_time": "10ms"},
        "workload.prefixes": None}, keys=("conversations", "turns"), acted=_ended_turns),
    Option("stop_token", {"workload.ends": "stop_token"}, keys=("ends",)),
    Option("branches", {"workload.branches": 2}, keys=("branches",)),
    Option("users", {"workload.arrivals": {"kind": "closed_loop", "users": 24, "think": "60ms"}},
           keys=("closed_loop",)),
    Option("roofline", {"client.hardware": {"kind": "roofline", "model": OF_BASE, "device": "h100-sxm"}}),
    Option("static", {"client.scheduler": {"kind": "static", "max_num_seqs": 16}}, keys=("scheduler", "static")),
    Option("continuous", {"client.scheduler": {"kind": "continuous", "max_num_seqs": 16}},
           keys=("scheduler", "continuous")),
    Option("mixed", {"client.scheduler": {"kind": "mixed", "max_num_batched_tokens": 256, "max_num_seqs": 16}},
           keys=("scheduler", "mixed")),
    Option("sglang", {"client.scheduler": {"kind": "sglang", "chunked_prefill_size": 256, "max_running_requests": 16}},
           keys=("scheduler", "sglang")),
)


NO_EFFECT = {
    frozenset(("synchronous", "ngram")): "vLLM schedules these drafts synchronously in any case",
    frozenset(("first_chunk", "engine")): "vLLM 0.18 admits by the first chunk in any case",
    frozenset(("first_chunk", "unchunked")): "the whole prompt is the first chunk",
    frozenset(("tamm", "conversations")): "the next turn is the oldest conversation's in any case",
    frozenset(("unchunked", "adaptive_cap")): "whole prompts fit in the budget: no cap is reached by a lone one",
    frozenset(("uncached", "static")): "it caches nothing by default",
    frozenset(("uncached", "continuous")): "it caches nothing by default",
    frozenset(("uncached", "mixed")): "it caches nothing by default",
} | {frozenset(("stop_token", other)): "a step is planned when the stop token is known" for other in (
    "synchronous", "host_offload", "ngram", "static", "continuous", "mixed")}
"""Pairs of which one changes nothing beside the other, with the reason."""


EXPERTS = (
    Option("ranks", {"client.parallel.dp": 2}, acted=_ranks),
    Option("experts", {"client.parallel.dp": 2, "client.parallel.ep": ALL}, acted=_ranks),
)
HYBRID = Option("hybrid", {"client.memory.hybrid": True}, acted=window_blocks_freed)
WHOLE = Option("whole", {"client.memory.hybrid": False})
SGLANG = OPTIONS[-1]
# "ranks" names a mixture of its own, and larger models take longer
SLOWER = {option.name: option for option in (_retrying("600ms"), _offered_again("620ms"))}
OF_ANY_MODEL = tuple(SLOWER.get(option.name, option) for option in OPTIONS if option.name != "ranks")
SGLANG_WHOLE = Option("sglang", SGLANG.settings | WHOLE.settings, keys=("scheduler", "sglang", "hybrid"))


WITHOUT_WINDOWS = {"whole", "sglang", "static", "continuous", "mixed", "roles", "tiers"}
"""Options with which every layer keeps every token, unless `hybrid` is given: schedulers that follow no engine do, and
vLLM turns its hybrid manager off where KV moves."""


@dataclass(frozen=True, eq=False)
class Base:
    """A scenario that options are set on.

    Attributes:
        settings: Changes of `DENSE`.
        loads: Changes of the load, tried in turn.
        no_effect: Sets of options of which one changes nothing beside the others, with the reason.
        windows: Whether layers have windows: blocks of them must be freed, unless an option keeps every token.
        enough: Whether there is memory for all sequences, so that none may be preempted.
    """

    name: str
    settings: Data
    loads: tuple[Data, ...]
    options: tuple[Option, ...]
    no_effect: dict[frozenset[str], str]
    windows: bool = False
    enough: bool = False

    def scenario_with(self, *options: Option, load: Data) -> Data:
        return scenario_with(*options, load=self.settings | load)

    def excuse(self, options: tuple[Option, ...]) -> str:
        """Return why one of these options is known to change nothing beside the others, or ""."""
        names = {option.name for option in options}
        return next((why for known, why in self.no_effect.items() if known <= names), "")

    def idle(self, outcome: Outcome, options: tuple[Option, ...]) -> list[str]:
        """Return what of this base did not act in a run. Raises `AssertionError` for windows switched on or off."""
        if self.windows:
            names = {option.name for option in options}
            off = not WITHOUT_WINDOWS.isdisjoint(names) and "hybrid" not in names
            pools = [client.scheduler.pool for client in outcome.simulation.clients]
            assert all(isinstance(pool, WindowPool | WindowPrefixPool) is not off for pool in pools), (
                f"windows are {'on' if off else 'off'}")
            if not off and not window_blocks_freed(outcome):
                return ["windows"]
        return ["enough memory"] if self.enough and outcome.record.runs["preempted"].any() else []


def _set(data: Data, key: str, value: Any) -> None:
    *folders, last = key.split(".")
    for name in folders:
        data = data.setdefault(name, {})
    if value is None:
        data.pop(last, None)
    else:
        data[last] = copy.deepcopy(value)


def apart(*options: Option) -> bool:
    """Whether options can be given together: none sets what another one sets otherwise, and none contains another."""
    for one in options:
        for other in options:
            if one is other:
                continue
            if one.settings.items() <= other.settings.items() and one.roles <= other.roles:
                return False
            if any(key in other.settings and other.settings[key] != value for key, value in one.settings.items()):
                return False
    return True


def scenario_with(*options: Option, load: Data | None = None, base: Data = DENSE) -> Data:
    """Return the scenario with these options under a load; whole values are set before parts of them, and what an
    option sets of the load is the option's."""
    data = copy.deepcopy(base)
    own = {key: value for option in options for key, value in option.settings.items()}
    settings = {key: value for key, value in (load or {}).items()
                if not any(f"{key}.".startswith(f"{ours}.") for ours in own)} | own
    for key, value in sorted(settings.items(), key=lambda item: item[0].count(".")):
        _set(data, key, value)
    client = data.pop("client")
    _complete(client)
    if any(option.roles for option in options):
        data["clients"] = [{**copy.deepcopy(client), "name": role, "role": role} for role in ("prefill", "decode")]
    else:
        data["clients"] = [client]
    return data


def _complete(client: Data) -> None:
    """Write out what options leave to the client that they are set on."""
    if client.get("hardware", {}).get("model") == OF_BASE:
        client["hardware"]["model"] = client["model"]
    parallel = client.get("parallel", {})
    if parallel.get("ep") == ALL:
        parallel["ep"] = parallel.get("tp", 1) * parallel["dp"]


def completed(outcome: Outcome) -> int:
    return int((outcome.record.status == STATUS_COMPLETED).sum())


ACT_IN_LITTLE_MEMORY = {"first_chunk", "watermark", "engine", "gdsf", "tamm", "host_offload", "tiers"}


def _loads_with(times: float) -> tuple[Data, ...]:
    """Return `LOADS` with so many times the blocks."""
    blocks = "client.memory.num_blocks"
    return tuple({**load, blocks: round(times * load.get(blocks, DENSE["client"]["memory"]["num_blocks"]))}
                 for load in LOADS)


LOADS_OF_WINDOWS: tuple[Data, ...] = (
    {"workload.requests": 200, "workload.arrivals": {"kind": "mmpp", "rates": [10, 400], "dwells": [3, 0.2]},
     "client.memory.num_blocks": 60, "workload.prefixes": {"groups": 10, "tokens": 16}, "workload.lengths": {
        "kind": "independent", "prompt": {"kind": "uniform", "min": 8, "max": 60},
        "output": {"kind": "uniform", "min": 2, "max": 160}}},
    {"workload.requests": 200, "workload.arrivals": {"kind": "mmpp", "rates": [8, 200], "dwells": [3, 0.2]},
     "client.memory.num_blocks": 64, "workload.prefixes": {"groups": 10, "tokens": 16}, "workload.lengths": {
        "kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 250},
        "output": {"kind": "uniform", "min": 2, "max": 20}}},
)
"""Sequences longer than a window, with few requests turned away."""

NO_EFFECT_ON_WINDOWS = NO_EFFECT | {frozenset(("whole", other)): "every layer keeps every token in any case"
                                    for other in WITHOUT_WINDOWS - {"whole", "sglang"}} | {
    frozenset(("unchunked", "scheduled_tokens")): "no request of more than 64 tokens is served: none leaves its window"}

GIVEN_UP = {frozenset((option, "patience")): "its client gives up before an attempt times out" for option in SLOWER}

BASES = {base.name: base for base in (
    Base("dense", {}, LOADS, OPTIONS, NO_EFFECT),
    Base("mixture", {"client.model": "qwen3-30b-a3b"}, LOADS, (*OF_ANY_MODEL, *EXPERTS), NO_EFFECT | GIVEN_UP),
    Base("windows", {"client.model": "gpt-oss-120b"}, (*_loads_with(1.7), *LOADS_OF_WINDOWS),
         (*OF_ANY_MODEL[:-1], EXPERTS[0], SGLANG_WHOLE, HYBRID, WHOLE), NO_EFFECT_ON_WINDOWS | GIVEN_UP, windows=True),
    Base("enough", {}, _loads_with(60), tuple(option for option in OPTIONS if option.name not in ACT_IN_LITTLE_MEMORY),
         NO_EFFECT, enough=True),
)}
