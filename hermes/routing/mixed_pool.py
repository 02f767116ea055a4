"""Splitwise's cluster scheduler: two pools of clients, one for each phase, that lend each other members.

The router places both phases of a request when it arrives. A pool whose best client is overloaded borrows from the
other one: the borrowed client becomes *mixed*, serves both phases side by side, and returns when it has run out of
work. (Patel et al., Splitwise, ISCA 2024, section IV-A; `MixedPoolScheduler` of splitwise-sim.)

The router keeps two counts per client, since requests that it has placed may not have arrived yet. *Pending tokens*: a
prompt counts its tokens from placement until it ends, a decode counts one from placement until it ends. *Scheduled
memory*, in tokens: on the prompt's client, prompt + 1 until the KV has left; on the decode's client, prompt + output
until it ends; if both are one client, prompt + output, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.generation import Generation
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError, Verbatim, suggest
from hermes.routing.decisions import settled

__all__ = ["MixedPool", "MixedPoolConfig"]

Names = list[Annotated[str, Field(min_length=1, max_length=200)]]


class MixedPoolConfig(ConfigModel):
    """Splitwise's pools for prompts and for decodes, which lend each other clients; both phases placed at arrival."""

    kind: Literal["mixed_pool"] = "mixed_pool"
    prompt: Names = Field(default=[])
    """Groups of clients whose home is the prompt pool. If both lists are left out, those with role `prefill`."""
    token: Names = Field(default=[])
    """Groups of clients whose home is the token pool. If both lists are left out, those with role `decode`. Clients in
    neither pool always serve both phases."""
    max_pending_tokens: int = Field(default=8192, ge=1, le=2**40)
    """Limit of a client's pending tokens: a client at which requests queue takes no prompt above it, unless there is no
    other choice."""

    places_both_phases: ClassVar[bool] = True

    def build(self, context: RouterContext) -> MixedPool:
        return MixedPool(self, context)


class _Book:
    """The router's counts of one client."""

    def __init__(self, client: Client, home: str) -> None:
        self.client, self.home = client, home
        self.pending_tokens = 0
        self.scheduled_tokens = 0
        self.chained = 0    # decodes that wait here for their own prompt to end
        self.capacity_tokens = client.view().kv_capacity_tokens
        self.prompts = "generate" in client.stages
        self.decodes = "decode" in client.stages

    @property
    def queues(self) -> bool:
        return self.chained > 0 or self.client.num_waiting > 0

    @property
    def empty(self) -> bool:
        return not self.client.num_running and not self.client.num_waiting


