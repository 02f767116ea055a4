"""The picture of a step on the page of extension modules: hooks in the order in which a scheduler calls them."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from hermes.core.generation import Generation
from hermes.memory import BlockPool
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.parts import SchedulerPart, Turn

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "extension-modules.md"
PICTURE = re.search(r"```text\n(before_plan.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
HOOKS = re.findall(r"(?m)^ *(\w+) {3,}", PICTURE)
OF_A_SEQUENCE = re.findall(r"(?m)^ +(\w+) {3,}", PICTURE)


def logging(log):
    """Return a part that notes each hook of the picture when it is called."""
    def noting(hook):
        def noted(self, *arguments, **named):
            log.append(hook)
            return getattr(SchedulerPart, hook)(self, *arguments, **named)
        return noted

    return type("Logging", (SchedulerPart,), {"turn": Turn.ADAPTERS} | {hook: noting(hook) for hook in HOOKS})()


def steps_of(async_scheduling):
    """Yield the hooks of each step: three sequences, which 28 blocks of one token do not hold at once."""
    log = []
    config = ChunkedConfig(max_num_seqs=4, max_num_batched_tokens=16, async_scheduling=async_scheduling)
    scheduler = config.build_with(BlockPool(28, 1), [logging(log)], every_step=True)
    for number in range(3):
        scheduler.enqueue(Generation(10, 8, 0, arrival_order=number))
    for step in range(60):
        plan = scheduler.plan(1)
        if plan is None:
            break
        scheduler.complete(plan, 1, step, step)
        yield list(log)
        log.clear()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_hooks_are_called_in_the_order_of_the_picture(async_scheduling):
    stage = {hook: number for number, hook in enumerate(HOOKS)}
    stage |= dict.fromkeys(("due", "may_preempt", "preempted"), stage["due"])
    stage |= dict.fromkeys(OF_A_SEQUENCE[3:], stage["consider"])
    seen = set()
    for hooks in steps_of(async_scheduling):
        assert [stage[hook] for hook in hooks] == sorted(stage[hook] for hook in hooks), hooks
        for one, then in pairwise(hook for hook in hooks if stage[hook] == stage["consider"]):
            assert then == "consider" or HOOKS.index(one) < HOOKS.index(then), hooks
        seen |= set(hooks)
    assert seen >= set(HOOKS) - {"leaving"}
    assert ("leaving" in seen) == async_scheduling


def test_the_picture_has_every_hook_of_a_step():
    own = list(vars(SchedulerPart))
    of_a_step = own[own.index("before_plan"):own.index("may_preempt") + 1]
    assert set(of_a_step) - {"skips_for", "unsettled"} | {"preempted"} == set(HOOKS)
