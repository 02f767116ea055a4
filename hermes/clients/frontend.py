"""Front-end latency: time of a request in the API server, before and after the engine.

The API server parses and tokenises a request before the engine's scheduler sees it. It detokenises the request's tokens
and writes them to the network after they leave the engine. It handles all requests in parallel with the engine:
requests do not queue for it, steps do not wait for it, and a request in it holds no slot and no KV. (For its limit see
`hermes.clients.api_servers`; for time that the engine itself loses `hermes.clients.overhead`.)

Each generation or embedding that the client serves becomes longer by:

    TTFT  before + per_prompt_token * prompt tokens + after
    E2E   the same, once: every token is late by the same `after`
    TPOT, ITL  nothing

`before` counts as queueing. A prompt whose KV comes from another client has been tokenised there: the decode client
adds `after` to E2E, the prefill client adds both parts to TTFT.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.engines import load_engine
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["ApiServers", "FrontEnd"]


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


class ApiServers(ConfigModel):
    """Processes that serve requests and tokens, one event loop each."""

    count: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of them (`--api-server-count`)."""
    engines: Annotated[int, Field(ge=1, le=1024)] = 1
    """Engines of the group, one after the other, that share them: the `--data-parallel-size` of a model whose engines
    are clients of their own. Ranks of one engine (`parallel.dp`) share them in any case."""
    stream_interval: Annotated[int, Field(ge=1, le=2**20)] = 1
    """Tokens of an answer that are sent at a time (`--stream-interval`). The first is sent at once."""
    per_request: Duration | None = None
    """Time of a request: HTTP, parsing, tokenising, handing it over. Left out, the engine's, as the next two."""
    per_token: Duration | None = None
    """Time of a token: decoding the engine's message, detokenising."""
    per_chunk: Duration | None = None
    """Time of what is sent: waking the request's coroutine, JSON, writing to the socket."""

    def figures(self, engine: str) -> tuple[float, float]:
        """Return the seconds of one process for a request and for a token. Raises `InputError`."""
        found = load_engine(engine).frontend
        costs = {"per_token": (self.per_token, found.per_token), "per_request": (self.per_request, found.per_request),
                 "per_chunk": (self.per_chunk, found.per_chunk)}
        for name, (own, _) in costs.items():
            if own is None and not found.per_token:
                raise InputError(Verbatim(f"missing: what a server of {engine} takes was not measured; give "
                                          "per_request, per_token and per_chunk"), field=name)
        token, request, chunk = (known if own is None else own for own, known in costs.values())
        return request, token + chunk / self.stream_interval
