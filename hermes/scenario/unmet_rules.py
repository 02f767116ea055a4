"""Whether two versions of an engine would have run a simulation alike.

Versions of vLLM differ in what happens after a preemption, in the order in which cached blocks are given up, in caps on
long prompts, in adapters, drafts, ranks and copies of KV, and in their share of the device's memory
(`hermes.schedulers.chunked_config`). A run that met none of these is the same under both, and is not simulated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.errors import InputError
from hermes.hardware.descriptions.engines import load_engine
from hermes.scenario.document import with_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hermes.clients.config import LLMClientConfig
    from hermes.core.record import RunRecord
    from hermes.scenario.schema import Scenario

__all__ = ["alike"]


def alike(scenario: Scenario, settings: Mapping[str, Any], record: RunRecord) -> bool:
    """Whether other engines of a scenario's clients would have run it alike; False where that is not certain.

    Args:
        settings: `clients.N.engine` -> the other engine.
        record: The scenario's run, with these clients for the whole of it.
    """
    if record.stages["preemptions"].any() or record.stages["cached_tokens"].any():
        return False
    try:
        other = with_settings(scenario, settings)
    except InputError:   # the other engine lacks an option of the scenario
        return False
    return all(one.model_dump() == after.model_dump() or (
        _without_rules(one) and _same_settings(one, after) and _same_times(one, after) and _fits(other, number, record))
        for number, (one, after) in enumerate(zip(scenario.clients, other.clients, strict=True)))


def _without_rules(client: LLMClientConfig) -> bool:
    """Whether a client has no option whose rules depend on the version."""
    options = client.scheduler
    return (client.role == "both" and client.value_of("fleet") is None and not options.parts()
            and not options.long_prefill_token_threshold and not options.adaptive_long_prefill_threshold
            and not options.watermark and client.memory.kv_offload is None
            and client.parallel.dp == client.parallel.pp == 1)


def _same_settings(client: LLMClientConfig, other: LLMClientConfig) -> bool:
    mine, its = client.model_dump(), other.model_dump()
    for one in (mine, its):
        one["engine"] = one["hardware"]["engine"] = one["memory"]["utilization"] = None
    return mine == its


def _same_times(client: LLMClientConfig, other: LLMClientConfig) -> bool:
    """Whether both engines take the same time for their own work, and launch the same kernels."""
    mine, its = (load_engine(str(one.engine)) for one in (client, other))
    return (mine.step, mine.all_reduce, mine.kernels, mine.frontend) == (
        its.step, its.all_reduce, its.kernels, its.frontend)


def _fits(other: Scenario, number: int, record: RunRecord) -> bool:
    """Whether the blocks of another engine would have sufficed whenever a sequence was admitted or grew."""
    client, source = other.clients[number], other.source
    budget = client.engine_memory(source.hardware[number], source.base_dir)
    names = set(client.names)
    mine = np.array([place for place, info in enumerate(record.clients) if info.name in names])
    runs = record.runs
    peak = max(int(runs["used_blocks"][np.isin(runs["client"], mine)].max(initial=0)),
               *(record.clients[place].peak_blocks_inside for place in mine))
    longest = int(max((record.stages["prompt_tokens"] + record.stages["output_tokens"]).max(initial=0), 1))
    return budget.windows is None and peak + longest // budget.block_size + 2 <= budget.num_blocks
