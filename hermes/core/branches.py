"""Several answers to one prompt: the branches of a generation, which share the prompt's KV.

Until its prompt is computed, a generation with branches is one sequence, the *lead*. Where the answers are decoded, it
then splits up: the lead goes on as one of the branches, the others are sequences of their own. Each has its own tokens
and its own KV after the prompt's last whole block; the whole blocks are held once (`hermes.core.common_prompt`).
"""

from __future__ import annotations

from hermes.core.block_hashes import ConversationText, NameRuns
from hermes.core.sequence import Sequence
from hermes.core.stage import Stage

__all__ = ["Branches", "branch_into"]


class Branches:
    """The branches of one generation, wherever they are.

    outputs: output tokens of each; open: how many are not done; lead: the sequence that they split off from, at first
    the generation itself
    """

    __slots__ = ("lead", "open", "outputs")

    def __init__(self, lead: Stage, outputs: tuple[int, ...]) -> None:
        self.lead = lead
        self.outputs = outputs
        self.open = len(outputs)

    def assign(self, lead: Stage) -> int:
        """`lead` goes to a client for all of them; returns the output tokens that are to come there."""
        target, given = lead.target_tokens, int(lead.transferred)
        lead.assigned_outputs = sum([min(n, target) - given for n in self.outputs])
        return lead.assigned_outputs

    def split(self, lead: Stage) -> list[Sequence]:
        """The branches other than the one that `lead` becomes, with its tokens so far. Those that a client before has
        completed (a single token, given with the prompt's last step) are not there any more."""
        self.lead, given = lead, int(lead.transferred)
        open_ = [i for i, n in enumerate(self.outputs) if n > given]
        self._become(lead, open_[0])
        if open_[0] and isinstance(lead.content, ConversationText):   # the conversation goes on with the first answer
            lead.content = lead.content.up_to(lead.prompt_tokens)
        content = _SharedPrompt(lead)
        others = []
        for index in open_[1:]:
            seq = Sequence(lead.prompt_tokens, 0, lead.priority, lead.request, lead.arrival_order + index, content)
            self._become(seq, index)
            for name in _TAKEN_OVER:
                setattr(seq, name, getattr(lead, name))
            others.append(seq)
        lead.width = 1
        return others

    def _become(self, seq: Stage, index: int) -> None:
        seq.branches, seq.branch = self, index
        seq.output_tokens = seq.target_tokens = self.outputs[index]


# What a branch has in common with its lead at the moment they part.
_TAKEN_OVER = ("num_computed", "num_tokens", "assigned_ns", "start_ns", "first_token_ns", "first_step", "emit_step",
               "join_tick", "transferred", "source", "model")


class _SharedPrompt:
    """What a branch's blocks contain: up to the end of the prompt, what the lead's do."""

    __slots__ = ("_lead",)

    def __init__(self, lead: Stage) -> None:
        self._lead = lead

    def block_key(self, index: int, block_size: int) -> object:
        lead = self._lead
        return lead.block_key(index, block_size) if (index + 1) * block_size <= lead.prompt_tokens else None

    def name_runs(self, block_size: int) -> NameRuns:
        whole = self._lead.prompt_tokens // block_size
        for name, end in self._lead.name_runs(block_size):
            if end >= whole:
                yield name, whole
                return
            yield name, end
        yield self._lead.own_name, whole


def branch_into(stage: Sequence, outputs: tuple[int, ...]) -> Sequence:
    """Let a generation that has not been dispatched yet have branches, with these numbers of output tokens; returns it.

    The prompt is computed once. Its last step gives the first token of every branch; the generation is done with its
    last branch. A single output is no branching.
    """
    if min(outputs) < 1:
        raise ValueError(f"each branch has at least one output token, got {outputs}")
    stage.output_tokens = stage.target_tokens = max(outputs)
    if len(outputs) > 1:
        stage.branches, stage.width = Branches(stage, outputs), len(outputs)
    return stage
