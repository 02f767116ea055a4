"""Compatibility of the options of an LLM client, of the workload that it serves and of the gateway, as declared data.

A row says which option excludes or needs which other one, and why: what the model lacks, or the engine's own rule.
`check` refuses a client by these rows; docs/reference/compatibility.md and the tests of each refusal are made of them.
Relations of two numbers are checked where their mapping is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes.config import ConfigModel
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import HardwareModel
from hermes.hardware.config import HardwareConfig, prices
from hermes.hardware.info import hardware_info
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.chunked_config import (
    GONE,
    PLANNED_AHEAD,
    PLANNED_AHEAD_LATER,
    SINCE,
    WITH_KV,
    ChunkedConfig,
    Speculation,
    is_since,
)
from hermes.schedulers.config import SchedulerConfig

__all__ = ["OFFLOAD_VERSIONS", "OF_GATEWAYS", "ROWS", "Case", "Option", "Row", "check"]

OFFLOAD_VERSIONS = ("0.32.0", "0.33.0")
"""Versions of vLLM whose rules of KV offload are known."""


def _no() -> bool:
    return False


class Case(NamedTuple):
    """One group of clients, as far as it is known: a fact that is not known yet refuses nothing.

    Attributes:
        client: Its configuration, as given or with the engine's defaults.
        hardware: Its hardware model; None before it is built.
        version, rules: The exact version of its engine and the rules that it follows, "" before they are known.
        mixed: Whether some layers of its model, but not all, have a sliding window.
        windowed: Whether layers with a sliding window have blocks of their own.
        scheduler: Its scheduler; None before it is built.
        workload: A workload that it serves; None while it is looked at alone.
        gateway: The gateway before it; None for none, or while it is looked at alone.
    """

    client: ConfigModel
    hardware: HardwareModel | None = None
    version: str = ""
    rules: str = ""
    mixed: Callable[[], bool] = _no
    windowed: Callable[[], bool] = _no
    scheduler: LLMScheduler | None = None
    workload: ConfigModel | None = None
    gateway: ConfigModel | None = None

    def value(self, key: str) -> object:
        """Return the value of a dotted key of the client, of `workload.KEY` or `gateway.KEY`; None where a part of it
        is lacking."""
        first, _, rest = key.partition(".")
        others = {"workload": self.workload, "gateway": self.gateway}
        found: object = others.get(first, self.client)
        for name in (rest if first in others else key).split("."):
            found = found.value_of(name) if isinstance(found, ConfigModel) else None
        return found

    def more_than_one(self, key: str) -> bool:
        """Whether a count is above 1."""
        value = self.value(key)
        return isinstance(value, int) and value > 1


@dataclass(frozen=True)
class Option:
    """An option, or a value of one.

    Attributes:
        key: Its dotted key in a client, `workload.KEY` or `gateway.KEY`.
        name: Its name in messages.
        given: Whether a client has it. For an option that others need: False only if it is known to lack it.
    """

    key: str
    name: str
    given: Callable[[Case], bool]


@dataclass(frozen=True)
class Row:
    """One refusal. Exactly one of `excludes` and `needs` is given, and one of `missing`, `unrecorded` and `rule`.

    The words are "not modelled with OTHER: it would need MISSING; DO", "not recorded yet with OTHER: UNRECORDED; DO",
    "needs OTHER: RULE; DO", or "RULE; DO".

    Attributes:
        option: The option that is refused.
        missing: What the model lacks for both.
        unrecorded: What the engine does with both, which no recording shows yet.
        rule: The engine's own rule, or what is wrong in full. `{value}` stands for the option's value, `{name}`,
            `{kind}`, `{method}`, `{version}` and `{tp}` for the client's name, scheduler, drafter, engine and hardware.
        do: What to do about it; "" where the words before say so.
        at: The key that the message names, if it is another one than the option's.
        by_schema: Whether the keys themselves are unknown there, so that reading them refuses the client.
    """

    option: Option
    excludes: Option | None = None
    needs: Option | None = None
    missing: str = ""
    unrecorded: str = ""
    rule: str = ""
    do: str = "leave one out"
    at: str = ""
    by_schema: bool = False

    @property
    def other(self) -> Option:
        found = self.excludes or self.needs
        assert found is not None
        return found

    @property
    def key(self) -> str:
        """The key that the message names."""
        return self.at or self.option.key

    @property
    def message(self) -> str:
        """The words of the refusal, with placeholders."""
        if self.missing:
            why = f"not modelled with {self.other.name}: it would need {self.missing}"
        elif self.unrecorded:
            why = f"not recorded yet with {self.other.name}: {self.unrecorded}"
        elif self.needs is not None:
            why = f"needs {self.needs.name}{'; ' if ': ' in self.needs.name else ': '}{self.rule}"
        else:
            why = self.rule
        return f"{why}; {self.do}" if self.do else why

    def refuses(self, case: Case) -> bool:
        if self.by_schema or not self.option.given(case):
            return False
        return not self.needs.given(case) if self.needs is not None else self.other.given(case)

    def error(self, case: Case) -> InputError:
        tp = 1 if case.hardware is None else hardware_info(case.hardware).tp
        words = {"kind": case.value("scheduler.kind"), "value": case.value(self.option.key), "tp": tp,
                 "method": case.value("scheduler.speculative.method"), "name": case.value("name"),
                 "version": case.version}
        return InputError(Verbatim(self.message.format(**words)), field=self.key)

    def explains(self, text: str) -> bool:
        """Whether a refusal, as printed, is this row's."""
        words = re.sub(r"\\{[a-z]+\\}", ".+", re.escape(self.message))
        key = rf"{self.key}\.\w+" if self.by_schema else re.escape(self.key.rpartition(".")[2])
        return re.search(rf"\b{key}: {words}$", text) is not None


