from typing import Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.routing import ROUTERS, Client, RouterContext, Stage


@ROUTERS.register("least_work")
class LeastWork(ConfigModel):
    """The client with the least work, counted in prompt tokens."""

    kind: Literal["least_work"] = "least_work"
    decode_weight: float = Field(default=20.0, gt=0)
    """How many prompt tokens cost as much as one output token."""

    def build(self, context: RouterContext) -> "LeastWorkRouter":
        return LeastWorkRouter(self, context)


class LeastWorkRouter:
    def __init__(self, config: LeastWork, context: RouterContext) -> None:
        self.weight, self.candidates = config.decode_weight, context.candidates

    def choose(self, stage: Stage) -> Client:
        return min(self.candidates, key=self.work)   # the first of equals

    def work(self, client: Client) -> float:
        return client.load("input_tokens") + self.weight * client.load("tokens_left")
