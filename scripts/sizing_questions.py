"""Draw the sizing questions of `scripts/sizing_consistency.py` into tests/data/sizing-questions.yaml.

    python scripts/sizing_questions.py > tests/data/sizing-questions.yaml

30 questions, drawn by a seed that is not changed afterwards: models, cards, answers of 50 to 20,000 tokens, mixed and
split layouts, one to three stages. The rate is the one that the closed form (`hermes.explore.size.bounds`) gives to a
drawn number of clients, rounded; so the questions are data, and the file does not follow later changes of the code.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import yaml

from hermes.explore.size.bounds import demand_of, equilibrium
from hermes.scenario import load_scenario

SEED = 20261123
CARDS = [   # model, device, tp
    ("llama-3.1-8b", "h100-sxm", 1), ("llama-3.1-8b", "l40s", 1), ("llama-3.1-8b", "a100-sxm-80gb", 1),
    ("llama-3.1-70b", "h100-sxm", 4), ("llama-3.1-70b", "h200", 2), ("llama-3.1-70b", "b200", 2),
    ("qwen3-32b", "h100-sxm", 2), ("qwen3-32b", "h200", 1), ("qwen3-14b", "h100-sxm", 1),
    ("mistral-7b", "l40s", 1),
]
LONG = range(12)        # answers of 1,000 to 20,000 tokens
MEDIUM = range(12, 24)  # 150 to 1,000
CPU = {"kind": "rag", "name": "cpu", "device": "cpu-large", "cores": 64}
EMBED = {"kind": "encoder", "hardware": {"kind": "roofline", "model": "e5-base", "device": "cpu-large",
                                         "dtype": "fp32"}}
RETRIEVE = {"kind": "ivf_pq", "vectors": 10_000_000, "nlist": 4096, "nprobe": 16, "code_bytes": 48}


def drawn(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return one question: a scenario, and what `size` is asked."""
    model, device, tp = CARDS[int(rng.integers(len(CARDS)))]
    low, high = (1000, 6000) if number in LONG else (150, 1000) if number in MEDIUM else (50, 150)
    median = int(np.exp(rng.uniform(np.log(low), np.log(high))))
    sigma = round(float(rng.uniform(0.2, 0.8)), 2)
    prompt = int(np.exp(rng.uniform(np.log(50), np.log(3000))))
    stages = int(rng.choice([1, 1, 1, 3])) if number not in LONG else 1
    layout = "pd" if rng.random() < 0.27 else "mixed"
    clients = int(rng.integers(1, 8)) if number % 3 else int(rng.integers(3, 8))
    slack = float(rng.uniform(1.15, 1.6))   # batches of ten to fifty: a hundred would take hours to check
    scenario: dict[str, Any] = {
        "name": f"question {number}",
        "workload": {
            "requests": 2000, "arrivals": {"kind": "poisson", "rate": 1.0},
            "lengths": {"kind": "independent",
                        "prompt": {"kind": "lognormal", "median": prompt, "sigma": 0.5, "max": 8000},
                        "output": {"kind": "lognormal", "median": median, "sigma": sigma, "max": 20_000}}},
        "clients": [{"name": "llm", "model": model, "device": device, "parallel": {"tp": tp}}],
        "router": {"kind": "least_loaded", "load": "requests"},
    }
    demand = demand_of(load_scenario(scenario))
    assert demand is not None
    lone = demand.step_s(1, demand.context)
    tpot = round(slack * lone, 4)
    rate = _rate(scenario, clients, lone + 0.6 * (tpot - lone))
    scenario["workload"]["arrivals"]["rate"] = rate
    scenario["workload"]["requests"] = int(min(max(60 * rate, 1000), 20_000))
    scenario["slo"] = {"ttft": f"{round(0.5 + 5 * demand.prompt_s, 1)} s", "tpot": f"{1e3 * tpot:.1f} ms"}
    if stages == 3:
        scenario["workload"]["pipeline"] = {"name": "rag", "documents": 4, "document_tokens": 256}
        scenario["clients"].append({**CPU, "count": 8, "serves": {"embed": EMBED, "retrieve": RETRIEVE}})
        scenario["network"] = {"kind": "link", "bandwidth": "50 GB/s"}
        scenario["slo"]["ttft"] = f"{round(1.0 + 10 * demand.prompt_s, 1)} s"
    return {"scenario": scenario, "device": device, "tp": tp, "layout": layout, "stages": stages}


def _rate(scenario: dict[str, Any], clients: int, token_s: float) -> float:
    """Return the rate at which so many clients take so long for a token in equilibrium, or less where memory binds."""
    low, high = 0.0, 1000.0
    for _ in range(40):
        middle = (low + high) / 2
        scenario["workload"]["arrivals"]["rate"] = middle
        demand = demand_of(load_scenario(scenario))
        state = None if demand is None else equilibrium(demand, clients)
        low, high = (middle, high) if state is not None and state.token_s <= token_s else (low, middle)
    return float(f"{low:.2g}")


def main() -> int:
    rng = np.random.default_rng(SEED)
    print("# drawn by scripts/sizing_questions.py; not changed afterwards")
    yaml.safe_dump([drawn(number, rng) for number in range(30)], sys.stdout, sort_keys=False, default_flow_style=None,
                   width=118)
    return 0


if __name__ == "__main__":
    sys.exit(main())
