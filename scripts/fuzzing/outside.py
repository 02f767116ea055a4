"""Files that other tools write, one family for each kind of reader: traces, results of load drivers, kernel tables,
operator tables, measured RAG queries, measured ranks of an index, launch manifests, dumps of metrics.

`SAMPLES` has a file of each trace format; `READERS` names the family of every module that reads files. A test compares
both with the package, so that a new format or reader cannot be forgotten.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DRIVER_FILES", "READERS", "SAMPLES", "import_command", "state_hash", "write_driver_files",
           "write_dumps", "write_kernels", "write_layers", "write_log", "write_manifests", "write_objects",
           "write_planners", "write_rag", "write_ranks", "write_samples"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
READERS = {
    "calibration": "steps", "cli.advise": "dump", "cli.checks": "log", "cli.deploy": "manifest",
    "cli.profile_show": "shown", "cli.scenarios": "scenario",
    "config": "import", "evidence.accuracy": "bars", "evidence.schedules": "schedule",
    "config.bench_results": "driver", "config.load_drivers": "driver", "config.plugin_files": "endless",
    "config.tables": "import",
    "config.validation": "profile", "config.yaml_document": "scenario", "explore.sweep.config": "sweep",
    "explore.optimize.space": "space", "explore.sweep.store": "store", "explore.sweep.results": "store",
    "deploy.compose_read": "manifest", "deploy.engine_scenario": "manifest", "deploy.flags": "manifest",
    "fleet.dump": "dump", "hardware.descriptions.files": "described",
    "hardware.composed.kernel_tables": "kernels", "hardware.descriptions.models": "described",
    "hardware.fitted.operator_tables": "layers",
    "plugins.metis.measured": "rag",
    "plugins.telerag.overlap.files": "ranks",
    "results.compare.observed": "observed", "results.compare.reference": "reference",
    "results.compare.regress": "golden", "results.compare.summaries": "driver",
    "results.files.stored": "run",
    "scenario.loading": "scenario", "study.loading": "study", "workload.driver_traces": "import",
    "workload.importers": "import", "workload.ragpulse": "import", "workload.token_traces": "import",
    "workload.traces": "trace",
}
"""Module that reads files -> the family that changes them; calibration's modules are one entry."""
DRIVER_FILES = {"aiperf": "aiperf.jsonl", "guidellm": "guidellm.json", "inference-perf": "inference-perf.json",
                "blis": "blis.csv", "vllm-bench": "vllm-bench.json", "llmperf": "llmperf.json",
                "summary": "summary.json"}
NO_TRACES = ("vllm-bench", "llmperf", "summary")   # without a file of their own, or without arrivals


def _csv(header: str, row: Callable[[int], str]) -> str:
    return "\n".join([header, *(row(i) for i in range(6))]) + "\n"


def _lines(row: Callable[[int], dict[str, Any]]) -> str:
    return "".join(json.dumps(row(i)) + "\n" for i in range(6))


def _vllm_bench() -> str:
    return json.dumps({
        "input_lens": [60, 61, 62, 63], "output_lens": [8, 9, 10, 0], "ttfts": [0.2, 0.3, 0.4, 0.0],
        "itls": [[0.05] * 7, [0.04] * 8, [0.04] * 9, []], "start_times": [5000.5, 5001.0, 5002.25, 5003.0],
        "errors": ["", "", "", "refused"]})


def _parquet(path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"arrival_s": [0.25 * i for i in range(6)], "prompt_tokens": [100 + i for i in range(6)],
                  "output_tokens": [5 + i for i in range(6)], "user": ["a", "b", "a", "c", "b", "a"]}).to_parquet(path)


SAMPLES: dict[str, dict[str, str | Callable[[Path], None] | Path]] = {
    "azure": {"azure.csv": _csv("TIMESTAMP,ContextTokens,GeneratedTokens",
                                lambda i: f"2023-11-16 18:15:{40 + i}.6805900,{100 + i},{5 + i}")},
    "bailian": {"bailian.jsonl": _lines(lambda i: {
        "chat_id": i + 1, "parent_chat_id": i - 1 if i > 2 else -1, "timestamp": 60.5 + i, "input_length": 40 + i,
        "output_length": 5 + i, "hash_ids": [1, 2, 3 + i]})},
    "burstgpt": {"burstgpt.csv": _csv("Timestamp,Session ID,Model,Request tokens,Response tokens,Log Type",
                                      lambda i: f"{5 + i},s{i % 2},GPT-4,{100 + i},{5 + i},API log")},
    "csv": {"csv.csv": _csv("arrival_s,prompt_tokens,output_tokens,user",
                            lambda i: f"{0.25 * i},{100 + i},{5 + i},u{i % 3}")},
    "mooncake": {"mooncake.jsonl": _lines(lambda i: {
        "timestamp": 250 * i, "input_length": 600 + i, "output_length": 9 + i, "hash_ids": [i, i + 1]})},
    "parquet": {"parquet.parquet": _parquet},
    "tokens": {"tokens.jsonl": _lines(lambda i: {
        "arrival": 0.5 * i, "output": 4 + i, "user": i % 2, "prompt_tokens": 33,
        **({"tokens": [*range(33)]} if i % 2 else {"hashes": ["a", "b", f"c{i}"]})})},
    "vllm-run": {"requests.jsonl": _lines(lambda i: {
        "request_id": f"r{i}", "arrival_time": 10.5 + i, "input_toks": 40 + i, "output_toks": 6 + i}),
        "prompt_blocks.jsonl": _lines(lambda i: {"request_id": f"r{i}", "hash_ids": [1, 2, 3 + i]})},
    "servegen": {"servegen.jsonl": _lines(lambda i: {"input_length": 61 + i, "output_length": 20 + i})},
    "sharegpt": {"sharegpt.json": json.dumps([
        {"conversations": [{"from": "human", "value": "What is a prefix cache?" * (i + 1)},
                           {"from": "gpt", "value": "It keeps keys and values." * (i + 1)}]} for i in range(3)])},
    "ragpulse": {name: DATA / "ragpulse" / name for name in (
        "0_trace.jsonl", "1_sys_prompt.jsonl", "2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl",
        "5_web_search.jsonl")},
    "vllm-bench": {"vllm-bench.json": _vllm_bench()},
    **{kind: {name: DATA / "load-drivers" / name} for kind, name in DRIVER_FILES.items() if kind not in NO_TRACES},
}
"""Trace format -> files of it."""

