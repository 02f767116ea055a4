"""vLLM's own scheduler with its OffloadingConnector, alone. Run by an interpreter that has vLLM.

    PYTHON vllm_offload_alone.py < CASES.json > ANSWERS.json

CASES is a list of objects with `settings` and `requests`, as in a schedule recorded with host memory
(docs/reference/schedules.md). ANSWERS holds `version` and `steps`, a list of rows for each case.

The scheduler side of the connector is the engine's own: lookups, jobs, capacity, eviction. This script plays the
workers. It reads the jobs from the metadata of each schedule and reports each as complete in the output of a later
batch: a load after `load_steps` batches, a store `store_steps` batches after the next one began (workers submit stores
with the next batch). `blocks_per_step`, if given, adds one batch for each further so many blocks of a job. Jobs that
the connector flushes are complete in the batch that flushes them, because the workers wait for them.

A request with an `abort_step` is cancelled before the schedule with this number, one with an `abort_in_step` before the
results of that batch are processed, as EngineCore does with what it finds in its queue. With `max_new_tokens` a stop
token ends a request before the tokens that it asks for.

The engine visits requests that end together in the order of a Python set of texts, which differs from process to
process. Here that order is the one in which they ended.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = 2**16   # tokens of one group's text
ALONE = Path(__file__).resolve().parents[2] / "hermes" / "deploy" / "vllm_alone.py"
OWN = 2**30     # tokens from here on belong to one request
STOP = OWN - 1   # the token that ends an answer early; no text has it elsewhere


class InOrder(set[str]):
    """A set that is visited in the order of insertion."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[str, None] = {}

    def add(self, name: str) -> None:
        super().add(name)
        self._order[name] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)


def token(request: dict[str, Any], place: int) -> int:
    """Return the token at a place of prompt or answer."""
    if place < request["prefix_tokens"]:
        return int(request["prefix_group"]) * GROUP + place
    return OWN + int(request["id"])


def stop_token(request: dict[str, Any]) -> int:
    """Return the token that ends a request early: the last of its answer if its group's text has it, else `STOP`."""
    last = token(request, request["prompt_tokens"] + request["output_tokens"] - 1)
    return last if last < OWN else STOP


def sampled(request: dict[str, Any], place: int) -> int:
    """Return the token at a place of the answer: the last one of an answer that ends early is the stop token."""
    early = (request.get("max_new_tokens") or 0) > request["output_tokens"]
    if early and place == request["prompt_tokens"] + request["output_tokens"] - 1:
        return stop_token(request)
    return token(request, place)


def make(settings: dict[str, Any], alone: ModuleType) -> Any:
    """Return a scheduler with an OffloadingConnector of `host_chunks` chunks."""
    from vllm.config import KVTransferConfig
    from vllm.v1 import kv_cache_interface

    block_bytes = 2 * settings["block_size"] * 8 * 4   # of the one layer that `vllm_alone` gives its model
    chunk_bytes = -(-block_bytes * settings["blocks_per_chunk"] // 4096) * 4096   # whole pages of memory
    transfer = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={
        "cpu_bytes_to_use": settings["host_chunks"] * chunk_bytes, "blocks_per_chunk": settings["blocks_per_chunk"],
        "eviction_policy": settings["eviction_policy"], "offload_prompt_only": settings["offload_prompt_only"],
        "store_threshold": settings["store_threshold"],
    })
    kind = kv_cache_interface.KVCacheGroupSpec   # of layers of such a drafter, as the model runner marks them
    kv_cache_interface.KVCacheGroupSpec = functools.partial(
        kind, is_eagle_group=settings.get("speculative_method") in ("eagle", "eagle3", "mtp"))
    scheduler = alone.make(settings, kv_transfer_config=transfer)
    kv_cache_interface.KVCacheGroupSpec = kind
    held = scheduler.connector.connector_scheduler.manager._num_chunks
    if held != settings["host_chunks"]:
        raise RuntimeError(f"the host cache has {held} chunks instead of {settings['host_chunks']}")
    return scheduler


