"""Branches of a generation: several answers to one prompt that share the prompt's KV.

A generation with branches is one sequence, the *lead*, until its prompt is computed. The client that decodes the
answers then splits it: the lead continues as one of the branches, and the others become sequences of their own. Each
branch has its own tokens and its own KV after the prompt's last whole block. The whole blocks are held once
(`hermes.core.common_prompt`).
"""

from __future__ import annotations

from hermes.core.block_hashes import AdapterText, ConversationText, NameRuns
from hermes.core.generation import Generation

__all__ = ["Branches", "SharedPrompt", "branch_into", "sequences_of"]


class Branches:
    """The branches of one generation, on whichever clients they are.

    Attributes:
        outputs: Output tokens of each branch.
        open: Number of branches that are not done.
        lead: The sequence that the branches split off from; the generation itself at first.
        split_off: The branches' sequences that are not done; none before the split.
        not_emitted: Tokens of branches that were given up before they had them.
    """

    __slots__ = ("lead", "not_emitted", "open", "outputs", "split_off")

    def __init__(self, lead: Generation, outputs: tuple[int, ...]) -> None:
        self.lead = lead
        self.outputs = outputs
        self.open = len(outputs)
        self.split_off: list[Generation] = []
        self.not_emitted = 0

    def assign(self, lead: Generation) -> int:
        """Assign `lead` to a client for all its branches; return the output tokens that are due there."""
        target, given = lead.target_tokens, lead.given
        lead.assigned_outputs = sum([min(n, target) - given for n in self.outputs])
        return lead.assigned_outputs

    def split(self, lead: Generation) -> list[Generation]:
        """Split off the branches after the first, and return them; `lead` becomes the first.

        The branches start with the tokens of `lead`. A branch that an earlier client completed (its single token came
        with the prompt's last step) is left out.
        """
        self.lead, given = lead, lead.given
        open_ = [i for i, n in enumerate(self.outputs) if n > given]
        self._become(lead, open_[0])
        # the conversation goes on with the first answer
        if open_[0] and isinstance(lead.content, ConversationText | AdapterText):
            lead.content = lead.content.up_to(lead.prompt_tokens)
        content = SharedPrompt(lead)
        others = []
        for index in open_[1:]:
            seq = Generation(lead.prompt_tokens, 0, lead.priority, lead.request, lead.arrival_order + index, content)
            self._become(seq, index)
            for name in _TAKEN_OVER:
                setattr(seq, name, getattr(lead, name))
            others.append(seq)
        lead.width = 1
        self.split_off = [lead, *others]
        return others

    def leave(self, seq: Generation) -> None:
        """Note that the sequence of a branch is done, or was given up."""
        self.split_off.remove(seq)
        self.open -= 1

    def _become(self, seq: Generation, index: int) -> None:
        seq.branches, seq.branch = self, index
        seq.output_tokens = seq.target_tokens = self.outputs[index]


# Fields that a branch copies from its lead at the split.
_TAKEN_OVER = ("num_computed", "num_tokens", "assigned_ns", "start_ns", "first_token_ns", "first_step", "emit_step",
               "join_tick", "transferred", "given", "source", "model", "max_new_tokens", "stops_early", "attempt")


class SharedPrompt:
    """Content of a sequence with the first tokens of another, `lead`: up to there their blocks are the same.

    Args:
        sent: Output tokens of `lead` that it has, too, after the prompt.
    """

    __slots__ = ("_lead", "_tokens", "adapter")

    def __init__(self, lead: Generation, sent: int = 0) -> None:
        self._lead, self._tokens = lead, lead.prompt_tokens + sent
        self.adapter: int = getattr(lead.content, "adapter", 0)

    def block_key(self, index: int, block_size: int) -> object:
        lead = self._lead
        return lead.block_key(index, block_size) if (index + 1) * block_size <= self._tokens else None

    def name_runs(self, block_size: int) -> NameRuns:
        whole = self._tokens // block_size
        for name, end in self._lead.name_runs(block_size):
            if end >= whole:
                yield name, whole
                return
            yield name, end
        yield self._lead.own_name, whole


def sequences_of(stage: Generation) -> list[Generation]:
    """Return the sequences of a generation that its client has: itself, or its branches that are not done."""
    return [stage] if stage.branches is None else stage.branches.split_off.copy() or [stage]


def branch_into(stage: Generation, outputs: tuple[int, ...]) -> Generation:
    """Give a generation that is not dispatched yet branches with these numbers of output tokens; return it.

    The client computes the prompt once. The prompt's last step gives the first token of every branch. The generation is
    done with its last branch. A single output means no branching. Raises `ValueError` for an output below one token.
    """
    if min(outputs) < 1:
        raise ValueError(f"each branch has at least one output token, got {outputs}")
    stage.output_tokens = stage.target_tokens = max(outputs)
    if len(outputs) > 1:
        stage.branches, stage.width = Branches(stage, outputs), len(outputs)
    return stage
