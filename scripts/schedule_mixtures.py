"""Draw mixtures of settings and requests for recordings: options of the scheduler in random company.

A mixture has the form of a recorded schedule without its steps (docs/reference/schedules.md). The same seed gives the
same mixture. `scripts/next_engine.py` serves them with an engine and replays what it recorded.
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["DRAFTERS", "joined", "mixture", "mixtures", "talks"]

Row = dict[str, Any]
DRAFTERS = ("eagle", "eagle3", "mtp", "draft_model", "ngram")


PARTS = ("drafts", "adapters", "local", "ranks", "adapters local", "")
"""What one mixture has of the options that are parts of the scheduler's loop; `local` and `ranks` are the interval of
prefills of an engine without ranks and of one with them."""
DRAFTED = ("drafts adapters", "drafts local", "drafts ranks", "drafts adapters local")
"""Drafts with each of the others."""


def mixtures(count: int, seed: int, *, asynchronous: bool, drafters: tuple[str, ...] = DRAFTERS,
             parts: tuple[str, ...] = PARTS) -> list[Row]:
    """Return so many mixtures. drafters: Methods of speculative decoding to draw from; parts: As `PARTS`."""
    return [mixture(seed + number, asynchronous=asynchronous, drafters=drafters, parts=parts)
            for number in range(count)]


def mixture(seed: int, *, asynchronous: bool, drafters: tuple[str, ...] = DRAFTERS,
            parts: tuple[str, ...] = PARTS) -> Row:
    """Return one mixture."""
    draw = random.Random(f"{seed} {asynchronous}")
    size = draw.choice((4, 8, 16, 16, 32))
    requests = _requests(draw)
    longest = max(-(-(one["prompt_tokens"] + one["output_tokens"] + 24) // size) for one in requests)
    plan: Row = {
        "case": f"{'mixture' if parts == PARTS else 'drafted'}{'-async' if asynchronous else ''}", "seed": seed,
        "max_num_batched_tokens": draw.choice((48, 96, 128, 192, 256)), "max_num_seqs": draw.choice((6, 8, 12, 16)),
        "num_blocks": int(longest * draw.uniform(1.1, 3.5)) + 1, "block_size": size,
        "prefix_caching": draw.random() < 0.5, "scheduling_policy": draw.choice(("fcfs", "priority", "priority")),
        "long_prefill_token_threshold": draw.choice((0, 0, 0, 24, 40)),
    }
    if draw.random() < 0.2:
        plan["watermark"] = draw.choice((0.02, 0.1))
    if draw.random() < 0.2:
        plan["reserve_full_isl"] = False
    if plan["long_prefill_token_threshold"] and draw.random() < 0.4:
        plan["adaptive_cap"] = True
    if asynchronous:
        plan["async_scheduling"] = True
    part = draw.choice(parts)
    if "drafts" in part:
        drafts = draw.randint(1, 4)
        plan |= {"num_speculative_tokens": drafts,
                 "speculative_method": draw.choice(drafters),
                 "accepted": [draw.randint(0, drafts) for _ in range(23)]}
    options: Row = {}
    if draw.random() < 0.15:
        options["max_num_scheduled_tokens"] = plan["max_num_batched_tokens"] * 3 // 4
    if draw.random() < 0.15:
        options["max_num_active_seqs"] = draw.randint(3, plan["max_num_seqs"])
    if "adapters" in part:
        plan["max_loras"] = draw.randint(1, 3)
        for one in requests:
            one["adapter"] = draw.randint(0, 4)
    if "local" in part or "ranks" in part:
        options["prefill_schedule_interval"] = draw.randint(2, 9)
        if "local" in part:
            plan["local_interval"] = True
    if options:
        plan["scheduler_config"] = options
    if "drafts" not in part and draw.random() < 0.2:
        for one in requests:
            if draw.random() < 0.25:
                one["abort_step"] = one["arrival_step"] + draw.randint(1, 30)
    return plan | {"requests": requests}


def talks(count: int, seed: int, *, asynchronous: bool) -> list[Row]:
    """Return so many mixtures of conversations, whose answers come back in prompts, with drafts and a prefix cache."""
    return [_talk(seed + number, asynchronous=asynchronous) for number in range(count)]


def _talk(seed: int, *, asynchronous: bool) -> Row:
    draw = random.Random(f"talks {seed} {asynchronous}")
    size, drafts = draw.choice((2, 4, 8, 16)), draw.randint(1, 4)
    requests = _turns(draw)
    longest = max(-(-(one["prompt_tokens"] + one["output_tokens"] + 24) // size) for one in requests)
    plan: Row = {
        "case": f"talk{'-async' if asynchronous else ''}", "seed": seed,
        "max_num_batched_tokens": draw.choice((48, 96, 192)), "max_num_seqs": draw.choice((3, 8, 12)),
        "num_blocks": int(longest * draw.uniform(1.1, 4)) + 1, "block_size": size, "prefix_caching": True,
        "scheduling_policy": draw.choice(("fcfs", "fcfs", "priority")),
        "long_prefill_token_threshold": draw.choice((0, 0, 0, 24)),
        "num_speculative_tokens": drafts, "speculative_method": draw.choice(("eagle", "mtp")),
        "accepted": [draw.randint(0, drafts) for _ in range(23)]}
    return plan | ({"async_scheduling": True} if asynchronous else {}) | {"requests": requests}


def joined(count: int, seed: int, *, asynchronous: bool, host: bool) -> list[Row]:
    """Return so many mixtures of conversations and single requests that end by stop tokens, by their length or because
    their clients give up, each with some of drafts, LoRA slots and an interval of prefills.

    host: Whether KV is offloaded to host memory.
    """
    return [_joined(seed + number, asynchronous=asynchronous, host=host) for number in range(count)]


def _joined(seed: int, *, asynchronous: bool, host: bool) -> Row:
    draw = random.Random(f"joined {seed} {asynchronous} {host}")
    size = draw.choice((4, 8, 16))
    requests = _turns(draw)
    adapters = [draw.randint(0, 3) for _group in range(9)]
    for one in _requests(draw)[:10]:   # single ones, of other groups
        one["prefix_group"] = None if one["prefix_group"] is None else 100 + one["prefix_group"]
        if draw.random() < 0.4:
            one["max_new_tokens"] = one["output_tokens"] + draw.randint(1, 30)
        requests.append(one)
    requests.sort(key=lambda one: one["arrival_step"])
    longest = max(-(-(one["prompt_tokens"] + one["output_tokens"] + 24) // size) for one in requests)
    plan: Row = {
        "case": f"joined{'-host' if host else ''}{'-async' if asynchronous else ''}", "seed": seed,
        "max_num_batched_tokens": draw.choice((48, 96, 192)), "max_num_seqs": draw.choice((3, 6, 12)),
        "num_blocks": int(longest * draw.uniform(1.1, 2 if host else 3)) + 1, "block_size": size,
        "prefix_caching": True,
        "scheduling_policy": draw.choice(("fcfs", "fcfs", "priority")),
        "long_prefill_token_threshold": draw.choice((0, 0, 0, 24)), "async_scheduling": asynchronous}
    if draw.random() < 0.2:
        plan["watermark"] = draw.choice((0.02, 0.1))
    if draw.random() < 0.2:
        plan["reserve_full_isl"] = False
    if draw.random() < 0.5:
        drafts = draw.randint(1, 4)
        plan |= {"num_speculative_tokens": drafts, "speculative_method": draw.choice(("eagle", "mtp", "ngram")),
                 "accepted": [draw.randint(0, drafts) for _ in range(23)]}
    if draw.random() < 0.5:
        plan["max_loras"] = draw.randint(1, 3)
    if draw.random() < 0.4:
        plan |= {"scheduler_config": {"prefill_schedule_interval": draw.randint(2, 6)}, "local_interval": True}
    if host:
        plan |= {
            "host_chunks": 0, "blocks_per_chunk": draw.choice((1, 1, 2, 3)),
            "eviction_policy": draw.choice(("lru", "lru", "arc")), "offload_prompt_only": draw.random() < 0.3,
            "store_threshold": draw.choice((0, 0, 0, 2)), "load_steps": draw.randint(0, 4),
            "store_steps": draw.randint(0, 2), "blocks_per_step": draw.choice((0, 0, 2, 4))}
        plan["host_chunks"] = int(longest / plan["blocks_per_chunk"] * draw.uniform(1, 9)) + 1
    for number, one in enumerate(requests):
        one["id"] = number
        if "max_loras" in plan:
            group = one.get("prefix_group")
            one["adapter"] = adapters[(number if group is None else group) % len(adapters)]
        if not {"abort_step", "abort_in_step"} & one.keys() and draw.random() < (0.3 if host else 0.15):
            waits = draw.choice((draw.randint(0, 4), draw.randint(0, 25)))   # while it loads, or later
            arrival = one["arrival_step"]
            one |= {"abort_in_step": arrival + waits} if draw.random() < 0.5 else {"abort_step": arrival + waits + 1}
    return plan | {"requests": requests}


def _turns(draw: random.Random) -> list[Row]:
    """Return the turns of a few conversations. All of a request's text is that of its conversation, its answer too."""
    found: list[Row] = []
    most, levels = draw.choice((8, 30)), draw.choice((1, 3))
    for group in range(draw.randint(3, 6)):
        arrival, text = draw.randint(0, 30), draw.randint(4, 60)
        for _turn in range(draw.randint(2, 5)):
            prompt, answer = text + draw.randint(1, 20), draw.randint(1, most)
            one: Row = {"arrival_step": arrival, "prompt_tokens": prompt, "output_tokens": answer,
                        "priority": draw.randrange(levels), "prefix_group": group, "prefix_tokens": prompt + answer}
            if draw.random() < 0.7:
                one["max_new_tokens"] = answer + draw.randint(1, 40)
            if draw.random() < 0.15:
                waits = draw.randint(0, 30)
                while_running = draw.random() < 0.5
                one |= {"abort_in_step": arrival + waits} if while_running else {"abort_step": arrival + waits + 1}
            found.append(one)
            if draw.random() < 0.8:   # else the same prompt again
                text = prompt + answer
            arrival += draw.choice((answer // 2, answer + draw.randint(2, 20)))
    found.sort(key=lambda one: one["arrival_step"])
    return [{"id": number, **one} for number, one in enumerate(found)]


def _requests(draw: random.Random) -> list[Row]:
    """Return 14 to 22 requests, some of which begin alike."""
    arrival, levels = 0, draw.choice((1, 2, 4))
    texts = {group: draw.randint(10, 120) for group in range(draw.randint(1, 3))}
    longest, most = draw.choice((60, 140)), draw.choice((12, 40))
    gap = draw.choice((1, 3, 6))
    found = []
    for number in range(draw.randint(14, 22)):
        arrival += draw.choice((0, 0, draw.randint(1, gap), draw.randint(1, gap)))
        if draw.random() < 0.04:
            arrival += 40   # the engine falls idle
        prompt = draw.randint(4, longest)
        group = draw.choice([None, *texts])
        shared = 0 if group is None else min(prompt, texts[group], draw.choice((prompt, draw.randint(0, prompt))))
        found.append({"id": number, "arrival_step": arrival, "prompt_tokens": prompt,
                      "output_tokens": draw.randint(1, most), "priority": draw.randrange(levels),
                      "prefix_group": group if shared else None, "prefix_tokens": shared})
    return found
