"""The decode group's aggregates against sequences that count for themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes.schedulers import Generation
from hermes.schedulers.decode_group import DecodeGroup


@dataclass
class Counted:
    """What the group should know of a member."""

    seq: Generation
    computed: int
    left: int   # tokens still to compute


class GroupCounts(RuleBasedStateMachine):
    @initialize(block_size=st.sampled_from([1, 2, 3, 8]), grows=st.sampled_from([True, True, False]))
    def build(self, block_size: int, grows: bool) -> None:
        self.bs, self.grows = block_size, grows
        self.group = DecodeGroup(block_size, grows=grows)
        self.members: list[Counted] = []
        self.admissions = 0
        self.clock = 0

    @rule(prompt=st.integers(1, 40), output=st.integers(2, 30), given=st.integers(1, 29), order=st.integers(0, 100))
    def add(self, prompt: int, output: int, given: int, order: int) -> None:
        """A sequence that has its first `given` tokens; members need not join in order of admission."""
        seq = Generation(prompt, output, arrival_order=self.admissions)
        given = min(given, output - 1)
        seq.num_computed, seq.num_tokens = prompt + given - 1, prompt + given
        seq.num_blocks = -(-seq.num_computed // self.bs)
        seq.run_order = 1000 * order + self.admissions
        self.admissions += 1
        self.group.add(seq)
        self.members.append(Counted(seq, seq.num_computed, output - given))

    @precondition(lambda self: self.members)
    @rule(share=st.floats(0, 1))
    def run(self, share: float) -> None:
        """Steps up to the first completion, or fewer."""
        most = min(m.left for m in self.members)
        assert self.group.steps_to_finish() == most
        steps = max(1, int(most * share))
        self.group.advance(steps)
        self.clock += steps
        for member in self.members:
            member.computed += steps
            member.left -= steps
        done = sorted((m for m in self.members if m.left == 0), key=lambda m: m.seq.run_order)
        self.members = [m for m in self.members if m.left]
        assert self.group.pop_finished() == [m.seq for m in done]
        for member in done:
            self.check_restored(member)
            assert member.seq.num_tokens == member.seq.prompt_tokens + member.seq.output_tokens

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 10))
    def remove(self, which: int) -> None:
        member = self.members.pop(which % len(self.members))
        self.group.remove(member.seq)
        self.check_restored(member)

    @rule()
    def clear(self) -> None:
        expected = sorted(self.members, key=lambda m: m.seq.run_order)
        assert self.group.clear() == [m.seq for m in expected]
        for member in expected:
            self.check_restored(member)
        self.members = []

    def check_restored(self, member: Counted) -> None:
        """Outside the group, a sequence's own counts are true."""
        seq = member.seq
        assert (seq.num_computed, seq.num_tokens, seq.grouped) == (member.computed, member.computed + 1, False)
        if self.grows:
            assert seq.num_blocks == -(-member.computed // self.bs)

    def taken(self, steps: int) -> int:
        """Blocks that the members take in the next `steps` steps: one wherever those they have are full."""
        return sum((m.computed + j) % self.bs == 0 for m in self.members for j in range(steps))

    @invariant()
    def aggregates_agree(self) -> None:
        if not hasattr(self, "group"):
            return
        group = self.group
        assert group.clock == self.clock
        assert group.n == len(self.members)
        assert group.ctx == sum(m.computed for m in self.members)
        assert group.longest == max((m.computed for m in self.members), default=0)
        assert set(group.members) == {m.seq for m in self.members}
        for member in self.members:
            assert member.seq.grouped
            assert group.clock + member.seq.base == member.computed
        for steps in (1, 2, self.bs, self.bs + 1, 3 * self.bs + 2):
            assert group.blocks_for(steps) == self.taken(steps)

    @precondition(lambda self: self.members)
    @rule(steps=st.integers(1, 40), free=st.integers(0, 40))
    def steps_within(self, steps: int, free: int) -> None:
        found = self.group.steps_within(steps, free)
        assert found == max(k for k in range(steps + 1) if self.taken(k) <= free)


GroupCounts.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)
TestGroupCounts = GroupCounts.TestCase


def test_an_empty_group_counts_nothing() -> None:
    group = DecodeGroup(16)
    assert (group.n, group.ctx, group.longest, group.blocks_for(1), group.blocks_for(100)) == (0, 0, 0, 0, 0)
    assert group.pop_finished() == []
    assert group.clear() == []


@pytest.mark.parametrize("joined", [0, 5])
def test_blocks_are_taken_where_the_last_is_full(joined: int) -> None:
    group = DecodeGroup(4)
    group.clock = joined
    seq = Generation(7, 20)
    seq.num_computed, seq.num_tokens = 7, 8   # one place is left in its second block
    group.add(seq)
    assert [group.blocks_for(k) for k in (1, 2, 5, 6)] == [0, 1, 1, 2]
    assert [group.steps_within(10, free) for free in (0, 1, 2, 3)] == [1, 5, 9, 10]