# -- options ---------------------------------------------------------------------------------------------------------


def _given(key: str, name: str = "") -> Option:
    return Option(key, name or key.rpartition(".")[2], lambda case: case.value(key) is not None)


def _several(key: str, name: str = "") -> Option:
    return Option(key, name or key.rpartition(".")[2], lambda case: case.more_than_one(key))


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is(key: str, *values: object, name: str = "") -> Option:
    return Option(key, name or f"{key.rpartition('.')[2]}: {_yaml(values[0])}", lambda case: case.value(key) in values)


def _is_not(key: str, *values: object, name: str = "") -> Option:
    """Another value than these; also for one that is needed, and not known to be another."""
    return Option(key, name or key.rpartition(".")[2], lambda case: case.value(key) not in (None, *values))


def _kind(kind: str) -> Option:
    return _is("scheduler.kind", kind, name=f"the scheduler `{kind}`")


PP = _several("parallel.pp", "pipeline stages")
DP = _several("parallel.dp", "data-parallel ranks")
TP = _several("parallel.tp", "tensor parallelism")
ROLE = _is_not("role", "both", name="a role")
DECODE = _is("role", "decode")
SERVERS = _given("api_servers")
FLEET = _given("fleet", "replicas that come and go")
LIVENESS = _given("fleet.liveness", "`fleet.liveness`")
ENDLESS_HANG = Option("fleet.failures", "a hang without `lasts`", lambda case: any(
    one.kind == "hang" and one.lasts is None for one in case.value("fleet.failures") or ()))   # type: ignore[attr-defined]
DRAIN_END = _given("fleet.drain.end", "end")
NO_GRACE = Option("fleet.drain.grace", "`grace: null`", lambda case: case.value("fleet.drain") is not None and (
    case.value("fleet.drain.grace") is None))
SHARED_SERVERS = _several("api_servers.engines", "api_servers.engines")
ENGINE = _given("engine")
ADAPTER_BYTES = _given("adapter_bytes")
TIERS = _given("tiers", "tiers outside the engine")

CHUNKED, SGLANG, VLLM = _kind("chunked"), _kind("sglang"), _kind("vllm")
LORAS_NEEDED = _given("scheduler.max_loras", "scheduler.max_loras")
INTERVAL = _several("scheduler.prefill_schedule_interval")
ASYNCHRONOUS = _is("scheduler.async_scheduling", True, name="asynchronous scheduling")
IGNORE_EOS = _is("scheduler.ignore_eos", True)
MAX_NEW_TOKENS = Option("scheduler.max_new_tokens", "max_new_tokens",
                        lambda case: SGLANG.given(case) and case.value("scheduler.max_new_tokens") is not None)
