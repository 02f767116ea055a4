"""An EndpointPickerConfig as the router `llm_d` (or `random`) and the keys of the gateway.

A plugin that changes placements and is not modelled is refused with its line. What depends on the clients, such as a
filter that keeps those of one phase, is a `Check` of the scenario that gets the router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node
from hermes.deploy.objects_fields import BESIDE, fields_of, items_of, node_at, number_of, text_of, whole_of
from hermes.deploy.objects_flow import FLOW_PLUGINS, GATE, read_flow
from hermes.deploy.picker_plugins import (
    APPROXIMATE,
    DECIDER,
    DECIDERS,
    HANDLERS,
    PHASES,
    PICKERS,
    PIN,
    PRECISE,
    SCORERS,
    SINGLE,
    Plugin,
    only,
    plugins_of,
)
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


class PickerRead(NamedTuple):
    """What a picker sets: the router, keys of the gateway, and what the user should know.

    places: Key of the router -> node and path in the file from which it comes.
    """

    router: dict[str, Any]
    gateway: dict[str, Any]
    notes: list[str]
    checks: list[Check]
    places: dict[str, tuple[Node, str]]

    def take(self, key: str, plugin: Plugin, name: str, read: Callable[[Node, str], Any] = whole_of) -> None:
        """Set a key of the router to a parameter of a plugin, if it is there."""
        if name in plugin.given:
            self.places[key] = plugin.given[name], f"{plugin.path}.{name}"
            self.router[key] = read(*self.places[key])

    def check(self) -> None:
        """Raise `InputError`, with the place in the file, for a value that the router does not take."""
        try:
            validate(LlmDConfig, as_node(self.router))
        except InputError as error:
            key = next((key for key in self.places if f"{error.field}.".startswith(f"{key}.")), None)
            if key is None:
                raise
            node, path = self.places[key]
            raise node.mark.error(error.expected, error.found, field=path) from None


class _Profile(NamedTuple):
    """A scheduling profile: its place in the file, weights of scorers, filters, pins of sessions, and the picker."""

    name: str
    node: Node
    path: str
    weights: dict[str, float]
    filters: list[Plugin]
    pins: list[Plugin]
    picker: str
    places: dict[str, tuple[Node, str]]


def read_picker(document: Node) -> PickerRead:
    """Read an EndpointPickerConfig. Raises `InputError` for what is not modelled."""
    fields = fields_of(document, "", ("plugins", "schedulingProfiles", "featureGates"), (
        *BESIDE, "flowControl", "saturationDetector", "dataLayer", "requestHandler", "parser"))
    plugins = plugins_of(fields.get("plugins"))
    read = PickerRead({"kind": "llm_d"}, {}, [], [], {})
    handlers = only(plugins, (*HANDLERS, *SINGLE))
    if len(handlers) > 1:
        raise fields["plugins"].mark.error("one profile handler", [one.name for one in handlers], field="plugins")
    at = fields.get("schedulingProfiles", document)
    profiles = _profiles(fields, plugins, read.notes)
    split = handlers[0] if handlers and handlers[0].kind in HANDLERS else None
    decider = None if split is None else _decider(split, plugins)
    phases = _phases(split, decider)
    named = {profile.name: profile for profile in profiles}
    if phases and "encode" in phases and (encode := named.pop(phases.pop("encode"), None)) is not None:
        read.notes.append(f"schedulingProfiles {encode.name}: without effect, since {NO_IMAGES}")
    wanted = [phases[name] for name in ("prefill", "decode") if name in phases]
    if (sorted(named) != sorted(wanted)) if wanted else len(named) != 1:
        raise at.mark.error(f"profiles {' and '.join(wanted)}" if len(wanted) > 1 else "one profile", [*named],
                            field="schedulingProfiles")
    chosen = [named[name] for name in wanted] or list(named.values())
    for phase, profile in zip(("prefill", "decode") if len(chosen) > 1 else ("",), chosen, strict=True):
        _filters(profile, phase, read.checks)
    _router(chosen, decider, plugins, read, at)
    _ranks(plugins, read.checks)
    read.check()
    types, given = ({name: getattr(plugin, key) for name, plugin in plugins.items()} for key in ("kind", "given"))
    read.gateway.update(read_flow(document, types, given, gate=_gates(fields.get("featureGates"))))
    return read


def _gates(node: Node | None) -> bool:
    """Return whether flow control is on."""
    found = False
    for gate in items_of(node, "featureGates"):
        name, _, value = str(gate.value).partition("=")
        if name not in ("prepareDataPlugins", "dataLayer", GATE) or value not in ("", "true", "false"):
            raise gate.mark.error(f"prepareDataPlugins, dataLayer, {GATE} or no gate", gate.plain(),
                                  field="featureGates")
        found = value != "false" if name == GATE else found
    return found


# -- profiles ----------------------------------------------------------------------------------------------------------

def _profiles(fields: Mapping[str, Node], plugins: Mapping[str, Plugin], notes: list[str]) -> list[_Profile]:
    """Return the profiles; without any, the one that llm-d makes of all filters, scorers and pickers."""
    listed = items_of(fields.get("schedulingProfiles"), "schedulingProfiles")
    if not listed and plugins:
        rows = [(plugin, 1.0, plugin.node, plugin.place) for plugin in plugins.values()
                if plugin.kind not in FLOW_PLUGINS]
        return [_profile(_Profile("default", fields["plugins"], "plugins", {}, [], [], "", {}), rows, plugins, notes)]
    found = []
    for place, node in enumerate(listed):
        path = f"schedulingProfiles.{place}"
        own = fields_of(node, path, ("name", "plugins"))
        rows = []
        for index, entry in enumerate(items_of(own.get("plugins"), f"{path}.plugins")):
            here = f"{path}.plugins.{index}"
            row = fields_of(entry, here, ("pluginRef", "weight"))
            name = text_of(row.get("pluginRef"), f"{here}.pluginRef", entry, plugins)
            if plugins[name].kind in FLOW_PLUGINS:
                raise entry.mark.error(Verbatim(f"{plugins[name].kind} as a filter of endpoints is not modelled; "
                                                "remove it from the profile"), field=f"{here}.pluginRef")
            # 1 is llm-d's DefaultScorerWeight
            weight = float(number_of(row["weight"], f"{here}.weight")) if "weight" in row else 1.0
            rows.append((plugins[name], weight, entry, here))
        empty = _Profile(text_of(own.get("name"), f"{path}.name", node), node, path, {}, [], [], "", {})
        found.append(_profile(empty, rows, plugins, notes))
    return found


def _profile(profile: _Profile, rows: Sequence[tuple[Plugin, float, Node, str]], plugins: Mapping[str, Plugin],
             notes: list[str]) -> _Profile:
    """Return a profile with the plugins of its rows: each with its weight, and its place in the file."""
    for plugin, weight, node, path in rows:
        if plugin.kind in SCORERS:
            key = _scorer(plugin, plugins, node, path)
            if key in profile.weights:
                raise node.mark.error(Verbatim("a second scorer of this kind; keep one"), field=path)
            profile.weights[key], profile.places[key] = weight, (node, path)
        elif plugin.kind == PIN:
            profile.pins.append(plugin)
        elif plugin.kind.endswith("-filter"):
            profile.filters.append(plugin)
        elif plugin.kind == "mm-embeddings-cache-scorer":
            notes.append(f"{path}: {plugin.kind} gives 0 to all, since {NO_IMAGES}")
    pickers = [PICKERS[plugin.kind] for plugin, *_ in rows if plugin.kind in PICKERS]
    # llm-d gives a profile without a picker the first that there is
    there = [PICKERS[plugin.kind] for plugin in plugins.values() if plugin.kind in PICKERS]
    return profile._replace(picker=(pickers or there or ["max_score"])[0])


def _scorer(plugin: Plugin, plugins: Mapping[str, Plugin], node: Node, path: str) -> str:
    """Return the key of a scorer. A prefix scorer's is that of the producer whose matches it reads."""
    key = SCORERS[plugin.kind]
    if key != "prefix":
        return key
    weight = plugin.given.get("prefixLengthWeight")
    if weight is not None and weight.value != 0:
        raise weight.mark.error(Verbatim("a weight of the matched tokens is not modelled; write 0"),
                                field=f"{plugin.path}.prefixLengthWeight")
    if any(one.kind == "passthrough-parser" for one in plugins.values()):
        raise node.mark.error(Verbatim("passthrough-parser reads no prompt, so that no prefix matches; remove one of "
                                       "them"), field=path)
    return "precise_prefix" if _producer(plugin, plugins) == PRECISE else "prefix"


