"""Ask `hermes size` the 30 questions of tests/data/sizing-questions.yaml, and check each answer with other commands.

    python scripts/sizing_consistency.py OUT.jsonl [--workers 2] [--only N,N] [--capacity]

Each answer is run ten times as long with three other seeds, and so is the layout with one client less. With
`--capacity` the highest load of the answer is searched as well. A question that OUT.jsonl has already is not asked
again, and a search that it lacks is added. The table says, for each question: the answer and the closed-form bound, how
many of the three long runs meet the SLO, and what one client less misses. Exit code 1 if fewer than 29 answers meet the
SLO with all three seeds or are "within noise" (at most five), if one client less misses it in under 90% of the answers
with three clients or more, if a bound is undercut, or if `capacity` and `size` disagree.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hermes.api import simulate
from hermes.explore.capacity import capacity
from hermes.explore.objective import missed
from hermes.explore.size import Sizing, changes, size
from hermes.explore.size.bounds import demand_of, fewest_clients
from hermes.explore.sweep.figures import figures
from hermes.scenario import load_scenario

QUESTIONS = Path(__file__).parent.parent / "tests" / "data" / "sizing-questions.yaml"
SEEDS, TIMES, MOST_DEVICES = (101, 102, 103), 10, 512
NEEDED, MOST_NOISE, FEWER_SHARE = 29, 5, 0.9


def long_runs(scenario: dict[str, Any], seeds: tuple[int, ...]) -> list[str | None]:
    """Return what the runs of a scenario miss, ten times as long; the first miss ends them."""
    out: list[str | None] = []
    workload = {**scenario["workload"], "requests": TIMES * scenario["workload"]["requests"]}
    for seed in seeds:
        row = figures(simulate({**scenario, "workload": workload, "seed": seed}))
        miss = missed({**row, "settling.settled": True})   # long enough by construction
        out.append(miss)
    return out


def bound_of(sizing: Sizing, question: dict[str, Any]) -> int | None:
    """Return the closed-form bound on the clients, without limits of latency."""
    kind = sizing.found[0].kind
    demand = demand_of(load_scenario({**sizing.document, **changes(sizing.document["clients"], kind, (1,))}))
    if demand is None or question["layout"] == "pd":
        return None
    found = fewest_clients(replace(demand, tpot_s=None))
    return None if found is None else found[0]


def asked(number: int, question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of one question and its checks."""
    begun = time.process_time()
    sizing = size(question["scenario"], devices=[question["device"]], tps=[question["tp"]],
                  layouts=[question["layout"]], max_devices=MOST_DEVICES, workers=0)
    out: dict[str, Any] = {"number": number, "layout": question["layout"], "stages": question["stages"],
                           "device": question["device"], "tp": question["tp"]}
    if not sizing.meets:
        return {**out, "answer": None, "why": [found.tried[-1].misses for found in sizing.found]}
    best, check = sizing.meets[0], sizing.check
    scenario = sizing.settings(best)
    out |= {
        "answer": best.label, "clients": sum(best.clients), "bound": bound_of(sizing, question),
        "e2e_p99_s": best.row["latency.e2e_s.p99"], "noise": check is not None and check.within_noise,
        "simulations": len(sizing.tried), "size_cpu_s": round(time.process_time() - begun, 1),
        "scenario": scenario, "long": long_runs(scenario, SEEDS),
    }
    fewer = [tuple(count - (i == side) for i, count in enumerate(best.clients)) for side in range(len(best.clients))]
    out["fewer"] = {str(numbers): long_runs({**scenario, **changes(sizing.document["clients"], best.kind, numbers)},
                                            SEEDS[:1]) for numbers in fewer if min(numbers) >= 1}
    out["cpu_s"] = round(time.process_time() - begun, 1)
    return out


