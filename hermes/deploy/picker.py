"""An EndpointPickerConfig as the router `llm_d` (or `random`) and the keys of the gateway.

A plugin that changes placements and is not modelled is refused with its line. What depends on the clients, such as a
filter that keeps those of one phase, is a `Check` of the scenario that gets the router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node
from hermes.deploy import picker_config as epp
from hermes.deploy.nodes import fields
from hermes.deploy.objects_flow import FLOW_PLUGINS, GATE, Plugin, read_flow
from hermes.deploy.typed import Keys, as_number, as_whole, one_of, placing, read, that
from hermes.errors import InputError, Verbatim
from hermes.routing.llm_d import LEAST_BLOCK, MOST_TOKENS, LlmDConfig

__all__ = ["Check", "Group", "PickerRead", "read_picker"]

BLOCK = 16   # llm-d's blocks by default, as vLLM's
NO_IMAGES = "requests here have no images"


class Group(NamedTuple):
    """A group of clients of a scenario: its name, role, number, and data-parallel ranks of each."""

    name: str
    role: str
    clients: int
    ranks: int


Check = Callable[[Sequence[Group]], None]
"""Raises `InputError` for groups of clients among which the picker would choose otherwise."""


@dataclass
class PickerRead:
    """What a picker sets: the router, keys of the gateway, and what the user should know.

    places: Key of the router -> path in the file from which it comes.
    """

    router: Keys = field(default_factory=lambda: {"kind": "llm_d"})
    gateway: Keys = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)

    def take(self, key: str, plugin: Plugin, name: str, check: Callable[[object], float] = as_whole) -> None:
        """Set a key of the router to a parameter of a plugin, if it is there."""
        value = plugin.get(name, check)
        if value is not None:
            self.router[key], self.places[key] = value, f"{plugin.path}.{name}"

    def check(self) -> None:
        """Raise `InputError` for a value that the router does not take."""
        try:
            validate(LlmDConfig, as_node(self.router))
        except InputError as error:
            key = next((key for key in self.places if f"{error.field}.".startswith(f"{key}.")), None)
            if key is None:
                raise
            raise InputError(error.expected, error.found, field=self.places[key]) from None


class _Profile(NamedTuple):
    """A scheduling profile: its place in the file, weights of scorers, filters, pins of sessions, and the picker."""

    name: str
    path: str
    weights: dict[str, float]
    filters: list[Plugin]
    pins: list[Plugin]
    picker: str
    places: dict[str, str]


def read_picker(document: Node) -> PickerRead:
    """Read an EndpointPickerConfig. Raises `InputError` for what is not modelled."""
    config, found = read(epp.EndpointPickerConfig, document), PickerRead()
    with placing(document):
        gate = _gates(config.feature_gates)
        _read(config, epp.plugins_of(config), gate, found)
    for name, node in fields(None if gate else document.child("flowControl")):
        if name != "saturationDetector":
            raise (node.key or node.mark).error(
                Verbatim(f"counts with the feature gate alone; add {GATE} to featureGates, or remove it"),
                field=f"flowControl.{name}")
    found.checks = [_placed(check, document) for check in found.checks]
    return found


def _placed(check: Check, document: Node) -> Check:
    def checked(groups: Sequence[Group]) -> None:
        with placing(document):
            check(groups)
    return checked


def _read(config: epp.EndpointPickerConfig, plugins: Mapping[str, Plugin], gate: bool, read: PickerRead) -> None:
    handlers = epp.only(plugins, (*epp.HANDLERS, *epp.SINGLE))
    if len(handlers) > 1:
        raise InputError("one profile handler", [one.name for one in handlers], field="plugins")
    profiles = _profiles(config, plugins, read.notes)
    split = handlers[0] if handlers and handlers[0].kind in epp.HANDLERS else None
    decider = None if split is None else _decider(split, plugins)
    phases = _phases(split, decider)
    named = {profile.name: profile for profile in profiles}
    if phases and "encode" in phases and (encode := named.pop(phases.pop("encode"), None)) is not None:
        read.notes.append(f"schedulingProfiles {encode.name}: without effect, since {NO_IMAGES}")
    wanted = [phases[name] for name in ("prefill", "decode") if name in phases]
    if (sorted(named) != sorted(wanted)) if wanted else len(named) != 1:
        raise InputError(f"profiles {' and '.join(wanted)}" if len(wanted) > 1 else "one profile", [*named],
                         field="schedulingProfiles")
    chosen = [named[name] for name in wanted] or list(named.values())
    for phase, profile in zip(("prefill", "decode") if len(chosen) > 1 else ("",), chosen, strict=True):
        _filters(profile, phase, read.checks)
    _router(chosen, decider, plugins, read)
    _ranks(plugins, read.checks)
    read.check()
    read.gateway.update(read_flow(config.flow_control, config.saturation_detector, plugins, gate=gate))


def _gates(gates: Sequence[str]) -> bool:
    """Return whether flow control is on."""
    found = False
    for gate in gates:
        name, _, value = gate.partition("=")
        if name not in ("prepareDataPlugins", "dataLayer", GATE) or value not in ("", "true", "false"):
            raise InputError(f"prepareDataPlugins, dataLayer, {GATE} or no gate", gate, field="featureGates")
        found = value != "false" if name == GATE else found
    return found


# -- profiles ----------------------------------------------------------------------------------------------------------

def _profiles(config: epp.EndpointPickerConfig, plugins: Mapping[str, Plugin], notes: list[str]) -> list[_Profile]:
    """Return the profiles; without any, the one that llm-d makes of all filters, scorers and pickers."""
    if not config.scheduling_profiles and plugins:
        rows = [(plugin, 1.0, plugin.place) for plugin in plugins.values() if plugin.kind not in FLOW_PLUGINS]
        return [_profile("default", "plugins", rows, plugins, notes)]
    found = []
    for place, profile in enumerate(config.scheduling_profiles):
        path = f"schedulingProfiles.{place}"
        rows = []
        for index, row in enumerate(profile.plugins):
            here = f"{path}.plugins.{index}"
            kind = _named(row.plugin_ref, f"{here}.pluginRef", plugins).kind
            if kind in FLOW_PLUGINS:
                raise InputError(Verbatim(f"{kind} as a filter of endpoints is not modelled; remove it from the "
                                          "profile"), field=f"{here}.pluginRef")
            rows.append((plugins[row.plugin_ref], float(row.weight), here))
        found.append(_profile(profile.name, path, rows, plugins, notes))
    return found


def _named(name: str, path: str, plugins: Mapping[str, Plugin]) -> Plugin:
    if name not in plugins:
        raise InputError(f"one of {', '.join(plugins) or 'those that there are, none'}", name, field=path)
    return plugins[name]


def _profile(name: str, path: str, rows: Sequence[tuple[Plugin, float, str]], plugins: Mapping[str, Plugin],
             notes: list[str]) -> _Profile:
    """Return a profile with the plugins of its rows: each with its weight, and its place in the file."""
    # llm-d gives a profile without a picker the first that there is
    pickers = [epp.PICKERS[plugin.kind] for plugin in (*(row[0] for row in rows), *plugins.values())
               if plugin.kind in epp.PICKERS]
    profile = _Profile(name, path, {}, [], [], (pickers or ["max_score"])[0], {})
    for plugin, weight, here in rows:
        if plugin.kind in epp.SCORERS:
            key = _scorer(plugin, plugins, here)
            if key in profile.weights:
                raise InputError(Verbatim("a second scorer of this kind; keep one"), field=here)
            profile.weights[key], profile.places[key] = weight, here
        elif plugin.kind == epp.PIN:
            profile.pins.append(plugin)
        elif plugin.kind.endswith("-filter"):
            profile.filters.append(plugin)
        elif plugin.kind == "mm-embeddings-cache-scorer":
            notes.append(f"{here}: {plugin.kind} gives 0 to all, since {NO_IMAGES}")
    return profile


def _scorer(plugin: Plugin, plugins: Mapping[str, Plugin], path: str) -> str:
    """Return the key of a scorer. A prefix scorer's is that of the producer whose matches it reads."""
    key = epp.SCORERS[plugin.kind]
    if key != "prefix":
        return key
    plugin.get("prefixLengthWeight", no_weight)
    if any(one.kind == "passthrough-parser" for one in plugins.values()):
        raise InputError(Verbatim("passthrough-parser reads no prompt, so that no prefix matches; remove one of them"),
                         field=path)
    return "precise_prefix" if _producer(plugin, plugins) == epp.PRECISE else "prefix"


