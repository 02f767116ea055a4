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
            if kind == "body":
                self.wfile.write(how["body"])
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


@pytest.mark.drawn
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
    expected = "does not take token ids.*an event: expected an object, found 5"
    with serving(completions="odd") as server, pytest.raises(InputError, match=expected):
        observe(load_scenario(scenario()), Target(server.url), tmp_path)


GOOD = b'data: {"choices": [{"text": ""}]}\n\n'
DONE = b"data: [DONE]\n\n"
ODD = {
    "a number": (b"data: 5\n\n", "an event: expected an object, found 5"),
    "no JSON": (b"data: {]\n\n", "JSONDecodeError"), "no text": (b"data: \xff\xff\n\n", "Unicode"),
    "deep": (b"data: " + b"[" * 100_000 + b"\n\n", "Recursion"),
    "choices": (b'data: {"choices": 7}\n\n', "a list, found 7"),
    "usage": (b'data: {"usage": 3}\n\n', "usage: expected an object, found 3"),
    "negative": (b'data: {"usage": {"completion_tokens": -7}}\n\n', "usage.completion_tokens: expected a number of"),
    "huge": (b'data: {"usage": {"prompt_tokens": 1%s}}\n\n' % (b"0" * 30), "usage.prompt_tokens"),
    "longer": (b'data: {"usage": {"prompt_tokens": 1%s}}\n\n' % (b"0" * 5000), "ValueError"),
    "fraction": (b'data: {"usage": {"completion_tokens": 5.5}}\n\n', "found 5.5"),
    "infinite": (b'data: {"usage": {"completion_tokens": 1e999}}\n\n', "found inf"),
    "text": (b'data: {"usage": {"completion_tokens": "6"}}\n\n', "found '6'"),
    "true": (b'data: {"usage": {"completion_tokens": true}}\n\n', "found True"),
    "cached": (b'data: {"usage": {"prompt_tokens_details": {"cached_tokens": -1}}}\n\n', "cached_tokens"),
    "details": (b'data: {"usage": {"prompt_tokens_details": [1]}}\n\n', "prompt_tokens_details: expected an object"),
    "a long line": (b"data: " + b"x" * (1 << 19) + b"\n\n", "a line of more than"),
    "an error": (b'data: {"error": {"message": "out of\\nmemory\\u001b[31m"}}\n\n', "the server says"),
    "no end": (b"", "ends without [DONE]"),
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", ODD)
def test_an_odd_event_fails_its_request_alone(name: str, tmp_path: Path) -> None:
    """The ninth request gets it, after a good chunk; the others are measured, and the reason is one line."""
    event, reason = ODD[name]
    body = GOOD + event + (DONE if event else b"")
    with serving(good=2 + 8, completions="body", body=body) as server:
        found = observe(load_scenario(scenario(requests=9)), Target(server.url), tmp_path)
    rows = pd.read_parquet(tmp_path / "observed.parquet")
    assert (found.requests, found.failed) == (9, 1)
    assert rows["ttft_s"].notna().sum() == 8
    assert reason in found.first_error
    assert "\n" not in found.first_error
    assert found.first_error.isprintable()


def test_comments_and_other_fields_are_no_events(tmp_path: Path) -> None:
    """Comments, `event:` and `id:` lines, carriage returns, and usage that says nothing."""
    body = (b": hello\r\nevent: x\r\nid: 3\r\n" + GOOD.replace(b"\n", b"\r\n") + GOOD
            + b'data: {"choices": [], "usage": {"prompt_tokens": null, "prompt_tokens_details": null}}\n\n' + DONE)
    with serving(completions="body", body=body) as server:
        found = observe(load_scenario(scenario()), Target(server.url), tmp_path)
    rows = pd.read_parquet(tmp_path / "observed.parquet")
    assert (found.failed, found.miscounted) == (0, 0)
    assert (rows["chunks"] == 2).all()


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
