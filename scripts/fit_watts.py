"""Fit the watts of A100, H100 and B200 to measured servers, and print the errors on what each fit left out.

    python scripts/fit_watts.py ../shared/data

1. A100: Llama-2-70B on two, four and eight cards and BLOOM on eight, batches of one to four (Splitwise): the watts
   with the clocks up (`serving`) and those of memory traffic. Only these servers tell the two apart: the share of the
   memory's rate that they reach falls with the number of cards, and little else changes. `serving` as a share of the
   TDP is taken over to the other cards.
2. H100 and B200: `memory` and `token_j`, on the steady decodes of ML.ENERGY's leaderboard. The simulator says what the
   devices do; its times are stretched to the measured tokens per second, so that errors of times are not fitted.

Errors stand in two columns: with measured times, and with the simulator's own (what a run prints).
`compute` is not fitted: products draw the card's limit at the rate that they keep up.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd

from evidence.accuracy.steady import FILES, FREE, served_load, steady_runs
from evidence.accuracy.watts import LeftOut, ServedLoad, error, fit_watts, left_out
from hermes.hardware.descriptions.devices import DevicePower, load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.operators import Work
from hermes.hardware.power import SERVING_SHARE, TOKEN_J, assumed

MOST = {"a100-80gb": 400.0, "h100-sxm": 687.0, "b200": 971.0}   # watts of saturated servers; A100: peaks at its TDP
MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
FEW = 4            # sequences of Splitwise's batches: beyond, prompts take much of the time, with odd watts
LONG = 512         # tokens of its prompts, likewise
LARGE = 128        # sequences from which on a load is large
SMALL = f"up to {LARGE} sequences"


class Found(NamedTuple):
    """The fit of one card.

    loads, own: What was fitted, and the same loads with the simulator's times. `own_errors`: of each that was left out.
    """

    power: DevicePower
    loads: list[ServedLoad]
    own: list[ServedLoad]
    left_out: list[LeftOut]
    own_errors: list[np.ndarray]


def splitwise_loads(data: Path) -> list[ServedLoad]:
    """Mean watts of A100s that serve one batch: its prompts, then its tokens."""
    device = load_device("a100-80gb")
    table = pd.read_csv(data / "splitwise" / "perf_model.csv")
    table = table[(table["hardware"] == "a100-80gb") & (table["average_power"] > 0)
                  & (table["batch_size"] <= FEW) & (table["prompt_size"] <= LONG)]
    keys = ["model", "tensor_parallel", "prompt_size", "batch_size", "token_size"]
    loads = []
    for (model, tp, prompt, batch, tokens), rows in table.groupby(keys):
        work = Work.of(load_model(MODELS[str(model)]), tp=int(tp))
        seconds = np.array([rows["prompt_time"].mean(), (tokens - 1) * rows["token_time"].mean()]) / 1e3
        steps = np.array([1, tokens - 1])
        stats = SimpleNamespace(
            prefill_tokens=np.array([prompt * batch, 0]), prefill_past=np.zeros(2), sampled=np.full(2, batch),
            prefill_attn=np.array([batch * prompt * (prompt + 1) / 2, 0]), decode_seqs=np.array([0, batch]),
            decode_ctx=np.array([0, batch * (prompt + tokens / 2)]))
        compute, memory, _ = work.ideal_s(stats, device.peak, device.memory_bandwidth, device.link_bandwidth)
        drawn_w = float(rows["average_power"].mean()) * (device.tdp_w or 0.0)   # given as shares of the TDP
        loads.append(ServedLoad(
            MODELS[str(model)], int(tp), f"{prompt}+{tokens}x{batch}", drawn_w, seconds,
            *(each * steps / seconds for each in (compute, memory, batch))))
    return loads


def pair(load: ServedLoad) -> str:
    """Return the model and its devices."""
    return f"{load.model} tp{load.tp}"


def shards(load: ServedLoad) -> str:
    """Return whether one device serves it."""
    return "tp 1" if load.tp == 1 else "tp above 1"


def size(load: ServedLoad) -> str:
    """Return whether many sequences are served."""
    return f"above {LARGE} sequences" if int(load.load.split()[0]) > LARGE else SMALL


def fitted(loads: list[ServedLoad], own: list[ServedLoad], free: tuple[str, ...], fixed: dict[str, float],
           groups: Iterable[Callable[[ServedLoad], str]]) -> Found:
    """Fit a card to all loads, and to those without each group in turn."""
    found = Found(fit_watts(loads, free, **fixed), loads, own, [], [])
    for group in groups:
        for part in left_out(loads, group, free, **fixed):
            if part.name != SMALL:   # large loads run at the card's limit: they tell no other figure
                found.left_out.append(part)
                found.own_errors.append(errors([load for load in own if group(load) == part.name], part.power))
    return found


def tables(data: Path) -> dict[str, Found]:
    """Fit every card."""
    a100 = splitwise_loads(data)
    found = {"a100-80gb": fitted(a100, a100, ("serving", "memory"), {"token_j": TOKEN_J, "most": MOST["a100-80gb"]},
                                 (pair,))}
    steady = [each for name in FILES for each in steady_runs(data / "h100" / "ml-energy" / name)]
    for card in ("h100-sxm", "b200"):
        mine = [each for each in steady if each.card == card]
        loads, own = ([served_load(each, measured_times=times) for each in mine] for times in (True, False))
        fixed = {"serving": SERVING_SHARE * (load_device(card).tdp_w or 0.0), "most": MOST[card]}
        found[card] = fitted(loads, own, FREE, fixed, (pair, shards, size))
    return found


def errors(loads: list[ServedLoad], power: DevicePower) -> np.ndarray:
    """Return the error of each load."""
    return np.array([error(load, power) for load in loads])


def text(name: str, *found: np.ndarray) -> str:
    """Return one line of errors."""
    parts = [f"median {np.median(each) * 100:+5.1f}%, worst {each[np.argmax(np.abs(each))] * 100:+5.1f}%"
             for each in found]
    return f"  {name:32} {len(found[0]):3} loads   {'   own times: '.join(parts)}"


def in_words(power: DevicePower) -> str:
    """Return watts as a device file has them."""
    return (f"{{serving: {power.serving:.0f}, memory: {power.memory:.0f}, compute: {power.compute:.0f}, "
            f"token_j: {power.token_j:.3f}, most: {power.most:.0f}}}")


def by_others(card: str, found: dict[str, Found]) -> DevicePower:
    """Return the watts of a card with the mean joules per byte and token of the others."""
    device = load_device(card)
    per_byte = [each.power.memory / load_device(name).memory_bandwidth for name, each in found.items() if name != card]
    per_token = [each.power.token_j for name, each in found.items() if name not in (card, "a100-80gb")]
    return assumed(device.tdp_w or 0.0, device.memory_bandwidth).model_copy(update={
        "memory": float(np.mean(per_byte)) * device.memory_bandwidth, "token_j": float(np.mean(per_token))})


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the reference data")
    found = tables(parser.parse_args().data)
    for card, each in found.items():
        device = load_device(card)
        print(f"{card}: {in_words(each.power)}\n  serving {each.power.serving / (device.tdp_w or 1.0):.3f} of the TDP, "
              f"{each.power.memory / device.memory_bandwidth * 1e12:.0f} pJ/byte")
        print(text("all, fitted", errors(each.loads, each.power), errors(each.own, each.power)))
        for part, own in zip(each.left_out, each.own_errors, strict=True):
            print(text(f"left out: {part.name}", part.errors, own))
    print("one card with the joules of the others, own times:")
    for card, each in found.items():
        print(text(card, errors(each.own, by_others(card, found))))
    print("as if nobody had measured the card (hermes.hardware.power.assumed), own times:")
    for card, each in found.items():
        device = load_device(card)
        print(text(card, errors(each.own, assumed(device.tdp_w or 0.0, device.memory_bandwidth))))


if __name__ == "__main__":
    main()
