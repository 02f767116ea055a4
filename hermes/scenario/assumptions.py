"""Defaults of a scenario that may decide its result, each with a stated alternative.

A default is listed here only while the scenario leaves its key out. A scenario that writes the key, with any value,
has chosen.
What an alternative changes is found elsewhere: from one run (`hermes.scenario.repricing`), or by simulating it
(`hermes.scenario.alternatives`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes.clients.memory import describe_model
from hermes.hardware.composed.kernel_curves import GRAPH_LAUNCH_NS
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, RequestTime, load_engine
from hermes.hardware.info import hardware_info
from hermes.hardware.power import device_power, watts_trust
from hermes.network.base import bandwidth_of
from hermes.scenario.assumed_engine import of_engine, of_version
from hermes.scenario.assumed_router import of_routers
from hermes.scenario.assumption import Assumption, Change
from hermes.scenario.schema import Scenario, Source

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig

__all__ = ["assumptions"]

KV_LINK = 50e9          # bytes/s, where KV moves for free otherwise
OTHER_LINK = 25e9       # bytes/s of the alternative to a network that takes no time
KERNEL_S = GRAPH_LAUNCH_NS / 1e9   # of one kernel of an adapter
BURSTS = 2.0            # coefficient of variation of the gaps between requests
RANK = 16               # of the adapters in the alternative; vLLM's `max_lora_rank`
HIGH_RANK = 64          # of adapters whose rank nobody gave, in the alternative
GB = 1e9


def _chosen(source: Source, path: str, key: str) -> bool:
    return source.chosen(f"{path}.{key}")


def assumptions(scenario: Scenario) -> list[Assumption]:
    """Return the defaults that a scenario relies on, in a fixed order. Groups of clients that are alike share one."""
    found: dict[tuple[str, str, str], Assumption] = {}
    for one in _all(scenario):
        key = (one.name, one.default, one.alternative)
        found[key] = one if key not in found else _joined(found[key], one)
    return list(found.values())


def _joined(one: Assumption, other: Assumption) -> Assumption:
    """Return one assumption of two groups."""
    a, b = one.change, other.change
    by_group: dict[str, Any] = {name: {**getattr(a, name), **getattr(b, name)}
                                for name in ("hardware", "scales", "fixed_s", "request_s", "prompt_s", "whole_prompts",
                                             "watts")}
    change = replace(a, **by_group)
    return replace(one, settings={**one.settings, **other.settings}, change=change,
                   bytes=max(one.bytes, other.bytes))


def _all(scenario: Scenario) -> Iterator[Assumption]:
    source = scenario.source
    for number, client in enumerate(scenario.clients):
        if not client.serves_llm:
            continue
        path = f"clients.{number}"
        if client.hardware.kind == "composed":
            from hermes.scenario.assumed_terms import of_terms  # other hardware leaves its modules unloaded

            model = scenario.source.hardware.get(number)
            for one in of_terms(client, model, partial(_chosen, source, path)):
                yield Assumption(
                    one.name, one.default, one.alternative,
                    {f"{path}.hardware.kind": "composed", f"{path}.hardware.{one.key}": one.value},
                    Change(hardware={number: {one.key: one.value}}) if one.scales is None
                    else Change(scales={number: one.scales}))
        yield from _front_end(scenario, number)
        yield from _servers(scenario, number)
        yield from _adapters(scenario, number)
        yield from of_engine(client, scenario.source, number)
        if client.count > 1 and not source.chosen("router") and len(scenario.clients) == 1:
            yield Assumption("router", "round robin", "least loaded", {"router": {"kind": "least_loaded"}})
    yield from of_routers(scenario)
    yield from _links(scenario)
    yield from _prices(scenario)
    yield from _watts(scenario)
    yield from _arrivals(scenario)
    yield from _ends(scenario)
    for number, client in enumerate(scenario.clients):
        if client.serves_llm:
            yield from of_version(client, source, number)


def _arrivals(scenario: Scenario) -> Iterator[Assumption]:
    """Poisson arrivals: users are independent. Real ones come in bursts; gamma gaps state their own."""
    for path, workload in zip(_paths_of_workloads(scenario), scenario.workload, strict=True):
        if workload.arrivals.kind == "poisson":
            yield Assumption("arrivals", "Poisson", f"bursts (gamma gaps of cv {BURSTS:g})", {
                f"{path}.arrivals": {"kind": "gamma", "rate": workload.arrivals.rate, "cv": BURSTS}})


def _ends(scenario: Scenario) -> Iterator[Assumption]:
    """Ends of answers, where the workload does not say them and an engine plans ahead: by stop tokens, as in chat."""
    if not any(client.serves_llm and client.scheduler.options.async_scheduling for client in scenario.clients):
        return
    paths = _paths_of_workloads(scenario)
    open_ = [path for path, workload in zip(paths, scenario.workload, strict=True)
             if workload.ends is None and workload.max_new_tokens is None and workload.lengths.ends == "stop_token"]
    if open_:
        yield Assumption("ends", "answers end by a stop token", "with the tokens that they ask for",
                         {f"{path}.ends": "max_new_tokens" for path in open_})


def _paths_of_workloads(scenario: Scenario) -> list[str]:
    node = None if scenario.source.node is None else scenario.source.node.child("workload")
    several = node is None or isinstance(node.value, list)
    return [f"workload.{number}" if several else "workload" for number in range(len(scenario.workload))]


def _front_end(scenario: Scenario, number: int) -> Iterator[Assumption]:
    """The API server's time of a request, which no fitted profile and no other machine has measured."""
    client, path = scenario.clients[number], f"clients.{number}.frontend"
    if scenario.source.chosen(path) or client.role == "decode":
        return
    now = client.frontend
    if now is None:
        times = load_engine(client.engine or NEWEST_ENGINE).frontend
        before, after = times.before, times.after
        default, alternative = "no time in the API server", f"{_ms(before + after)} a request"
        extra = before + after
    else:
        before, after = 2.0 * now.before, 2.0 * now.after
        default = f"{_ms(now.before + now.after)} a request in the API server"
        alternative, extra = "twice that", now.before + now.after
    if extra:
        yield Assumption("front end", default, alternative,
                         {f"{path}.before": f"{before * 1e3:g} ms", f"{path}.after": f"{after * 1e3:g} ms"},
                         Change(request_s={number: extra}))