MIXED_CHUNK = _is("scheduler.enable_mixed_chunk", True)
WHOLE_PROMPTS = _is("scheduler.chunked_prefill_size", -1)
NO_RADIX_CACHE = _is("scheduler.disable_radix_cache", True)

HOST_OFFLOAD = _given("memory.kv_offload")
CACHED = Option("memory.prefix_caching", "prefix_caching: true",
                lambda case: case.value("memory.prefix_caching") is not False)
CACHE_WANTED = _is("memory.prefix_caching", True)
EVICTION = _is_not("memory.prefix_eviction", "lru")
LRU = _is("memory.prefix_eviction", "lru")
NUM_BLOCKS, CAPACITY = _given("memory.num_blocks"), _given("memory.capacity")
RESERVED = _is_not("memory.reserved", 0)
RECENCY = _is_not("memory.prefix_recency", "rank")
NOT_TAMM = _is_not("memory.prefix_eviction", "tamm", name="another prefix_eviction than tamm")
WARM = _is("memory.prefix_start", "warm")
HYBRID = _is("memory.hybrid", True)
WINDOWS = Option("memory.hybrid", "layers with a sliding window that have blocks of their own",
                 lambda case: case.windowed())

ADAPTERS = _given("workload.adapters")
BRANCHES = _several("workload.branches")


UNPRICED_STAGES = Option("hardware", "hardware that has no price by stage, or other stages", lambda case: (
    case.hardware is not None and (hardware_info(case.hardware).pp != case.value("parallel.pp")
                                   or not prices(case.hardware, "stages_ns"))))
UNPRICED_RANKS = Option("hardware", "hardware that has no price by rank, or other ranks", lambda case: (
    case.hardware is not None and (hardware_info(case.hardware).dp != case.value("parallel.dp")
                                   or not prices(case.hardware, "lockstep_ns"))))
ONE_RANK = _is("parallel.dp", 1)
RANKS_OF_HARDWARE = Option("hardware.dp", "dp of the hardware",
                           lambda case: case.hardware is not None and hardware_info(case.hardware).dp > 1)
OTHER_TP = Option("hardware", "hardware of another tensor parallelism", lambda case: case.hardware is not None
                  and hardware_info(case.hardware).tp != case.value("parallel.tp"))
LORA = _given("hardware.lora")


def _rules_of_its_own(case: Case) -> bool:
    scheduler = case.value("scheduler")
    return isinstance(scheduler, SchedulerConfig) and not scheduler.follows_engine


def _of_terms(case: Case) -> bool:
    hardware = case.value("hardware")
    return isinstance(hardware, HardwareConfig) and hardware.of_terms


def _drafts_unpriced(case: Case) -> bool:
    """Whether the drafter takes time that neither the scenario nor a table of its own gives."""
    given = case.value("scheduler.speculative")
    return (isinstance(given, Speculation) and given.draft_time is None
            and given.method in WITH_KV)


def _planned_with_results(case: Case, later: bool) -> bool:
    """Whether vLLM from 0.33 on, or before it, schedules these drafts synchronously."""
    methods = PLANNED_AHEAD_LATER if later else PLANNED_AHEAD
    return (case.value("scheduler.speculative.method") not in (None, *methods) and bool(case.rules)
            and is_since(case.rules, "0.33.0") is later)


FROM_0_33 = Option("engine", "vLLM from 0.33 on", lambda case: bool(case.rules) and is_since(case.rules, "0.33.0"))
GONE_METHOD = _is("scheduler.speculative.method", *GONE, name=f"the methods {' and '.join(GONE)}")
DRAFTS_BEFORE = Option("scheduler.speculative.method", f"vLLM before 0.33 and methods other than "
                       f"{', '.join(PLANNED_AHEAD)}", lambda case: _planned_with_results(case, later=False))
DRAFTS_LATER = Option("scheduler.speculative.method", f"vLLM from 0.33 on and methods other than "
                      f"{', '.join(PLANNED_AHEAD_LATER)}", lambda case: _planned_with_results(case, later=True))
