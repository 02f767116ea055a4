"""Benchmark of step pricing: fitted profiles, our roofline, GenZ.

    python -m benchmarks.hardware [--genz-python PATH] [--json FILE]

Every figure is the best of several rounds, on one core. A run is 64 decode steps of 32 sequences, priced by one call;
a mixed step is 512 prompt tokens beside 32 decodes. GenZ (genz-llm, optional) is timed in the interpreter given, or in
this one if it is installed there. The regression is fitted on steps that the roofline priced, so that both answer the
same question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 64
MODEL, DEVICE, TP = "llama-3.1-8b", "h100-sxm", 1
GENZ = """
import json, time, warnings
from GenZ import decode_moddeling
warnings.simplefilter("ignore")
options = dict(model="meta-llama/llama-3.1-8b", system_name="H100_GPU", system_eff=0.75, bits="bf16", tensor_parallel=1,
               parallelism_heirarchy="TP{1}_EP{1}_PP{1}", output_tokens=0, Bb=1)
times = []
for i in range(25):
    started = time.perf_counter()
    decode_moddeling(batch_size=32, input_tokens=1000 + i, **options)["Latency"]
    times.append(time.perf_counter() - started)
print(json.dumps(min(times[5:])))
"""


def best_s(call: Callable[[], Any], rounds: int = 15, least_s: float = 0.01) -> float:
    """Return the seconds of one call: the best mean of several rounds of calls that take about `least_s` together."""
    call()
    started = time.perf_counter()
    call()
    count = max(1, int(least_s / max(1e-9, time.perf_counter() - started)))
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - started) / count)
    return min(times)


def price_costs(model: Any) -> dict[str, float]:
    """Return seconds per step: in a run of 64, and for single steps of each kind."""
    from hermes.testing.hardware import batch

    decode, prefill = batch([], [1000] * 32), batch([(512, 0)], [])
    mixed = batch([(512, 0)], [1000] * 32)
    return {
        "run": best_s(lambda: model.run_ns(decode, STEPS)) / STEPS, "decode": best_s(lambda: model.step_ns(decode)),
        "prefill": best_s(lambda: model.step_ns(prefill)), "mixed": best_s(lambda: model.step_ns(mixed)),
    }


def genz_s(python: str | None) -> float | None:
    """Return the seconds of one GenZ query; None if it is not installed."""
    done = subprocess.run(
        [python or sys.executable, "-c", GENZ], capture_output=True, text=True, timeout=600, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        if "No module named 'GenZ'" in done.stderr:
            return None
        raise SystemExit(f"GenZ failed:\n{done.stderr[-2000:]}")
    return float(json.loads(lines[-1]))


def measure(genz_python: str | None = None) -> dict[str, float]:
    """Return all figures, flat."""
    from hermes.hardware import load_profile
    from hermes.hardware.descriptions.files import names_in
    from hermes.hardware.fitted.polynomial import PolynomialModel
    from hermes.hardware.roofline import Roofline

    shipped = {name: price_costs(PolynomialModel(load_profile(name))) for name in names_in("")}
    roofline = price_costs(Roofline(model=MODEL, device=DEVICE, tp=TP).build())
    figures: dict[str, float] = {"profiles": len(shipped)}
    for kind in ("run", "decode", "prefill", "mixed"):
        figures[f"profile_{kind}_us"] = 1e6 * max(costs[kind] for costs in shipped.values())
        figures[f"roofline_{kind}_us"] = 1e6 * roofline[kind]
    query_s = genz_s(genz_python)
    if query_s is not None:
        figures["genz_query_us"] = 1e6 * query_s
        figures["genz_ratio"] = query_s / max(costs["run"] for costs in shipped.values())
    return figures


def report(figures: dict[str, float]) -> None:
    """Print the figures as tables."""
    print(f"\npricing a step (us): {'in a run of 64':>15} {'decode':>8} {'prefill':>8} {'mixed':>8}")
    rows = {
        f"slowest of {figures['profiles']:.0f} shipped profiles": "profile", f"roofline, {MODEL} {DEVICE}": "roofline",
    }
    for label, key in rows.items():
        run, *single = (figures[f"{key}_{kind}_us"] for kind in ("run", "decode", "prefill", "mixed"))
        print(f"{label:33} {run:8.3f} " + " ".join(f"{value:8.2f}" for value in single))
    if "genz_ratio" in figures:
        query_us, ratio = figures["genz_query_us"], figures["genz_ratio"]
        print(f"GenZ query / step of the slowest profile in a run: {query_us:.0f} us, {ratio:.0f} times")
    else:
        print("GenZ query / fitted profile: not installed")


def main(genz_python: str | None = None, json_file: str | None = None) -> None:
    """Measure and print; figures are added to `json_file` if it exists."""
    figures = measure(genz_python)
    report(figures)
    if json_file:
        path = Path(json_file)
        flat = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        flat |= {f"hardware_{name}": value for name, value in figures.items()}
        path.write_text(json.dumps(flat, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genz-python", metavar="PATH", help="an interpreter that has genz-llm")
    parser.add_argument("--json", metavar="FILE", help="add the figures to this flat JSON file")
    options = parser.parse_args()
    main(options.genz_python, options.json)
