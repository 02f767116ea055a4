"""`hermes observe` against servers that redirect, or answer without an end."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from test_observe import scenario

from hermes.calibration.observe.server import Server
from hermes.calibration.observe.session import Target, observe
from hermes.errors import InputError
from hermes.scenario import load_scenario

CHUNK = b'data: {"choices": [{"text": "' + b"x" * 1000 + b'"}]}\n\n'
MOST_SENT = 24 << 20   # what a server may have written of an endless answer: the limit, and what sockets buffer


@contextmanager
def serving(**how: Any) -> Iterator[Any]:
    """A server. models, completions: "good", "endless", "line" (endless, without an end of line), "zip", or the URL
    that it redirects to. good: Requests that are answered first."""
    seen = SimpleNamespace(headers=[], sent=0, completions=0, good=how.get("good", 0), url="")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(how.get("models", "good"), json.dumps({"data": [{"id": "small"}]}).encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.completions += 1
            one = b'data: {"choices": [{"text": ""}]}\n\n'
            kind = "good" if seen.completions <= seen.good else how.get("completions", "good")
            self.answer(kind, one * min(asked["max_tokens"], 99) + b"data: [DONE]\n\n")

        def answer(self, kind: str, body: bytes) -> None:
            seen.headers.append(dict(self.headers))
            self.send_response(302 if kind.startswith("http") else 200)
            if kind.startswith("http"):
                self.send_header("Location", kind + self.path)
            if kind == "zip":
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            if kind == "good":
                self.wfile.write(body)
            if kind == "odd":
                self.wfile.write(b"data: 5\n\n")
            if kind == "zip":
                self.wfile.write(gzip.compress(b"\n" * (64 << 20)))
            until = time.monotonic() + 20
            while kind in ("endless", "line") and time.monotonic() < until:
                try:
                    seen.sent += self.wfile.write(CHUNK if kind == "endless" else b"data: " + b"x" * 60_000)
                except OSError:
                    return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("where", ["models", "completions"])
def test_redirects_are_not_followed(where: str, tmp_path: Path) -> None:
    with serving() as other, serving(**{where: other.url}) as first:
        target = Target(first.url, headers=(("X-Key", "secret"),))
        with pytest.raises(InputError, match=rf"302: a redirect to {other.url}, which is not followed"):
            observe(load_scenario(scenario()), target, tmp_path)
        assert first.headers[0]["X-Key"] == "secret"
        assert other.headers == [], "a key went to another host"


@pytest.mark.parametrize("kind", ["endless", "line", "zip"])
@pytest.mark.parametrize("where", ["models", "completions"])
def test_an_endless_answer_is_not_read_to_its_end(where: str, kind: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with serving(**{where: kind}) as server:
        with pytest.raises(InputError) as found:
            observe(load_scenario(scenario()), Target(server.url), tmp_path)
        assert time.monotonic() - began < 10
        assert server.sent < MOST_SENT
    if kind in ("endless", "line"):
        assert "not read further" in str(found.value)


def test_an_event_of_another_form_is_an_error_of_its_request(tmp_path: Path) -> None:
    with serving(completions="odd") as server, pytest.raises(InputError, match=r"does not take token ids.*TypeError"):
        observe(load_scenario(scenario()), Target(server.url), tmp_path)


def test_what_was_measured_before_an_endless_answer_is_kept(tmp_path: Path) -> None:
    with serving(good=2 + 9, completions="endless") as server:   # two warm-ups, nine requests
        found = observe(load_scenario(scenario()), Target(server.url), tmp_path)
    rows = pd.read_parquet(tmp_path / "observed.parquet")
    assert (found.requests, found.failed) == (12, 3)
    assert rows["ttft_s"].notna().sum() == 9
    assert rows["error"][rows["error"] != ""].str.contains("not read further").all()


def test_a_stream_without_an_end_has_the_time_of_its_request() -> None:
    async def ask() -> str:
        import aiohttp

        async with aiohttp.ClientSession() as session:
            server = Server(session, url, "small", 0.5, {})
            return (await server.complete([1], 1_000_000_000)).error   # as many bytes as it likes

    with serving(completions="endless") as endless:
        url = endless.url
        assert asyncio.run(ask()) == "no end after 0.5 s"