FOLLOWS_NO_ENGINE = Option("scheduler.kind", "a scheduler that follows no engine", _rules_of_its_own)
NO_LORAS = Option("scheduler", "no max_loras", lambda case: not case.value("scheduler.max_loras"))
OTHER_OFFLOAD = Option("engine", f"engines other than vLLM {' and '.join(OFFLOAD_VERSIONS)}",
                       lambda case: bool(case.rules) and case.rules not in OFFLOAD_VERSIONS)
RANKS_OR_0_33 = Option("parallel.dp", "parallel.dp",
                       lambda case: DP.given(case) or not case.rules or is_since(case.rules, "0.33.0"))
MIXED_LAYERS = Option("memory.hybrid", "layers with and without a sliding window",
                      lambda case: case.value("memory.hybrid") is None and case.mixed())
COMPOSED = Option("hardware.kind", "hardware of named terms (`composed`)", _of_terms)
DRAFTER = Option("scheduler.speculative", "a drafter without a `draft_time`", _drafts_unpriced)
TAKES_OVER = Option("scheduler.kind", "a scheduler that takes over no KV",
                    lambda case: case.scheduler is not None and not case.scheduler.takes_over_kv)
NO_BRANCHES = Option("scheduler", "a scheduler that serves no branches",
                     lambda case: case.scheduler is not None and not case.scheduler.splits)


GATEWAY_QUEUE, ADMISSION = _given("gateway.queue"), _given("gateway.admission")
FLOW_CONTROL = _given("gateway.flow_control")
ORDERS = Option("gateway.flow_control", "flow_control or admission", lambda case: any(
    case.value(f"gateway.{key}") is not None for key in ("flow_control", "admission")))
GATEWAY_RETRY = _given("gateway.retry", "rules of a named system (`retry`)")
GATEWAY_CAPACITY, BACKLOG = _given("gateway.capacity"), _given("gateway.backlog")
GATEWAYS = _several("gateway.replicas", "several gateways")
AT_RANDOM = _is("gateway.spread", "random")


def _changed(key: str) -> Option:
    """A key of the gateway with another value than its default."""
    def given(case: Case) -> bool:
        field = None if case.gateway is None else type(case.gateway).model_fields.get(key)
        return field is not None and case.value(f"gateway.{key}") != field.get_default(call_default_factory=True)

    return Option(f"gateway.{key}", key, given)


def _breaks(key: str) -> Callable[[Case], bool]:
    """Whether rules of retries at a key of the gateway keep replicas out."""
    def breaks(case: Case) -> bool:
        given: Any = case.value(f"gateway.{key}")   # of a kind of retries
        if given is None:
            return False
        from hermes.gateway.retries import breaker_of  # most scenarios have no gateway

        return breaker_of(given) is not None

    return breaks


BREAKER = Option("gateway.retry", "a `retry` that keeps replicas out", _breaks("retry"))
ROUTER_BREAKER = Option("gateway.router_retry", "a `router_retry` that keeps replicas out", _breaks("router_retry"))


def _is_set(case: Case, key: str) -> bool:
    """Whether `chunked` has another value of an option than its default."""
    scheduler = case.value("scheduler")
    return isinstance(scheduler, ChunkedConfig) and scheduler.value_of(key) != ChunkedConfig.model_fields[key].default


def _before(version: str, first: tuple[int, int]) -> bool:
    return bool(version) and tuple(map(int, version.split(".")[:2])) < first


# -- rows ------------------------------------------------------------------------------------------------------------

