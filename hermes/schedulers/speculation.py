"""Configuration of speculative decoding: how many tokens are drafted, by what, and how many are accepted."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, Verbatim

__all__ = ["Acceptance", "Speculation"]

Rate = Annotated[float, Field(ge=0, le=1)]
_MASK = 2**64 - 1


class Acceptance:
    """Draws how many drafts are accepted.

    Args:
        rates: Probability that the draft at each position is accepted if all before it are.
        given: Numbers of accepted drafts, used in turn by each sequence, in place of draws.
        seed: Of the draws. A draw depends on the sequence and on how often its drafts were verified, on nothing else.
    """

    def __init__(self, rates: list[float], given: list[int], seed: int) -> None:
        self._rates, self._given, self._seed = rates, given, seed

    def draw(self, sequence: int, verified: int) -> int:
        """Return how many drafts of a sequence are accepted when they are verified the (verified + 1)-th time."""
        if self._given:
            return self._given[verified % len(self._given)]
        state = _mixed(_mixed(_mixed(self._seed) ^ sequence) ^ verified)
        for position, rate in enumerate(self._rates):
            state = _mixed(state)
            if state >= rate * 2.0**64:
                return position
        return len(self._rates)

    def first(self, sequence: int, count: int) -> list[int]:
        """Return the first `count` draws of a sequence."""
        return [self.draw(sequence, verified) for verified in range(count)]


def _mixed(value: int) -> int:
    """Return 64 bits that depend on all bits of `value` (the finalizer of SplitMix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class Speculation(ConfigModel):
    """Speculative decoding with a given acceptance (vLLM's `speculative_config`)."""

    method: Literal["ngram", "eagle", "eagle3", "mtp", "draft_model"] = "ngram"
    """What drafts. It decides which KV slots are held for drafting and what the prefix cache may give."""
    num_speculative_tokens: int = Field(ge=1, le=64)
    """Draft tokens of a sequence in each step."""
    acceptance_rate: Rate | None = None
    """Probability that a draft is accepted if all before it in the step are: geometric acceptance."""
    acceptance_by_position: list[Rate] = Field(default=[], max_length=64)
    """Share of steps in which the draft at each position is accepted, as vLLM's metrics report it: it never rises."""
    accepted: list[Annotated[int, Field(ge=0, le=64)]] = Field(default=[], max_length=2**16)
    """Accepted drafts of each step, used in turn by every sequence: a recorded trace."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the draws."""
    draft_model: str = Field(default="", max_length=4096)
    """Model of `method: draft_model`: a description as the client's `model`."""
    draft_time: Duration | None = None
    """Time of one run of what drafts, `num_speculative_tokens` of which follow each step that gives tokens. Left out:
    none for `ngram`, which runs on the host; else what the client's hardware says for the draft model, or for one
    decoder layer of the client's model with its output matrix (EAGLE, MTP)."""
    draft_time_per_seq: Duration = 0.0
    """More for each sequence."""

    @model_validator(mode="after")
    def _one_acceptance(self) -> Self:
        given = [name for name in ("acceptance_rate", "acceptance_by_position", "accepted")
                 if getattr(self, name) not in (None, [])]
        if len(given) != 1:
            raise InputError(Verbatim("needs one of acceptance_rate, acceptance_by_position and accepted; "
                                      + (f"leave out {given[1]}" if given else "none is given")))
        if self.draft_model and self.method != "draft_model":
            raise InputError(Verbatim(f"{self.method} has no model of its own; leave it out"), field="draft_model")
        shares = self.acceptance_by_position
        if shares and len(shares) != self.num_speculative_tokens:
            raise InputError(f"{self.num_speculative_tokens} shares, one for each draft", len(shares),
                             field="acceptance_by_position")
        if any(b > a for a, b in pairwise(shares)):
            raise InputError("shares that never rise: a draft counts only if all before it are accepted", shares,
                             field="acceptance_by_position")
        return self

    @property
    def lookahead(self) -> int:
        """KV slots held past the scheduled tokens: what drafts writes there (vLLM: `num_lookahead_tokens`)."""
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def slots(self) -> int:
        """Slots of the input that drafting takes for each sequence (vLLM: draft models take one)."""
        return int(self.method == "draft_model")

    @property
    def drops_last_hit(self) -> bool:
        """Whether the last block found in the prefix cache is computed again, for its hidden states (EAGLE, MTP)."""
        return self.method in ("eagle", "eagle3", "mtp")

    def rates(self) -> list[float]:
        """Return the probability that the draft at each position is accepted if all before it are."""
        if self.acceptance_rate is not None:
            return [self.acceptance_rate] * self.num_speculative_tokens
        shares = [1.0, *self.acceptance_by_position]
        return [b / a if a else 0.0 for a, b in pairwise(shares)]

    def acceptance(self) -> Acceptance:
        return Acceptance([] if self.accepted else self.rates(), self.accepted, self.seed)
