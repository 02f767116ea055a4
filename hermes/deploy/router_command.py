"""Launch commands of routers as parts of a scenario: SGLang's model gateway and Dynamo's frontend.

Names and defaults of the flags are those of https://github.com/sgl-project/sglang (sgl-model-gateway: src/main.rs and
bindings/python/src/sglang_router/router_args.py) and of Dynamo's frontend configuration reference. A flag that is not
modelled is refused, unless it says what holds anyway; those without an effect on timing are in the tables below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.deploy.shell_words import simple_commands
from hermes.errors import InputError, Verbatim

__all__ = ["RouterRead", "router_of"]

Flags = dict[str, str]   # name -> its last value, "" for a switch


@dataclass
class RouterRead:
    """What a command says. `parts`: keys of a scenario; `notes`: what to tell the user."""

    parts: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """Flags of a launcher.

    Args:
        keys: Those that set a key.
        beside: Those that do not change when a token is computed; `*` behind a switch, `+` behind one of several words.
        same: Those that are taken only with the value that is simulated.
        switches: Switches among the others.
    """

    keys: frozenset[str]
    beside: Mapping[str, str]
    same: Mapping[str, str]
    switches: frozenset[str]


def _beside(text: str) -> dict[str, str]:
    return {word.rstrip("*+"): word[len(word.rstrip("*+")):] for word in text.split()}


SGLANG = Known(
    frozenset((
        "policy", "cache-threshold", "balance-abs-threshold", "balance-rel-threshold", "eviction-interval",
        "eviction-interval-secs", "max-tree-size", "retry-max-retries", "retry-initial-backoff-ms",
        "retry-max-backoff-ms", "retry-backoff-multiplier", "retry-jitter-factor", "disable-retries",
        "cb-failure-threshold", "cb-success-threshold", "cb-timeout-duration-secs", "disable-circuit-breaker",
        "request-timeout-secs")),
    # the window of the circuit breaker is read by nothing in circuit_breaker.rs; queues need max-concurrent-requests
    _beside("""
        api-key assignment-mode bootstrap-port-annotation bucket-adjust-interval-secs ca-cert-paths+
        cb-window-duration-secs chat-template client-cert-path client-key-path control-plane-audit-enabled*
        cors-allowed-origins+ enable-trace* enable-wasm* history-backend host jwt-audience jwt-issuer
        jwt-jwks-uri log-dir log-level max-idle-secs max-payload-size mcp-config-path model-path
        oracle-connect-descriptor oracle-password oracle-pool-max oracle-pool-min oracle-pool-timeout-secs
        oracle-tns-alias oracle-username oracle-wallet-path otlp-traces-endpoint port postgres-db-url
        postgres-pool-max prefix-hash-load-factor prefix-token-count prometheus-duration-buckets+
        prometheus-host prometheus-port queue-size queue-timeout-secs reasoning-parser redis-key-prefix
        redis-pool-max redis-retention-days redis-url request-id-headers+ selector+ server-cert-path
        server-key-path service-discovery* service-discovery-namespace service-discovery-port
        shutdown-grace-period-secs tokenizer-cache-enable-l0* tokenizer-cache-enable-l1*
        tokenizer-cache-l0-max-entries tokenizer-cache-l1-max-memory tokenizer-path tool-call-parser
        worker-startup-check-interval worker-startup-timeout-secs worker-urls+"""),
    {"max-concurrent-requests": "-1", "backend": "sglang"},
    frozenset(("disable-retries", "disable-circuit-breaker")))

DYNAMO = Known(
    frozenset((
        "router-mode", "router-kv-overlap-score-credit", "router-kv-overlap-score-weight", "kv-overlap-score-weight",
        "router-prefill-load-scale", "router-host-cache-hit-weight", "router-temperature", "router-kv-events",
        "no-router-kv-events", "kv-events", "no-kv-events", "router-ttl-secs", "router-ttl", "migration-limit",
        "migration-max-seq-len")),
    _beside("""
        discovery-backend dump-config-to dyn-chat-processor dyn-debug-perf* dyn-preprocess-workers
        enable-anthropic-api* event-plane grpc-metrics-port http-host http-port interactive* kserve-grpc-server*
        no-kserve-grpc-server* metrics-prefix model-name model-path namespace namespace-prefix request-plane
        router-event-threads router-min-initial-workers router-queue-policy router-reset-states* serve-indexer*
        no-serve-indexer* tls-cert-path tls-key-path tokenizer"""),
    {"router-queue-threshold": "None", "router-kv-overlap-score-credit-decay": "0",
     "router-disk-cache-hit-weight": "0.25", "shared-cache-type": "none", "router-prefill-load-model": "none",
     "no-load-aware": "", "no-decode-fallback": "", "no-use-remote-indexer": "",
     "no-router-replica-sync": "", "router-track-active-blocks": "", "no-router-track-output-blocks": "",
     "router-assume-kv-reuse": "", "router-track-prefill-tokens": ""},
    frozenset(("router-kv-events", "no-router-kv-events", "kv-events", "no-kv-events")))
VARIABLES = {"router-use-kv-events": "router-kv-events", "router-load-aware": "load-aware"}   # named unlike their flags
_DECIMAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ASSIGNED = re.compile(r"DYN_([A-Z0-9_]+)=(.*)", re.DOTALL)


def router_of(text: str) -> RouterRead:
    """Read `python -m sglang_router.launch_router ...`, `sglang-router ...`, `smg launch ...` or `python -m
    dynamo.frontend ...`, also in `docker run` and `sh -c`. Raises `InputError` for another command, and by flag."""
    read = _read(text, [])
    if read is None:
        raise InputError("a command `python -m sglang_router.launch_router ...`, `sglang-router ...` or "
                         "`python -m dynamo.frontend ...`", Verbatim("another"), field="command")
    return read


def _read(text: str, before: list[str]) -> RouterRead | None:
    """before: Words in front of the text, which may set variables."""
    before = list(before)
    for words in simple_commands(text):
        for place, word in enumerate(words):
            base, rest = word.rpartition("/")[2], words[place + 1:]
            if word == "sglang_router.launch_router":
                return _sglang(_flags(rest, SGLANG), eviction=60)   # router_args.py has another default than main.rs
            if base in ("sglang-router", "smg", "amg"):
                return _sglang(_flags(rest[rest[:1] in (["launch"], ["start"]):], SGLANG), eviction=120)
            if word == "dynamo.frontend":
                return _dynamo(_variables([*before, *words[:place]]) | _flags(rest, DYNAMO))
            if place and re.fullmatch(r"-[a-z]*c", words[place - 1]) and " " in word:   # sh -c "..."
                found = _read(word, [*before, *words[:place]])
                if found is not None:
                    return found
        if words[0] == "export":
            before += words
    return None


def _flags(words: Sequence[str], known: Known) -> Flags:
    found: Flags = {}
    place = 0
    while place < len(words):
        name, equals, value = words[place].removeprefix("--").partition("=")
        if not words[place].startswith("--"):
            raise InputError(Verbatim("a value without its flag; write --FLAG VALUE"), field="command")
        place += 1
        how = _kind(name, known)
        if how == "*":
            if equals:
                raise InputError(Verbatim("is a switch and takes no value"), field=f"--{name}")
        elif how == "+":
            while place < len(words) and not words[place].startswith("--"):
                place += 1
        elif not equals:
            if place == len(words) or words[place].startswith("--"):
                raise InputError(Verbatim("needs a value"), field=f"--{name}")
            value, place = words[place], place + 1
        _take(found, name, value, known)
    return found


def _kind(name: str, known: Known) -> str:
    """Return "*" for a switch, "+" for a flag of several words, else "". Refuses a flag that is not modelled."""
    if name in known.keys:
        return "*" if name in known.switches else ""
    if name in known.same:
        return "" if known.same[name] else "*"
    if name in known.beside:
        return known.beside[name]
    raise InputError(Verbatim("is not modelled; remove it if the result may do without"), field=f"--{name}")


def _take(found: Flags, name: str, value: str, known: Known) -> None:
    if known.same.get(name) and not _equal(value, known.same[name]):
        raise InputError(f"{known.same[name]}, as simulated", value, field=f"--{name}")
    if name in known.keys:
        found[name] = value


def _equal(value: str, other: str) -> bool:
    return value == other or (_DECIMAL.fullmatch(value) is not None and _DECIMAL.fullmatch(other) is not None
                              and float(value) == float(other))


def _variables(words: Sequence[str]) -> Flags:
    """Return the flags that Dynamo's variables stand for. Others than those of the router are passed over."""
    found: Flags = {}
    for word in words:
        match = _ASSIGNED.fullmatch(word)
        if match is None:
            continue
        name = match[1].lower().replace("_", "-")
        name, value = VARIABLES.get(name, name), match[2]
        off = f"no-{name}"
        if not name.startswith("router-") and name not in DYNAMO.keys and name not in VARIABLES.values():
            continue
        if {name, off} & {*DYNAMO.switches, *(key for key, same in DYNAMO.same.items() if not same)}:
            if value.lower() not in ("true", "false", "1", "0"):
                raise InputError("true or false", value, field=f"DYN_{match[1]}")
            name, value = (name if value.lower() in ("true", "1") else off), ""
        try:
            _kind(name, DYNAMO)
            _take(found, name, value, DYNAMO)
        except InputError as error:
            raise InputError(Verbatim(f"as --{name}: not modelled; remove it if the result may do without"),
                             field=f"DYN_{match[1]}") from error
    return found