def _producer(plugin: Plugin, plugins: Mapping[str, Plugin]) -> str:
    """Return the type of the producer whose matches a plugin reads."""
    name = plugin.get("prefixMatchInfoProducerName", one_of())
    kind = epp.APPROXIMATE if name is None else plugins[name].kind if name in plugins else name
    if kind not in (epp.APPROXIMATE, epp.PRECISE, "precise-prefix-cache-scorer"):
        raise InputError(f"the name of a plugin {epp.APPROXIMATE} or {epp.PRECISE}", name,
                         field=f"{plugin.path}.prefixMatchInfoProducerName")
    return epp.APPROXIMATE if kind == epp.APPROXIMATE else epp.PRECISE


def _filters(profile: _Profile, phase: str, checks: list[Check]) -> None:
    """Check the filters of a profile: of one of two, against its phase; of a single one, against the clients."""
    kinds = [plugin.kind for plugin in profile.filters]
    if not phase:
        checks.extend(_keeps_all(plugin, profile.name) for plugin in profile.filters)
    elif kinds != [epp.PHASES[phase]]:
        raise InputError(f"the plugin {epp.PHASES[phase]} and no other filter", kinds, field=f"{profile.path}.plugins")


def _keeps_all(plugin: Plugin, profile: str) -> Check:
    def check(groups: Sequence[Group]) -> None:
        if plugin.kind == "encode-filter":
            raise InputError(Verbatim("encode-filter keeps clients that encode images, and there is none; remove the "
                                      "profile"), field=plugin.place)
        role = next(name for name, kind in epp.PHASES.items() if kind == plugin.kind)
        others = [group for group in groups if group.role not in ("both", role, "service")]
        if others:
            raise InputError(Verbatim(
                f"{plugin.kind} in the one profile {profile!r} leaves out {others[0].name!r} (role: "
                f"{others[0].role}), so that its clients get nothing; add {epp.HANDLERS[1]}, remove it, or give a "
                "scenario whose clients do both"), field=plugin.place)
    return check


