"""Token times of schedulers whose steps give a sequence several tokens, or none.

Token times are kept as segments of ticks (`Generation.segments`). Here a sequence leaves its segment when a step gives
it no token, and each further token of one step is a segment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from hermes.core.generation import Generation
from hermes.schedulers.decode_group import DecodeGroup

__all__ = ["TokenBursts"]


class TokenBursts:
    """Notes which step gave which sequence how many tokens. group: Its clock counts the steps."""

    def __init__(self, group: DecodeGroup) -> None:
        self._group = group
        self._open: dict[Generation, None] = {}   # sequences that got a token in the latest step

    def note(self, given: Mapping[Generation, int], step: int, now_ns: int) -> None:
        """Note the tokens that the client's `step`, which ends at `now_ns`, gives."""
        for seq in [seq for seq in self._open if seq not in given]:
            del self._open[seq]
            self._close(seq)
        self._group.clock += 1
        clock = self._group.clock
        for seq, tokens in given.items():
            seq.num_tokens += tokens
            if seq.first_step < 0:
                seq.first_step, seq.first_token_ns = step, now_ns
            if seq.emit_step < 0:
                seq.emit_step, seq.join_tick = step, clock
            self._open[seq] = None
            if tokens > 1:
                self._close(seq)
                del self._open[seq]
                assert seq.segments is not None
                seq.segments += [(step, clock, clock)] * (tokens - 1)

    def join(self, seq: Generation) -> None:
        """Note a branch that got its first token in the latest step, as the sequence that it splits off from did."""
        self._open[seq] = None

    def forget(self, seq: Generation) -> None:
        """Forget a sequence that is done."""
        self._open.pop(seq, None)

    def _close(self, seq: Generation) -> None:
        clock = self._group.clock
        if seq.segments is None:
            seq.segments = []
        seq.segments.append((seq.emit_step, seq.join_tick, clock))
        seq.emit_step, seq.join_tick = -1, clock
