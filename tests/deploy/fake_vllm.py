"""A stand-in for `vllm_alone.py --serve`: HERMES's own scheduler behind the same lines of JSON.

Without drafts it is synchronous; with them it plans ahead where the settings say so.
"""

import json
import os
import sys

from hermes.core.generation import Generation
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import AT_REST
from hermes.schedulers.chunked_config import ChunkedConfig


class Given:
    """Accepted drafts that each request brings with it."""

    def __init__(self):
        self.of = []

    def draw(self, sequence, verified):
        return self.of[sequence][verified % len(self.of[sequence])]


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    print(json.dumps({"version": os.environ.get("FAKE_VLLM", "0.33.0"), "commit": "abc"}), flush=True)
    drafts = settings.get("num_speculative_tokens", 0)
    scheduler = ChunkedConfig(
        max_num_batched_tokens=settings["max_num_batched_tokens"], max_num_seqs=settings["max_num_seqs"],
        policy=settings["scheduling_policy"], async_scheduling=bool(drafts) and settings["async_scheduling"],
        speculative={"method": settings["speculative_method"], "num_speculative_tokens": drafts,
                     "acceptance_rate": 0} if drafts else None, **settings["scheduler_config"],
    ).build(BlockPool(settings["num_blocks"], settings["block_size"]), every_step=True)
    accepted = Given()
    if drafts:
        scheduler.drafts.acceptance = accepted
    seqs = {}
    plan, step = None, 0
    for line in sys.stdin:
        asked = json.loads(line)
        if "add" in asked:
            for one in asked["add"]:
                seq = Generation(one["prompt_tokens"], one["output_tokens"], one["priority"], arrival_order=len(seqs))
                seq.request = one["id"]
                seq.max_new_tokens = one["max_new_tokens"]
                seq.stops_early = seq.max_new_tokens > seq.output_tokens
                seqs[one["id"]] = seq
                accepted.of.append(one["accepted"])
                scheduler.enqueue(seq)
            victims = []
            plan = scheduler.plan(1)
            while plan is not None and not (plan.prefills or plan.decodes):   # it only preempted
                victims += [seq.request for seq in plan.preempted]
                scheduler.complete(plan, 1, step, step)
                plan = scheduler.plan(1)
            answer = None if plan is None else {
                "scheduled": scheduled(scheduler, plan),
                "preempted": [*victims, *(seq.request for seq in plan.preempted)],
                "free_blocks_after": scheduler.pool.free_blocks,
                "drafts": {share.seq.request: share.drafts for share in shares(scheduler) if share.drafts}}
        elif "abort" in asked:
            gone = seqs[asked["abort"]]
            scheduler.leave(gone, AT_REST)
            if plan is not None:
                plan.prefills = [item for item in plan.prefills if item[0] is not gone]
                plan.decodes |= not plan.prefills
            answer = {"free_blocks": scheduler.pool.free_blocks}
        else:
            before = {seq: seq.num_tokens for seq, _n in plan.prefills}
            finished = scheduler.complete(plan, 1, step, step)
            step += 1
            # those that go on decoding joined the group, whose clock counts their tokens
            tokens = [[seq.request, seq.num_tokens - before[seq] if drafts else 1] for seq in before
                      if seq.num_tokens > before[seq]]
            for seq in finished:
                scheduler.release(seq)
            answer = {"tokens": tokens, "free_blocks": scheduler.pool.free_blocks}
        print(json.dumps(answer), flush=True)


def shares(scheduler):
    """The parts of the batch that runs next, of a scheduler with drafts: also of sequences that have ended."""
    return scheduler._batches[0].shares.values() if hasattr(scheduler, "_batches") else ()


def scheduled(scheduler, plan):
    """Rows of a batch: request, tokens, tokens before them."""
    if hasattr(scheduler, "_batches"):
        return [[share.seq.request, share.num_tokens, share.past] for share in shares(scheduler)]
    return [[seq.request, n, seq.num_computed - n] for seq, n in plan.prefills]


if __name__ == "__main__":
    main()
