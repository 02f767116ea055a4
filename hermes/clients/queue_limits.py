"""Limits of the requests in flight, beyond which a client turns requests away, as vLLM's API server does.

`max_num_queued_reqs` limits the requests that wait or run, `max_num_queued_tokens` the prompt tokens of those that have
no token yet, each with its whole prompt whatever is computed or cached of it. (AsyncLLM.check_admission in
vllm/v1/engine/async_llm.py, which answers 503, so that a router may try another server; so do routers here.)

A client that prefills for others has a request until its prompt is computed. One that decodes for others is asked when
the prompt is computed, and counts the request from then on, while its KV moves too. If no such client takes it, the
request is rejected, and its KV is freed where it was computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.clients.parts import ClientPart
from hermes.core.generation import Generation

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["QueueLimits", "limits_of"]


class QueueLimits(ClientPart):
    """See the module's docstring.

    Args:
        max_requests, max_prompt_tokens: The limits, None for none.
    """

    def __init__(self, max_requests: int | None, max_prompt_tokens: int | None) -> None:
        self.max_requests, self.max_prompt_tokens = max_requests, max_prompt_tokens
        self._in_flight: dict[Generation, int] = {}   # branches of each

    def refusal(self, client: LLMClient, stage: Generation) -> str | None:
        self._in_flight = {one: width for one, width in self._in_flight.items()
                           if not (one.done or (one.original or one).done)}
        if self.max_requests is not None:
            count = sum(self._in_flight.values())
            if count + stage.width > self.max_requests:
                return f"max_num_queued_reqs: no more than {self.max_requests} requests may wait or run"
        if self.max_prompt_tokens is not None:
            tokens = sum(one.prompt_tokens for one in self._in_flight if one.first_token_ns < 0)
            if tokens >= self.max_prompt_tokens:
                return f"max_num_queued_tokens: prompts of {self.max_prompt_tokens} tokens or more wait for a token"
        return None

    def submitted(self, client: LLMClient, stage: Generation) -> None:
        self._in_flight[stage] = stage.width

    def done(self, client: LLMClient, stage: Generation) -> None:
        if stage.hands_over:
            self._in_flight.pop(stage, None)


def limits_of(limits: tuple[int | None, int | None], place: Place) -> QueueLimits:
    return QueueLimits(*limits)
