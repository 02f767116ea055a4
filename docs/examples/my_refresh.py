from typing import Any, Literal

import simpy

from hermes.clients import CLIENTS, ClientEvents, Clock, Stage, TaskClient, TaskClientConfig
from hermes.config import Duration


@CLIENTS.register("refreshed_index")
class RefreshedIndex(TaskClientConfig):
    kind: Literal["refreshed_index"] = "refreshed_index"
    search: Duration = 0.02
    refresh: Duration = 2.0
    every: Duration = 60.0     # from the end of a refresh to the next

    def build(self, env: Clock, first_index: int, runs: Any, events: ClientEvents, **_: Any) -> list[TaskClient]:
        return [Index(env, first_index + i, name, events, self) for i, name in enumerate(self.names)]


class Index(TaskClient):
    stages = frozenset({"retrieve"})

    def __init__(self, env: Clock, index: int, name: str, events: ClientEvents, config: RefreshedIndex) -> None:
        super().__init__(env, index, name, events, model=config.model)
        self.config, self.machine = config, simpy.Resource(env)
        env.process(self.refreshes())

    def submit(self, stage: Stage) -> None:
        self.env.process(self.alone(lambda: self.serve(stage, self.config.search)))

    def refreshes(self):
        while self.requests_left:
            yield self.wait(self.config.every)
            yield from self.alone(lambda: self.wait(self.config.refresh))

    def alone(self, begin):
        with self.machine.request() as turn:    # one search, or the refresh, at a time
            yield turn
            yield begin()