def _producer(plugin: Plugin, plugins: Mapping[str, Plugin]) -> str:
    """Return the type of the producer whose matches a plugin reads."""
    node = plugin.given.get("prefixMatchInfoProducerName")
    if node is None:
        return APPROXIMATE
    name = text_of(node, f"{plugin.path}.prefixMatchInfoProducerName", node)
    kind = plugins[name].kind if name in plugins else name
    if kind not in (APPROXIMATE, PRECISE, "precise-prefix-cache-scorer"):
        raise node.mark.error(f"the name of a plugin {APPROXIMATE} or {PRECISE}", name,
                              field=f"{plugin.path}.prefixMatchInfoProducerName")
    return APPROXIMATE if kind == APPROXIMATE else PRECISE


def _filters(profile: _Profile, phase: str, checks: list[Check]) -> None:
    """Check the filters of a profile: of one of two, against its phase; of a single one, against the clients."""
    kinds = [plugin.kind for plugin in profile.filters]
    if not phase:
        checks.extend(_keeps_all(plugin, profile.name) for plugin in profile.filters)
    elif kinds != [PHASES[phase]]:
        raise profile.node.mark.error(f"the plugin {PHASES[phase]} and no other filter", kinds,
                                      field=f"{profile.path}.plugins")


def _keeps_all(plugin: Plugin, profile: str) -> Check:
    def check(groups: Sequence[Group]) -> None:
        if plugin.kind == "encode-filter":
            raise plugin.node.mark.error(Verbatim(
                "encode-filter keeps clients that encode images, and there is none; remove the profile"),
                field=plugin.place)
        role = next(name for name, kind in PHASES.items() if kind == plugin.kind)
        others = [group for group in groups if group.role not in ("both", role, "service")]
        if others:
            raise plugin.node.mark.error(Verbatim(
                f"{plugin.kind} in the one profile {profile!r} leaves out {others[0].name!r} (role: "
                f"{others[0].role}), so that its clients get nothing; add {HANDLERS[1]}, remove it, or give a "
                "scenario whose clients do both"), field=plugin.place)
    return check