class _Placed:
    """Placement of a generation's phases, and its entries that still count."""

    __slots__ = ("decode", "output_tokens", "prompt", "prompt_pending", "prompt_tokens")

    def __init__(self, prompt: _Book, decode: _Book, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt, self.decode = prompt, decode
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.prompt_pending = True


class MixedPool:
    """See the module's docstring."""

    def __init__(self, config: MixedPoolConfig, context: RouterContext) -> None:
        self._context, self._limit = context, config.max_pending_tokens
        self._books = [_Book(c, home) for c, home in zip(context.candidates, _homes(config, context), strict=True)]
        self._by_index = {book.client.index: book for book in self._books}
        self._pools: dict[str, list[_Book]] = {"prompt": [], "mixed": [], "token": []}
        for book in self._books:
            self._pools[book.home].append(book)
        if not any(book.prompts for book in self._books) or not any(book.decodes for book in self._books):
            raise InputError(Verbatim("one of the phases has no clients; list groups in both pools, or give roles"))
        self._placed: dict[int, _Placed] = {}

    # -- placement -----------------------------------------------------------------------------------------------

    def choose(self, stage: Stage) -> Client:
        if not isinstance(stage, Generation):   # it has one phase only
            return self._any(_pending, _can_prompt).client
        tokens, total = stage.prompt_tokens, stage.prompt_tokens + stage.all_outputs
        pools = self._pools
        if stage.transferred:   # another router placed its prompt
            return (_best_decode(pools["token"], total) or _best_decode(pools["mixed"], total)
                    or self._any(_scheduled, _can_decode)).client
        prompt = self._best_prompt(pools["prompt"], tokens) or self._best_prompt(pools["mixed"], tokens)
        if stage.output_tokens == 1:   # the prompt's own step gives the whole answer
            prompt = prompt or self._lend("token", _pending, _can_prompt) or self._any(_pending, _can_prompt)
            return self._place(stage, prompt, prompt)
        decode = _best_decode(pools["token"], total) or _best_decode(pools["mixed"], total)
        if prompt is None:
            prompt = self._lend("token", _pending, _can_prompt)
        if decode is None:
            decode = self._lend("prompt", _scheduled, _can_decode)
        if prompt is None or decode is None:
            both = [book for book in self._listed() if book.prompts and book.decodes]
            if both:
                prompt = decode = min(both, key=_pending)
        # If no client serves both phases, the least loaded one takes it, even above the limit.
        return self._place(
            stage, prompt or self._any(_pending, _can_prompt), decode or self._any(_scheduled, _can_decode)
        )

    def _best_prompt(self, books: list[_Book], prompt_tokens: int) -> _Book | None:
        """Return the client with the fewest pending tokens, or None if its queue is too long."""
        able = [book for book in books if book.prompts]
        if not able:
            return None
        best = min(able, key=_pending)
        return None if best.queues and best.pending_tokens + prompt_tokens > self._limit else best

    def _lend(self, pool: str, load: Callable[[_Book], int], able: Callable[[_Book], bool]) -> _Book | None:
        """Lend the least loaded member of a pool if it can serve the other phase as well; it becomes mixed."""
        books = [book for book in self._pools[pool] if able(book)]
        if not books:
            return None
        lent = min(books, key=load)
        self._pools[pool].remove(lent)
        self._pools["mixed"].append(lent)
        return lent

    def _listed(self) -> list[_Book]:
        return self._pools["prompt"] + self._pools["mixed"] + self._pools["token"]

    def _any(self, load: Callable[[_Book], int], able: Callable[[_Book], bool]) -> _Book:
        return min((book for book in self._listed() if able(book)), key=load)

    def _settled(self, stage: Generation, chosen: _Book, pool: str, able: Callable[[_Book], bool],
                 load: Callable[[_Book], int], what: str) -> _Book:
        """Return the client that gets a phase, of its own pool and the mixed one."""
        books = [book for book in self._listed() if book is chosen or (
            able(book) and (book in self._pools[pool] or book in self._pools["mixed"]))]
        by_place = {self._context.candidates.index(book.client): book for book in books}
        place = self._context.candidates.index(chosen.client)
        return by_place[settled(self._context, stage, list(by_place), place, lambda: {
            what: [load(book) for book in by_place.values()]}, lowest=True)]

    def _place(self, stage: Generation, prompt: _Book, decode: _Book) -> Client:
        if self._context.decisions is not None:
            one = prompt is decode
            prompt = self._settled(stage, prompt, "prompt", _can_prompt, _pending, "pending tokens")
            if not (one and stage.output_tokens == 1):
                decode = self._settled(stage, decode, "token", _can_decode, _scheduled, "scheduled tokens")
            else:
                decode = prompt
        placed = _Placed(prompt, decode, stage.prompt_tokens, stage.all_outputs)
        self._placed[stage.arrival_order] = placed
        prompt.pending_tokens += placed.prompt_tokens
        decode.pending_tokens += 1
        if prompt is decode:
            prompt.chained += 1
        else:
            prompt.scheduled_tokens += placed.prompt_tokens + 1
        decode.scheduled_tokens += placed.prompt_tokens + placed.output_tokens
        stage.decode_on = decode.client
        return prompt.client

    # -- books ---------------------------------------------------------------------------------------------------

    def observe(self, event: str, client: Client, stage: Stage) -> None:
        """See `hermes.routing.base.Router`."""
        placed = self._placed.get(stage.arrival_order)
        if placed is None:
            return   # placed by another router
        if placed.prompt_pending:
            placed.prompt_pending = False
            placed.prompt.pending_tokens -= placed.prompt_tokens
            placed.prompt.chained -= placed.prompt is placed.decode
        if event in ("transferred", "refused") and placed.prompt is not placed.decode:
            placed.prompt.scheduled_tokens -= placed.prompt_tokens + 1
        if event in ("done", "refused"):
            del self._placed[stage.arrival_order]
            placed.decode.pending_tokens -= 1
            placed.decode.scheduled_tokens -= placed.prompt_tokens + placed.output_tokens
        if event in ("prefilled", "done"):
            self._send_home(self._by_index[client.index])

    def _send_home(self, book: _Book) -> None:
        """Return a borrowed client without requests, whose step has ended, to the end of its pool's list."""
        mixed = self._pools["mixed"]
        if book.home != "mixed" and book in mixed and book.empty:
            mixed.remove(book)
            self._pools[book.home].append(book)


def _best_decode(books: list[_Book], tokens: int) -> _Book | None:
    """Return the client with the least scheduled memory, or None if `tokens` more do not fit there."""
    able = [book for book in books if book.decodes]
    if not able:
        return None
    best = min(able, key=_scheduled)
    return best if best.scheduled_tokens + tokens <= best.capacity_tokens else None


def _pending(book: _Book) -> int:
    return book.pending_tokens


def _scheduled(book: _Book) -> int:
    return book.scheduled_tokens


def _can_prompt(book: _Book) -> bool:
    return book.prompts


def _can_decode(book: _Book) -> bool:
    return book.decodes


def _homes(config: MixedPoolConfig, context: RouterContext) -> Iterable[str]:
    """Return the home pool of each candidate; `InputError` for groups that do not exist."""
    names = [client.name for client in context.candidates]
    if not config.prompt and not config.token:
        home_of = {"prefill": "prompt", "decode": "token"}
        return [home_of.get(getattr(client, "role", ""), "mixed") for client in context.candidates]
    homes = ["mixed"] * len(names)
    for pool in ("prompt", "token"):
        for i, group in enumerate(getattr(config, pool)):
            members = [k for k, name in enumerate(names) if _group(name, group)]
            if not members:
                raise InputError("a group of clients", group, field=f"{pool}.{i}", suggestion=suggest(group, names))
            for k in members:
                if homes[k] not in ("mixed", pool):
                    raise InputError(Verbatim(f"group {group!r} is in both pools; list it in one"), field=f"{pool}.{i}")
                homes[k] = pool
    return homes


def _group(name: str, group: str) -> bool:
    """Whether a client of this name belongs to the group: NAME, or NAME-0, NAME-1, ..."""
    return name == group or (name.startswith(f"{group}-") and name[len(group) + 1 :].isdigit())
