"""One request to an OpenAI-compatible server: send token ids, note when each chunk of the answer comes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.errors import InputError, Verbatim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import ClientResponse, ClientSession, StreamReader

__all__ = ["Answer", "Server"]

# Most bytes of an answer, so that no server fills the memory, or is read without an end.
MOST_BODY = 1 << 20       # of a list of models, or of an error
MOST_BESIDE = 1 << 20     # of a stream, besides its tokens
MOST_OF_TOKEN = 1 << 14   # of a stream, for each token that was asked for
MOST_LINE = 1 << 18       # of a stream, for one event
LIST_S = 30.0             # longest time for the list of models
MOST_TOKENS = 2**53       # that a usage report may count


@dataclass
class Answer:
    """What came back. Instants are `time.perf_counter` seconds; empty `chunks` mean that no token came.

    `chunks` has the instant of each chunk with tokens: a server may put several tokens into one. Token counts are those
    of the server's usage report, -1 without one.
    """

    sent: float = 0.0
    chunks: list[float] = field(default_factory=list)
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    error: str = ""


class Server:
    """An endpoint `/v1/completions` that takes token ids and streams. Redirects are not followed: headers may hold a
    key, which is for this server alone.

    Args:
        url: Address up to and without `/v1`.
        model: Name of the model; "" for the first that the server lists.
        timeout_s: Longest time of one request.
        headers: Further headers, for keys of an API.
    """

    def __init__(self, session: ClientSession, url: str, model: str, timeout_s: float, headers: dict[str, str]) -> None:
        self.url, self.model = url.rstrip("/").removesuffix("/v1"), model
        self._session, self._timeout_s, self._headers = session, timeout_s, headers

    async def find_model(self) -> str:
        """Return the model that requests name, the server's first if none was given. Raises `InputError` if there is no
        server, or it does not have that model."""
        from aiohttp import ClientError, ClientTimeout

        try:
            async with self._session.get(f"{self.url}/v1/models", headers=self._headers, allow_redirects=False,
                                         timeout=ClientTimeout(total=min(LIST_S, self._timeout_s))) as reply:
                if reply.status != 200:
                    raise InputError(Verbatim(f"the server answers {await _refusal(reply, 200)}"), field=self.url)
                body = await _text(reply.content, MOST_BODY)
        except _TooLongError as error:
            raise InputError(Verbatim(f"/v1/models: {error}"), field=self.url) from None
        except (TimeoutError, ClientError, OSError, ValueError) as error:
            raise InputError("the address of an OpenAI-compatible server, up to /v1", Verbatim(_said(error)),
                             field=self.url) from None
        try:
            served = [str(model["id"]) for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            served = []
        if not served:
            raise InputError("a list of models at /v1/models", Verbatim(body[:200]), field=self.url)
        if self.model and self.model not in served:
            raise InputError(f"a model of this server: {', '.join(served)}"[:300], self.model, field="--model")
        self.model = self.model or served[0]
        return self.model

    async def complete(self, ids: list[int], output_tokens: int) -> Answer:
        """Ask for exactly `output_tokens` tokens after the prompt `ids`. Errors are in the answer, never raised."""
        from aiohttp import ClientError, ClientTimeout

        body = json.dumps({
            "model": self.model, "prompt": ids, "max_tokens": output_tokens,
            "ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        }, separators=(",", ":")).encode()
        answer = Answer(sent=time.perf_counter())
        try:
            async with self._session.post(
                f"{self.url}/v1/completions", data=body, headers={"Content-Type": "application/json", **self._headers},
                timeout=ClientTimeout(total=self._timeout_s), allow_redirects=False,
            ) as reply:
                if reply.status != 200:
                    answer.error = await _refusal(reply, 300)
                    return answer
                await _read(reply.content, answer, MOST_BESIDE + MOST_OF_TOKEN * output_tokens)
        except TimeoutError:
            answer.error = f"no end after {self._timeout_s:g} s"
        except (_TooLongError, _OddError) as error:
            answer.error = str(error)
        except (ClientError, OSError, ValueError, RecursionError) as error:
            answer.error = _said(error)
        if not answer.error and not answer.chunks:
            answer.error = "the answer has no tokens"
        return answer


class _TooLongError(Exception):
    """An answer that is longer than any that was asked for."""


class _OddError(ValueError):
    """An event that is not what a completions endpoint sends."""

    def __str__(self) -> str:
        return f"an answer of another form: {self.args[0]}"


async def _refusal(reply: ClientResponse, most: int) -> str:
    """Return what a server says instead of an answer, at most `most` characters of it."""
    if 300 <= reply.status < 400:
        place = urlsplit(reply.headers.get("Location", ""))
        where = f" to {place.scheme}://{place.netloc}"[:most] if place.netloc else ""
        return f"{reply.status}: a redirect{where}, which is not followed; give the address of the server itself"
    return f"{reply.status}: {(await _text(reply.content, MOST_BODY))[:most]}"


async def _text(content: StreamReader, most: int) -> str:
    """Return a body of at most `most` bytes. Raises `_TooLongError`."""
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > most:
            raise _TooLongError(f"an answer of more than {most} bytes: not read further")
    return body.decode("utf-8", "replace")


async def _lines(content: StreamReader, most: int) -> AsyncIterator[bytes]:
    """Yield the lines of a body of at most `most` bytes. Raises `_TooLongError`."""
    read, rest = 0, bytearray()
    async for piece in content.iter_any():
        read += len(piece)
        if read > most:
            raise _TooLongError(f"a stream of more than {most} bytes: not read further")
        rest += piece
        if b"\n" in piece:
            *lines, last = rest.split(b"\n")
            rest = last
            for line in lines:
                yield bytes(line)
        if len(rest) > MOST_LINE:
            raise _TooLongError(f"a line of more than {MOST_LINE} bytes: not read further")
    yield bytes(rest)


async def _read(content: StreamReader, answer: Answer, most: int) -> None:
    """Read server-sent events to the end, of at most `most` bytes.

    Raises `_TooLongError`, and ValueError or RecursionError for events that are not what they should be.
    """
    async for line in _lines(content, most):
        if not line.startswith(b"data:"):
            continue
        now = time.perf_counter()
        text = line[5:].strip()
        if text == b"[DONE]":
            return
        event = _mapping(json.loads(text), "an event")
        if event.get("error") is not None:
            answer.error = f"the server says: {event['error']}"[:300]
            return
        choices = event.get("choices") or []
        if not isinstance(choices, list):
            raise _OddError(f"choices: expected a list, found {_short(choices)}")
        if choices:
            answer.chunks.append(now)
        if event.get("usage") is not None:
            usage = _mapping(event["usage"], "usage")
            answer.prompt_tokens = _count(usage, "prompt_tokens")
            answer.output_tokens = _count(usage, "completion_tokens")
            details = usage.get("prompt_tokens_details")
            answer.cached_tokens = -1 if not details else max(
                0, _count(_mapping(details, "usage.prompt_tokens_details"), "cached_tokens"))
    raise _OddError("the stream ends without [DONE]")


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _OddError(f"{what}: expected an object, found {_short(value)}")
    return value


def _count(usage: dict[str, object], name: str) -> int:
    """Return a number of tokens; -1 if the server does not say it."""
    value = usage.get(name)
    if value is None:
        return -1
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise _OddError(f"usage.{name}: expected a number of tokens, found {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