def _ranks(plugins: Mapping[str, Plugin], checks: list[Check]) -> None:
    """Refuse the choice of a rank behind that of a client: here every data-parallel rank is a client."""
    for plugin in only(plugins, ("dp-rank-header-handler",)):
        def check(groups: Sequence[Group], plugin: Plugin = plugin) -> None:
            for group in groups:
                if group.ranks > 1:
                    raise plugin.node.mark.error(Verbatim(
                        f"{plugin.kind} chooses a client first, and then one of the {group.ranks} ranks of "
                        f"{group.name!r}, while a router here chooses among all ranks; remove it"), field=plugin.place)
        checks.append(check)


# -- handlers and deciders ---------------------------------------------------------------------------------------------

def _phases(split: Plugin | None, decider: Plugin | None) -> dict[str, str]:
    """Return the names of the profiles by phase; none for a single profile."""
    if split is None:
        return {}
    names = fields_of(split.given.get("profiles"), f"{split.path}.profiles", ("decode", "prefill", "encode"))
    found = {phase: text_of(names[phase], f"{split.path}.profiles.{phase}", split.node) if phase in names else phase
             for phase in ("decode", "prefill", "encode")}
    if decider is None:
        del found["prefill"]
    return found


def _decider(split: Plugin, plugins: Mapping[str, Plugin]) -> Plugin | None:
    """Return the plugin that decides whether a prefill client computes a prompt; None where none ever does."""
    own, path = split.given.get("deciderPluginName"), f"{split.path}.deciderPluginName"
    if split.kind == HANDLERS[1]:
        path = f"{split.path}.deciders"
        named = fields_of(split.given.get("deciders"), path, ("prefill",), ("encode",))
        own, path = named.get("prefill"), f"{path}.prefill"
        if own is None:
            return None
    elif own is None and (least := split.given.get("threshold")) is not None:   # before there were deciders
        if least.value != 0:
            raise least.mark.error("0, always: a threshold counts bytes of a prompt", least.plain(),
                                   field=f"{split.path}.threshold")
        return split._replace(kind=DECIDERS[1], given={})
    there = [plugin.name for plugin in only(plugins, DECIDERS)]
    if not there:
        raise split.node.mark.error(Verbatim(f"no plugin {DECIDER}; add it with nonCachedTokens"), field="plugins")
    return plugins[text_of(own, path, split.node, there)]


# -- the router --------------------------------------------------------------------------------------------------------