def _servers(scenario: Scenario, number: int) -> Iterator[Assumption]:
    """API servers that keep up with any load, where the engine's times of one are known. Engines that nobody routes to
    by name may be those of one `--data-parallel-size`."""
    client, source = scenario.clients[number], scenario.source
    times = load_engine(client.engine or client.scheduler.engine).frontend
    if client.role != "both" or not times.per_token:
        return
    if client.api_servers is not None:
        yield from _speed_of_servers(client, f"clients.{number}.api_servers", times)
        return
    shares = client.count if len(scenario.clients) == 1 and not source.chosen("router") else 1
    per_s, (low, high) = 1.0 / (times.per_token + times.per_chunk), times.spread
    default = (f"they keep up; one process sends up to {_about(per_s)} tokens/s ({_about(per_s / high)} to "
               f"{_about(per_s / low)})")
    alternative = f"one for all {shares} engines" if shares > 1 else "one"
    yield Assumption("API servers", default, alternative, {f"clients.{number}.api_servers": {"engines": shares}},
                     decides="API servers")


def _speed_of_servers(client: LLMClientConfig, path: str, times: RequestTime) -> Iterator[Assumption]:
    """Times of API servers that the scenario leaves to the engine."""
    servers, names = client.api_servers, ("per_request", "per_token", "per_chunk")
    if servers is not None and all(getattr(servers, name) is None for name in names):
        request, token = servers.figures(client.engine or client.scheduler.engine)
        yield Assumption(
            "API servers", f"a process takes {_ms(request)} for a request and {token * 1e6:.3g} us for a token",
            f"{times.spread[1]:g} times that",
            {f"{path}.{name}": getattr(times, name) * times.spread[1] for name in names})


def _about(rate: float) -> str:
    """Return a rate to two digits."""
    return f"{float(f'{rate:.2g}'):,.0f}"


