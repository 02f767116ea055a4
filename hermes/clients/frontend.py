"""Front-end latency: time of a request in the API server, before and after the engine.

The API server parses and tokenises a request before the engine's scheduler sees it. It detokenises the request's tokens
and writes them to the network after they leave the engine. It handles all requests in parallel with the engine:
requests do not queue for it, steps do not wait for it, and a request in it holds no slot and no KV. (For a single
thread that requests wait for, or time that the engine itself loses, see `request_overhead` in
`hermes.clients.overhead`.)

Each generation or embedding that the client serves becomes longer by:

    TTFT  before + per_prompt_token * prompt tokens + after
    E2E   the same, once: every token is late by the same `after`
    TPOT, ITL  nothing

`before` counts as queueing. A prompt whose KV comes from another client has been tokenised there: the decode client
adds `after` to E2E, the prefill client adds both parts to TTFT.
"""

from __future__ import annotations

from hermes.config import ConfigModel, Duration
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["FrontEnd"]


class FrontEnd(ConfigModel):
    """Time of each request outside the engine. The engine continues meanwhile."""

    before: Duration = 0.0
    """Time before the scheduler gets the request: HTTP, parsing, the fixed part of tokenising."""
    per_prompt_token: Duration = 0.0
    """Time before the scheduler gets the request, for each prompt token."""
    after: Duration = 0.0
    """Delay of every token from the engine to the user: detokenising, HTTP. The request completes, and its pipeline
    continues, that much later."""

    @property
    def times_ns(self) -> tuple[int, float, int]:
        """(before, per prompt token, after) in nanoseconds."""
        return s_to_ns(self.before), self.per_prompt_token * NS_PER_S, s_to_ns(self.after)