def _ranks(plugins: Mapping[str, Plugin], checks: list[Check]) -> None:
    """Refuse the choice of a rank behind that of a client: here every data-parallel rank is a client."""
    for plugin in epp.only(plugins, ("dp-rank-header-handler",)):
        def check(groups: Sequence[Group], plugin: Plugin = plugin) -> None:
            for group in groups:
                if group.ranks > 1:
                    raise InputError(Verbatim(
                        f"{plugin.kind} chooses a client first, and then one of the {group.ranks} ranks of "
                        f"{group.name!r}, while a router here chooses among all ranks; remove it"), field=plugin.place)
        checks.append(check)


# -- handlers and deciders ---------------------------------------------------------------------------------------------

def _phases(split: Plugin | None, decider: Plugin | None) -> dict[str, str]:
    """Return the names of the profiles by phase; none for a single profile."""
    if split is None:
        return {}
    names = split.below("profiles", ("decode", "prefill", "encode"))
    found = {phase: names.get(phase, one_of()) or phase for phase in ("decode", "prefill", "encode")}
    if decider is None:
        del found["prefill"]
    return found


def _decider(split: Plugin, plugins: Mapping[str, Plugin]) -> Plugin | None:
    """Return the plugin that decides whether a prefill client computes a prompt; None where none ever does."""
    deciders, key = split, "deciderPluginName"
    if split.kind == epp.HANDLERS[1]:
        deciders, key = split.below("deciders", ("prefill",), ("encode",)), "prefill"
        if key not in deciders.given:
            return None
    elif key not in split.given and split.get("threshold", of_bytes) is not None:   # before there were deciders
        return split._replace(kind=epp.DECIDERS[1], given={})
    there = {plugin.name: plugin for plugin in epp.only(plugins, epp.DECIDERS)}
    if not there:
        raise InputError(Verbatim(f"no plugin {epp.DECIDER}; add it with nonCachedTokens"), field="plugins")
    name = deciders.get(key, one_of())
    if name is None:
        raise InputError(Verbatim("is missing; write it"), field=f"{deciders.path}.{key}")
    return _named(name, f"{deciders.path}.{key}", there)


# -- the router --------------------------------------------------------------------------------------------------------

