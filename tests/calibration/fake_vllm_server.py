"""A server that starts like vLLM on a GPU, quickly: its log lines, its compile cache, its endpoints; no engine.

    python fake_vllm_server.py --model FOLDER --port N [--break]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LAYER_S = 0.004   # of compiling; a fourth of it of reading what was compiled
CAPTURE_S = 0.25  # lines count from when they are read: a busy machine reads the first one late
SIZES = [8, 4, 2, 1]


def say(text: str, who: str = "EngineCore pid=7", where: str = "core.py:1") -> None:
    print(f"({who}) INFO 11-28 02:48:20 [{where}] {text}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    asked = 0

    def answer(self, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "made-up"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.25 if not Handler.asked else 0.0)   # the first one is slower
        Handler.asked += 1
        self.answer({"choices": [{"text": ""}]})

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--break", dest="broken", action="store_true")
    asked = parser.parse_args()
    say("vLLM API server version 0.21.0", "APIServer pid=6", "api_server.py:2")
    layers = json.loads((asked.model / "config.json").read_text())["num_hidden_layers"]
    say("Initializing a V1 LLM engine (v0.21.0) with config: "
        f"compilation_config={{'cudagraph_capture_sizes': {SIZES}, 'local_cache_dir': None}}")
    say(f"Starting to load model {asked.model}...")
    if asked.broken:
        print("(EngineCore pid=7) ERROR 11-28 02:48:20 [core.py:9] ValueError: no memory for the KV cache",
              file=sys.stderr)
        sys.exit(1)
    if asked.load_format != "dummy":
        began = time.perf_counter()
        read = len((asked.model / "model.safetensors").read_bytes())
        time.sleep(read / 1e8)
        say(f"Loading weights took {time.perf_counter() - began:.2f} seconds")
    say("Model loading took 0.11 GiB memory and 0.410000 seconds")
    compiled = Path(os.environ["VLLM_CACHE_ROOT"]) / "compiled"
    cold = not compiled.exists()
    say("Dynamo bytecode transform time: 0.01 s")
    took = layers * LAYER_S / (1 if cold else 4)
    time.sleep(0.01 + took)
    say(f"Compiling a graph for compile range (1, 2048) takes {took:.3f} s" if cold else
        f"Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took {took:.3f} s")
    compiled.parent.mkdir(parents=True, exist_ok=True)
    compiled.write_text("compiled")
    say(f"torch.compile took {0.01 + took:.3f} s in total")
    time.sleep(0.03)
    say("GPU KV cache size: 61,808 tokens")
    print(f"\rCapturing CUDA graphs (decode, FULL):   0%|  | 0/{len(SIZES)}", end="\r", file=sys.stderr, flush=True)
    time.sleep(CAPTURE_S)
    say("Graph capturing finished in 0 secs, took 0.11 GiB")
    say(f"init engine (profile, create kv cache, warmup model) took 0.20 s (compilation: {took:.2f} s)")
    server = HTTPServer(("127.0.0.1", asked.port), Handler)
    say("Application startup complete.", "APIServer pid=6")
    server.serve_forever()


if __name__ == "__main__":
    main()