def _router(profiles: Sequence[_Profile], decider: Plugin | None, plugins: Mapping[str, Plugin], read: PickerRead,
            at: Node) -> None:
    """Set the keys of the router. profiles: Of prefill and decode, or a single one."""
    decode = profiles[-1]
    if len({profile.picker for profile in profiles}) > 1:
        raise at.mark.error("one picker for prefill and decode", [profile.picker for profile in profiles],
                            field="schedulingProfiles")
    weights = [{key: value for key, value in profile.weights.items() if value} for profile in profiles]
    router: dict[str, Any] = read.router
    if decode.picker == "random" or not any(weights):
        router["picker"] = "random"   # of equal scores, too, one is drawn
    elif not all(weights):
        raise at.mark.error(Verbatim("prefill or decode has no scorer, so that one of them is chosen at random, which "
                                     "is not modelled beside scorers; add one"), field="schedulingProfiles")
    else:
        router["scorers"] = _whole(weights[-1])
        read.places.update({f"scorers.{key}": place for key, place in decode.places.items()})
        if decode.picker != "max_score":
            router["picker"] = decode.picker
    if decider is not None:
        router["disaggregation"] = _disaggregation(decider, weights)
        read.places.update({f"disaggregation.prefill.{key}": place for key, place in profiles[0].places.items()})
    _pins(profiles, plugins, read)
    used = {key for one in weights for key in one} | ({"prefix"} if decider is not None else set())
    for plugin in plugins.values():
        if READ.get(plugin.kind, ("",))[0] in used:
            READ[plugin.kind][1](plugin, plugins, read)


def _whole(weights: Mapping[str, float]) -> dict[str, float]:
    return {key: weights.get(key, 0.0) for key in SCORERS.values()}