def with_capacity(one: dict[str, Any]) -> dict[str, Any]:
    """Add the highest load of an answer that `capacity` finds, with its interval."""
    found = capacity(one["scenario"], seeds=3, workers=0)
    return {**one, "capacity": {"value": found.value, "half": found.half_width,
                                "rate": one["scenario"]["workload"]["arrivals"]["rate"]}}


def row_of(one: dict[str, Any]) -> str:
    if one["answer"] is None:
        return f"{one['number']:3} {one['device']} TP{one['tp']}: none: {one['why']}"
    met = sum(miss is None for miss in one["long"])
    fewer = "; ".join(f"{name}: {misses[0] or 'MEETS'}" for name, misses in one["fewer"].items()) or "-"
    limit = ""
    if "capacity" in one and one["capacity"]["value"] is not None:
        found = one["capacity"]
        limit = f"{found['value'] / found['rate']:5.2f}x"
    return (f"{one['number']:3} {one['answer']:24} {one['bound'] or '-':>5} {one['e2e_p99_s']:7.1f} s {met}/3"
            f"{' noise' if one['noise'] else '':6} {limit:7} {fewer}")


def verdict(rows: list[dict[str, Any]]) -> int:
    """Print the sums, and return the exit code."""
    answered = [one for one in rows if one["answer"] is not None]
    good = [one for one in answered if all(miss is None for miss in one["long"])]
    noise = [one for one in answered if one["noise"]]
    excused = [one for one in noise if one not in good][:MOST_NOISE]
    several = [one for one in answered if one["clients"] >= 3]
    less = [one for one in several if all(misses[0] is not None for misses in one["fewer"].values())]
    under = [one for one in answered if one["bound"] is not None and one["clients"] < one["bound"]]
    agree = [one for one in answered if "capacity" in one]
    wrong = [one for one in agree if one["capacity"]["value"] is None or one["capacity"]["value"] + (
        one["capacity"]["half"] or 0.0) < 0.99 * one["capacity"]["rate"]]
    print(f"\n{len(answered)} of {len(rows)} questions have an answer; {len(several)} with three clients or more; "
          f"{sum(one['e2e_p99_s'] > 60 for one in answered)} with an E2E p99 above a minute")
    print(f"the answer meets the SLO ten times as long, with three other seeds: {len(good)}; "
          f"within noise: {len(noise)}")
    print(f"one client less misses it: {len(less)} of {len(several)}; bounds undercut: {len(under)}")
    if agree:
        print(f"capacity of the answer is below the load that it was sized for: {len(wrong)} of {len(agree)}")
    return int(len(good) + len(excused) < NEEDED or len(noise) > MOST_NOISE
               or len(less) < FEWER_SHARE * len(several) or bool(under) or bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--capacity", action="store_true")
    given = parser.parse_args()
    questions = list(enumerate(yaml.safe_load(QUESTIONS.read_text())))
    if given.only:
        wanted = {int(part) for part in given.only.split(",")}
        questions = [(number, one) for number, one in questions if number in wanted]
    known = {}
    if given.out.exists():
        known = {row["number"]: row for row in map(json.loads, given.out.read_text().splitlines())}
    with ProcessPoolExecutor(given.workers) as pool, given.out.open("a") as file:

        def kept(waiting: list[Future[dict[str, Any]]]) -> None:
            for done in as_completed(waiting):
                row = done.result()
                known[row["number"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(row_of(row), flush=True)

        kept([pool.submit(asked, number, one) for number, one in questions if number not in known])
        if given.capacity:
            kept([pool.submit(with_capacity, known[number]) for number, _ in questions
                  if known[number]["answer"] is not None and "capacity" not in known[number]])
    rows = [known[number] for number, _ in questions if number in known]
    print(f"{'':3} {'answer':24} {'bound':>5} {'E2E p99':>9} {'long runs':12} {'limit':5} one client less misses")
    for row in rows:
        print(row_of(row))
    return verdict(rows)


if __name__ == "__main__":
    sys.exit(main())
