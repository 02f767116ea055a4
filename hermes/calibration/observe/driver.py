"""Send the requests of a scenario to a server as the scenario says: at their arrival times, or user by user.

The simulator has no tokens; a content says which parts of a prompt are which text (`hermes.core.block_hashes`). Every
text gets random tokens, drawn from a generator that its key and the seed give: texts that two requests share in the
scenario are the same tokens here, in every run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hermes.calibration.collect.counters import waited_s
from hermes.calibration.observe.server import Server
from hermes.config.streams import stream
from hermes.core.block_hashes import GroupPrefix, HashedPieces, HashedPrompt, JoinedPrompt, PromptContent
from hermes.core.request import Request, Stream
from hermes.errors import InputError, Verbatim
from hermes.units import NS_PER_S

__all__ = ["WINDOW_S", "Vocabulary", "check_streams", "drive"]

RESERVED = 1000   # ids at both ends of a large vocabulary: special tokens stand there

LEAD_S = 0.2          # before the first arrival: making its prompt must not make it late
PREPARE_S = 2.0       # prompts are made this long before their arrival
WINDOW_S = 2.0
"""Length of the windows in which the driver's load is noted."""


class Vocabulary:
    """Random texts over the ids that are ordinary tokens.

    Args:
        size: Tokens of the model's vocabulary.
        seed: Seed of all texts.
        attempt: Other attempts have other texts, so that no attempt finds those of an earlier one in a cache.
    """

    def __init__(self, size: int, seed: int, attempt: int = 1) -> None:
        if size < 10:
            raise InputError("a vocabulary of at least 10 tokens", size, field="vocab_size")
        reserved = min(RESERVED, size // 4)
        self._low, self._high, self._seed = reserved, size - reserved, seed
        self._name = "observe" if attempt == 1 else f"observe-attempt-{attempt}"

    def prompt(self, request: Request) -> list[int]:
        """Return the `prompt_tokens` ids of a request's prompt."""
        ids: list[int] = []
        for key, tokens in pieces(request.content, request.prompt_tokens):
            ids += self._text(key, tokens)
        return ids + self._text(f"own-{request.id}", request.prompt_tokens - len(ids))

    def _text(self, key: str, tokens: int) -> list[int]:
        draw = stream(self._seed, f"{self._name}-{key}")
        found: list[int] = draw.integers(self._low, self._high, tokens).tolist()
        return found


def pieces(content: PromptContent | None, prompt_tokens: int) -> Iterator[tuple[str, int]]:
    """Yield (key of a text, how many of its first tokens) of the shared part of a prompt, in order.

    Raises `InputError` for contents that only a conversation has: its later prompts repeat answers of the server.
    """
    if isinstance(content, JoinedPrompt):
        content = content.original
    if isinstance(content, GroupPrefix):
        yield f"group-{content.group}", min(content.num_tokens, prompt_tokens)
    elif isinstance(content, HashedPrompt):
        left = content.num_tokens
        for number in content.ids:
            yield f"hash-{number}", min(content.unit, left)
            left -= min(content.unit, left)
    elif isinstance(content, HashedPieces):
        start = 0
        for number, end in zip(content.ids, content.ends, strict=True):
            end = min(end, content.num_tokens)
            yield f"hash-{number}", end - start
            start = end
    elif content is not None:
        raise InputError(Verbatim(f"{type(content).__name__}: prompts of conversations repeat the server's answers, "
                                  "which are not known before; drive single requests"), field="workload")


Row = dict[str, Any]


def check_streams(streams: Sequence[Stream]) -> None:
    """Raise `InputError` for workloads that a completions endpoint cannot be asked for."""
    for i, asked in enumerate(streams):
        table, field = asked.table, f"workload.{i}"
        if table.turn is not None:
            raise InputError(Verbatim("conversations repeat the server's answers, which are not driven yet; take "
                                      "single requests"), field=f"{field}.lengths")
        if table.branch_tokens is not None:
            raise InputError(Verbatim("several answers to a prompt are not driven yet; set 1"),
                             field=f"{field}.branches")
        if table.population is not None:
            raise InputError(Verbatim("past contexts have no tokens to send; leave them out"),
                             field=f"{field}.contexts")
        if asked.only_stage is None:
            raise InputError(Verbatim("only pipelines of one generation can be driven; take plain"),
                             field=f"{field}.pipeline")


async def drive(
    streams: Sequence[Stream], server: Server, words: Vocabulary, done: set[int], record: Callable[[Row], None],
    max_in_flight: int, loaded: Callable[[dict[str, float]], None],
) -> None:
    """Send every request that is not in `done`, and tell each when it has ended, in the order of their ends. `loaded`
    is called after every window with the load of the driver's process.

    Each request makes a row of the journal: instants in seconds on the scenario's clock; `scheduled_s` is
    when the scenario wanted it (for users of a closed loop, when they had thought), `taken_s` when the driver took it
    up: it is sent then, or once fewer are under way.

    Arrivals of an open loop keep their times; where the first requests are done, the clock starts at the first that is
    left. At most `max_in_flight` requests are under way; others wait and are sent late.
    """
    check_streams(streams)
    everyone = asyncio.Semaphore(max_in_flight)
    left = {each: [r for r in each.requests() if r.id not in done] for each in streams}
    opens = [requests[0].arrival_ns for each, requests in left.items() if requests and not each.closed]
    skipped_s = min(opens, default=0) / NS_PER_S if done else 0.0   # a continued run does not wait for what is done
    zero = time.perf_counter() + LEAD_S - skipped_s
    watch = asyncio.create_task(_watch(loaded))
    try:
        await _send_all(left, server, words, record, zero, everyone)
    finally:
        watch.cancel()


async def _send_all(left: Mapping[Stream, list[Request]], server: Server, words: Vocabulary,
                    record: Callable[[Row], None], zero: float, everyone: asyncio.Semaphore) -> None:
    async with asyncio.TaskGroup() as tasks:
        for each, requests in left.items():
            send = _Sender(each, server, words, record, zero, everyone)
            if each.closed:
                rest = iter(requests)
                for _ in range(min(each.table.users or 0, len(requests))):
                    tasks.create_task(send.user(rest))
            else:
                tasks.create_task(send.open_loop(requests, tasks))


async def _watch(loaded: Callable[[dict[str, float]], None]) -> None:
    """Note the load of every window, in seconds on the wall, on a core and waiting for one, until this task is
    cancelled."""
    while True:
        wall, cpu, waited = time.perf_counter(), time.process_time(), waited_s()
        await asyncio.sleep(WINDOW_S)
        loaded({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
                "waited_s": waited_s() - waited})


class _Sender:
    """The requests of one workload."""

    def __init__(self, stream: Stream, server: Server, words: Vocabulary, record: Callable[[Row], None], zero: float,
                 everyone: asyncio.Semaphore) -> None:
        self._stream, self._server, self._words, self._record, self._zero = stream, server, words, record, zero
        limit = stream.table.max_in_flight
        self._gates = [everyone] if limit is None else [asyncio.Semaphore(limit), everyone]

    async def open_loop(self, requests: Sequence[Request], tasks: asyncio.TaskGroup) -> None:
        for request in requests:
            due = self._zero + request.arrival_ns / NS_PER_S
            await _until(due - PREPARE_S)
            ids = self._words.prompt(request)
            await _until(due)
            tasks.create_task(self._send(request, ids, due))

    async def user(self, rest: Iterator[Request]) -> None:
        """Take a request, think, send it, wait for its end, and take the next one that is left."""
        think_ns, first = self._stream.table.think_ns, self._stream.first_id
        now = self._zero
        for request in rest:
            ids = self._words.prompt(request)
            due = now + (int(think_ns[request.id - first]) / NS_PER_S if think_ns is not None else 0.0)
            await _until(due)
            await self._send(request, ids, due)
            now = time.perf_counter()

    async def _send(self, request: Request, ids: list[int], due: float) -> None:
        taken = time.perf_counter()
        for gate in self._gates:
            await gate.acquire()
        try:
            answer = await self._server.complete(ids, request.output_tokens)
        finally:
            for gate in self._gates:
                gate.release()
        self._record({
            "request": request.id, "workload": self._stream.name, "scheduled_s": round(due - self._zero, 6),
            "taken_s": round(taken - self._zero, 6), "arrival_s": round(answer.sent - self._zero, 6),
            "chunk_s": [round(instant - self._zero, 6) for instant in answer.chunks],
            "prompt_tokens": request.prompt_tokens, "output_tokens": 0 if answer.error else request.output_tokens,
            "counted": [answer.prompt_tokens, answer.output_tokens], "cached_tokens": answer.cached_tokens,
            "error": answer.error,
        })


async def _until(instant: float) -> None:
    while (left := instant - time.perf_counter()) > 0:
        await asyncio.sleep(left)