OF_RANKS = (
    Row(PP, excludes=UNPRICED_STAGES, rule="stages need hardware of named terms (`composed`)",
        do="give it pp, or leave it out there"),
    Row(DP, excludes=UNPRICED_RANKS, rule="ranks need hardware of named terms (`composed`)",
        do="give it dp and ep, or leave them out there"),
    Row(RANKS_OF_HARDWARE, excludes=ONE_RANK, rule="belongs to the client",
        do="write `parallel.dp`, which makes the ranks"),
    Row(TP, excludes=OTHER_TP, rule="{value} contradicts the hardware model, which has {tp}",
        do="leave `parallel` out"),
    Row(INTERVAL, excludes=PP, unrecorded="how vLLM counts the steps of several batches in flight", do="leave it out"),
)
OF_LIMITS = (
    Row(INTERVAL, needs=RANKS_OR_0_33, rule="before 0.33 vLLM reads it with data-parallel ranks only",
        do="leave it out, or set `engine: vllm-0.33`"),
    Row(SERVERS, excludes=ROLE, missing="the servers of two engines in the way of one answer", do="leave it out"),
    Row(SHARED_SERVERS, excludes=FLEET, missing="servers that stay while their engines come and go",
        do="give each replica its own (1)"),
    Row(ADAPTER_BYTES, needs=LORAS_NEEDED, rule="without it requests have no adapters", do="give it"),
    Row(LORA, needs=LORAS_NEEDED, rule="the adapters in one step", do="give it"),
)
OF_VERSIONS = tuple(
    Row(Option(f"scheduler.{key}", key, lambda case, key=key: _is_set(case, key)),   # type: ignore[misc]
        excludes=Option("engine", f"vLLM before {first[0]}.{first[1]}",
                        lambda case, first=first: _before(case.version, first)),     # type: ignore[misc]
        rule=f"vLLM {{version}} does not have it with these rules, only {first[0]}.{first[1]} and later",
        do=f"leave it out or set `engine: vllm-{first[0]}.{first[1]}`")
    for key, first in SINCE.items())
