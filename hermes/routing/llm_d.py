"""llm-d's router: scorers with weights, of which the highest sum wins.

Rules of https://github.com/llm-d/llm-d-router at ebab687 (pkg/epp/framework/plugins). Each scorer gives each candidate
a number from 0 to 1; the picker takes the highest weighted sum, ties at random.

- queue: (longest - q) / (longest - shortest) of the waiting requests, 1 for all if they are equal.
- kv: 1 - use of the KV memory.
- prefix: share of the prompt's blocks that the router has sent to the candidate (`hermes.routing.prefixes`), in blocks
  of max(64, the engine's block) tokens. The last, partial block is hashed and counts. Blocks count up to the first that
  *no* candidate holds, also where this candidate has lost one before. The LRU of each candidate has as many entries as
  its GPU has blocks, although an entry stands for 64 tokens. Every 2 minutes entries of clients that are no members go:
  an engine that restarts in between keeps its believed cache.
- precise_prefix: the same share, of what the engines' caches hold (`hermes.routing.caches`).
- load_aware: 0.5 x (1 - q / threshold), 0 from the threshold on.
- session: 1 for the client to which the session is bound. A session without one goes with 1 to the client of the fewest
  sessions, and is bound to the client that is picked, for as long as it is used every 300 s. Nothing for a request
  without a session.
- `session_pins` (session-affinity-filter): the client of the session's latest request alone, as long as it is there.
- lora_affinity: 1 where the adapter runs, 0.8 where there is room for one more, 0.6 where it waits, else 0.
- active_request: 1 for a client with at most `idle_requests` of the router's requests in flight, else `busy_score` x
  (most - n) / most. A prefill client counts a request until its KV has left, a decode client from the choice on.
- no_hit_lru: 0.5 for all if a candidate holds a block of the prompt (`no_hit_by`). Of other, cold prompts the clients
  that never got one come first, then those that got one longest ago: 1 - rank / (candidates - 1).

With `disaggregation` the decode client is chosen first, by all scorers; the prompt goes to a prefill client, chosen
likewise, only if the tokens that the decode client does not hold and the prompt reach the thresholds.

Token counts are exact here; llm-d estimates them where it has no tokenizer (4 bytes a token).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel, Duration
from hermes.core.block_hashes import adapter_of
from hermes.core.client import Client
from hermes.core.engine_readings import AdapterReadable
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim
from hermes.routing.caches import EventsView, RealView, view_of
from hermes.routing.decisions import settled
from hermes.routing.own import OwnBooks, continues
from hermes.routing.prefixes import Hashed, Prompts, SentPrefixes
from hermes.routing.ties import Draws
from hermes.routing.views import EngineView, ScrapedTable, ScrapedView
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["LlmD", "LlmDConfig"]

LEAST_BLOCK = 64            # tokens of a block at least (minBlockSizeTokens)
MOST_TOKENS = 131_072       # tokens of a prompt that are hashed (defaultMaxPrefixTokens)
DEFAULT_CAPACITY = 31_250   # blocks of a client that shows none (defaultLRUCapacityPerServer)
SWEEP_NS = 120 * NS_PER_S   # podActiveCheckInterval


class ScorersConfig(ConfigModel):
    """Weights of llm-d's scorers; 0 leaves one out."""

    queue: float = Field(default=2.0, ge=0, le=1e6)
    """Few waiting requests."""
    kv: float = Field(default=2.0, ge=0, le=1e6)
    """Little used KV memory."""
    prefix: float = Field(default=3.0, ge=0, le=1e6)
    """Prefixes that the router has sent there."""
    precise_prefix: float = Field(default=0.0, ge=0, le=1e6)
    """Prefixes in the prefix cache, as `caches` sees it; llm-d's guide has 2, with queue 1, kv 1 and prefix 0."""
    load_aware: float = Field(default=0.0, ge=0, le=1e6)
    """A queue below `load_threshold`."""
    session: float = Field(default=0.0, ge=0, le=1e6)
    """The client of the session."""
    lora_affinity: float = Field(default=0.0, ge=0, le=1e6)
    """The LoRA adapter of the request, or room for it."""
    active_request: float = Field(default=0.0, ge=0, le=1e6)
    """Few requests of this router in flight."""
    no_hit_lru: float = Field(default=0.0, ge=0, le=1e6)
    """For prompts of which no client holds a block: the client that got such a one longest ago."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise InputError(Verbatim("all weights are 0; give one of the scorers a weight"))
        return self


class PrefixIndexConfig(ConfigModel):
    """The index of prompts that the router has sent (llm-d's approx-prefix-cache-producer)."""

    most_tokens: int | None = Field(default=MOST_TOKENS, ge=0, le=2**40)
    """Tokens of a prompt that are hashed; null for all."""
    block: int | None = Field(default=None, ge=1, le=2**20)
    """Tokens of a block, at least 64. Left out, the engine's, at least 64."""
    capacity: int | None = Field(default=None, ge=1, le=2**40)
    """Blocks of the index for each client. Left out, as many as the client's GPU has."""


class DisaggregationConfig(ConfigModel):
    """Choice of the decode client first, and of a prefill client for long prompts that it does not hold."""

    uncached: int = Field(default=16, ge=0, le=2**40)
    """Tokens that the decode client does not hold from which on a prefill client computes the prompt (llm-d's charts:
    16). 0: never, as in llm-d's code."""
    prompt: int = Field(default=0, ge=0, le=2**40)
    """Tokens of a prompt below which the decode client computes it."""
    always: bool = False
    """A prefill client computes every prompt of at least `prompt` tokens, whatever the decode client holds."""
    prefill: ScorersConfig | None = None
    """Weights of the scorers that choose the prefill client. Left out, those of `scorers`."""


class LlmDConfig(ConfigModel):
    """llm-d's router (ebab687): the client with the highest weighted sum of scores, ties at random."""

    kind: Literal["llm_d"] = "llm_d"
    scorers: ScorersConfig = ScorersConfig()
    """Weights of the scorers."""
    view: EngineView = ScrapedView()
    """What the scorers `queue`, `kv` and `load_aware` know of the clients: `exact`, or as last scraped."""
    caches: RealView = EventsView()
    """What the scorer `precise_prefix` knows of the prefix caches: `{kind: events}`, or `exact`."""
    picker: Literal["max_score", "weighted_random", "random"] = "max_score"
    """Of the clients the one with the highest sum, one drawn with a probability proportional to it, or any."""
    prefix_index: PrefixIndexConfig = PrefixIndexConfig()
    """What the scorer `prefix` remembers."""
    precise_block: int | None = Field(default=None, ge=1, le=2**20)
    """Tokens of a block in which `precise_prefix` counts. Left out, the engine's."""
    load_threshold: int = Field(default=128, ge=1, le=2**40)
    """Waiting requests from which on `load_aware` gives 0."""
    idle_requests: int = Field(default=0, ge=0, le=2**40)
    """Requests in flight up to which `active_request` gives 1."""
    busy_score: float = Field(default=1.0, ge=0, le=1)
    """What `active_request` gives a busy client at most."""
    no_hit_by: Literal["sent", "caches"] = "sent"
    """By which knowledge `no_hit_lru` decides that no client holds a block: that of `prefix` or of `precise_prefix`."""
    session_algorithm: Literal["session_id_header", "encoded_endpoint_header"] = "session_id_header"
    """How `session` binds: by the session's name, a new one to the client of the fewest sessions; or by a token of the
    latest client that the caller sends back, so that a new session has no preference."""
    session_ttl: Duration = Field(default=300.0, gt=0)
    """Time after which a session that sent nothing is bound no longer (`session_id_header`)."""
    session_pins: list[Literal["decode", "prefill"]] = Field(default_factory=list, max_length=2)
    """Phases in which a session goes to the client of its latest request, whatever the scores. Without
    `disaggregation` `decode` is the client itself."""
    disaggregation: DisaggregationConfig | None = None
    """Choose decode and prefill clients together. Left out, each stage's clients are chosen when it is ready."""

    @property
    def places_both_phases(self) -> bool:
        """Whether it chooses the decode client with the prefill client."""
        return self.disaggregation is not None

    def build(self, context: RouterContext) -> LlmD:
        return LlmD(self, context)


class LlmD:
    """See the module's docstring."""

    def __init__(self, config: LlmDConfig, context: RouterContext) -> None:
        self._config, self._context = config, context
        self._candidates = list(context.candidates)
        self._place_of = {client.index: place for place, client in enumerate(self._candidates)}
        self._draws = Draws(context.rng)
        weights = config.scorers
        split = config.disaggregation
        self._prefill_weights = weights if split is None or split.prefill is None else split.prefill

        def uses(*names: str) -> bool:
            return config.picker != "random" and any(
                getattr(one, name) for one in (weights, self._prefill_weights) for name in names)

        self._loads = _loads(config, context) if uses("queue", "kv", "load_aware") else None
        views = [client.view() for client in self._candidates]
        block, index = views[0].block_tokens, config.prefix_index
        self.prompts = Prompts(max(LEAST_BLOCK, index.block or block), partial=True, most_tokens=index.most_tokens)
        capacities = [index.capacity or (view.kv_capacity_tokens // view.block_tokens if view.block_tokens
                                         else DEFAULT_CAPACITY) for view in views]
        self.prefixes = SentPrefixes(capacities, context.now_ns)
        self._precise_prompts = Prompts(config.precise_block or block or LEAST_BLOCK)
        sees = uses("precise_prefix") or (uses("no_hit_lru") and config.no_hit_by == "caches")
        self._precise = view_of(config.caches, context, self._precise_prompts) if sees else None
        self._knows = uses("prefix") or self._precise is not None or split is not None
        self._sessions = _Sessions(context, config) if uses("session") else None
        self._pins = {phase: _Sessions(context, config, follows=True) for phase in config.session_pins}
        self._active = _Active(config, context, split is not None) if uses("active_request") else None
        self._cold = _ColdPrompts() if uses("no_hit_lru") else None
        if uses("lora_affinity"):
            for client in self._candidates:
                if not isinstance(client, AdapterReadable):
                    raise InputError(Verbatim(f"{client.name} is no LLM engine and has no adapters; leave out "
                                              "`lora_affinity`"), field="scorers.lora_affinity")
        self._swept = 0   # the latest sweep
        self._members: set[int] = set()
        self.changed(context.candidates)

    def changed(self, members: Sequence[Client]) -> None:
        """Choose among the members; numbers drawn ahead are dropped."""
        self._sweep()
        self._draws.drop()
        self._members = {self._place_of[client.index] for client in members}
        places = sorted(self._members)
        self._all = self._places(places)
        if self._precise is not None:
            self._precise.changed(self._members)
        if self._config.disaggregation is not None:
            self._decode = self._places([p for p in places if "decode" in self._candidates[p].stages])
            self._prefill = self._places([p for p in places if self._candidates[p].role == "prefill"])

    def _places(self, places: list[int]) -> _Among:
        return _Among(places, len(self._candidates))

    def _sweep(self) -> None:
        """Forget what was sent to clients that are no members, if a sweep was due since the last call."""
        now = self._context.now_ns()
        if now - self._swept >= SWEEP_NS:
            self._swept = now - now % SWEEP_NS
            for place in range(len(self._candidates)):
                if place not in self._members:
                    self.prefixes.forget(place)

    # -- the choice ----------------------------------------------------------------------------------------------

    def choose(self, stage: Stage) -> Client:
        self._sweep()
        held = self.held(stage)
        split = self._config.disaggregation
        weights = self._config.scorers
        if split is None or not self._decode or not isinstance(stage, Generation):
            place = self._pick(stage, held, self._all, weights, "decode")
            return self._send(stage, held, place, place)
        prefill = decode = self._pick(stage, held, self._decode, weights, "decode")
        if continues(stage):
            return self._send(stage, held, decode, decode)
        client = self._candidates[decode]
        uncached = stage.prompt_tokens - self._tokens(held, decode)
        wanted = (split.always or 0 < split.uncached <= uncached) and stage.prompt_tokens >= split.prompt
        if self._prefill and (wanted or client.role == "decode"):
            prefill = self._pick(stage, held, self._prefill, self._prefill_weights, "prefill")
        stage.decode_on = client
        return self._send(stage, held, prefill, decode)

    def held(self, stage: Stage) -> _Held:
        """Return what the router knows of a prompt's blocks at the candidates."""
        prompt = self.prompts.hashed(stage)
        if self._precise is None:
            return _Held(prompt, self.prefixes.matches_with_gaps(prompt), None, {})
        precise = self._precise_prompts.hashed(stage)
        return _Held(prompt, self.prefixes.matches_with_gaps(prompt), precise, self._precise.matches(stage, precise))

    def _tokens(self, held: _Held, place: int) -> int:
        """Return the tokens of a prompt that a candidate is believed to hold."""
        if held.precise is not None:
            return self._precise_prompts.tokens_of(held.in_caches.get(place, 0), held.precise)
        return self.prompts.tokens_of(held.sent.get(place, 0), held.prompt)

    def _send(self, stage: Stage, held: _Held, place: int, decode: int) -> Client:
        """Note that a stage goes to these clients, and return the first."""
        if self._knows and not continues(stage):
            self._context.believed(stage, self._tokens(held, place))
        self.prefixes.sent(decode, held.prompt)
        if place != decode:
            self.prefixes.sent(place, held.prompt)
        if self._sessions is not None:
            self._sessions.bind(stage.request.session, decode, self._members)
        for phase, pins in self._pins.items():
            pins.bind(stage.request.session, decode if phase == "decode" else place, self._members)
        if self._active is not None:
            self._active.sent(stage, place, decode)
        if self._cold is not None:
            self._cold.sent(place, decode)
        return self._candidates[place]

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """See `hermes.core.router.Router`."""
        if self._active is not None:
            self._active.observe(event, client, stage)

    def _pick(self, stage: Stage, held: _Held, among: _Among, weights: ScorersConfig, phase: str) -> int:
        """Return the place that the picker takes, of several with the same right one at random."""
        pinned = self._pins[phase].bound(stage.request.session, among) if phase in self._pins else -1
        if pinned >= 0:   # it is the only one among which there is a choice
            place = among.places[pinned]
            return place if self._context.decisions is None else settled(
                self._context, stage, [place], place, lambda: {"pinned": [1.0]})
        place = among.places[self._drawn(self.scores(stage, held, among, weights))]
        if self._context.decisions is None:
            return place
        return settled(self._context, stage, among.places, place, lambda: self._told(stage, held, among, weights))

    def _drawn(self, scores: FloatArray) -> int:
        """Return the position of the client that the picker takes."""
        if self._config.picker == "random":
            return self._draws.below(len(scores))
        if self._config.picker == "weighted_random" and scores.any():
            sums = scores.cumsum()
            drawn = min(self._draws.number() * sums[-1], np.nextafter(sums[-1], 0.0))
            return int(np.searchsorted(sums, drawn, side="right"))
        best = np.flatnonzero(scores == scores.max())
        return int(best[self._draws.below(len(best))])

    # -- scores --------------------------------------------------------------------------------------------------

    def _told(self, stage: Stage, held: _Held, among: _Among, own: ScorersConfig) -> dict[str, list[float]]:
        """Return the sum, and what each scorer adds to it."""
        sums = {"score": own}
        for name, weight in own:
            if weight:
                none = dict.fromkeys(ScorersConfig.model_fields, 0.0)
                sums[name] = ScorersConfig(**none | {name: weight})
        return {name: self.scores(stage, held, among, weights).tolist() for name, weights in sums.items()}

    def scores(self, stage: Stage, held: _Held, among: _Among, weights: ScorersConfig | None = None) -> FloatArray:
        """Return the weighted sum of the scores of some candidates. weights: Others than the router's."""
        weights, total = weights or self._config.scorers, np.zeros(len(among.places))
        if self._loads is not None:
            waiting, kv_use = among.of(self._loads())
            if weights.queue:
                shortest, longest = waiting.min(), waiting.max()
                if longest > shortest:
                    total += (longest - waiting) * (weights.queue / (longest - shortest))
                else:
                    total += weights.queue
            if weights.kv:
                total += (1.0 - kv_use) * weights.kv
            if weights.load_aware:
                total += np.maximum(1.0 - waiting / self._config.load_threshold, 0.0) * (0.5 * weights.load_aware)
        if weights.prefix and held.prompt.blocks:
            among.add(total, held.sent, weights.prefix / held.prompt.blocks)
        if weights.precise_prefix and held.precise is not None and held.precise.blocks:
            among.add(total, held.in_caches, weights.precise_prefix / held.precise.blocks)
        if weights.session and self._sessions is not None and stage.request.session >= 0:
            bound = self._sessions.bound(stage.request.session, among)
            if bound >= 0:
                total[bound] += weights.session
        if weights.lora_affinity:
            adapter = adapter_of(stage.content)
            total += [weights.lora_affinity * _lora(self._candidates[place], adapter) for place in among.places]
        if weights.active_request and self._active is not None:
            total += self._active.scores(among) * weights.active_request
        if weights.no_hit_lru and self._cold is not None:
            known = held.sent if self._config.no_hit_by == "sent" else held.in_caches
            total += self._cold.scores(known, among) * weights.no_hit_lru
        return total


class _Held(NamedTuple):
    """What is known of a prompt's blocks, by place: those sent, and those in the caches of the engine's block size."""

    prompt: Hashed
    sent: dict[int, int]
    precise: Hashed | None
    in_caches: dict[int, int]


class _Among:
    """Some of the candidates, by place. `place_in`: their position among these, -1 for others."""

    def __init__(self, places: list[int], count: int) -> None:
        self.places = places
        self._where: IntArray | None = None if len(places) == count else np.array(places, dtype=np.int64)
        self.place_in = [-1] * count
        for position, place in enumerate(places):
            self.place_in[place] = position

    def __bool__(self) -> bool:
        return bool(self.places)

    def add(self, total: FloatArray, blocks_of: dict[int, int], weight: float) -> None:
        """Add so much for each block that these candidates hold."""
        for place, blocks in blocks_of.items():
            here = self.place_in[place]
            if here >= 0:
                total[here] += weight * blocks

    def of(self, rows: FloatArray) -> FloatArray:
        """Return the columns of these candidates."""
        chosen: FloatArray = rows if self._where is None else rows[:, self._where]
        return chosen


def _loads(config: LlmDConfig, context: RouterContext) -> Callable[[], FloatArray]:
    """Return what gives the waiting requests and the KV use of all candidates."""
    if isinstance(config.view, ScrapedView):
        return ScrapedTable(context, ("waiting", "kv_use"), config.view).rows
    candidates = context.candidates

    def now() -> FloatArray:
        views = [client.view() for client in candidates]
        use = [1.0 - view.free_kv_tokens / view.kv_capacity_tokens if view.kv_capacity_tokens else 0.0
               for view in views]
        return np.array([[view.waiting for view in views], use], dtype=np.float64)

    return now


def _lora(client: Client, adapter: int) -> float:
    """Return the score of a client for an adapter, 0 for the model without one."""
    assert isinstance(client, AdapterReadable)
    running, waiting, most = client.adapters()
    if adapter in running:
        return 1.0
    if most is None or len(running) + len(waiting) < most:
        return 0.8
    return 0.6 if adapter in waiting else 0.0


class _Active:
    """The router's requests in flight, at the client of each phase."""

    def __init__(self, config: LlmDConfig, context: RouterContext, phases: bool) -> None:
        self._idle, self._busy = config.idle_requests, config.busy_score
        self._decode = OwnBooks(context)
        self._books = [self._decode, OwnBooks(context)] if phases else [self._decode]

    def sent(self, stage: Stage, place: int, decode: int) -> None:
        self._decode.sent(stage, decode)
        if place != decode:
            self._books[-1].sent(stage, place)

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        for books in self._books:
            books.observe(event, client, stage)

    def scores(self, among: _Among) -> FloatArray:
        counts = np.sum([books.in_flight[among.places] for books in self._books], axis=0).astype(np.float64)
        busy = (counts.max() - counts) / max(counts.max(), 1.0) * self._busy
        return np.where(counts <= self._idle, 1.0, busy)


class _ColdPrompts:
    """The clients that got a prompt of which no client held a block, by place; the latest last."""

    def __init__(self) -> None:
        self._latest: dict[int, None] = {}
        self._is_cold = False   # the prompt that is being placed, as the latest candidates saw it

    def scores(self, held: dict[int, int], among: _Among) -> FloatArray:
        count = len(among.places)
        self._is_cold = not any(blocks and among.place_in[place] >= 0 for place, blocks in held.items())
        if not self._is_cold:
            return np.full(count, 0.5)
        if count == 1:
            return np.ones(1)
        fresh = [place for place in among.places if place not in self._latest]
        rank = {place: position for position, place in enumerate(fresh)}
        rank |= {place: len(fresh) + position for position, place in enumerate(self._latest)}
        return np.maximum(1.0 - np.array([rank[place] for place in among.places]) / (count - 1), 0.0)

    def sent(self, place: int, decode: int) -> None:
        """Note where the prompt goes."""
        if self._is_cold:
            for one in (decode, place):
                self._latest.pop(one, None)
                self._latest[one] = None


class _Sessions:
    """The client to which each session is bound, by place, and when it was used last."""

    def __init__(self, context: RouterContext, config: LlmDConfig, *, follows: bool = False) -> None:
        """follows: Whether the latest client binds, and a new session has no preference, as by a token."""
        self._now_ns, self._ttl_ns = context.now_ns, s_to_ns(config.session_ttl)
        self._expires = config.session_algorithm != "encoded_endpoint_header"   # the caller keeps a token for any time
        self._by_token = follows or not self._expires
        self._bound: dict[int, tuple[int, int]] = {}   # place, time; the one used longest ago first
        self._counts = [0] * len(context.candidates)

    def _expire(self, now: int) -> None:
        while self._bound and self._expires:
            session, (place, used) = next(iter(self._bound.items()))
            if now - used <= self._ttl_ns:
                return
            del self._bound[session]
            self._counts[place] -= 1

    def bound(self, session: int, among: _Among) -> int:
        """Return the position of the session's client, without one that of the client with the fewest sessions; -1 for
        no preference."""
        self._expire(self._now_ns())
        place = self._bound[session][0] if session in self._bound else -1
        if self._by_token or (place >= 0 and among.place_in[place] >= 0):
            return among.place_in[place] if place >= 0 else -1
        counts = [self._counts[one] for one in among.places]
        return counts.index(min(counts))

    def bind(self, session: int, place: int, members: set[int]) -> None:
        """Bind a session to a client, unless its name is bound to another member."""
        if session < 0:
            return
        now, known = self._now_ns(), self._bound.get(session)
        if known is not None:
            if not self._by_token and known[0] != place and known[0] in members:
                return
            del self._bound[session]
            self._counts[known[0]] -= 1
        self._bound[session] = place, now
        self._counts[place] += 1
