"""Benchmark of the kernel: requests per second, cost by number of requests and clients, every scheduler.

    python benchmarks/core.py [--json FILE] [--quick] [--data DIR]

Every case runs in a process of its own, on one core, and counts everything from building the simulation to the finished
summary (imports excluded). Cheap cases are repeated five times; the figure is the median, and beside it stand the
coefficient of variation and its class (`hermes.core.noise`). `bare_process` is a SimPy process that yields three
timeouts, as many in flight as the simulation has requests, measured in the same process as the case it is compared
with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"   # --data
TRACES = Path(__file__).resolve().parents[1] / "traces"
MOONCAKE_REQUESTS = 12_031
# fixed for these benchmarks, whatever an engine's defaults are
PLAIN = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "async_scheduling": False}
BASE: dict[str, Any] = {
    "seed": 1,
    "workload": {
        "requests": 50_000,
        "arrivals": {"kind": "poisson", "rate": 40},
        "lengths": {"kind": "empirical", "profile": "azure-conv-2023"},
    },
    "clients": [{
        "name": "llm", "count": 10, "devices": 8,
        "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
        "scheduler": {"kind": "chunked", **PLAIN},
        "memory": {"num_blocks": 80_000, "prefix_caching": False},
        "allow_mismatch": True,   # the trace's longest requests exceed Llama 2's context
    }],
}


def scenario(
    requests: int = 50_000, clients: int = 10, *, scheduler: dict[str, Any] | None = None, blocks: int = 80_000,
    router: str | None = None, rate_per_client: float = 4.0, **top: Any,
) -> dict[str, Any]:
    """Return the benchmark's scenario with some changes."""
    out: dict[str, Any] = json.loads(json.dumps(BASE)) | top
    out["workload"] |= {"requests": requests}
    out["workload"]["arrivals"]["rate"] = rate_per_client * clients
    out["clients"][0] |= {"count": clients, "memory": {"num_blocks": blocks, "prefix_caching": False}}
    if scheduler is not None:
        out["clients"][0]["scheduler"] = scheduler
    if router is not None:
        out["router"] = {"kind": "least_loaded", "load": router}
    return out


def cached(requests: int) -> dict[str, Any]:
    """Return the benchmark's scenario with a prefix cache without hits."""
    out = scenario(requests)
    out["clients"][0]["memory"]["prefix_caching"] = True
    return out


def mooncake(*, prefix_caching: bool) -> dict[str, Any]:
    """Mooncake's conversation trace at three times its rate; `measure` fills in the trace."""
    out = scenario(MOONCAKE_REQUESTS, 8)
    out["workload"] |= {"arrivals": {"kind": "trace", "path": "", "scale": 3}, "lengths": {"kind": "trace", "path": ""}}
    out["clients"][0] |= {
        "model": "llama-3.1-70b", "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp8-bf16"},
        "memory": {"prefix_caching": prefix_caching, "block_size": 16},
    }
    return out


def ragpulse(**client: Any) -> dict[str, Any]:
    """The RAGPulse day 512 times over on 8 clients; `measure` fills in the trace."""
    memory = {"block_size": 16, "prefix_caching": True}
    group = {"name": "llm", "count": 8, "model": "llama-3.1-8b", "device": "h100-sxm", "memory": memory}
    trace = {"kind": "trace", "path": ""}
    return {"seed": 1, "workload": {"arrivals": trace, "lengths": dict(trace)}, "clients": [group | client]}


def disaggregated(requests: int) -> dict[str, Any]:
    """5 prefill and 5 decode clients, KV over 200 GB/s links."""
    out = scenario(requests)
    group = out["clients"][0] | {"count": 5}
    out["clients"] = [
        group | {"name": "prefill", "role": "prefill"}, group | {"name": "decode", "role": "decode"}
    ]
    for client in out["clients"]:
        client["memory"] = {"num_blocks": 80_000, "kv_bytes_per_token": 327_680, "prefix_caching": False}
    out["network"] = {"kind": "link", "bandwidth": "200 GB/s", "latency": "10 us"}
    return out


def prefix_cache(requests: int) -> dict[str, Any]:
    """Prompts of 100 groups with a common beginning each."""
    out = scenario(requests)
    out["clients"][0]["memory"]["prefix_caching"] = True
    out["workload"]["prefixes"] = {"groups": 100, "tokens": 512}
    return out


