from typing import Any, Literal

from hermes.clients import CLIENTS, ClientEvents, Clock, Stage, TaskClient, TaskClientConfig
from hermes.config import Duration, Rate


@CLIENTS.register("web_search")
class WebSearch(TaskClientConfig):
    """A search engine that somebody else runs: each query takes its time, and no more than so many a second go out."""

    kind: Literal["web_search"] = "web_search"
    answers_after: Duration = 0.3
    """From a query's start to its answer."""
    rate: Rate = 20.0
    """Queries a second."""

    def build(self, env: Clock, first_index: int, runs: Any, events: ClientEvents, **_: Any) -> "list[WebSearchClient]":
        named = zip(self.names, self.platforms, strict=True)
        return [WebSearchClient(env, first_index + i, name, events, platform, self)
                for i, (name, platform) in enumerate(named)]


class WebSearchClient(TaskClient):
    stages = frozenset({"search"})

    def __init__(self, env: Clock, index: int, name: str, events: ClientEvents, platform: str, config: WebSearch):
        super().__init__(env, index, name, events, model=config.model, platform=platform)
        self.config, self.free_at = config, 0.0

    def submit(self, stage: Stage) -> None:
        now = self.env.now / 1e9
        begin = max(now, self.free_at)
        self.free_at = begin + 1 / self.config.rate
        self.serve(stage, self.config.answers_after, wait=begin - now)
