"""What a pipeline sees of a client that may serve it: `request.view(kind)`, as of now, whatever the stepping."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ClientView"]


class ClientView(NamedTuple):
    """One client at one moment. Counts of KV are tokens in whole blocks, zero for clients without KV memory.

    At a step's end the next step has not started; of the sequences that end with a step, those before the one whose
    pipeline looks have given up their blocks, in order of admission.

    kv_capacity_tokens: of all blocks; free_kv_tokens: of blocks that nobody holds; uncommitted_kv_tokens: of these,
    what the prompts of running and waiting sequences will not take, negative where they ask for more than there is
    running, waiting: sequences in the batch and before it (tasks assigned, for clients that are no engines)
    max_num_seqs, max_num_batched_tokens: limits of a step
    """

    name: str
    model: str
    kv_capacity_tokens: int = 0
    free_kv_tokens: int = 0
    uncommitted_kv_tokens: int = 0
    block_tokens: int = 0
    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
