"""Front-end latency: what a request spends in the API server, before the engine has it and after the engine is done.

The API server parses and tokenises a request before the engine's scheduler sees it, and detokenises its tokens and
writes them to the network after they leave the engine. It does so beside the engine, for every request at the same
time: nothing queues for it, no step waits for it, and a request in it holds no slot and no KV. (One thread that
requests wait for, or time that the engine itself loses, is `request_overhead`: `hermes.clients.overhead`.)

What it adds, per generation or embedding that this client serves:

    TTFT  before + per_prompt_token * prompt tokens + after
    E2E   the same, once: every token is late by the same `after`
    TPOT, ITL  nothing

`before` counts as queueing. A prompt whose KV comes from another client has been tokenised there: the client that
decodes adds `after` to E2E, the one that prefilled adds both parts to TTFT.
"""

from __future__ import annotations

from hermes.config import ConfigModel, Duration
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["FrontEnd"]


class FrontEnd(ConfigModel):
    """Time that each request spends outside the engine. It occupies nothing: the engine runs on meanwhile."""

    before: Duration = 0.0
    """Before the scheduler has it: HTTP, parsing, the fixed part of tokenising."""
    per_prompt_token: Duration = 0.0
    """The same, for each prompt token."""
    after: Duration = 0.0
    """From the engine to the user, for every token alike: detokenising, HTTP. The request is complete, and a pipeline
    goes on, that much later."""

    @property
    def times_ns(self) -> tuple[int, float, int]:
        """(before, per prompt token, after), in nanoseconds."""
        return s_to_ns(self.before), self.per_prompt_token * NS_PER_S, s_to_ns(self.after)
