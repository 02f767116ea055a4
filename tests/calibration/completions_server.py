"""A server with the two endpoints that `hermes observe` calls. It runs in a thread; its answers take stated times."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FIRST_S, NEXT_S = 0.03, 0.004


@dataclass
class Server:
    """What it was asked, and how it answers.

    Attributes:
        fails: Requests, by how many came before, that get an error in place of an answer.
        together: Tokens in one chunk.
        counts: What the usage report adds to the true number of output tokens.
    """

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    fails: frozenset[int] = frozenset()
    together: int = 1
    counts: int = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small"}, {"id": "other"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.asked)
        self.asked.append(body)
        if number in self.fails:
            return web.json_response({"error": {"message": "out of luck"}}, status=503)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            await reply.prepare(request)
            left = body["max_tokens"]
            await asyncio.sleep(FIRST_S)
            while left:
                left -= min(left, self.together)
                await self._event(reply, {"choices": [{"text": ""}], "usage": None})
                await asyncio.sleep(NEXT_S if left else 0)
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"] + self.counts,
                     "prompt_tokens_details": {"cached_tokens": 16}}
            await self._event(reply, {"choices": [], "usage": usage})
            await reply.write(b"data: [DONE]\n\n")
        finally:
            self.open_now -= 1
        return reply

    @staticmethod
    async def _event(reply: web.StreamResponse, data: dict[str, Any]) -> None:
        await reply.write(b"data: " + json.dumps(data).encode() + b"\n\n")


@contextmanager
def serving(**how: Any) -> Iterator[Server]:
    """Serve on a free port of this machine while the context lasts."""
    server = Server(**how)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/v1/models", server.models), web.post("/v1/completions", server.completions)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