def _number(flags: Flags, name: str, default: float) -> float:
    text = flags.get(name)
    if text is None:
        return default
    value = float(text) if _DECIMAL.fullmatch(text) else math.inf
    if value > 2**60:
        raise InputError("a number from 0 on", text, field=f"--{name}")
    return value


def _whole(flags: Flags, name: str, default: int) -> int:
    text = flags.get(name)
    if text is None:
        return default
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise InputError("a whole number from 0 on", text, field=f"--{name}")
    return int(text)


def _one_of(flags: Flags, name: str, default: str, choices: Mapping[str, Any]) -> str:
    value = flags.get(name, default)
    if value not in choices:
        raise InputError(f"one of {', '.join(choices)}; others are not modelled", value, field=f"--{name}")
    return value


def _sglang(flags: Flags, eviction: int) -> RouterRead:
    """Return router and retries. eviction: Default of the interval, in seconds."""
    read = RouterRead({})
    routers: dict[str, Any] = {"cache_aware": None, "round_robin": {"kind": "round_robin"},
                               "random": {"kind": "random"}}
    policy = _one_of(flags, "policy", "cache_aware", routers)
    names = [name for name in ("eviction-interval", "eviction-interval-secs") if name in flags]
    read.parts["router"] = routers[policy] or {
        "kind": "sglang_cache_aware",
        "cache_threshold": _number(flags, "cache-threshold", 0.3),
        "balance_abs_threshold": _whole(flags, "balance-abs-threshold", 64),
        "balance_rel_threshold": _number(flags, "balance-rel-threshold", 1.5),
        "eviction_interval": _whole(flags, names[-1], 0) if names else eviction,
        "max_tree_size": _whole(flags, "max-tree-size", 2**26)}
    if policy == "cache_aware" and "max-tree-size" in flags:
        read.notes.append("--max-tree-size counts characters there and tokens here")
    # max_retries counts the first attempt, and is at least 1
    retries = 0 if "disable-retries" in flags else max(1, _whole(flags, "retry-max-retries", 5)) - 1
    retry: dict[str, Any] = {
        "kind": "sglang", "retries": retries,
        "backoff": _number(flags, "retry-initial-backoff-ms", 50) / 1000,
        "max_backoff": _number(flags, "retry-max-backoff-ms", 30_000) / 1000,
        "factor": _number(flags, "retry-backoff-multiplier", 1.5),
        "jitter": _number(flags, "retry-jitter-factor", 0.2),
        "breaker": None if "disable-circuit-breaker" in flags else {
            "failures": _whole(flags, "cb-failure-threshold", 10),
            "successes": _whole(flags, "cb-success-threshold", 3),
            "time": _whole(flags, "cb-timeout-duration-secs", 60)},
        "per_try": _whole(flags, "request-timeout-secs", 1800)}
    read.parts["gateway"] = {"retry": retry}
    return read


