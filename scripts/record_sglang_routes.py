"""Record which workers SGLang's model gateway chooses, for the tests.

    PYTHON scripts/record_sglang_routes.py SEED STEPS > FILE

PYTHON is an interpreter that has sglang-router. It runs the gateway with the policy "cache_aware" over three stand-in
workers, which hold each request until it is let go, and go down and come back. One request at a time is on its way to a
worker, so that the order is known. Lines: the workers in the gateway's own order; then requests with their text and
worker, ends of requests, and workers that the health check has found down or up.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

THRESHOLDS = {"cache-threshold": 0.3, "balance-abs-threshold": 2, "balance-rel-threshold": 1.5}
EACH_S = {"health-check-interval-secs": 1, "health-check-timeout-secs": 1, "health-failure-threshold": 1,
          "health-success-threshold": 1, "eviction-interval-secs": 100_000}
INFO = {"model_path": "m", "served_model_name": "m", "tokenizer_path": "m", "is_generation": True, "tp_size": 1,
        "dp_size": 1, "version": "0.5"}
ANSWER = {"text": "x", "meta_info": {"id": "1", "prompt_tokens": 1, "completion_tokens": 1,
                                     "finish_reason": {"type": "stop"}}}


class Worker:
    """A server that answers as an SGLang engine that is up or down, and holds what it is asked to generate."""

    def __init__(self, number: int, arrived: list[tuple[int, threading.Event]], got: threading.Event) -> None:
        self.number, self.up, worker = number, True, self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self, said: dict[str, Any], status: int = 200) -> None:
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer(INFO if "info" in self.path else {}, 200 if worker.up else 503)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                let_go = threading.Event()
                arrived.append((worker.number, let_go))
                got.set()
                let_go.wait(60)
                self.answer(ANSWER)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def ask(url: str, text: str, done: threading.Event) -> None:
    """Ask for a generation, and wait for its end."""
    body = json.dumps({"text": text, "sampling_params": {"max_new_tokens": 1}}).encode()
    urllib.request.urlopen(urllib.request.Request(
        f"{url}/generate", data=body, headers={"content-type": "application/json"}), timeout=60).read()
    done.set()


def order_of(url: str, workers: list[Worker]) -> list[int]:
    """Return the numbers of the workers as the gateway lists them, once all are healthy."""
    numbers = {worker.url: worker.number for worker in workers}
    for _ in range(100):
        time.sleep(0.3)
        try:
            with urllib.request.urlopen(f"{url}/workers", timeout=5) as answer:
                found = json.loads(answer.read())["workers"]
        except OSError:
            continue
        if len(found) == len(workers) and all(one["is_healthy"] for one in found):
            return [numbers[one["url"]] for one in found]
    raise SystemExit("the gateway has not found its workers")


def play(url: str, workers: list[Worker], arrived: list[tuple[int, threading.Event]], got: threading.Event,
         draw: random.Random, steps: int) -> None:
    """Draw requests, ends and workers that go down."""
    begins = ["".join(draw.choice("abcd") for _ in range(20)) for _ in range(6)]
    live: list[tuple[threading.Event, threading.Event, int]] = []
    for number in range(steps):
        which = draw.random()
        if which < 0.35 and live:
            let_go, done, ended = live.pop(draw.randrange(len(live)))
            let_go.set()
            done.wait(5)
            time.sleep(0.03)
            say(end=ended)
        elif which > 0.985:
            worker = draw.choice(workers)
            if not worker.up or sum(one.up for one in workers) > 1:
                worker.up = not worker.up
                time.sleep(2.6)   # two health checks
                say(worker=worker.number, up=worker.up)
        else:
            more = "".join(draw.choice("efgh") for _ in range(draw.randint(0, 25)))
            text = draw.choice(begins)[:draw.randint(3, 20)] + more
            got.clear()
            done = threading.Event()
            threading.Thread(target=ask, args=(url, text, done), daemon=True).start()
            if not got.wait(5):
                raise SystemExit(f"no worker has got {text}")
            to, let_go = arrived[-1]
            live.append((let_go, done, number))
            say(ask=number, text=text, to=to)
            time.sleep(0.01)


def main() -> None:
    """Run the gateway and write the lines."""
    arrived: list[tuple[int, threading.Event]] = []
    got = threading.Event()
    workers = [Worker(number, arrived, got) for number in range(3)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word for name, value in (THRESHOLDS | EACH_S).items() for word in (f"--{name}", str(value))]
    gateway = subprocess.Popen(
        [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), "--policy",
         "cache_aware", "--disable-retries", "--disable-circuit-breaker", "--prometheus-port", str(port + 1), *words,
         "--worker-urls", *(worker.url for worker in workers)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        say(order=order_of(url, workers), **{name.replace("-", "_"): value for name, value in THRESHOLDS.items()})
        play(url, workers, arrived, got, random.Random(sys.argv[1]), int(sys.argv[2]))
    finally:
        gateway.terminate()


if __name__ == "__main__":
    main()
