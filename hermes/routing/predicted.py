"""A router that predicts latency: TTFT and TPOT at each candidate, of which it takes the lowest, or the first within
the limits.

It knows from its own books which prompts it has sent and not seen answered, from a view of the engines how many
sequences run and how much KV memory they hold, and with `caches` how much of the prompt is cached. `estimate: steps`
puts these into the client's own step time model; `estimate: fit` learns lines from the requests that it has sent, as
llm-d's latency predictor trains a model on them (that one is of trees; its features are these).

Candidates whose KV memory has no room for the prompt come last. Ties go to the first. Of services, which have no steps,
it takes that with the fewest queued tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration
from hermes.core.client import Client
from hermes.core.engine_readings import StepReadable
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.routing.caches import CacheView, view_of
from hermes.routing.decisions import settled
from hermes.routing.latency import Estimates, Fitted, Latency, Load, StepTimes
from hermes.routing.own import OwnBooks, continues
from hermes.routing.prefixes import Hashed, Prompts
from hermes.routing.views import ScrapedTable, ScrapedView, View
from hermes.units import NS_PER_S

__all__ = ["Predicted", "PredictedConfig"]

_NEVER = 1 << 62
DEFAULT_BLOCK = 16   # tokens of a block of clients that show none


class PredictedConfig(ConfigModel):
    """Predict TTFT and TPOT at each client, and take the lowest, or the first within the limits."""

    kind: Literal["predicted"] = "predicted"
    estimate: Literal["steps", "fit"] = "steps"
    """`steps`: the client's own step times. `fit`: lines through what the router has seen, by least squares."""
    pick: Literal["lowest", "first"] = "lowest"
    """`lowest`: the lowest TTFT, of the clients within the limits if there are some. `first`: the first client within
    the limits, which keeps later ones free; the lowest if there is none."""
    ttft: Duration | None = Field(default=None, gt=0)
    """Limit of TTFT. Left out, there is none."""
    tpot: Duration | None = Field(default=None, gt=0)
    """Limit of TPOT. Left out, there is none."""
    view: View = ScrapedView()
    """What the router knows of the sequences that run and of their KV memory: `exact`, as last scraped, or `own` (the
    requests that it has sent and their prompts)."""
    caches: CacheView | None = None
    """What the router knows of the prefix caches. Left out, nothing: prompts count in full."""
    least: int = Field(default=20, ge=1, le=10**6)
    """With `fit`: requests that must be seen first. Until then the fewest queued tokens decide."""
    forget: float = Field(default=0.999, gt=0, le=1)
    """With `fit`: weight of an observation in comparison with the next one."""
    per_client: bool = False
    """With `fit`: whether each client has lines of its own; otherwise all have the same."""

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.pick == "first" and self.ttft is None and self.tpot is None:
            raise InputError(Verbatim("`first` takes the first client within the limits; give `ttft` or `tpot`"),
                             field="pick")
        return self

    def build(self, context: RouterContext) -> Predicted:
        return Predicted(self, context)


class _Sent(NamedTuple):
    """A request on its way: where, under which load, since when, and when it had its first token (-1: not yet)."""

    place: int
    load: Load
    sent_ns: int
    first_ns: int = -1


