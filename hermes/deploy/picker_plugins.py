"""Plugins of an EndpointPickerConfig: what each is, which parameters it takes, and which are not modelled and why.

Names and parameters are those of https://github.com/llm-d/llm-d-router (pkg/epp/framework/plugins, read, not run),
older names included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict

from hermes.config.yaml_document import Node
from hermes.deploy.objects_flow import FLOW_PLUGINS, FlowControl, NoParameters, Plugin, SaturationDetector
from hermes.deploy.typed import Keys, Number, Object, Part, Whole, read, that
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

NoWeight = Annotated[Number, that(lambda weight: not weight, Verbatim(
    "a weight of the matched tokens is not modelled; write 0"))]
NoGuess = Annotated[bool, that(lambda guess: not guess, Verbatim(
    "entries for requests that were just sent are not modelled; write false"))]
NoSessions = Annotated[object, that(lambda sessions: False, Verbatim(
    "lookup by sessions is not modelled; remove it"))]
OfTokens = Annotated[str, that(lambda source: source == "tokens", Verbatim(
    "hashes that another component writes are not modelled; remove it"))]
OfBytes = Annotated[Number, that(lambda least: not least, "0, always: a threshold counts bytes of a prompt")]
Strategy = Literal["encoded_endpoint_header", "session_id", "session_id_header"]


# -- parameters --------------------------------------------------------------------------------------------------------

class Ports(Part):
    beside = ("primaryPort", "targetPort")


class PickerParameters(Part):
    beside = ("maxNumOfEndpoints",)


class Index(Part):
    """Index of the prompts that were sent."""

    auto_tune: bool = True
    block_size: Whole | None = None
    block_size_tokens: Whole | None = None
    lru_capacity_per_server: Whole | None = None
    max_prefix_blocks_to_match: Whole | None = None
    max_prefix_tokens_to_match: Whole | None = None
    prefix_hash_source: OfTokens | None = None


class PrefixScorer(Index):
    beside = ("maxModelLen",)
    prefix_match_info_producer_name: str | None = None
    prefix_length_weight: NoWeight = 0.0


class TokenProcessor(Part):
    beside = ("hashSeed",)
    block_size: Whole | None = None
    block_size_tokens: Whole | None = None


class Indexer(Part):
    model_config = ConfigDict(extra="ignore")
    token_processor_config: TokenProcessor | None = None


class Events(Part):
    """Index of KV events."""

    beside = ("kvEventsConfig", "speculativeTTL")
    token_processor_config: TokenProcessor | None = None
    indexer_config: Indexer = Indexer()
    speculative_indexing: NoGuess = False
    session_manager: NoSessions = None


class LoadAware(Part):
    threshold: Whole | None = None


class SessionId(Part):
    beside = ("sources", "evictionSweepSeconds")
    eviction_ttl_seconds: Number | None = None


class Session(Part):
    beside = ("headerName", "evictionSweepSeconds", "encodedEndpointHeaderConfig", "missThreshold", "maxAge", "secure",
              "sameSite")
    algorithm: Strategy | None = None
    strategy: Strategy | None = None
    eviction_ttl_seconds: Number | None = None
    session_id_config: SessionId = SessionId()
    profile_name: str | None = None


class ActiveRequest(Part):
    beside = ("requestTimeout", "inFlightLoadProducerName")
    idle_threshold: Whole | None = None
    max_busy_score: Number | None = None


class NoHit(Part):
    beside = ("prefixPluginType", "prefixPluginName")
    lru_size: Whole | None = None
    prefix_match_info_producer_name: str | None = None


class InFlight(Part):
    beside = ("prefixMatchInfoProducerName", "addEstimatedOutputTokens", "maxEstimatedOutputTokens", "outputRatio",
              "syncCrossReplicaState")


class Decider(Part):
    non_cached_tokens: Whole | None = None


class Handler(Part):
    """Of `pd-profile-handler`. `threshold` is from before there were deciders."""

    beside = ("primaryPort", "prefixPluginName", "hashBlockSize")
    decider_plugin_name: str | None = None
    threshold: OfBytes | None = None


class Deciders(Part):
    beside = ("encode",)
    prefill: str | None = None


class Phases(Part):
    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"


class DisaggHandler(Part):
    """Of `disagg-profile-handler`."""

    deciders: Deciders = Deciders()
    profiles: Phases = Phases()


KINDS: dict[str, type[Part]] = {
    **dict.fromkeys((*SCORERS, *PHASES.values(), "encode-filter", "always-disagg-multimodal-decider", *DECIDERS),
                    NoParameters),
    **dict.fromkeys(SINGLE, Ports), **dict.fromkeys(PICKERS, PickerParameters), **FLOW_PLUGINS,
    "prefix-cache-scorer": PrefixScorer, APPROXIMATE: Index, PRECISE: Events, "precise-prefix-cache-scorer": Events,
    "load-aware-scorer": LoadAware, "session-affinity-scorer": Session, PIN: Session,
    "active-request-scorer": ActiveRequest, "no-hit-lru-scorer": NoHit, "inflight-load-producer": InFlight,
    DECIDER: Decider, HANDLERS[0]: Handler, HANDLERS[1]: DisaggHandler}
"""Plugin -> its parameters."""

BESIDE = frozenset((
    # token counts are exact here, and bodies are read by nothing else
    "token-producer", "tokenizer", "openai-parser", "vllmhttp-parser", "anthropic-parser", "passthrough-parser",
    # where scorers get what they read
    "endpoint-notification-source", "metrics-data-source", "core-metrics-extractor", "models-data-source",
    "models-data-extractor", "dcgm-data-source", "dcgm-extractor", "session-id-producer",
    # headers, and answers to other requests
    "prefill-header-handler", "disagg-headers-handler", "models-responder", "agent-identity", "dp-rank-header-handler",
    # of images, which requests do not have here: the scorer gives 0 to all
    "mm-embeddings-cache-producer", "mm-embeddings-cache-scorer"))
"""Plugins without an effect on placements, whatever their parameters."""

REFUSED = {
    "burst-prefix-cache-producer": "it holds requests back, and sends those with a common beginning to one client",
    "prefix-cache-affinity-filter": "it leaves out clients that hold little of the prompt",
    "endpoint-attribute-filter": "it leaves out clients by a metric of their devices or pods",
    "endpoint-attribute-scorer": "it scores a metric of devices or pods",
    "thunder-agent": "it binds programs of agents to clients by the tokens that they will hold",
    "token-load-scorer": "it scores the tokens in flight",
    "lmetric-scorer": "it scores uncached tokens times the batch size",
    "latency-scorer": "it scores latencies that a trained model predicts",
    "predicted-latency-producer": "it predicts latencies with a trained model",
    "slo-headroom-tier-filter": "it leaves out clients by predicted latencies",
    "latency-slo-admitter": "it refuses requests by predicted latencies",
    "probabilistic-admitter": "it refuses requests at random as the clients fill up",
    "pd-slo-pair-optimizer": "it scores pairs of clients by predicted latencies",
    "by-label": "it leaves out clients by labels", "by-label-selector": "it leaves out clients by labels",
    "label-selector-filter": "it leaves out clients by labels",
    "running-requests-size-scorer": "it scores the running requests; active-request-scorer is modelled"}
"""Plugins that change placements and are not modelled -> how."""


# -- the object ------------------------------------------------------------------------------------------------------

class Entry(Part):
    type: str
    name: str | None = None
    parameters: Keys = {}


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


def plugins_of(config: EndpointPickerConfig, document: Node) -> dict[str, Plugin]:
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
        given = NoParameters() if kind in BESIDE else read(KINDS[kind], document, f"{path}.parameters")
        found[name] = Plugin(name, kind, path, given)
    return found


def only(plugins: Mapping[str, Plugin], kinds: Collection[str]) -> list[Plugin]:
    """Return the plugins of some types."""
    return [plugin for plugin in plugins.values() if plugin.kind in kinds]