# its label; the scenario as data, or the name of a built-in one
CASES: dict[str, tuple[str, dict[str, Any] | str]] = {
    "chunked": ("10 chunked clients, 50,000 requests at 40/s", scenario()),
    "requests_1e4": ("the same, 10^4 requests", scenario(10_000)),
    "requests_1e5": ("the same, 10^5 requests", scenario(100_000)),
    "requests_1e6": ("the same, 10^6 requests", scenario(1_000_000)),
    "requests_1e7": ("the same, 10^7 requests", scenario(10_000_000)),
    "clients_10": ("10 clients, least loaded (input tokens), 1,000 requests each",
                   scenario(10_000, 10, router="input_tokens")),
    "clients_100": ("100 clients", scenario(100_000, 100, router="input_tokens")),
    "clients_1000": ("1,000 clients", scenario(1_000_000, 1000, router="input_tokens")),
    "clients_100_tokens_left": ("100 clients, least loaded (tokens left, evaluated as of now)",
                                scenario(20_000, 100, router="tokens_left")),
    "continuous": ("continuous", scenario(scheduler={"kind": "continuous"})),
    "static": ("static, batches of 32, 1/s per client",
               scenario(scheduler={"kind": "static", "max_num_seqs": 32}, rate_per_client=1.0)),
    "mixed": ("mixed", scenario(scheduler={"kind": "mixed"})),
    "disaggregated": ("5 prefill + 5 decode clients", disaggregated(50_000)),
    "preemption": ("chunked, 1,500 blocks: preemption", scenario(20_000, blocks=1_500)),
    "prefix_cache": ("chunked with a prefix cache", prefix_cache(20_000)),
    "cached": ("chunked with a prefix cache, nothing shared", cached(50_000)),
    "mooncake": ("Mooncake's trace, 8 clients, a prefix cache", mooncake(prefix_caching=True)),
    "mooncake_uncached": ("the same without a cache", mooncake(prefix_caching=False)),
    "ragpulse": ("RAGPulse's day in 512 copies, 8 clients, a prefix cache", ragpulse()),
    "ragpulse_unshared": ("the same, no prompt shared between copies", ragpulse()),
    "ragpulse_profile": ("ragpulse with steps priced by a fitted profile",
                         ragpulse(hardware={"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"})),
    "ragpulse_blocks": ("64 copies of the day in blocks of 16, nothing shared", ragpulse()),
    "every_step": ("chunked, every step an event", scenario(5_000, stepping="every_step")),
    "fleet": ("3 models, 5 kinds of client, 4 pipelines, 2 racks", "pipelines/fleet"),
}
REPEATS, REPEAT_S = 5, 12.0    # repetitions of a case, within this many seconds together
LONG = "requests_1e7"   # 8 minutes or more: only if named
QUICK = ("chunked", "requests_1e4", "clients_10", "clients_100", "continuous", "every_step")


def bare_process(count: int, in_flight: int) -> float:
    """Return the seconds of a SimPy process with three timeouts, with about `in_flight` of them alive."""
    import simpy

    def process(env: simpy.Environment) -> Iterator[Any]:
        yield env.timeout(in_flight)
        yield env.timeout(in_flight)
        yield env.timeout(in_flight)

    def source(env: simpy.Environment) -> Iterator[Any]:
        for _ in range(count):
            env.process(process(env))
            yield env.timeout(3)

    env = simpy.Environment()
    env.process(source(env))
    started = time.perf_counter()
    env.run()
    return (time.perf_counter() - started) / count


def trace_of(name: str, data: Path) -> Path | None:
    """Return the file that a case needs, from `data` or the repository; None if it needs none."""
    if name.startswith("ragpulse"):
        return TRACES / "ragpulse-day.parquet"
    return data / "mooncake" / "conversation_trace.jsonl" if name.startswith("mooncake") else None


def write_mooncake(source: Path, target: Path) -> None:
    """Import Mooncake's trace."""
    from hermes.workload.importers import import_trace
    from hermes.workload.traces import write_trace

    write_trace(import_trace("mooncake", source), target, source=source.name)


def write_copies(name: str, target: Path) -> None:
    """Write the copies of RAGPulse's day, in another process: its memory is not the simulation's."""
    program = Path(__file__).with_name("ragpulse_copies.py")
    options = {"ragpulse_unshared": ["--unshared"],
               "ragpulse_blocks": ["--unshared", "--copies", "64", "--blocks", "16"]}.get(name, [])
    subprocess.run([sys.executable, str(program), str(target), *options], check=True)


def measure(name: str, data: Path = DATA) -> dict[str, float]:
    """Run one case in this process, several times if it is cheap."""
    spec, source = CASES[name][1], trace_of(name, data)
    with TemporaryDirectory() as folder:
        if source is not None:
            assert isinstance(spec, dict)
            path = Path(folder) / "trace.parquet"
            if name.startswith("ragpulse"):
                write_copies(name, path)
            else:
                write_mooncake(source, path)
            for part in ("arrivals", "lengths"):
                spec["workload"][part]["path"] = str(path)
        return measured(name, spec)