class Predicted:
    """See the module's docstring."""

    def __init__(self, config: PredictedConfig, context: RouterContext) -> None:
        self._config, self._context = config, context
        self._candidates = list(context.candidates)
        readable = [client for client in self._candidates if isinstance(client, StepReadable)]
        self.books = OwnBooks(context)
        views = [client.view() for client in self._candidates]
        self._capacity = [view.kv_capacity_tokens for view in views]
        services = not readable   # which have no steps: the fewest queued tokens decide
        if not services and len(readable) < len(views):
            named = next(client.name for client in self._candidates if client not in readable)
            raise InputError(Verbatim(f"{named} has no steps, as others of its kind of stage have; "
                                      "give this kind another router under `routers`"))
        self._running_and_kv = self._view("own" if services else config.view)
        self._prompts = Prompts(views[0].block_tokens or DEFAULT_BLOCK)
        self._caches = None if config.caches is None else view_of(config.caches, context, self._prompts)
        self.estimates: Estimates
        if services:
            self.estimates = Fitted([0] * len(views), _NEVER, 1.0)
        elif config.estimate == "steps":
            self.estimates = StepTimes(readable, [view.max_num_batched_tokens for view in views])
        else:
            groups = list(range(len(views))) if config.per_client else [0] * len(views)
            self.estimates = Fitted(groups, config.least, config.forget)
        self._sent: dict[int, _Sent] = {}
        self.changed(context.candidates)

    def _view(self, view: View) -> Callable[[], tuple[Sequence[float], Sequence[float]]]:
        """Return what gives the running sequences and KV tokens of all candidates."""
        candidates, books = self._candidates, self.books
        if isinstance(view, ScrapedView):
            table = ScrapedTable(self._context, ("running", "kv_tokens"), view)

            def scraped() -> tuple[Sequence[float], Sequence[float]]:
                running, kv = table.rows()
                return running.tolist(), kv.tolist()

            return scraped
        if view == "own":
            return lambda: (books.in_flight.tolist(), books.kv_tokens.tolist())

        def exact() -> tuple[Sequence[float], Sequence[float]]:
            views = [client.view() for client in candidates]
            return [one.running for one in views], [one.kv_capacity_tokens - one.free_kv_tokens for one in views]

        return exact

    def changed(self, members: Sequence[Client]) -> None:
        """Choose among the members."""
        self._places = [self.books.place_of[client.index] for client in members]
        if self._caches is not None:
            self._caches.changed(set(self._places))

    # -- the choice ----------------------------------------------------------------------------------------------

    def choose(self, stage: Stage) -> Client:
        prompt = None if self._caches is None or continues(stage) else self._prompts.hashed(stage)
        cached = self._cached(stage, prompt)
        running, kv = self._running_and_kv()
        computed = 0 if continues(stage) else stage.prompt_tokens
        loads = {place: Load(
            int(self.books.computing[place]), max(computed - cached.get(place, 0), 0),
            cached.get(place, 0) if computed else stage.prompt_tokens, int(running[place]), int(kv[place]),
        ) for place in self._places}
        found = {place: self.estimates.of(place, load) for place, load in loads.items()}
        place = self._pick(stage, loads, found)
        if self._context.decisions is not None:
            place = settled(self._context, stage, self._places, place, lambda: _told(
                [found[each] for each in self._places], decodes=continues(stage)), lowest=True)
        load, latency = loads[place], found[place]
        if latency is not None and not continues(stage):
            stage.request.note("predicted_ttft_s", latency.ttft_s)
        if self._caches is not None and prompt is not None:
            self._context.believed(stage, cached.get(place, 0))
            self._caches.sent(place, prompt)
        self.books.sent(stage, place, load.prompt_tokens)
        self._sent[stage.arrival_order] = _Sent(place, load, self._context.now_ns())
        return self._candidates[place]

    def _cached(self, stage: Stage, prompt: Hashed | None) -> dict[int, int]:
        """Return the tokens of a prompt that candidates are believed to hold, by place."""
        if self._caches is None or prompt is None:
            return {}
        return {place: self._prompts.tokens_of(blocks, prompt)
                for place, blocks in self._caches.matches(stage, prompt).items()}

    def _pick(self, stage: Stage, loads: dict[int, Load], found: dict[int, Latency | None]) -> int:
        """Return the chosen place."""
        places = [place for place in self._places if self._has_room(place, loads[place])] or self._places
        known = {place: latency for place in places if (latency := found[place]) is not None}
        if len(known) < len(places):
            return min(places, key=lambda place: loads[place].queued_tokens + loads[place].prompt_tokens)
        first, later = self._config.ttft, self._config.tpot
        decodes = continues(stage)   # the first token is there

        def within(place: int) -> bool:
            latency = known[place]
            prefills = self._candidates[place].role == "prefill"   # another client gives the other tokens
            return ((first is None or decodes or latency.ttft_s <= first)
                    and (later is None or prefills or latency.tpot_s <= later))

        good = [place for place in places if within(place)]
        if good and self._config.pick == "first":
            return good[0]
        return min(good or places, key=lambda place: known[place].tpot_s if decodes else known[place].ttft_s)

    def _has_room(self, place: int, load: Load) -> bool:
        capacity = self._capacity[place]
        return not capacity or load.kv_tokens + load.queued_tokens + load.prompt_tokens <= capacity

    # -- what it sees --------------------------------------------------------------------------------------------

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """See `hermes.core.router.Router`."""
        number, now = stage.arrival_order, self._context.now_ns()
        sent = self._sent.get(number)
        here = sent is not None and self._candidates[sent.place].index == client.index
        if event == "prefilled":
            if sent is not None and here and sent.first_ns < 0 and not continues(stage):
                self.estimates.seen_ttft(sent.place, sent.load, (now - sent.sent_ns) / NS_PER_S)
                self._sent[number] = sent._replace(first_ns=now)
        elif event != "transferred" or here:
            self._sent.pop(number, None)
            if event == "done" and sent is not None and here:
                self._note_tpot(sent, stage, now)
        self.books.observe(event, client, stage)

    def _note_tpot(self, sent: _Sent, stage: Stage, now: int) -> None:
        began = sent.sent_ns if continues(stage) else sent.first_ns
        if began < 0 or not isinstance(stage, Generation) or stage.branches is not None:
            return
        steps = stage.num_tokens - stage.prompt_tokens - 1   # after the first token; fewer if it was given up
        if steps > 0:
            self.estimates.seen_tpot(sent.place, sent.load, (now - began) / steps / NS_PER_S)


def _told(found: Sequence[Latency | None], *, decodes: bool) -> dict[str, list[float]]:
    """Return the estimates of clients in seconds, the one by which the router decides first; NaN for none."""
    both = [(math.nan, math.nan) if latency is None else latency for latency in found]
    figures = {"TTFT s": [ttft_s for ttft_s, _ in both], "TPOT s": [tpot_s for _, tpot_s in both]}
    return dict(reversed(figures.items())) if decodes else figures
