"""An LLM client that rejects requests while many are in flight, as vLLM's API server does.

`max_num_queued_reqs` limits the requests that wait or run, `max_num_queued_tokens` the prompt tokens of those that have
no token yet, each with its whole prompt whatever is computed or cached of it. (AsyncLLM.check_admission in
vllm/v1/engine/async_llm.py, which answers 503, so that a router may try another server; so do routers here.)
"""

from __future__ import annotations

from typing import Any

from hermes.clients.llm import LLMClient
from hermes.core.stage import Stage

__all__ = ["LimitedClient"]


class LimitedClient(LLMClient):
    """See the module's docstring.

    Args:
        max_requests, max_prompt_tokens: The limits, None for none.
    """

    __slots__ = ("_in_flight", "max_prompt_tokens", "max_requests")

    def __init__(self, *args: Any, max_requests: int | None, max_prompt_tokens: int | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_requests, self.max_prompt_tokens = max_requests, max_prompt_tokens
        self._in_flight: dict[Stage, int] = {}   # branches of each

    def refusal(self, stage: Stage) -> str | None:
        reason = super().refusal(stage)
        return self._full(stage) if reason is None else reason

    def _full(self, stage: Stage) -> str | None:
        """Return which limit stands against one more request, or None."""
        self._in_flight = {one: width for one, width in self._in_flight.items() if not one.done}
        if self.max_requests is not None:
            count = sum(self._in_flight.values())
            if count + stage.width > self.max_requests:
                return f"max_num_queued_reqs: no more than {self.max_requests} requests may wait or run"
        if self.max_prompt_tokens is not None:
            tokens = sum(one.prompt_tokens for one in self._in_flight if one.first_token_ns < 0)
            if tokens >= self.max_prompt_tokens:
                return f"max_num_queued_tokens: prompts of {self.max_prompt_tokens} tokens or more wait for a token"
        return None

    def submit(self, stage: Stage) -> None:
        self._in_flight[stage] = stage.width
        super().submit(stage)