def _disaggregation(decider: Plugin, weights: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {"uncached": 0}
    if decider.kind == DECIDER:
        tokens = decider.given.get("nonCachedTokens")
        if tokens is not None:
            found["uncached"] = whole_of(tokens, f"{decider.path}.nonCachedTokens")
    else:
        found["always"] = True
    if weights[0] != weights[-1]:
        found["prefill"] = _whole(weights[0])
    return found


def _load_aware(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    read.take("load_threshold", plugin, "threshold")


def _active(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    read.take("idle_requests", plugin, "idleThreshold")
    read.take("busy_score", plugin, "maxBusyScore", number_of)
    if read.router.get("busy_score", 0.0) > 1:
        read.notes.append(f"{plugin.path}.maxBusyScore: {read.router['busy_score']:g} is out of range, so that llm-d "
                          "takes 1")
        read.router["busy_score"] = 1.0


def _no_hit(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    if _producer(plugin, plugins) == PRECISE:
        read.router["no_hit_by"] = "caches"
    size = plugin.given.get("lruSize")
    most = 0 if size is None else whole_of(size, f"{plugin.path}.lruSize")

    def check(groups: Sequence[Group]) -> None:
        if size is not None and 0 < most < (count := sum(group.clients for group in groups)):
            raise size.mark.error(f"at least {count}, the number of clients", most, field=f"{plugin.path}.lruSize")
    read.checks.append(check)


def _pins(profiles: Sequence[_Profile], plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read which phases pin sessions. A pin follows the client of the profile that it names, of decode by default."""
    for phase, profile in zip(("prefill", "decode")[-len(profiles):], profiles, strict=True):
        for plugin in profile.pins:
            named = plugin.given.get("profileName")
            follows = profiles[-1].name if named is None else text_of(named, f"{plugin.path}.profileName", plugin.node)
            if follows != profile.name:
                read.notes.append(f"{plugin.place}: without effect in the profile {profile.name}, since it follows the "
                                  f"clients of {follows} (profileName)")
                continue
            read.router.setdefault("session_pins", []).append(phase)
            _session(plugin, plugins, read)


def _session(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read how sessions are bound: by default to the client in a token that the caller sends back."""
    given, path, token = plugin.given, plugin.path, "encoded_endpoint_header"
    name = next((key for key in ("strategy", "algorithm") if key in given), None)
    rule = token if name is None else text_of(
        given[name], f"{path}.{name}", plugin.node, (token, "session_id", "session_id_header"))
    rule = rule if rule == token else "session_id_header"
    if read.router.setdefault("session_algorithm", rule) != rule:
        raise plugin.node.mark.error(Verbatim("binds sessions in another way than the plugin before it, which is not "
                                              "modelled; remove one"), field=plugin.place)
    own = fields_of(given.get("sessionIdConfig"), f"{path}.sessionIdConfig", ("evictionTtlSeconds",),
                    ("sources", "evictionSweepSeconds"))
    ttl = own.get("evictionTtlSeconds") or given.get("evictionTtlSeconds")
    if ttl is not None and rule != token:
        read.places["session_ttl"] = ttl, f"{path}.evictionTtlSeconds"
        read.router["session_ttl"] = number_of(*read.places["session_ttl"])


def _index(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read the index of prompts that were sent.

    `maxPrefixBlocksToMatch` counts where `maxPrefixTokensToMatch` is 0; a block has at least 64 tokens, and with
    `autoTune`, which is the default, the engine's. The engine's blocks replace `lruCapacityPerServer` likewise.
    """
    given, path = plugin.given, plugin.path
    producers = only(plugins, (APPROXIMATE,))
    if len(producers) > 1:
        raise producers[1].node.mark.error(Verbatim("a second index of sent prompts is not modelled; keep one"),
                                           field=producers[1].place)
    source = given.get("prefixHashSource")
    if source is not None and source.value != "tokens":
        raise source.mark.error(Verbatim("hashes that another component writes are not modelled; remove it"),
                                field=f"{path}.prefixHashSource")
    if not given.keys() - {"prefixMatchInfoProducerName", "prefixLengthWeight"}:
        return
    numbers = {name: whole_of(given[name], f"{path}.{name}") for name in (
        "blockSize", "blockSizeTokens", "lruCapacityPerServer", "maxPrefixBlocksToMatch", "maxPrefixTokensToMatch")
        if name in given}
    tune = given.get("autoTune")
    if tune is not None and not isinstance(tune.value, bool):
        raise tune.mark.error("true or false", tune.plain(), field=f"{path}.autoTune")
    index: dict[str, Any] = {}
    block = max(LEAST_BLOCK, numbers.get("blockSizeTokens") or numbers.get("blockSize") or BLOCK)
    if tune is not None and tune.value is False:
        index["block"] = block
        if numbers.get("lruCapacityPerServer"):
            index["capacity"] = numbers["lruCapacityPerServer"]
    else:
        for name in ("blockSize", "blockSizeTokens", "lruCapacityPerServer"):
            if name in numbers:
                read.notes.append(f"{path}.{name}: without effect, since autoTune takes the engine's")
    most = numbers.get("maxPrefixTokensToMatch", MOST_TOKENS)
    if "maxPrefixBlocksToMatch" in numbers and most:
        read.notes.append(f"{path}.maxPrefixBlocksToMatch: without effect beside maxPrefixTokensToMatch, {most}"
                          f"{'' if 'maxPrefixTokensToMatch' in numbers else ' by default'}")
    if not most:
        blocks = numbers.get("maxPrefixBlocksToMatch", MOST_TOKENS // LEAST_BLOCK)
        index["most_tokens"] = blocks * block or None
    elif most != MOST_TOKENS:
        index["most_tokens"] = most
    if index:
        read.router["prefix_index"] = index
        read.places["prefix_index"] = plugin.node, path


def _precise(plugin: Plugin, plugins: Mapping[str, Plugin], read: PickerRead) -> None:
    """Read the index of KV events: its blocks need not be the engine's."""
    if plugin.kind != PRECISE and only(plugins, (PRECISE,)):
        return   # which has the parameters
    given, path = plugin.given, plugin.path
    guess = given.get("speculativeIndexing")
    if guess is not None and guess.value is not False:
        raise guess.mark.error(Verbatim("entries for requests that were just sent are not modelled; write false"),
                               field=f"{path}.speculativeIndexing")
    if "sessionManager" in given:
        raise given["sessionManager"].mark.error(Verbatim("lookup by sessions is not modelled; remove it"),
                                                 field=f"{path}.sessionManager")
    tokens = given.get("tokenProcessorConfig") or node_at(given.get("indexerConfig"), "tokenProcessorConfig")
    own = fields_of(tokens, f"{path}.tokenProcessorConfig", ("blockSize", "blockSizeTokens"), ("hashSeed",))
    size = own.get("blockSizeTokens") or own.get("blockSize")
    read.places["precise_block"] = size or plugin.node, f"{path}.tokenProcessorConfig.blockSize"
    read.router["precise_block"] = BLOCK if size is None else whole_of(*read.places["precise_block"])


READ: dict[str, tuple[str, Callable[[Plugin, Mapping[str, Plugin], PickerRead], None]]] = {
    "load-aware-scorer": ("load_aware", _load_aware), "active-request-scorer": ("active_request", _active),
    "no-hit-lru-scorer": ("no_hit_lru", _no_hit), "session-affinity-scorer": ("session", _session),
    "prefix-cache-scorer": ("prefix", _index), APPROXIMATE: ("prefix", _index),
    PRECISE: ("precise_prefix", _precise), "precise-prefix-cache-scorer": ("precise_prefix", _precise)}
"""Plugin -> the scorer that needs its parameters, and what reads them."""
