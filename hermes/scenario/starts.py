"""Whether an engine starts with the flags that a client stands for: vLLM refuses KV memory below one longest request
(`check_enough_kv_cache_memory` of vllm/v1/core/kv_cache_utils.py). SGLang and TensorRT-LLM start with less."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hermes.clients.consistency import longest_request
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.capacity import KvBudget
from hermes.hardware.info import hardware_info

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig
    from hermes.scenario.schema import Scenario

__all__ = ["budgets", "check_starts"]

GIB = 2**30
ROUND = 256   # tokens of a `--max-model-len` that is proposed


def _does_not_start(config: LLMClientConfig, budget: KvBudget, longest: int | None) -> str | None:
    """Return why a client's engine does not start, None if it does or its memory is not summed up here."""
    if not config.scheduler.follows_engine or budget.source != "computed" or budget.rules.sums != "vllm":
        return None
    return None if longest is None or budget.fits(longest) >= 1 else _why(budget, longest)


def _why(budget: KvBudget, longest: int) -> str:
    fits = budget.fits(longest)
    need = budget.device_bytes / max(fits, 1e-9)
    room = longest
    while room > ROUND and budget.fits(room) < 1:   # layers with windows hold as much of a shorter one
        room = math.floor(room * 0.9 / ROUND) * ROUND
    helps = [f"--max-model-len {room}"] if budget.fits(room) >= 1 else []
    share = budget.utilization + (need - budget.device_bytes) / budget.capacity.bytes
    if share <= 0.97:
        helps.append(f"--gpu-memory-utilization {math.ceil(100 * share) / 100:g}")
    helps.append("more devices (tp)")
    return (f"the engine does not start: KV memory of {budget.device_bytes / GIB:.2f} GiB a device, one request of "
            f"{longest:,} tokens (max_model_len) needs {need / GIB:.2f} GiB; {' or '.join(helps)} would help")


def budgets(scenario: Scenario) -> Iterator[tuple[LLMClientConfig, KvBudget, int | None, str | None]]:
    """Yield each group of LLM clients, its memory, the tokens of its longest request, and why it does not start."""
    source = scenario.source
    for number, config in enumerate(scenario.clients):
        if number in source.hardware and config.serves_llm:
            hardware = source.hardware[number]
            with inside(f"clients.{number}"):
                budget = config.engine_memory(hardware, source.base_dir)
                model = config.memory_model(hardware_info(hardware), source.base_dir)
                longest = longest_request(config, model, source.base_dir)
            yield config, budget, longest, _does_not_start(config, budget, longest)


def check_starts(scenario: Scenario) -> None:
    """Raise `InputError` for the first of a scenario's clients whose engine does not start."""
    for config, _, _, why in budgets(scenario):
        if why is not None:
            raise InputError(Verbatim(why), field=f"clients.{scenario.clients.index(config)}.max_model_len")
