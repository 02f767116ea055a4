"""A stand-in for `vllm_alone.py --serve`: HERMES's own synchronous scheduler behind the same lines of JSON."""

import json
import os
import sys

from hermes.core.sequence import Sequence
from hermes.memory.blocks import BlockPool
from hermes.schedulers.chunked_config import ChunkedConfig


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    print(json.dumps({"version": os.environ.get("FAKE_VLLM", "0.32.0"), "commit": "abc"}), flush=True)
    scheduler = ChunkedConfig(
        max_num_batched_tokens=settings["max_num_batched_tokens"], max_num_seqs=settings["max_num_seqs"],
        policy=settings["scheduling_policy"], async_scheduling=False, **settings["scheduler_config"],
    ).build(BlockPool(settings["num_blocks"], settings["block_size"]), every_step=True)
    seqs = {}
    plan, step = None, 0
    for line in sys.stdin:
        asked = json.loads(line)
        if "add" in asked:
            for one in asked["add"]:
                seq = Sequence(one["prompt_tokens"], one["output_tokens"], one["priority"], arrival_order=len(seqs))
                seq.request = one["id"]
                seqs[one["id"]] = seq
                scheduler.enqueue(seq)
            victims = []
            plan = scheduler.plan(1)
            while plan is not None and not plan.prefills:   # it only preempted
                victims += [seq.request for seq in plan.preempted]
                scheduler.complete(plan, 1, step, step)
                plan = scheduler.plan(1)
            answer = None if plan is None else {
                "scheduled": [[seq.request, n, seq.num_computed - n] for seq, n in plan.prefills],
                "preempted": [*victims, *(seq.request for seq in plan.preempted)],
                "free_blocks_after": scheduler.pool.free_blocks, "drafts": {}}
        else:
            before = {seq: seq.num_tokens for seq, _n in plan.prefills}
            finished = scheduler.complete(plan, 1, step, step)
            step += 1
            # those that go on decoding joined the group, whose clock counts their tokens
            tokens = [[seq.request, 1] for seq in before if seq.num_tokens > before[seq]]
            for seq in finished:
                scheduler.release(seq)
            answer = {"tokens": tokens, "free_blocks": scheduler.pool.free_blocks}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