OF_SPECULATION = (
    Row(GONE_METHOD, excludes=FROM_0_33, rule="vLLM has no {method} from 0.33 on",
        do="write `engine: vllm-0.32`, or use another method"),
    *(Row(ASYNCHRONOUS, excludes=drafts, rule="vLLM refuses true with the draft method {method}",
          do=f"write false, or use one of {', '.join(methods)}")
      for drafts, methods in ((DRAFTS_BEFORE, PLANNED_AHEAD), (DRAFTS_LATER, PLANNED_AHEAD_LATER))),
    Row(DRAFTER, needs=COMPOSED, rule="other hardware cannot price what drafts", do="give the time of one run",
        at="scheduler.speculative.draft_time"),
)
OF_HOST_OFFLOAD = (
    Row(HOST_OFFLOAD, needs=CHUNKED, rule="it follows vLLM's offloading", do=""),
    Row(HOST_OFFLOAD, excludes=OTHER_OFFLOAD, rule=f"follows vLLM {' and '.join(OFFLOAD_VERSIONS)}",
        do="leave `engine` out"),
    Row(HOST_OFFLOAD, needs=CACHED, rule="the host memory extends the prefix cache", do=""),
    Row(HOST_OFFLOAD, needs=LRU, rule="the engine has no other order", do=""),
    Row(HOST_OFFLOAD, excludes=WINDOWS, unrecorded="which blocks of a window vLLM stores", do="write hybrid: false"),
    Row(HOST_OFFLOAD, excludes=ROLE, unrecorded="what vLLM's MultiConnector does with this and a transfer"),
    Row(HOST_OFFLOAD, excludes=PP, unrecorded="how batches in flight share the host's memory", do="use tp"),
    Row(HOST_OFFLOAD, excludes=DP, unrecorded="how ranks wait for a step that waits for stores", do="use tp"),
    Row(HOST_OFFLOAD, excludes=TIERS, unrecorded="what vLLM's MultiConnector does with this and them"),
)
OF_MEMORY = (
    Row(NUM_BLOCKS, excludes=CAPACITY, rule="num_blocks and capacity exclude each other", do="give one"),
    Row(RESERVED, excludes=NUM_BLOCKS, rule="has no effect with num_blocks", do="leave it out"),
    Row(RECENCY, excludes=NOT_TAMM, rule="applies to `prefix_eviction: tamm` only", do="leave it out"),
    Row(EVICTION, needs=CACHED, rule="nothing else is evicted", do=""),
    Row(WARM, needs=CACHED, rule="nothing else is there when the clock starts", do=""),
    Row(EVICTION, excludes=WINDOWS, rule="{value} is not modelled for layers with a sliding window",
        do="write hybrid: false, or lru"),
)
OF_SCHEDULERS = (
    Row(ENGINE, excludes=FOLLOWS_NO_ENGINE, rule="an engine sets the rules of the scheduler `chunked` only",
        do="leave it out"),
    Row(DECODE, excludes=TAKES_OVER, missing="code by which {kind} takes over KV from a prefill client",
        do="use another scheduler", at="scheduler.kind"),
    Row(Option("scheduler", "an option of the scheduler `chunked`", lambda case: False),
        excludes=Option("scheduler.kind", "another scheduler", lambda case: False), by_schema=True,
        rule="expected one of the keys {keys}, found {found}", do=""),
    Row(PP, excludes=SGLANG, unrecorded="SGLang's loop over the stages", do="leave it out"),
    Row(DP, excludes=SGLANG, unrecorded="SGLang's data-parallel attention", do="leave it out"),
    Row(TIERS, excludes=SGLANG, unrecorded="SGLang's hierarchical cache", do="leave it out"),
    Row(MAX_NEW_TOKENS, excludes=IGNORE_EOS, rule="with ignore_eos every request gets what it asks for",
        do="leave it out"),
    Row(MIXED_CHUNK, excludes=WHOLE_PROMPTS, rule="needs chunked prefill", do="give chunked_prefill_size"),
    Row(CACHE_WANTED, excludes=NO_RADIX_CACHE, rule="contradicts the scheduler's disable_radix_cache"),
    Row(EVICTION, excludes=SGLANG, rule="{value} is not the rule of the scheduler sglang, whose radix tree evicts the "
        "least recently used leaf", do="leave it out"),
    Row(HYBRID, excludes=SGLANG, unrecorded="SGLang's pool of windows", do="leave it out"),
    Row(MIXED_LAYERS, excludes=SGLANG, rule="missing: SGLang keeps the KV of layers with a sliding window in a pool of "
        "their own, which is not modelled", do="write `hybrid: false` for its --disable-hybrid-swa-memory (its default "
        "for Gemma 2 and 3)"),
    *(Row(option, excludes=VLLM, rule="vLLM's own scheduler serves whole generations on one engine without it",
          do="leave it out") for option in (ROLE, TIERS, ADAPTER_BYTES, EVICTION, PP, DP)),
    Row(WINDOWS, excludes=VLLM, rule="vLLM's own scheduler is driven with full attention only",
        do="write `hybrid: false`"),
)
OF_FLEETS = (
    Row(DRAIN_END, excludes=NO_GRACE, rule="a drain with `grace: null` cuts nothing", do="leave one of them out"),
    Row(ENDLESS_HANG, needs=LIVENESS, rule="nothing else ends a hang", do="give it, or `lasts`"),
)
OF_WORKLOADS = (
    Row(ADAPTERS, excludes=NO_LORAS, rule="a workload has adapters: give max_loras (and `kind: chunked`)", do="",
        at="scheduler"),
    Row(BRANCHES, excludes=HOST_OFFLOAD, missing="chunks of a prompt that several branches hold"),
    Row(BRANCHES, excludes=NO_BRANCHES, rule="{name} serves no branches of one prompt", do="use `chunked`"),
)
OF_GATEWAYS = (
    *(Row(other, excludes=FLOW_CONTROL, rule="flow_control has a queue of its own, which takes its place",
          do="leave it out") for other in (GATEWAY_QUEUE, ADMISSION)),
    *(Row(_changed(key), needs=ORDERS, rule="nothing else asks for it", do="give one of them")
      for key in ("classes", "tenants")),
    Row(BACKLOG, needs=GATEWAY_CAPACITY, rule="without it none waits", do="give it, or leave this out"),
    *(Row(_changed(key), excludes=GATEWAY_RETRY, rule="stands in `retry`",
          do="write it there, or leave one of them out")
      for key in ("retries", "backoff", "max_backoff", "per_try", "begun")),
    Row(ROUTER_BREAKER, excludes=BREAKER, rule="`retry` and `router_retry` both keep replicas out",
        do="write null for one of them"),
    Row(AT_RANDOM, needs=GATEWAYS, rule="there is one gateway", do="give `replicas`, or leave this out"),
)
ROWS = (*OF_SCHEDULERS, *OF_HOST_OFFLOAD, *OF_SPECULATION, *OF_RANKS, *OF_LIMITS, *OF_VERSIONS, *OF_MEMORY,
        *OF_FLEETS, *OF_WORKLOADS, *OF_GATEWAYS)


def check(case: Case, rows: Iterable[Row] = ROWS) -> None:
    """Raise `InputError` by the first row that refuses a case."""
    for row in rows:
        if row.refuses(case):
            raise row.error(case)