_OPTIONS = {"csv": ("session=user",), "parquet": ("session=user",), "tokens": ("session=user",), "sharegpt": (
    "turns=all",)} | dict.fromkeys(DRIVER_FILES, ("zero_tokens=one",))


def write_samples(folder: Path) -> None:
    """Write a file of each trace format."""
    for name, content in itertools.chain.from_iterable(files.items() for files in SAMPLES.values()):
        if isinstance(content, Path):
            shutil.copyfile(content, folder / name)
        elif isinstance(content, str):
            (folder / name).write_text(content)
        else:
            content(folder / name)


def import_command(file: str, rng: random.Random) -> list[str]:
    """Return the command that imports a sample."""
    kind = next(kind for kind, files in SAMPLES.items() if file in files)
    options = [word for option in _OPTIONS.get(kind, ()) for word in ("--set", option)]
    first = next(iter(SAMPLES[kind]))
    return ["trace", "import", kind, f"HERE/{first}", "-o", "HERE/out.parquet", "--json", *options]


def write_driver_files(folder: Path) -> None:
    """Write a result of each load driver."""
    for kind, name in DRIVER_FILES.items():
        if kind == "vllm-bench":
            (folder / name).write_text(_vllm_bench())
        else:
            shutil.copyfile(DATA / "load-drivers" / name, folder / name)


SERVED = """\
name: served
seed: 3
workload: {{requests: 6, arrivals: {{kind: poisson, rate: 20 /s}}, lengths: {{kind: fixed, prompt: 60, output: 8}}}}
clients: [{{hardware: {hardware}, memory: {{num_blocks: 4000}}}}]
"""


def write_kernels(folder: Path) -> None:
    """Write a card's kernel tables, and a scenario that is priced with them."""
    source = ROOT / "hw_profiles/kernels/a100-80gb"
    for suffix in (".yaml", ".npz"):
        shutil.copyfile(source.with_suffix(suffix), folder / f"kernels{suffix}")
    (folder / "served.yaml").write_text(SERVED.format(
        hardware="{kind: composed, model: llama-3.1-8b, device: a100-80gb, kernels: kernels.yaml}"))


def state_hash(changed: Path) -> None:
    """State the hash of a changed table in its header, the YAML file of the same name."""
    header = changed.with_suffix(".yaml")
    if changed != header:
        content = yaml.safe_load(header.read_text())
        content["sha256"] = hashlib.sha256(changed.read_bytes()).hexdigest()
        header.write_text(yaml.safe_dump(content, sort_keys=False))