def _router(profiles: Sequence[_Profile], decider: Plugin | None, plugins: Mapping[str, Plugin],
            read: PickerRead) -> None:
    """Set the keys of the router. profiles: Of prefill and decode, or a single one."""
    decode = profiles[-1]
    if len({profile.picker for profile in profiles}) > 1:
        raise InputError("one picker for prefill and decode", [profile.picker for profile in profiles],
                         field="schedulingProfiles")
    weights = [{key: value for key, value in profile.weights.items() if value} for profile in profiles]
    router = read.router
    if decode.picker == "random" or not any(weights):
        router["picker"] = "random"   # of equal scores, too, one is drawn
    elif not all(weights):
        raise InputError(Verbatim("prefill or decode has no scorer, so that one of them is chosen at random, which is "
                                  "not modelled beside scorers; add one"), field="schedulingProfiles")
    else:
        router["scorers"] = _whole(weights[-1])
        read.places.update({f"scorers.{key}": place for key, place in decode.places.items()})
        if decode.picker != "max_score":
            router["picker"] = decode.picker
    if decider is not None:
        router["disaggregation"] = _disaggregation(decider, weights)
        read.places.update({f"disaggregation.prefill.{key}": place for key, place in profiles[0].places.items()})
    _pins(profiles, read)
    used = {key for one in weights for key in one} | ({"prefix"} if decider is not None else set())
    for plugin in plugins.values():
        if READ.get(plugin.kind, ("",))[0] in used:
            READ[plugin.kind][1](plugin, plugins, read)


def _whole(weights: Mapping[str, float]) -> dict[str, float]:
    return {key: weights.get(key, 0.0) for key in epp.SCORERS.values()}


def _disaggregation(decider: Plugin, weights: Sequence[Mapping[str, float]]) -> Keys:
    found: Keys = {"uncached": decider.get("nonCachedTokens", as_whole) or 0} | (
        {} if decider.kind == epp.DECIDER else {"always": True})
    return found | ({"prefill": _whole(weights[0])} if weights[0] != weights[-1] else {})