def duration(settings: dict[str, Any], name: str, blocks: int) -> int:
    """Return the batches that a job of so many blocks takes."""
    per_step = settings["blocks_per_step"]
    return int(settings[name]) + ((blocks - 1) // per_step if per_step else 0)


class Workers:
    """Jobs under way, each with the batch in whose output it is complete."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.due: dict[int, tuple[int, str | None]] = {}   # job -> (batch, request that waits for it)

    def take(self, batch: int, meta: Any) -> None:
        """Take the jobs of a batch's metadata."""
        for job, transfer in meta.load_jobs.items():
            blocks = len(transfer.dst_spec.block_ids)
            self.due[job] = batch + duration(self.settings, "load_steps", blocks), transfer.req_id
        for job, transfer in meta.store_jobs.items():
            blocks = len(transfer.src_spec.block_ids)
            self.due[job] = batch + 1 + duration(self.settings, "store_steps", blocks), None
        for job in meta.jobs_to_flush or ():
            if job in self.due:
                self.due[job] = batch, self.due[job][1]

    def complete(self, batch: int) -> tuple[list[int], set[str]]:
        """Return the jobs that the output of this batch reports, and the requests whose load is complete."""
        done = [job for job, (due, _request) in self.due.items() if due <= batch]
        loaded = {request for job in done if (request := self.due.pop(job)[1]) is not None}
        return done, loaded


def row_of(scheduler: Any, plan: Any, preempted: list[int]) -> dict[str, Any]:
    """Return what one schedule decided."""
    meta, held = plan.kv_connector_metadata, scheduler.requests
    manager = scheduler.connector.connector_scheduler.manager
    return {
        "scheduled": [[int(name), count, held[name].num_computed_tokens - count]
                      for name, count in plan.num_scheduled_tokens.items()],
        "preempted": list(preempted),
        "free_blocks_after": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "loading": [int(one.request_id) for one in scheduler.kv_holding_waiting
                    if one.status.name == "WAITING_FOR_REMOTE_KVS"],
        "loads": [[int(one.req_id), len(one.dst_spec.block_ids), len(one.src_spec.block_ids)]
                  for one in meta.load_jobs.values()],
        "stores": [[int(one.req_id), len(one.src_spec.block_ids), len(one.dst_spec.block_ids)]
                   for one in meta.store_jobs.values()],
        "flushed": len(meta.jobs_to_flush or ()),
        "host": [manager._num_allocated_chunks - len(manager._free_list), manager._num_evictable_cache_chunks],
    }


def steps_of(settings: dict[str, Any], requests: list[dict[str, Any]], alone: ModuleType) -> list[dict[str, Any]]:
    """Serve the requests; return the schedules that had something to compute, load, store or flush."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    init_none_hash(sha256)
    scheduler = make(settings, alone)
    ahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)   # from 0.33 on
    hasher = get_request_block_hasher(settings["block_size"], sha256, *([ahead] if ahead else []))
    preempted: list[int] = []
    preempt = scheduler._preempt_request

    def noted(request: Any, *more: Any, **options: Any) -> Any:
        preempted.append(int(request.request_id))
        return preempt(request, *more, **options)

    scheduler._preempt_request = noted
    scheduler.finished_req_ids = InOrder()
    by_id = {str(one["id"]): one for one in requests}
    waiting = sorted(requests, key=lambda one: (one["arrival_step"], one["id"]))
    batches = 2 if settings["async_scheduling"] else 1   # in flight
    drafts, verified = settings.get("num_speculative_tokens", 0), dict.fromkeys(by_id, 0)
    queue: deque[tuple[int, Any, dict[str, int]]] = deque()   # number, plan, tokens that it gives
    workers = Workers(settings)
    between = {str(one["id"]): one["abort_step"] for one in requests if "abort_step" in one}
    in_step = {str(one["id"]): one["abort_in_step"] for one in requests if "abort_in_step" in one}

    def cancel(due: dict[str, int], now: int) -> None:
        for name in [name for name, last in due.items() if last <= now]:
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)   # one that has ended is ignored
            del due[name]

    step = arrived = 0
    out: list[dict[str, Any]] = []
    while arrived < len(waiting) or scheduler.has_requests() or queue:
        while arrived < len(waiting) and waiting[arrived]["arrival_step"] <= step:
            one = waiting[arrived]
            scheduler.add_request(Request(**alone.accepted(
                Request.__init__, request_id=str(one["id"]), pooling_params=None,
                prompt_token_ids=[token(one, place) for place in range(one["prompt_tokens"])],
                sampling_params=SamplingParams(max_tokens=one.get("max_new_tokens") or one["output_tokens"],
                                               ignore_eos=True, stop_token_ids=[stop_token(one)]),
                eos_token_id=None, arrival_time=float(arrived), priority=one["priority"], block_hasher=hasher,
                lora_request=alone.adapter(one))))
            arrived += 1
        cancel(between, step)
        if not scheduler.has_requests() and not queue:
            step = waiting[arrived]["arrival_step"]
            continue
        if scheduler.has_requests():   # vllm/v1/engine/core.py: step, step_with_batch_queue
            preempted.clear()
            promised = {name: one.num_output_placeholders for name, one in scheduler.requests.items()}
            going_on = {one.request_id for one in scheduler.running}
            plan = scheduler.schedule()
            scheduler.finished_req_ids = InOrder()
            row = row_of(scheduler, plan, preempted)
            if any(row[name] for name in ("scheduled", "loads", "stores", "flushed")):
                out.append(row)
            workers.take(step, plan.kv_connector_metadata)
            counts, held = plan.num_scheduled_tokens, scheduler.requests
            gives = {}
            for name in counts:
                one, drafted = held[name], plan.scheduled_spec_decode_tokens.get(name, ())
                gives[name] = int(one.num_output_placeholders > promised[name] if batches > 1
                                  else one.num_computed_tokens >= one.num_tokens)
                if gives[name] and drafted and name in going_on:   # else the drafts only pad the batch
                    draws = settings["accepted"]
                    gives[name] += min(draws[verified[name] % len(draws)], len(drafted))
                    verified[name] += 1
            queue.append((step, plan, gives))
            step += 1
            if len(queue) < batches and counts:
                continue
        number, plan, gives = queue.popleft()
        cancel(in_step, number)
        ids, held = list(gives), scheduler.requests
        answers = [[sampled(by_id[name], held[name].num_tokens + i) for i in range(count)] if name in held
                   else [OWN] * count for name, count in gives.items()]   # the engine ignores those of ended requests
        done, loaded = workers.complete(number)
        scheduler.update_from_output(plan, ModelRunnerOutput(**alone.accepted(
            ModelRunnerOutput.__init__, req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=answers, logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
            kv_connector_output=KVConnectorOutput(
                finished_recving=loaded or None,
                kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(done, 1))))))
        if drafts and batches == 1:   # what drafts proposes after each step
            proposed = [[OWN] * drafts if answer else [] for answer in answers]
            scheduler.update_draft_token_ids(DraftTokenIds(ids, proposed))
    return out


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    found = importlib.util.spec_from_file_location("vllm_alone", ALONE)
    assert found is not None
    assert found.loader is not None
    alone = importlib.util.module_from_spec(found)
    found.loader.exec_module(alone)
    alone.without_device()
    import vllm

    cases = json.load(sys.stdin)
    print(json.dumps({"version": vllm.__version__, "steps": [
        steps_of(case["settings"], case["requests"], alone) for case in cases]}))


if __name__ == "__main__":
    main()