def write_layers(folder: Path) -> None:
    """Write layer-wise operator tables, and a scenario that is priced with them."""
    from hermes.hardware.fitted.operator_tables import ONCE, PER_LAYER

    names = (*ONCE, *PER_LAYER)
    rows = [f"{name},{t},{10 * (i + 1) + t}" for i, name in enumerate(names) for t in (1, 16, 128)]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *rows, ""]))
    rows = [f"{name},{s},{100 + s}" for name in ("lm_head", "sampler") for s in (1, 4, 16)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *rows]))
    rows = [f"{chunk},{past},{decodes},{context},{5 + 0.1 * chunk + 0.001 * chunk * past + 0.01 * decodes * context}"
            for chunk, past, decodes, context in itertools.product((0, 16, 64), (0, 32), (0, 1, 8), (0, 64, 256))
            if (chunk or not past) and (chunk or decodes) and bool(decodes) == bool(context)]
    (folder / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    (folder / "skew.csv").write_text("pc,n,t_mean_us,t_max_us,t_skew_us\n0,2,100,200,130\n16,8,100,200,110\n"
                                     "0,8,100,200,110\n16,2,100,200,120\n")
    (folder / "served.yaml").write_text(SERVED.format(
        hardware="{kind: layerwise, path: ., model: llama-3.1-8b}"))


def write_rag(folder: Path) -> None:
    """Write a data set of RAG queries, measured queries and F1, and a scenario of METIS with them."""
    shutil.copyfile(ROOT / "hw_profiles/rag_datasets/musique.yaml", folder / "mine.yaml")
    rows = [f"q{i},{i % 2},{int(i == 1)},{1 + i},{30 + i},{60 + i},{5 + i}" for i in range(4)]
    (folder / "queries.csv").write_text("\n".join(
        ["query,joint,complex,pieces,least_words,most_words,answer_tokens", *rows, ""]))
    rows = [f"q{i},{method},{chunks},{words},{0.1 * chunks + 0.01 * i:.3f},{4 + i}" for i in range(4)
            for method, words in (("map_rerank", 0), ("stuff", 0), ("map_reduce", 40)) for chunks in (1, 2, 5)]
    (folder / "f1.csv").write_text("\n".join(["query,method,chunks,words,f1,answer_tokens", *rows, ""]))
    (folder / "served.yaml").write_text(
        "extends: studies/metis/base\nworkload:\n  requests: 6\n  pipeline: {name: metis, dataset: ./mine.yaml, "
        "queries: queries.csv, quality: {kind: measured, file: f1.csv}}\n")


def write_ranks(folder: Path) -> None:
    """Write measured ranks of queries and rewrites, sizes of clusters, and a scenario of lookahead retrieval."""
    rng = random.Random(5)
    (folder / "ranks.jsonl").write_text("".join(
        json.dumps({"query": f"q{query}", "rewrite": rewrite, "clusters": rng.sample(range(12), 6)}) + "\n"
        for query in range(4) for rewrite in (0, 1)))
    (folder / "sizes.csv").write_text("\n".join(["bytes", *(str(10**6 * (3 + i)) for i in range(12)), ""]))
    served = yaml.safe_load((ROOT / "docs/examples/my_prefetch.yaml").read_text())
    served["workload"] |= {"requests": 4, "pipeline": {
        "name": "telerag-hyde", "nprobe": 3, "budget": "30 MB", "strength": 1, "embed": False}}
    served["clients"][0] = {"kind": "ivf_index", "name": "index", "index": {
        "clusters": 12, "ranks_file": "ranks.jsonl", "sizes_file": "sizes.csv"}}
    (folder / "served.yaml").write_text(yaml.safe_dump(served))


def write_manifests(folder: Path) -> None:
    """Write manifests of clusters."""
    for path in (DATA / "manifests").glob("*.yaml"):
        shutil.copyfile(path, folder / path.name)


def write_objects(folder: Path) -> None:
    """Write routers, routes and autoscalers of clusters."""
    for path in (DATA / "objects").glob("*.yaml"):
        shutil.copyfile(path, folder / path.name)


PLANNED = """\
workload: {requests: 4, arrivals: {kind: poisson, rate: 5 /s}, lengths: {kind: fixed, prompt: 64, output: 8}}
clients:
  - {name: p, role: prefill, count: 2, model: llama-3.1-8b, device: h100-sxm, fleet: {start: 1, start_up: {total: 9}}}
  - {name: d, role: decode, count: 2, model: llama-3.1-8b, device: h100-sxm, fleet: {start: 1, start_up: {total: 9}}}
"""


def write_planners(folder: Path) -> None:
    """Write configurations of Dynamo's planner, and a scenario whose groups it scales."""
    for path in (DATA / "planner").iterdir():
        shutil.copyfile(path, folder / path.name)
    (folder / "easy.json").write_text((folder / "easy.json").read_text().replace("agg", "decode"))
    (folder / "planned.yaml").write_text(PLANNED)


def write_log(folder: Path) -> None:
    """Write a start-up log of vLLM."""
    (folder / "start.log").write_text(
        "INFO Model loading took 32.9 GiB and 18.0 seconds\nINFO Available KV cache memory: 37.2 GiB\n"
        "INFO GPU KV cache size: 487,424 tokens\nINFO Maximum concurrency for 131,072 tokens per request: 3.72x\n")


def write_dumps(folder: Path) -> None:
    """Write dumps of the metrics of two replicas, as a CSV and as an answer of Prometheus, and an autoscaler."""
    rows = [(1000 + 15 * i, name, 4 + i, 10 + 3 * i, 0.1 * (1 + i)) for i in range(6) for name in ("a", "b")]
    (folder / "dump.csv").write_text("\n".join(
        ["time_s,replica,waiting,running,kv_use,ready", *(",".join(f"{value}" for value in row) + ",1" for row in rows),
         ""]))
    metrics = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
    (folder / "dump.json").write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": metric, "pod": pod},
         "values": [[row[0], f"{row[2 + place]}"] for row in rows if row[1] == pod]}
        for place, metric in enumerate(metrics) for pod in ("a", "b")]}}))
    (folder / "hpa.yaml").write_text(
        "kind: hpa\nmetrics:\n  - {metric: running, target: 10}\n  - {metric: kv_use, target: 0.5}\n"
        "  - {metric: waiting, target: 4}\nmax: 3\n")
