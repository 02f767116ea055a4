"""Objects of clusters as parts of a scenario: EndpointPickerConfig, HTTPRoute, HorizontalPodAutoscaler, ScaledObject.

Each object becomes one key: the router `llm_d`, the gateway, or an autoscaler. A field that is not modelled is refused
with its line. Fields without an effect on timing are in the tables below; no other field is passed over.
"""

from __future__ import annotations

from typing import Any

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.objects_fields import BESIDE, duration_of, fields_of, items_of, node_at, number_of, text_of, whole_of
from hermes.deploy.objects_flow import FLOW_PLUGINS, GATE, read_flow
from hermes.deploy.objects_scale import read_hpa, read_keda
from hermes.errors import InputError, Verbatim
from hermes.routing.llm_d import DEFAULT_CAPACITY, LEAST_BLOCK, MOST_TOKENS

__all__ = ["SCORERS", "parts_of"]

SCORERS = {
    "queue-scorer": "queue", "kv-cache-utilization-scorer": "kv", "prefix-cache-scorer": "prefix",
    "precise-prefix-cache-scorer": "precise_prefix", "load-aware-scorer": "load_aware",
    "session-affinity-scorer": "session", "lora-affinity-scorer": "lora_affinity"}
HANDLERS = ("pd-profile-handler", "disagg-profile-handler")
PHASES = {"decode": "decode-filter", "prefill": "prefill-filter"}   # the filter that a profile of a phase needs
DECIDER = "prefix-based-pd-decider"
# plugins that hermes has by itself: the highest sum wins, and roles filter
BY_ITSELF = {"single-profile-handler", "max-score-picker", "decode-filter", "prefill-filter", "prefill-header-handler",
             "disagg-headers-handler", "approx-prefix-cache-producer"}
# parameters of the approximate prefix cache: the values from and to which the router `llm_d` does the same, and why
BLOCK = (1, LEAST_BLOCK, f"raised to {LEAST_BLOCK} tokens, or to the engine's block where that is longer")
PREFIX = {"blockSize": BLOCK, "blockSizeTokens": BLOCK,
          "lruCapacityPerServer": (DEFAULT_CAPACITY, DEFAULT_CAPACITY, "engines that show their blocks have as many"),
          "maxPrefixBlocksToMatch": (MOST_TOKENS // LEAST_BLOCK, MOST_TOKENS // LEAST_BLOCK,
                                     f"{MOST_TOKENS} tokens in blocks of {LEAST_BLOCK}"),
          "maxPrefixTokensToMatch": (MOST_TOKENS, MOST_TOKENS, "the router's default")}
VERSIONS = {"EndpointPickerConfig": ("inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"),
            "HTTPRoute": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"),
            "HorizontalPodAutoscaler": ("autoscaling/v2",), "ScaledObject": ("keda.sh/v1alpha1",)}


def parts_of(text: str, file: str | None) -> dict[str, Any]:
    """Return the keys that the objects of a file set: `router`, `gateway`, `autoscaler`."""
    readers = {
        "EndpointPickerConfig": ("router", _picker), "HTTPRoute": ("gateway", _route),
        "HorizontalPodAutoscaler": ("autoscaler", read_hpa), "ScaledObject": ("autoscaler", read_keda)}
    parts: dict[str, Any] = {}
    read: dict[str, Any] = {}
    for document in parse_documents(text, file):
        kind = node_at(document, "kind")
        if kind is None or not isinstance(kind.value, str) or kind.value not in readers:
            raise (kind or document).mark.error(f"one of {', '.join(readers)}; remove other objects",
                                                kind.plain() if kind else Verbatim("none"), field="kind")
        text_of(node_at(document, "apiVersion"), "apiVersion", document, VERSIONS[kind.value])
        key, reader = readers[kind.value]
        if key in read:
            raise kind.mark.error(Verbatim(f"a second object for `{key}`; give one of them"), field="kind")
        read[key] = reader(document)
    if not read:
        raise InputError(f"one of {', '.join(readers)}", Verbatim("no object"), file=file)
    parts.update(read)
    if "router" in read:
        parts["router"], flow = read["router"]
        if flow:
            parts["gateway"] = read.get("gateway", {}) | flow
    return parts


# -- the endpoint picker ---------------------------------------------------------------------------------------------

def _gates(node: Node | None) -> bool:
    """Return whether flow control is on."""
    found = False
    for gate in items_of(node, "featureGates"):
        name, _, value = str(gate.value).partition("=")
        if name not in ("prepareDataPlugins", GATE) or value not in ("", "true", "false"):
            raise gate.mark.error(f"prepareDataPlugins, {GATE} or no gate", gate.plain(), field="featureGates")
        found = value != "false" if name == GATE else found
    return found


