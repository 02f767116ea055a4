"""API servers: processes with one thread each, through which requests come in and tokens go out.

vLLM's API server is a Python process with one event loop. It parses and tokenises each request, and of every step of
the engine it detokenises each token and writes it to its stream: one after the other. While it has more to do than
time, requests wait before the scheduler sees them, and tokens wait after the engine has given them; the engine goes
on. With `--data-parallel-size` its processes serve all engines.

The servers are taken as one that is `count` times as fast: each new connection goes to any of them. Work is done in
the order in which it comes:

    a request      per_request
    a step         tokens * (per_token + per_chunk / stream_interval)

A request waits for the work before it; its own time is in `frontend.before`. Of the tokens of a step the one in the
middle counts, and the time of one token is in `frontend.after`.

TTFT and E2E become longer by these waits, TPOT by what they grow by during an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.clients.overhead import keep_until
from hermes.clients.parts import StepPart
from hermes.core.generation import Generation
from hermes.errors import inside
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.frontend import ApiServers
    from hermes.clients.llm import LLMClient
    from hermes.schedulers.plan import Plan

__all__ = ["ApiServerThread", "servers_of"]


class ApiServerThread(StepPart):
    """The event loops of the servers of some clients, as one thread.

    Args:
        request_s, token_s: Time of a request, and of a token.
    """

    def __init__(self, request_s: float, token_s: float) -> None:
        self._request_ns, self._token_ns = round(request_s * NS_PER_S), token_s * NS_PER_S
        self._free_ns = 0   # when it is free again
        self._seen: dict[LLMClient, int] = {}   # steps that are counted
        self._late: dict[LLMClient, list[int]] = {}

    def attach(self, client: LLMClient) -> None:
        """See `ClientPart`."""
        super().attach(client)
        client.step_parts.sends += (self,)
        self._seen[client] = client.num_steps
        self._late[client] = list(client.late_log)   # of the replica before
        client.late_log = self._late[client]

    def keeps(self, client: LLMClient, stage: Generation, go_on: Callable[[], None]) -> bool:
        """See `ClientPart`."""
        if stage.transferred:
            return False
        self._catch_up()
        now = client.env._now
        free, self._free_ns = self._free_ns, max(self._free_ns, now) + self._request_ns
        if free > now:
            keep_until(client, free, free, go_on)
        return free > now

    def sent(self, client: LLMClient, plan: Plan, count: int) -> None:
        """See `StepPart`."""
        self._catch_up((client, plan))

    def _catch_up(self, over: tuple[LLMClient, Plan] | None = None) -> None:
        """Take over the tokens of all steps that have ended.

        over: A client whose run ends now, and that run.
        """
        found: list[tuple[int, int, LLMClient]] = []
        for client, seen in self._seen.items():
            ended = client.steps_done()
            new = client.num_steps + ended - seen
            plan = over[1] if over is not None and over[0] is client else client._flight.plan
            if not new or plan is None:
                continue
            self._seen[client] = seen + new
            stop, tokens = client.steps.pos + ended, plan.sampled - plan.again
            found += [(end, tokens, client) for end in client.steps.view[stop - new:stop].tolist()]
        if len(self._seen) > 1:
            found.sort(key=lambda step: step[0])
        free, token_ns = self._free_ns, self._token_ns
        for end, tokens, client in found:
            begins = free if free > end else end
            free = begins + round(tokens * token_ns)
            self._late[client].append(begins - end + round((tokens - 1) * token_ns / 2.0) if tokens else 0)
        self._free_ns = free


def servers_of(servers: ApiServers, place: Place) -> ApiServerThread:
    """Return the thread of a group's servers. Raises `InputError`."""
    with inside("api_servers"):
        request, token = servers.figures(place.config.engine or place.config.scheduler.engine)
    return ApiServerThread(request / servers.count, token / servers.count)
