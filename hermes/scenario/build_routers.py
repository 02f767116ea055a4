"""The routers of a simulation: one for every kind of stage, and model, that the workload can ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes.config.streams import stream as random_stream
from hermes.core.clock import Clock
from hermes.core.record import Notes
from hermes.core.router import LoadCell, Router, RouterContext
from hermes.errors import InputError, Verbatim, inside
from hermes.network import Network
from hermes.pipelines.base import requested_stages
from hermes.pipelines.checks import check_options, no_client_error
from hermes.pipelines.mixing import MODEL_STAGES, WeightedPipeline
from hermes.routing.base import places_both_phases
from hermes.scenario.schema import Scenario

if TYPE_CHECKING:
    from hermes.routing.decisions import Decisions

__all__ = ["GENERATION_STAGES", "Routers", "build_routers"]

GENERATION_STAGES = ["generate", "prefill", "decode"]   # GENERATIONS, in the order in which results number them


class Routers(NamedTuple):
    """Routers and what they choose from.

    Attributes:
        routers: (stage kind, model) -> router.
        candidates: (stage kind, model) -> clients that serve it.
        cells: For each client the load cells that routers read.
        guarded: Routers from which clients can be kept.
    """

    routers: dict[tuple[str, str], Router]
    candidates: dict[tuple[str, str], list[Any]]
    cells: list[list[tuple[LoadCell, int]]]
    guarded: list[Any]


def build_routers(scenario: Scenario, env: Clock, clients: list[Any], pipelines: list[list[WeightedPipeline]],
                  notes: Notes, decisions: Decisions | None, network: Network, kv_network: Callable[[], Network],
                  ) -> Routers:
    """Return the routers. kv_network: Returns the network of the KV between prefill and decode clients."""
    transfer_ns = partial(_transfer_ns, network, kv_network)

    def router(config: Any, name: str, of: str, candidates: list[Any]) -> Router:
        """Return a router. config: Of `ROUTERS`. name, of: Begin and end of its stream's name."""
        context = RouterContext(candidates, random_stream(scenario.seed, f"{name}/{of}"), transfer_ns,
                                lambda: env._now, seed=scenario.seed, believed=notes.believed, name=name,
                                decisions=decisions)
        with inside("router"):
            made: Router = config.build(context)
        if decisions is not None:
            made = decisions.watched(made, context)
        for cell in context.cells:
            for pos, client in enumerate(candidates):
                found.cells[client.index].append((cell, pos))
        return made

    found = Routers({}, {}, [[] for _ in clients], [])
    add = partial(_add, scenario, clients, found, router)
    for entry in (entry for entries in pipelines for entry in entries):
        for kind, model in requested_stages(entry.pipeline):
            wanted = model or (entry.model if kind in MODEL_STAGES else "")
            add(kind, wanted, required=True)
            if kind in GENERATION_STAGES:
                _add_decode(scenario, clients, add, wanted)
        check_options(entry.pipeline, entry.label, partial(_serving, found.candidates, entry.model))
    return found


def _serving(candidates: dict[tuple[str, str], list[Any]], default: str, kind: str, model: str) -> list[Any]:
    """Return the clients that may serve a stage of a request that asks for the model `default`."""
    model = model or (default if kind in MODEL_STAGES else "")
    return candidates.get((kind, model)) or candidates.get((kind, ""), [])


def _add_decode(scenario: Scenario, clients: list[Any], add: Callable[..., None], model: str) -> None:
    """Add routers of KV transfers: to any decode client of the model, or only within the prefill's platform."""
    prefilling = [c for c in clients if c.role == "prefill" and c.model in ("", model)]
    if scenario.kv_transfer_scope == "global":
        add("decode", model, required=bool(prefilling))
        return
    for platform in dict.fromkeys(c.platform for c in prefilling):
        add("decode", model, required=True, platform=platform)


def _add(scenario: Scenario, clients: list[Any], found: Routers, router: Callable[..., Router], kind: str, model: str,
         *, required: bool, platform: str | None = None) -> None:
    """Add the router of a kind of stage and a model, if there is none. required: Whether a client must serve it.
    platform: Of the prefill client, where KV does not leave its platform."""
    candidates = [c for c in clients if kind in c.stages and (c.model in ("", model) or not model)]
    if kind == "decode":
        candidates = [c for c in candidates if c.takes_over_kv and platform in (None, c.platform)]
        candidates = [c for c in candidates if c.role == "decode"] or candidates
    stage = kind
    if platform is not None:
        kind = f"decode near {platform}"
    if (kind, model) in found.routers:
        return
    if not candidates:
        if not required:
            return
        raise no_client_error(clients, stage, model, platform)
    found.candidates[kind, model] = list(candidates)
    both = places_both_phases(scenario.router)
    if both and stage in GENERATION_STAGES:   # one router for both phases
        if ("generate", model) in found.routers:
            found.routers[kind, model] = found.routers["generate", model]
            return
        candidates = [c for c in clients if {kind, "decode"} & c.stages and c.model in ("", model)]
    config = scenario.routers.get(stage, scenario.router)
    gateway = scenario.gateway
    count, breaks = (1, False) if gateway is None else (gateway.replicas, gateway.breaker is not None)
    built = [router(config, f"router-{number}" if number else "router", f"{kind}/{model}", candidates)
             for number in range(count)]
    if breaks and (both or not hasattr(built[0], "changed")):
        why = "it places both phases at once" if both else "it cannot follow (no `changed(members)`)"
        raise InputError(Verbatim(f"the gateway's retries keep failing replicas out, and {why}; take another, or write "
                                  "null for the `breaker` or `cooldown`"), field="router")
    if count > 1 or breaks:
        from hermes.routing.gateways import RouterPerGateway  # most scenarios have one

        several = RouterPerGateway(built, candidates)
        built = [several]
        found.guarded.append(several)
    found.routers[kind, model] = built[0]


def _transfer_ns(network: Network, kv_network: Callable[[], Network], stage: Any, client: Any) -> int:
    """Return the time to move the KV of `stage` and its inputs to `client`, uncontended, one after the other."""
    source, total = stage.source if stage.kind == "generate" else None, 0
    if source is not None and source is not client:
        num_bytes = round(stage.prompt_tokens * source.kv_bytes_per_token)
        total = kv_network().estimate_ns(source.name, client.name, num_bytes)
    for before, num_bytes in stage.inputs:
        if before.client is not client:
            total += network.estimate_ns(before.client.name, client.name, num_bytes)
    return total
