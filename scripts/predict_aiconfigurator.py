"""Ask aiconfigurator-core what it predicts for the rows of InferenceX and GPUStack, and print its errors.

    python scripts/predict_aiconfigurator.py PYTHON DATA [-o docs/accuracy/aiconfigurator.csv]

PYTHON is an interpreter with aiconfigurator-core 0.12.0, DATA the folder of reference sets (`hermes accuracy --data`).
The file holds predictions alone, one a row: set, card, engine, precision, tp, ep, input_tokens, output_tokens and
concurrency as the set names them, metric (ttft, tpot, e2e in seconds; output tokens/s of all cards), stat, predicted.

Each row is asked of the package's own planner for continuous batching (`run_agg`), with the tables of the row's engine
in the one version that it lets through, and with these inputs:

- the batch: the row's users; of GPUStack's 984 requests as many as its own estimate of the KV memory admits;
- lengths: the mean ones; those of DeepSeek-R1 are drawn between 0.8 and 1.0 of the nominal;
- prompt tokens of a step with a prompt: of one prompt, or of as many as end in a step, within the engine's limit;
- attention and KV cache in bf16, the engines' default: the sets state no other.

The planner's batch is always full. GPUStack's requests all arrive at once and the batch drains at the end: its rows
have no TTFT and no E2E, and their rate is that of a batch that stays full.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY = ("set", "card", "engine", "precision", "tp", "ep", "input_tokens", "output_tokens", "concurrency")
STATS = {"ttft": "p50", "tpot": "p50", "e2e": "p50", "output tokens/s": "mean"}
MODELS = {("deepseek", "fp8"): "deepseek-ai/DeepSeek-R1", ("deepseek", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
          ("minimax", "fp8_block"): "MiniMaxAI/MiniMax-M2.5", ("gpustack", "fp8"): "Qwen/Qwen3-235B-A22B-FP8"}
SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"}
BACKENDS = {"trt": "trtllm", "sglang": "sglang", "vllm": "vllm"}
STEP_TOKENS = {"sglang": 32768, "trt": 8192, "vllm": 8192}   # SGLang's as the set states, the others' default
MEAN_LENGTH = {"deepseek": 0.9, "minimax": 1.0, "gpustack": 1.0}   # of the nominal
LENGTHS = ("tp", "ep", "input_tokens", "output_tokens", "concurrency")
# GPUStack Performance Lab (gpustack/gpustack, Apache-2.0), Qwen3-235B-A22B on H100: ep -> total tokens/s, median TPOT
GPUSTACK, GPUSTACK_IN, GPUSTACK_OUT = {1: (7528.0, 0.1220), 4: (7132.0, 0.1316)}, 217, 198


def rows_of(data: Path) -> list[dict[str, Any]]:
    """Return the rows of all sets: `KEY`, and what was measured by metric."""
    found = []
    for name in ("deepseek-r1-fp8-sglang", "deepseek-r1-more", "minimax-m2.5-fp8block-h200-vllm"):
        with (data / "inferencex" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                about: dict[str, Any] = {"set": name, "card": "h200", "engine": "sglang", "precision": "fp8"}
                if name.startswith("minimax"):
                    about |= {"engine": "vllm", "precision": "fp8_block", "tp": 8, "ep": 8, "output_tokens": 128}
                about |= {key: line[key] for key in KEY if key in line}
                about |= {key: int(about[key]) for key in LENGTHS}
                found.append(about | {"measured": _measured(line, about)})
    found += [{"set": "gpustack", "card": "h100", "engine": "vllm", "precision": "fp8", "tp": 4, "ep": ep,
               "input_tokens": GPUSTACK_IN, "output_tokens": GPUSTACK_OUT, "concurrency": 984,
               "measured": {"tpot": tpot, "output tokens/s": rate * GPUSTACK_OUT / (GPUSTACK_IN + GPUSTACK_OUT)}}
              for ep, (rate, tpot) in GPUSTACK.items()]
    return found


def _measured(line: dict[str, str], about: dict[str, Any]) -> dict[str, float]:
    if "ttft_p50_ms" in line:
        out = {metric: float(line[f"{metric}_p50_ms"]) / 1e3 for metric in ("ttft", "tpot", "e2e")}
        return out | {"output tokens/s": float(line["output_tokens_per_s"])}
    if "median_ttft_s" in line:
        out = {metric: float(line[f"median_{metric}_s"]) for metric in ("ttft", "tpot", "e2e")}
        return out | {"output tokens/s": float(line["output_tokens_per_s_per_gpu"]) * about["tp"]}
    out = {metric: float(line[f"median_{metric}_ms"]) / 1e3 for metric in ("ttft", "tpot", "e2e")}
    share = about["output_tokens"] / (about["input_tokens"] + about["output_tokens"])
    return out | {"output tokens/s": float(line["tokens_per_s_per_gpu"]) * about["tp"] * share}


def ask(request: str) -> None:
    """In the other interpreter: read the rows, print for each its predictions or the reason for none."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from aiconfigurator_core.sdk import perf_database
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config import RuntimeConfig
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model

    def planned(row: dict[str, Any]) -> dict[str, Any]:
        kind = row["set"].split("-")[0]
        if row["card"] not in SYSTEMS:
            return {"error": f"no tables of {row['card']}"}
        system, engine, tp, ep = SYSTEMS[row["card"]], BACKENDS[row["engine"]], row["tp"], row["ep"]
        version = perf_database.resolve_query_version(system, engine, "current")
        config = build_model_config(
            tp_size=tp, pp_size=1, attention_dp_size=1, moe_tp_size=tp // ep, moe_ep_size=ep,
            fmha_quant_mode="bfloat16", kvcache_quant_mode="bfloat16")
        model = get_model(MODELS[kind, row["precision"]], config, engine)
        tables, backend = perf_database.get_database(system, engine, version), get_backend(engine)
        prompt, output = (round(MEAN_LENGTH[kind] * row[f"{of}_tokens"]) for of in ("input", "output"))

        def run(batch: int) -> Any:
            tokens = min(STEP_TOKENS[row["engine"]], prompt * math.ceil(batch / output))
            return backend.run_agg(
                model, tables, RuntimeConfig(batch_size=batch, isl=prompt, osl=output), ctx_tokens=tokens)

        batch = row["concurrency"]
        while kind == "gpustack" and batch > 1 and run(batch).check_kv_cache_oom():
            batch -= 1
        found = run(batch).get_result_dict()
        out = {"tpot": found["tpot"] / 1e3, "output tokens/s": found["tokens/s"]}
        if kind != "gpustack":
            out |= {"ttft": found["ttft"] / 1e3, "e2e": found["request_latency"] / 1e3}
        return {"predicted": {metric: float(out[metric]) for metric in STATS if metric in out}, "batch": batch,
                "version": f"{engine} {version}"}

    answers = []
    for row in json.loads(request):
        try:
            answers.append(planned(row))
        except Exception as error:   # a combination that its tables do not hold: it says which
            answers.append({"error": f"{type(error).__name__}: {error}"[:200]})
    print(json.dumps(answers))