def _adapters(scenario: Scenario, number: int) -> Iterator[Assumption]:
    """Cost of LoRA adapters: their loads where no size is given, and their kernels in each step."""
    client, path = scenario.clients[number], f"clients.{number}"
    wanted = [workload.adapters for workload in scenario.workload if workload.adapters is not None]
    slots = client.scheduler.options.max_loras
    if not wanted or slots is None or not client.model:
        return
    model, base_dir = describe_model(client.model, scenario.source.base_dir), scenario.source.base_dir
    if client.adapter_bytes is None and client.device:
        heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        sides = (model.hidden_size + heads) + 2 * model.hidden_size + 3 * (model.hidden_size + model.intermediate_size)
        num_bytes = 2 * RANK * sides * model.num_layers
        missing = max(0.0, 1.0 - slots / max(sum(one.count for one in wanted), 1))
        loads = missing * num_bytes / load_device(client.device, base_dir).host_bandwidth
        yield Assumption("adapter loads", "no time", f"{num_bytes / 1e6:.0f} MB each (rank {RANK})",
                         {f"{path}.adapter_bytes": num_bytes}, Change(prompt_s={number: loads}))
    if client.hardware.value_of("lora") is not None and model.mla is None:
        if not scenario.source.chosen(f"{path}.hardware.lora.rank"):
            lora = client.hardware.lora.model_copy(update={"rank": HIGH_RANK})
            yield Assumption("adapter rank", f"{client.hardware.lora.rank}, vLLM's max_lora_rank", f"{HIGH_RANK}",
                             {f"{path}.hardware.kind": "composed", f"{path}.hardware.lora.rank": HIGH_RANK},
                             Change(hardware={number: {"lora": lora.model_dump()}}))
    elif not scenario.source.chosen(f"{path}.adjust.fixed"):
        seconds = 8 * model.num_layers * KERNEL_S   # two kernels for each of the four products of a layer
        kernels = f"two kernels of {KERNEL_S * 1e6:g} us a product"
        yield Assumption("adapter work", "none", f"{kernels}, {_ms(seconds)} a step",
                         {f"{path}.adjust.fixed": f"{seconds * 1e3:g} ms"}, Change(fixed_s={number: seconds}))


def _links(scenario: Scenario) -> Iterator[Assumption]:
    """Links between clients, where the scenario names no network."""
    if scenario.source.chosen("network"):
        return
    network = scenario.network
    roles = {client.name for client in scenario.clients if client.role != "both"}
    if roles:
        now = bandwidth_of(network)
        if now is None:
            yield Assumption("KV link", "KV moves between clients in no time", f"{KV_LINK / GB:g} GB/s",
                             {"network": {"kind": "link", "bandwidth": f"{KV_LINK / GB:g} GB/s"}},
                             Change(kv_bytes_per_s=KV_LINK))
        else:
            yield Assumption("KV link", f"KV moves at {now / GB:g} GB/s a client", f"{now / 2 / GB:g} GB/s",
                             {"network": {"kind": network.kind, "bandwidth": f"{now / 2 / GB:g} GB/s"}},
                             Change(kv_bytes_per_s=now / 2))
    if len({client.name for client in scenario.clients}) > max(len(roles), 1):
        settings = {"network": {"kind": "link", "bandwidth": f"{OTHER_LINK / GB:g} GB/s"}}
        yield Assumption("network", "data between stages moves in no time", f"links of {OTHER_LINK / GB:g} GB/s",
                         {} if roles else settings, Change(other_bytes_per_s=OTHER_LINK))


def _prices(scenario: Scenario) -> Iterator[Assumption]:
    """Machines without a price: the cost leaves them out."""
    wanted = []
    for number, client in enumerate(scenario.clients):
        path = f"clients.{number}.price_per_hour"
        has_one = "price_per_hour" not in type(client).model_fields or client.value_of("price_per_hour") is not None
        if has_one or scenario.source.chosen(path):
            continue
        device = _device(scenario, number)
        if device is None or device.price_per_hour is None:
            wanted.append(path)
    if wanted:
        yield Assumption("prices", "machines without a price cost nothing", "$1 an hour a device",
                         dict.fromkeys(wanted, 1.0), Change(unpriced_dollars=1.0))


def _device(scenario: Scenario, number: int) -> DeviceDescription | None:
    """Return the device of a client: its own, or its hardware model's."""
    client, source = scenario.clients[number], scenario.source
    if client.value_of("device"):
        return load_device(client.value_of("device"), source.base_dir)
    return hardware_info(source.hardware[number]).device if number in source.hardware else None


def _watts(scenario: Scenario) -> Iterator[Assumption]:
    """Devices whose watts were not measured."""
    for number, client in enumerate(scenario.clients):
        device, built = _device(scenario, number), scenario.source.hardware.get(number)
        measured = built is not None and hardware_info(built).power is not None
        if device is None or measured or client.value_of("power") is not None or device_power(device) is None:
            continue
        trust = watts_trust(device)
        if trust.kind == "guess":
            yield Assumption("watts", f"of {device.name}: {trust.text()}", f"{trust.high * 100 - 100:+.0f}%", {},
                             Change(watts={number: trust.high}))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
