"""Defaults of an engine that may decide a result: its version, its KV memory and KV precision, its prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.hardware.descriptions.engines import NEWEST_ENGINE, load_engine
from hermes.hardware.info import hardware_info
from hermes.scenario.assumption import Assumption, Change
from hermes.scenario.schema import Source

__all__ = ["of_engine", "of_version"]

OLDER_ENGINE = "vllm-0.19"   # the first version whose rules are modelled (`hermes.hardware.descriptions.engines.Rules`)
LESS = 0.05                  # of the device's memory


def of_engine(client: Any, source: Source, number: int) -> Iterator[Assumption]:
    """Yield the defaults of one group of LLM clients.

    Args:
        client: Its configuration (`LLMClientConfig`), completed.
        number: Its place in `clients`.
    """
    path = f"clients.{number}"
    device = hardware_info(source.hardware[number]).device if number in source.hardware else None
    if client.hardware.kind == "composed":
        free = client.memory.kv_bits is None and client.memory.kv_bytes_per_token is None
        if free and client.hardware.kv_dtype == "auto" and device is not None and "fp8" in device.flops:
            yield Assumption("KV precision", "that of the activations", "fp8",
                             {f"{path}.hardware.kind": "composed", f"{path}.hardware.kv_dtype": "fp8"},
                             Change(hardware={number: {"kv_dtype": "fp8"}}))
    memory = client.memory
    share = memory.utilization
    if share and share > LESS and memory.num_blocks is None and device is not None and not source.chosen(
            f"{path}.memory.utilization"):
        yield Assumption("gpu_memory_utilization", f"{share:g}", f"{share - LESS:g}",
                         {f"{path}.memory.utilization": round(share - LESS, 6)}, decides="KV memory",
                         bytes=LESS * device.memory)
    if memory.prefix_caching and not source.chosen(f"{path}.memory.prefix_caching"):
        yield Assumption("prefix caching", "on", "off", {f"{path}.memory.prefix_caching": False},
                         Change(whole_prompts={number: True}))


def of_version(client: Any, source: Source, number: int) -> Iterator[Assumption]:
    """Yield the version of a group whose scheduler follows vLLM's rules, and rules that stand in for an engine's own.
    Arguments as in `of_engine`."""
    path = f"clients.{number}.engine"
    if client.scheduler.kind != "chunked":
        return
    stands_in = load_engine(client.engine or NEWEST_ENGINE).stands_in
    if stands_in:
        yield Assumption("scheduling rules", f"those of {stands_in} for {client.engine}", f"those of {OLDER_ENGINE}",
                         {path: OLDER_ENGINE}, decides="rules")
    elif client.hardware.kind == "composed" and not source.chosen(path):
        yield Assumption("engine version", NEWEST_ENGINE, OLDER_ENGINE, {path: OLDER_ENGINE}, decides="rules")
