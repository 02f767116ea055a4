"""Record entries of clients: KV memory, power and price, each with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.clients.resources import ClientResources, price
from hermes.core.client import Columns
from hermes.core.record import ClientInfo
from hermes.hardware.capacity import KvBudget
from hermes.hardware.config import name_of
from hermes.hardware.power import device_power, idle_watts, state_watts, watts

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient
    from hermes.clients.task import TaskClient, TaskClientConfig

__all__ = ["client_info", "service_info"]


def client_info(client: LLMClient, kind: str, group: str, replica: str, has: ClientResources, runs: Columns,
                ) -> ClientInfo:
    """Return an LLM client's record entry. `runs` are its own, in order. Watts and dollars cover all its devices."""
    pool, n, memory = client.scheduler.pool, has.devices, has.memory
    prefill_w, decode_w = state_watts(has.power, runs)
    low, high = memory.range if memory.capacity.bytes else (0, 0)
    return ClientInfo(
        client.name, kind, client.role, client.model, name_of(client.hardware), pool.num_blocks,
        pool.block_size, n, n * has.power.idle_w, n * prefill_w, n * decode_w, device=has.device,
        power_source=has.power.source, price_per_hour=n * has.dollars_per_hour, price_source=has.price_source,
        kv_bytes_per_token=float(memory.kv_bytes_per_token), memory_bytes=memory.capacity.bytes,
        memory_utilization=memory.utilization if memory.capacity.bytes else 0.0, weights_bytes=memory.weights.bytes,
        activation_bytes=memory.activations.bytes, engine_bytes=memory.engine.bytes, memory_source=_sources(memory),
        kv_tokens_printed=memory.printed(has.longest), kv_concurrency=memory.fits(has.longest) if has.longest else 0.0,
        kv_low_bytes=n * low, kv_high_bytes=n * high,
        group=group, replica=replica, prefix_caching=pool.caching, returns_together=client.scheduler.returns_together,
        max_num_seqs=client.scheduler.max_num_seqs, max_num_batched_tokens=client.scheduler.max_num_batched_tokens,
        peak_blocks_inside=client.peak_blocks, engine=client.scheduler.engine,
    )


def service_info(client: TaskClient, config: TaskClientConfig, kind: str) -> ClientInfo:
    """Return the entry of a client without an LLM engine: given watts, or the device's by TDP and utilisation."""
    device, n, power = client.spec.device, config.devices, config.power
    if power is not None:
        idle_w, busy_w, source = power.idle, power.prefill, "given"
    elif device is not None and (found := device_power(device)) is not None:
        used = client.utilisation()
        idle_w, (by_use, source) = idle_watts(device), found
        if used is None:
            busy_w, source = device.tdp_w or by_use.most, f"device {device.name}: TDP while it serves"
        else:   # means over the time with tasks
            busy_w = float(watts(by_use, *used))
    else:
        idle_w, busy_w, source = 0.0, 0.0, "none (no power given, and no device with a TDP)"
    dollars, whose = price(config.price_per_hour, device)
    return ClientInfo(
        client.name, kind, client.role, client.model, "" if device is None else device.name, num_devices=n,
        idle_w=n * idle_w, prefill_w=n * busy_w, decode_w=0.0, device="" if device is None else device.name,
        power_source=source, price_per_hour=n * dollars, price_source=whose, group=config.name,
    )


def _sources(memory: KvBudget) -> str:
    if memory.source != "computed":
        return memory.source
    parts = {"capacity": memory.capacity, "weights": memory.weights, "activations": memory.activations,
             "engine": memory.engine}
    return "; ".join(f"{name}: {part.source}" for name, part in parts.items())