def main(python: str, data: Path, output: Path | None) -> None:
    try:
        rows = rows_of(data)
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}; give the folder that holds inferencex") from None
    keys = [{key: row[key] for key in KEY} for row in rows]
    command = [python, __file__, "--ask"]
    try:
        done = subprocess.run(command, input=json.dumps(keys), capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"{python}: {error.strerror}; give an interpreter with aiconfigurator-core") from None
    if done.returncode:
        raise SystemExit(f"{python} failed: {(done.stderr.strip() or 'without a message').splitlines()[-1]}")
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    table: list[dict[str, Any]] = []
    errors: dict[tuple[str, ...], list[float]] = {}
    absent: dict[tuple[str, ...], int] = {}
    for row, key, answer in zip(rows, keys, answers, strict=True):
        name = row["set"], row["card"], row["engine"], row["precision"]
        if "error" in answer:
            absent[*name, answer["error"]] = absent.get((*name, answer["error"]), 0) + 1
            continue
        if answer["batch"] < row["concurrency"]:
            print(f"{' '.join(name)} ep {row['ep']}: {answer['batch']} of {row['concurrency']} requests fit")
        for metric, value in answer["predicted"].items():
            table.append(key | {"metric": metric, "stat": STATS[metric], "predicted": f"{value:.6g}"})
            errors.setdefault((*name, answer["version"], metric), []).append(value / row["measured"][metric] - 1)
    for about, of in errors.items():
        median, worst = statistics.median(map(abs, of)), max(of, key=abs)
        print(f"{'  '.join(about):90} {len(of):3} rows  median {median:6.1%}  worst {worst:+7.1%}")
    for why, count in absent.items():
        print(f"no answer for {count} rows of {' '.join(why[:-1])}: {why[-1]}")
    if output is not None:
        with output.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (*KEY, "metric", "stat", "predicted"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        print(f"{output}: {len(table)} predictions")


if __name__ == "__main__":
    if sys.argv[1:] == ["--ask"]:
        ask(sys.stdin.read())
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("python")
        parser.add_argument("data", type=Path)
        parser.add_argument("-o", dest="output", type=Path)
        main(**vars(parser.parse_args()))
