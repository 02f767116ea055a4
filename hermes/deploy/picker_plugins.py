"""Plugins of an EndpointPickerConfig: what each is, which parameters it takes, and which are not modelled and why.

Names and parameters are those of https://github.com/llm-d/llm-d-router (pkg/epp/framework/plugins, read, not run),
older names included. Parameters without an effect on placements are in the second column of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from hermes.deploy.objects_flow import FLOW_PLUGINS, FlowControl, Plugin, SaturationDetector
from hermes.deploy.options import options, pairs
from hermes.deploy.typed import Keys, Number, Object, Part
from hermes.errors import InputError, Verbatim

SCORERS = {
    "queue-scorer": "queue", "kv-cache-utilization-scorer": "kv", "prefix-cache-scorer": "prefix",
    "precise-prefix-cache-scorer": "precise_prefix", "load-aware-scorer": "load_aware",
    "session-affinity-scorer": "session", "lora-affinity-scorer": "lora_affinity",
    "active-request-scorer": "active_request", "no-hit-lru-scorer": "no_hit_lru"}
RENAMED = {"kv-cache-scorer": "kv-cache-utilization-scorer", "single-profile": "single-profile-handler",
           "max-score": "max-score-picker"}
PICKERS = {"max-score-picker": "max_score", "random-picker": "random", "weighted-random-picker": "weighted_random"}
HANDLERS = ("pd-profile-handler", "disagg-profile-handler")
SINGLE = ("single-profile-handler", "data-parallel-profile-handler")
PHASES = {"decode": "decode-filter", "prefill": "prefill-filter"}   # the filter that a profile of a phase needs
APPROXIMATE, PRECISE = "approx-prefix-cache-producer", "precise-prefix-cache-producer"
DECIDER = "prefix-based-pd-decider"
PIN = "session-affinity-filter"
DECIDERS = (DECIDER, "always-disagg-pd-decider")

_INDEX = ("autoTune", "blockSize", "blockSizeTokens", "lruCapacityPerServer", "maxPrefixBlocksToMatch",
          "maxPrefixTokensToMatch", "prefixHashSource")
_EVENTS = (("tokenProcessorConfig", "indexerConfig", "speculativeIndexing", "sessionManager"),
           ("kvEventsConfig", "speculativeTTL"))
_SESSION = (("algorithm", "strategy", "evictionTtlSeconds", "sessionIdConfig", "profileName"),
            ("headerName", "evictionSweepSeconds", "encodedEndpointHeaderConfig", "missThreshold", "maxAge", "secure",
             "sameSite"))
Names = tuple[tuple[str, ...], tuple[str, ...]]
KINDS: dict[str, Names] = {
    **dict.fromkeys(SCORERS, ((), ())), **dict.fromkeys(SINGLE, ((), ("primaryPort", "targetPort"))),
    **dict.fromkeys(PICKERS, ((), ("maxNumOfEndpoints",))),
    **dict.fromkeys((*PHASES.values(), "encode-filter", "always-disagg-multimodal-decider", *DECIDERS), ((), ())),
    **FLOW_PLUGINS,
    "prefix-cache-scorer": ((*_INDEX, "prefixMatchInfoProducerName", "prefixLengthWeight"), ("maxModelLen",)),
    APPROXIMATE: (_INDEX, ()), PRECISE: _EVENTS, "precise-prefix-cache-scorer": _EVENTS,
    "load-aware-scorer": (("threshold",), ()),
    "session-affinity-scorer": _SESSION, PIN: _SESSION,
    "active-request-scorer": (("idleThreshold", "maxBusyScore"), ("requestTimeout", "inFlightLoadProducerName")),
    "no-hit-lru-scorer": (("lruSize", "prefixMatchInfoProducerName"), ("prefixPluginType", "prefixPluginName")),
    "inflight-load-producer": ((), ("prefixMatchInfoProducerName", "addEstimatedOutputTokens",
                                    "maxEstimatedOutputTokens", "outputRatio", "syncCrossReplicaState")),
    DECIDER: (("nonCachedTokens",), ()),
    HANDLERS[0]: (("deciderPluginName", "threshold"), ("primaryPort", "prefixPluginName", "hashBlockSize")),
    HANDLERS[1]: (("deciders", "profiles"), ())}
"""Plugin -> parameters that are read, and those without an effect."""

BESIDE = frozenset(options("llm-d", "beside"))
"""Plugins without an effect on placements, whatever their parameters."""

REFUSED = pairs("llm-d", "refused")
"""Plugins that change placements and are not modelled -> how."""


# -- the object ------------------------------------------------------------------------------------------------------

class Entry(Part):
    type: str
    name: str | None = None
    parameters: Keys | None = None


class Row(Part):
    plugin_ref: str
    weight: Number = 1.0   # llm-d's DefaultScorerWeight


class Profile(Part):
    name: str
    plugins: list[Row] = []


class EndpointPickerConfig(Object):
    beside = ("metadata", "status", "dataLayer", "requestHandler", "parser")
    api_version: Literal["inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = []
    plugins: list[Entry] = []
    scheduling_profiles: list[Profile] = []
    saturation_detector: SaturationDetector | None = None
    flow_control: FlowControl | None = None


def plugins_of(config: EndpointPickerConfig) -> dict[str, Plugin]:
    """Return the plugins of a file by name, in its order. Raises `InputError` for one that changes placements and is
    not modelled."""
    found: dict[str, Plugin] = {}
    for place, entry in enumerate(config.plugins):
        path, name = f"plugins.{place}", entry.type if entry.name is None else entry.name
        kind = RENAMED.get(entry.type, entry.type)
        if kind not in KINDS and kind not in BESIDE:
            why = f": {REFUSED[kind]}" if kind in REFUSED else ""
            raise InputError(Verbatim(f"{kind!r} is not modelled{why}; remove the plugin"), field=f"{path}.type")
        if name in found:
            raise InputError(Verbatim(f"a second plugin {name!r}; give it another name"), field=path)
        plugin = Plugin(name, kind, path, f"{path}.parameters", entry.parameters or {})
        found[name] = plugin._replace(given={}) if kind in BESIDE else plugin.among(*KINDS[kind])
    return found


def only(plugins: Mapping[str, Plugin], kinds: Collection[str]) -> list[Plugin]:
    """Return the plugins of some types."""
    return [plugin for plugin in plugins.values() if plugin.kind in kinds]