def _load_aware(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    read.take("load_threshold", plugin, "threshold")


def _active(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    read.take("idle_requests", plugin, "idleThreshold")
    read.take("busy_score", plugin, "maxBusyScore", as_number)
    if read.router.get("busy_score", 0.0) > 1:
        read.notes.append(f"{plugin.path}.maxBusyScore: {read.router['busy_score']:g} is out of range, so that llm-d "
                          "takes 1")
        read.router["busy_score"] = 1.0


def _no_hit(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    if _producer(plugin, plugins) == epp.PRECISE:
        read.router["no_hit_by"] = "caches"
    most = plugin.get("lruSize", as_whole) or 0

    def check(groups: Sequence[Group]) -> None:
        if 0 < most < (count := sum(group.clients for group in groups)):
            raise InputError(f"at least {count}, the number of clients", most, field=f"{plugin.path}.lruSize")
    read.checks.append(check)


def _pins(profiles: Sequence[_Profile], read: PickerRead) -> None:
    """Read which phases pin sessions. A pin follows the client of the profile that it names, of decode by default."""
    for phase, profile in zip(("prefill", "decode")[-len(profiles):], profiles, strict=True):
        for plugin in profile.pins:
            follows = plugin.get("profileName", one_of()) or profiles[-1].name
            if follows != profile.name:
                read.notes.append(f"{plugin.place}: without effect in the profile {profile.name}, since it follows the "
                                  f"clients of {follows} (profileName)")
                continue
            read.router.setdefault("session_pins", []).append(phase)
            _session(plugin, {}, read)


def _session(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read how sessions are bound: by default to the client in a token that the caller sends back."""
    token = "encoded_endpoint_header"
    known = one_of(token, "session_id", "session_id_header")
    rule = plugin.get("strategy", known) or plugin.get("algorithm", known) or token
    rule = rule if rule == token else "session_id_header"
    if read.router.setdefault("session_algorithm", rule) != rule:
        raise InputError(Verbatim("binds sessions in another way than the plugin before it, which is not modelled; "
                                  "remove one"), field=plugin.place)
    inner = plugin.below("sessionIdConfig", ("evictionTtlSeconds",), ("sources", "evictionSweepSeconds"))
    if rule != token:
        read.take("session_ttl", inner if inner.given else plugin, "evictionTtlSeconds", as_number)


def _index(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read the index of prompts that were sent.

    `maxPrefixBlocksToMatch` counts where `maxPrefixTokensToMatch` is 0; a block has at least 64 tokens, and with
    `autoTune`, which is the default, the engine's. The engine's blocks replace `lruCapacityPerServer` likewise.
    """
    producers = epp.only(plugins, (epp.APPROXIMATE,))
    if len(producers) > 1:
        raise InputError(Verbatim("a second index of sent prompts is not modelled; keep one"), field=producers[1].place)
    plugin.get("prefixHashSource", of_tokens)
    if not plugin.given.keys() - {"prefixMatchInfoProducerName", "prefixLengthWeight"}:
        return
    numbers = {name: value for name in (
        "blockSize", "blockSizeTokens", "lruCapacityPerServer", "maxPrefixBlocksToMatch", "maxPrefixTokensToMatch")
        if (value := plugin.get(name, as_whole)) is not None}
    index: Keys = {}
    block = max(LEAST_BLOCK, numbers.get("blockSizeTokens") or numbers.get("blockSize") or BLOCK)
    if plugin.get("autoTune", as_switch) is False:
        index["block"] = block
        if numbers.get("lruCapacityPerServer"):
            index["capacity"] = numbers["lruCapacityPerServer"]
    else:
        read.notes += [f"{plugin.path}.{name}: without effect, since autoTune takes the engine's"
                       for name in ("blockSize", "blockSizeTokens", "lruCapacityPerServer") if name in numbers]
    most = numbers.get("maxPrefixTokensToMatch", MOST_TOKENS)
    if "maxPrefixBlocksToMatch" in numbers and most:
        read.notes.append(f"{plugin.path}.maxPrefixBlocksToMatch: without effect beside maxPrefixTokensToMatch, {most}"
                          f"{'' if 'maxPrefixTokensToMatch' in numbers else ' by default'}")
    if not most:
        blocks = numbers.get("maxPrefixBlocksToMatch", MOST_TOKENS // LEAST_BLOCK)
        index["most_tokens"] = blocks * block or None
    elif most != MOST_TOKENS:
        index["most_tokens"] = most
    if index:
        read.router["prefix_index"], read.places["prefix_index"] = index, plugin.path


def _precise(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read the index of KV events: its blocks need not be the engine's."""
    if plugin.kind != epp.PRECISE and epp.only(plugins, (epp.PRECISE,)):
        return   # which has the parameters
    plugin.get("speculativeIndexing", no_guess)
    plugin.get("sessionManager", no_sessions)
    inner = plugin.below("indexerConfig", ("tokenProcessorConfig",), plugin.given.get("indexerConfig") or ())
    own = (plugin if "tokenProcessorConfig" in plugin.given else inner).below(
        "tokenProcessorConfig", ("blockSize", "blockSizeTokens"), ("hashSeed",))
    read.router["precise_block"], read.places["precise_block"] = BLOCK, f"{own.path}.blockSize"
    read.take("precise_block", own, "blockSizeTokens" if "blockSizeTokens" in own.given else "blockSize")


as_switch = that(lambda value: value, lambda value: isinstance(value, bool), "true or false")
no_weight = that(as_number, lambda weight: not weight, Verbatim(
    "a weight of the matched tokens is not modelled; write 0"))
no_guess = that(lambda guess: guess, lambda guess: guess is False, Verbatim(
    "entries for requests that were just sent are not modelled; write false"))
no_sessions = that(lambda manager: manager, lambda manager: False, Verbatim(
    "lookup by sessions is not modelled; remove it"))
of_tokens = that(one_of(), lambda source: source == "tokens", Verbatim(
    "hashes that another component writes are not modelled; remove it"))
of_bytes = that(as_number, lambda least: not least, "0, always: a threshold counts bytes of a prompt")
READ: dict[str, tuple[str, Callable[[Plugin, Mapping[str, Plugin], PickerRead], None]]] = {
    "load-aware-scorer": ("load_aware", _load_aware), "active-request-scorer": ("active_request", _active),
    "no-hit-lru-scorer": ("no_hit_lru", _no_hit), "session-affinity-scorer": ("session", _session),
    "prefix-cache-scorer": ("prefix", _index), epp.APPROXIMATE: ("prefix", _index),
    epp.PRECISE: ("precise_prefix", _precise), "precise-prefix-cache-scorer": ("precise_prefix", _precise)}
"""Plugin -> the scorer that needs its parameters, and what reads them."""