def _picker(document: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the router, and the keys of the gateway."""
    fields = fields_of(document, "", ("plugins", "schedulingProfiles", "featureGates"),
                       (*BESIDE, "flowControl", "saturationDetector"))
    gate = _gates(fields.get("featureGates"))
    types: dict[str, str] = {}
    given: dict[str, dict[str, Node]] = {}
    prefix = ("autoTune", *PREFIX)
    known = {**{kind: own for kind, (own, _) in FLOW_PLUGINS.items()},
             **dict.fromkeys(SCORERS, ()), **dict.fromkeys(BY_ITSELF, ()), "load-aware-scorer": ("threshold",),
             "prefix-cache-scorer": prefix, "approx-prefix-cache-producer": prefix, DECIDER: ("nonCachedTokens",),
             HANDLERS[0]: ("deciderPluginName",), HANDLERS[1]: ("deciders",)}
    beside = {**{kind: own for kind, (_, own) in FLOW_PLUGINS.items()},
              HANDLERS[0]: ("primaryPort",), "precise-prefix-cache-scorer": ("kvEventsConfig",)}
    for place, plugin in enumerate(items_of(fields.get("plugins"), "plugins")):
        path = f"plugins.{place}"
        own = fields_of(plugin, path, ("type", "name", "parameters"))
        kind = text_of(own.get("type"), f"{path}.type", plugin)
        if kind not in known:
            raise own["type"].mark.error(Verbatim(f"{kind!r} is not modelled; remove the plugin"), field=f"{path}.type")
        name = text_of(own["name"], f"{path}.name", plugin) if "name" in own else kind
        if name in types:
            raise plugin.mark.error(Verbatim(f"a second plugin {name!r}; give it another name"), field=path)
        types[name] = kind
        given[name] = fields_of(own.get("parameters"), f"{path}.parameters", known[kind], beside.get(kind, ()))
        tune = given[name].get("autoTune")
        if tune is not None and tune.value is not True:
            raise tune.mark.error("true, as simulated", tune.plain(), field=f"{path}.parameters.autoTune")
        for key in PREFIX.keys() & given[name].keys():
            least, most, why = PREFIX[key]
            if not least <= whole_of(given[name][key], f"{path}.parameters.{key}") <= most:
                raise given[name][key].mark.error(
                    f"{most} ({why}), as simulated" if least == most else f"{least} to {most} ({why}), as simulated",
                    given[name][key].plain(), field=f"{path}.parameters.{key}")
    handlers = [name for name, kind in types.items() if kind in (*HANDLERS, "single-profile-handler")]
    if len(handlers) > 1:
        raise fields["plugins"].mark.error("one profile handler", handlers, field="plugins")
    handlers = [name for name in handlers if types[name] in HANDLERS]
    profiles: list[dict[str, float]] = []
    names: list[str] = []
    used: set[str] = set()
    listed = items_of(fields.get("schedulingProfiles"), "schedulingProfiles")
    for place, profile in enumerate(listed):
        path = f"schedulingProfiles.{place}"
        own = fields_of(profile, path, ("name", "plugins"))
        names.append(text_of(own.get("name"), f"{path}.name", profile))
        weights: dict[str, float] = {}
        filters: list[str] = []
        for index, entry in enumerate(items_of(own.get("plugins"), f"{path}.plugins")):
            here = f"{path}.plugins.{index}"
            row = fields_of(entry, here, ("pluginRef", "weight"))
            name = text_of(row.get("pluginRef"), f"{here}.pluginRef", entry, types)
            used.add(name)
            if types[name] in FLOW_PLUGINS:
                raise entry.mark.error(Verbatim(f"{types[name]} as a filter of endpoints is not modelled; remove it "
                                                "from the profile"), field=f"{here}.pluginRef")
            if types[name] in PHASES.values():
                filters.append(types[name])
                if not handlers:
                    raise entry.mark.error(Verbatim(
                        f"{types[name]} without a handler of prefill and decode leaves clients out, which is not "
                        f"modelled; add {HANDLERS[1]}, or remove it"), field=f"{here}.pluginRef")
            if types[name] in SCORERS:
                key = SCORERS[types[name]]
                if key in weights:
                    raise entry.mark.error(Verbatim("a second scorer of this type; keep one"), field=here)
                # 1 is llm-d's DefaultScorerWeight
                weights[key] = float(number_of(row["weight"], f"{here}.weight")) if "weight" in row else 1.0
        wanted = PHASES.get(names[-1], "") if handlers else ""
        if wanted and filters != [wanted]:
            raise profile.mark.error(f"the plugin {wanted} and no other filter", filters, field=f"{path}.plugins")
        profiles.append(weights)
    phases = sorted(PHASES) if handlers else names[:1]
    at = fields.get("schedulingProfiles", document)
    if not profiles or sorted(names) != phases:
        raise at.mark.error("profiles prefill and decode" if handlers else "one profile", names,
                            field="schedulingProfiles")
    if any(profile != profiles[0] for profile in profiles):
        raise at.mark.error(Verbatim("prefill and decode have other weights; one set is modelled, so make them equal"),
                            field="schedulingProfiles")
    router: dict[str, Any] = {"kind": "llm_d", "scorers": {
        key: profiles[0].get(key, 0.0) for key in SCORERS.values()}}
    for name, kind in types.items():
        if kind == "load-aware-scorer" and name in used and "threshold" in given[name]:
            router["load_threshold"] = whole_of(given[name]["threshold"], "parameters.threshold")
    if handlers:
        own = given[handlers[0]]
        decider = own.get("deciderPluginName") or fields_of(
            own.get("deciders"), "parameters.deciders", ("prefill",)).get("prefill")
        choices = [name for name, kind in types.items() if kind == DECIDER]
        tokens = given[text_of(decider, "parameters: decider", at, choices or (DECIDER,))].get("nonCachedTokens") \
            if choices else None
        if not choices:
            raise at.mark.error(Verbatim(f"no plugin {DECIDER}; add it with nonCachedTokens"), field="plugins")
        router["disaggregation"] = {"uncached": 0 if tokens is None else whole_of(tokens, "parameters.nonCachedTokens")}
    return router, read_flow(document, types, given, gate=gate)


# -- routes ----------------------------------------------------------------------------------------------------------

def _rule(node: Node, path: str) -> dict[str, Node]:
    """Return the fields of a rule; refuse those that send some requests elsewhere."""
    rule = fields_of(node, path, ("timeouts", "retry", "matches", "backendRefs"), ("name",))
    matches = items_of(rule.get("matches"), f"{path}.matches")
    for place, match in enumerate(matches):
        here = f"{path}.matches.{place}"
        fields_of(match, here, ("path", "method"))   # headers and parameters narrow it to requests that have them
        if match.plain() != matches[0].plain():
            raise match.mark.error(Verbatim("differs from the first match; one is modelled, so keep the one of the "
                                            "workload's requests"), field=here)
    backends = items_of(rule.get("backendRefs"), f"{path}.backendRefs")
    if len(backends) > 1:
        raise backends[1].mark.error(Verbatim("a second backend gets a share of the requests, which is not modelled; "
                                              "keep one"), field=f"{path}.backendRefs.1")
    for backend in backends:
        here = f"{path}.backendRefs.0"
        weight = fields_of(backend, here, ("weight",), ("group", "kind", "name", "namespace", "port")).get("weight")
        if weight is not None and whole_of(weight, f"{here}.weight") == 0:
            raise weight.mark.error("a weight from 1 on (0 sends it no request)", 0, field=f"{here}.weight")
    return rule


def _plain(rule: dict[str, Node]) -> dict[str, Any]:
    return {key: node.plain() for key, node in rule.items()}


def _route(document: Node) -> dict[str, Any]:
    spec = fields_of(fields_of(document, "", ("spec",), BESIDE).get("spec"), "spec", ("rules",),
                   ("parentRefs", "hostnames"))
    rules = items_of(spec.get("rules"), "spec.rules")
    if not rules:
        raise document.mark.error("a rule", Verbatim("none"), field="spec.rules")
    path = "spec.rules.0"
    rule = _rule(rules[0], path)
    for place, other in enumerate(rules[1:], start=1):
        own = _rule(other, f"spec.rules.{place}")
        if _plain(own) != _plain(rule):
            raise other.mark.error(Verbatim("differs from the first rule; one rule is modelled, so keep the one of the "
                                            "workload's requests"), field=f"spec.rules.{place}")
    gateway: dict[str, Any] = {}
    times = fields_of(rule.get("timeouts"), f"{path}.timeouts", ("request", "backendRequest"))
    retry = fields_of(rule.get("retry"), f"{path}.retry", ("attempts", "backoff", "codes"))
    if "retry" in rule and "attempts" not in retry:
        raise rule["retry"].mark.error(Verbatim("is missing; gateways differ in it, so write it"),
                                       field=f"{path}.retry.attempts")
    inner: dict[str, Any] = {}
    if "request" in times and (limit := duration_of(times["request"], f"{path}.timeouts.request")):
        gateway["timeout"] = limit
    if "backendRequest" in times and (limit := duration_of(times["backendRequest"], f"{path}.timeouts.backendRequest")):
        inner["per_try"] = limit
    if retry:
        inner["retries"] = whole_of(retry["attempts"], f"{path}.retry.attempts")
        if "backoff" in retry:
            base = duration_of(retry["backoff"], f"{path}.retry.backoff") or 0.0
            inner |= {"backoff": base, "max_backoff": 10 * base}   # Envoy: ten times the base
    codes = [whole_of(code, f"{path}.retry.codes") for code in items_of(retry.get("codes"), f"{path}.retry.codes")]
    for code in codes:
        if code not in (429, 502, 503, 504, 529):
            raise retry["codes"].mark.error("statuses among 429, 502, 503, 504, 529", code, field=f"{path}.retry.codes")
    if codes and set(codes) != {502, 503, 504}:
        return gateway | {"retry": {"kind": "envoy", **inner, "retry_on": codes}}
    return gateway | inner
