"""Engines with just what routers of prefixes look at, set by hand, and a router over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hermes.config.streams import stream
from hermes.core.block_hashes import AdapterText, PromptContent, TokenPrompt
from hermes.core.client import ClientView
from hermes.core.engine_readings import Adapters
from hermes.core.generation import Generation
from hermes.routing import ROUTERS, RouterContext

BLOCKS = 1000


class Pod:
    """An engine of `BLOCKS` blocks of 16 tokens."""

    def __init__(self, index: int, *, waiting: int = 0, use: float = 0.0, role: str = "both",
                 adapters: Adapters | None = None, cached: int = 0, in_host: int = 0) -> None:
        self.index, self.name, self.role, self.model = index, f"pod-{index}", role, ""
        self.waiting, self.use, self.cached, self.in_host = waiting, use, cached, in_host
        self._adapters = adapters or Adapters(set(), set(), None)
        kinds = {"both": ("generate", "prefill", "decode"), "prefill": ("generate", "prefill"), "decode": ("decode",)}
        self.stages = frozenset(kinds[role])

    def view(self) -> ClientView:
        tokens = BLOCKS * 16
        return ClientView(self.name, "", tokens, round(tokens * (1 - self.use)), 0, 16, 0, self.waiting)

    def adapters(self) -> Adapters:
        return self._adapters

    def cached_tokens(self, stage: Any) -> int:
        return self.cached

    def caches_in_host(self) -> bool:
        return True

    def host_tokens(self, stage: Any, past: int) -> int:
        return self.in_host

    def cache_events(self) -> Any:
        raise AssertionError("the cache of a pod is set by hand")

    def __repr__(self) -> str:
        return self.name


def text(words: str | list[int]) -> TokenPrompt:
    """Return a prompt of a token for each letter."""
    return TokenPrompt([ord(letter) for letter in words] if isinstance(words, str) else words)


class Pool:
    """A router over pods, at a time set by hand. `chosen`: What the router believes of each choice, in tokens."""

    def __init__(self, pods: int | list[Pod], kind: str, seed: int = 1, **config: Any) -> None:
        self.pods = [Pod(index) for index in range(pods)] if isinstance(pods, int) else pods
        self.now_ns, self.number = 0, 0
        self.believed: list[int] = []
        self.context = RouterContext(
            self.pods, stream(seed, "router"), now_ns=lambda: self.now_ns, seed=seed,   # type: ignore[arg-type]
            believed=lambda stage, tokens: self.believed.append(tokens),
        )
        self.router: Any = ROUTERS.get(kind).model_validate({"kind": kind, **config}).build(self.context)

    def stage(self, content: PromptContent | None = None, tokens: int | None = None, session: int = -1,
              adapter: int = 0) -> Generation:
        """Return a generation; its prompt is as long as its text."""
        if tokens is None:
            tokens = len(content.tokens) if isinstance(content, TokenPrompt) else 10
        if adapter:
            content = AdapterText(adapter, content)
        self.number += 1
        request = SimpleNamespace(session=session, id=self.number)
        return Generation(tokens, 10, request=request, arrival_order=self.number,   # type: ignore[arg-type]
                          content=content)

    def send(self, content: PromptContent | None = None, tokens: int | None = None, **keys: Any) -> int:
        """Return the index of the pod that is chosen."""
        return int(self.router.choose(self.stage(content, tokens, **keys)).index)

    def load(self, *in_flight: int) -> None:
        """Set the requests in flight at each pod in the router's books."""
        self.router.books.in_flight[:] = in_flight

    def members(self, *indices: int) -> None:
        """Let these pods alone take requests."""
        self.router.changed([self.pods[index] for index in indices])
