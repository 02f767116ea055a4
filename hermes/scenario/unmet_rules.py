"""Whether two versions of an engine would have run a simulation alike.

Versions of vLLM differ in what happens after a preemption, in the order in which cached blocks are given up, in caps on
long prompts, in adapters, drafts, ranks and copies of KV, and in their share of the device's memory
(`hermes.schedulers.chunked_config`). A run that met none of these is the same under both, and is not simulated again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hermes.errors import InputError
from hermes.hardware.descriptions.engines import load_engine
from hermes.scenario.document import with_settings

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig
    from hermes.core.record import RunRecord
    from hermes.scenario.schema import Scenario

__all__ = ["alike"]


def alike(scenario: Scenario, settings: Mapping[str, object], record: RunRecord) -> bool:
    """Whether other engines of a scenario's clients would have run it alike; False where that is not certain.

    settings: `clients.N.engine` -> the other engine. record: The scenario's run.
    """
    if record.stages["preemptions"].any() or record.stages["cached_tokens"].any():
        return False
    try:
        other = with_settings(scenario, settings)
    except InputError:   # the other engine lacks an option of the scenario
        return False
    return all(_same(one, after) and _fits(other, number, record)
               for number, (one, after) in enumerate(zip(scenario.clients, other.clients, strict=True)) if one != after)


def _same(client: LLMClientConfig, other: LLMClientConfig) -> bool:
    """Whether no option of a client has rules that depend on the version, and both engines take the same times."""
    options, mine, its = client.scheduler, client.model_dump(), other.model_dump()
    for one in (mine, its):
        one["engine"] = one["hardware"]["engine"] = one["memory"]["utilization"] = None
    times, others = ((each.step, each.all_reduce, each.kernels, each.frontend)
                     for each in (load_engine(str(client.engine)), load_engine(str(other.engine))))
    return mine == its and times == others and client.role == "both" and client.fleet is None and not (
        options.parts() or options.long_prefill_token_threshold or options.adaptive_long_prefill_threshold
        or options.watermark or client.memory.kv_offload or client.parallel.dp * client.parallel.pp > 1)


def _fits(other: Scenario, number: int, record: RunRecord) -> bool:
    """Whether the blocks of another engine would have sufficed whenever a sequence was admitted or grew."""
    client, source, runs = other.clients[number], other.source, record.runs
    budget = client.engine_memory(source.hardware[number], source.base_dir)
    mine = [place for place, info in enumerate(record.clients) if info.name in client.names]
    peak = max([int(runs["used_blocks"][np.isin(runs["client"], mine)].max(initial=0)),
                *(record.clients[place].peak_blocks_inside for place in mine)])
    longest = int((record.stages["prompt_tokens"] + record.stages["output_tokens"]).max(initial=1))
    return budget.windows is None and peak + longest // budget.block_size + 2 <= budget.num_blocks