def measured(name: str, spec: dict[str, Any] | str) -> dict[str, float]:
    from hermes.api import run_built
    from hermes.core.noise import peak_rss_bytes, spread
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    seconds, cpu, bare = [], [], []
    while len(seconds) < REPEATS and (not seconds or sum(seconds) + seconds[-1] <= REPEAT_S):
        simulation = record = results = None    # peak memory is that of one run
        checked = load_scenario(spec)
        started, began = time.perf_counter(), time.process_time()
        simulation = build(checked)
        results = run_built(checked, simulation, started)
        simulation = None   # as `hermes.simulate` leaves it to its caller
        record, summary = results.record, results.summary
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - began)
        if name == "chunked":
            bare.append(bare_process(30_000, 300))
    assert summary is not None
    median, noise = statistics.median(seconds), spread(seconds)
    requests = len(record.arrival_ns)
    out = {
        "requests": requests, "seconds": median, "cpu_seconds": statistics.median(cpu),
        "requests_per_s": requests / median, "us_per_request": 1e6 * median / requests,
        "steps_per_s": record.counters["steps"] / median,
        "runs_per_request": record.counters["runs"] / requests, "simulated_s_per_s": record.end_ns / 1e9 / median,
        "preemptions": float(record.runs["preempted"].sum()),
        "rss_bytes": float(peak_rss_bytes()), "repetitions": float(noise.samples), "cv": noise.cv,
        "ci95_relative": noise.ci95 / noise.mean if noise.samples > 1 else 0.0,
    }
    if bare:
        out["bare_process_us"] = 1e6 * statistics.median(bare)
    return out


def verdict(result: dict[str, float]) -> str:
    """Return the variance class of a case's repetitions; `single` for one."""
    from hermes.core.noise import classify

    return classify(result["cv"]) if result["repetitions"] > 1 else "single"


def run_case(name: str, data: Path = DATA) -> dict[str, float]:
    """Run one case in a process of its own, on one core."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--case", name, "--data", str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"case {name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def figures(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Flat figures, with the ratios the project watches."""
    flat: dict[str, float] = {}
    for name, result in results.items():
        for key in ("seconds", "cpu_seconds", "requests_per_s", "us_per_request", "steps_per_s", "simulated_s_per_s",
                    "rss_bytes", "cv"):
            flat[f"{name}_{key}"] = result[key]
    if "chunked" in results:
        flat["bare_process_us"] = results["chunked"]["bare_process_us"]
        flat["bare_process_ratio"] = results["chunked"]["us_per_request"] / flat["bare_process_us"]

    def ratio(*names: str) -> float:
        costs = [results[n]["us_per_request"] for n in names if n in results]
        return max(costs) / min(costs)

    if "requests_1e4" in results and "requests_1e6" in results:
        flat["requests_scaling_ratio"] = ratio("requests_1e4", "requests_1e5", "requests_1e6")
    if LONG in results and "requests_1e6" in results:   # 10 times the requests
        flat["requests_1e7_cpu_ratio"] = results[LONG]["cpu_seconds"] / results["requests_1e6"]["cpu_seconds"]
    # Cost of a prefix cache: with prompts full of hashes, and without shared blocks.
    if "mooncake" in results and "mooncake_uncached" in results:
        flat["prefix_cache_cost_ratio"] = (
            results["mooncake"]["us_per_request"] / results["mooncake_uncached"]["us_per_request"]
        )
    if "chunked" in results and "cached" in results:
        flat["prefix_cache_unshared_ratio"] = results["cached"]["us_per_request"] / results["chunked"]["us_per_request"]
    if "clients_10" in results and "clients_100" in results:
        flat["clients_scaling_ratio"] = ratio("clients_10", "clients_100", "clients_1000")
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures as flat JSON")
    parser.add_argument("--quick", action="store_true", help="the short cases only")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="these cases only")
    parser.add_argument("--data", metavar="DIR", type=Path, default=DATA,
                        help="folder with mooncake/conversation_trace.jsonl (default: %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(measure(options.case, options.data)))
        return
    names = options.only or (QUICK if options.quick else [name for name in CASES if name != LONG])
    heads = f"{'requests':>9} {'req/s':>8} {'us/req':>7} {'steps/s':>9} {'sim s/s':>8} {'RSS MB':>7} {'CV':>5}  n class"
    print(f"{'case':58} {heads}")
    results: dict[str, dict[str, float]] = {}
    for name in names:
        source = trace_of(name, options.data)
        if source is not None and not source.exists():
            print(f"{CASES[name][0]:58} left out: no {source} (--data names the folder)", flush=True)
            continue
        result = results[name] = run_case(name) if source is None else run_case(name, options.data)
        print(
            f"{CASES[name][0]:58} {result['requests']:9.0f} {result['requests_per_s']:8.0f} "
            f"{result['us_per_request']:7.1f} {result['steps_per_s']:9.0f} {result['simulated_s_per_s']:8.0f} "
            f"{result['rss_bytes'] / 1e6:7.0f} {100 * result['cv']:4.0f}% {result['repetitions']:2.0f} "
            f"{verdict(result)}", flush=True,
        )
    flat = figures(results)
    watched = ("bare_process_us", "bare_process_ratio", "requests_scaling_ratio", "requests_1e7_cpu_ratio",
               "clients_scaling_ratio", "prefix_cache_cost_ratio", "prefix_cache_unshared_ratio")
    for key in watched:
        if key in flat:
            print(f"{key}: {flat[key]:.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(flat, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"written to {options.json}")


if __name__ == "__main__":
    main()