def _dynamo(flags: Flags) -> RouterRead:
    routers: dict[str, Any] = {"kv": None, "round-robin": {"kind": "round_robin"}, "random": {"kind": "random"},
                               "power-of-two": {"kind": "power_of_two", "load": "requests"}}
    mode = _one_of(flags, "router-mode", "round-robin", routers)
    gateway: dict[str, Any] = {}
    if limit := _whole(flags, "migration-limit", 0):   # otherwise nothing migrates
        longest = _whole(flags, "migration-max-seq-len", 0)
        gateway = {"gateway": {"migration": {"limit": limit} | ({"max_seq_len": longest} if longest else {})}}
    if routers[mode] is not None:
        return RouterRead({"router": routers[mode]} | gateway)
    events = next((not name.startswith("no-") for name in reversed(flags) if name in DYNAMO.switches), True)
    ttl = _number(flags, "router-ttl-secs", _number(flags, "router-ttl", 120))
    credit, scale = _number(flags, "router-kv-overlap-score-credit", 1), _number(flags, "router-prefill-load-scale", 1)
    for name in ("kv-overlap-score-weight", "router-kv-overlap-score-weight"):
        if name in flags:   # the older name of the scale; 0 turned the credit off as well
            scale = _number(flags, name, 1)
            credit = credit if scale else 0
    return RouterRead({"router": {
        "kind": "dynamo_kv", "caches": {"kind": "events"} if events else {"kind": "approximate", "ttl": ttl},
        "overlap_credit": credit, "host_credit": _number(flags, "router-host-cache-hit-weight", 0.75),
        "prefill_load_scale": scale, "temperature": _number(flags, "router-temperature", 0)}} | gateway)
