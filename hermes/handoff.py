"""Disaggregated prefill and decode: a request's KV cache moves from one client to another.

When a prefill client has given the first token, a decode client is chosen, memory for the prompt's KV is taken there,
and only then does the transfer start (vLLM's connector and splitwise-sim alike). Until it ends, the source keeps its
blocks. Requests that find no memory wait at the destination, first come first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from hermes.kernel import TRANSFER, Clock
from hermes.network import Network, exposed_bytes
from hermes.recorder import RowLog
from hermes.schedulers.sequence import Sequence
from hermes.units import s_to_ns

__all__ = ["Handoff"]


class Handoff:
    """Moves KV between clients.

    granularity: "full" moves everything after the prefill; "layerwise" has moved all but an exposed rest by then.
    retry_s: None lets requests wait first come first served for memory at the destination and tries as it frees; a
        number makes each try again by itself after so many seconds (splitwise-sim does, every 1.0 s).
    observe: called with ("transferred", source, sequence) when a transfer has ended.
    Every LLM client has `kv_bytes_per_token` and `num_layers`.
    """

    def __init__(
        self, env: Clock, clients: list[Any], network: Network, transfers: RowLog,
        granularity: Literal["full", "layerwise"] = "full", retry_s: float | None = None,
    ) -> None:
        self.env, self.network, self.transfers, self.granularity = env, network, transfers, granularity
        self.retry_ns = None if retry_s is None else s_to_ns(retry_s)
        self.observe: Callable[[str, Any, Sequence], None] | None = None
        self.route: Callable[[Sequence], Any] = _unset
        self.assign: Callable[[Any, Sequence], None] = _unset
        self._decoders = [c for c in clients if "decode" in getattr(c, "stages", ())]
        self._intake: dict[int, deque[tuple[Any, Sequence, Sequence]]] = {c.index: deque() for c in self._decoders}
        for client in self._decoders if retry_s is None else ():
            client.on_room = lambda client=client: self._retry(client)

    def start(self, source: Any, stage: Sequence) -> None:
        """`stage` has its first token at `source`; find it a decode client."""
        twin = Sequence(
            stage.prompt_tokens, stage.output_tokens, stage.priority, stage.request, stage.arrival_order, stage.content
        )
        twin.transferred = True
        twin.num_computed = stage.prompt_tokens
        twin.num_tokens = stage.prompt_tokens + 1
        twin.source = source
        twin.decode_on = stage.decode_on
        target = self.route(twin)
        self.assign(target, twin)
        if self.retry_ns is not None:
            self._try(source, stage, target, twin)
            return
        queue = self._intake[target.index]
        queue.append((source, stage, twin))
        if len(queue) == 1:
            self._retry(target)

    def _try(self, source: Any, stage: Sequence, target: Any, twin: Sequence) -> None:
        if target.reserve(twin):
            self._transfer(source, stage, target, twin)
        else:
            assert self.retry_ns is not None
            self.env.tick_at(
                self.env._now + self.retry_ns, TRANSFER, lambda tick: self._try(source, stage, target, twin)
            )

    def _retry(self, target: Any) -> None:
        queue = self._intake[target.index]
        while queue:
            source, stage, twin = queue[0]
            if not target.reserve(twin):
                return
            queue.popleft()
            self._transfer(source, stage, target, twin)

    def _transfer(self, source: Any, stage: Sequence, target: Any, twin: Sequence) -> None:
        num_bytes = round(stage.prompt_tokens * source.kv_bytes_per_token)
        asked = self.env._now
        to_move = num_bytes
        if self.granularity == "layerwise":
            compute_s = (asked - stage.start_ns) / 1e9
            seconds = self.network.estimate_ns(source.name, target.name, num_bytes) / 1e9
            if seconds:
                to_move = exposed_bytes(num_bytes, source.num_layers, compute_s, num_bytes / seconds)

        def arrived() -> None:
            self.transfers.add(stage.request.id, source.index, target.index, num_bytes, asked, self.env._now)
            if self.observe is not None:
                self.observe("transferred", source, stage)
            source.release(stage)
            target.submit(twin)

        self.network.transfer(source.name, target.name, to_move, arrived)


def _unset(*args: Any) -> Any:
    raise AssertionError("the coordinator has not taken over yet")
