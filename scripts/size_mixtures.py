"""Print how many devices `hermes size` buys for mixtures of experts, with a lower bound by hand for each answer.

    python scripts/size_mixtures.py [--only MODEL,MODEL] [--device D,D] [--csv FILE] [--workers 2]

Each model is sized in each precision on each card, for the lengths of azure-conv-2023 at `RATES` requests per second,
TTFT p99 <= 2 s and TPOT p99 <= 50 ms. A client has at most the eight cards of one box, joined by tensor parallelism.

The bound counts bytes and operations of the model's description (`Hand`); it knows nothing of kernels, links, engines
or waiting. Exit code 1 if an answer is below its bound, or if a narrower precision needs more devices than a wider one.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.errors import InputError
from hermes.explore.size import Tried, size
from hermes.explore.size.layouts import Splits
from hermes.explore.sweep.executor import Executor, of_workers
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.models import ModelDescription, load_model
from hermes.units import counted
from hermes.workload.lengths import EmpiricalLengths

DEVICES = ("h100-sxm", "h200", "b200", "l40s")
PRECISIONS = {   # widest first; "auto" is what the publisher stores
    "gpt-oss-120b": ("auto",),
    "qwen3-30b-a3b": ("bf16", "fp8-block", "fp8"),
    "qwen3-235b-a22b": ("bf16", "fp8-block"),
    "glm-4.5": ("bf16", "fp8"),
    "deepseek-v3": ("auto",),
}
RATES = {"gpt-oss-120b": 40.0, "qwen3-30b-a3b": 40.0, "qwen3-235b-a22b": 20.0, "glm-4.5": 20.0, "deepseek-v3": 20.0}
SMALL = {"qwen3-30b-a3b": {"l40s": (1, 2)}, "gpt-oss-120b": {"l40s": (2, 4)}}   # else one card; others 4 and 8
PROFILE, ARRIVALS_S, TTFT_S, TPOT_S = "azure-conv-2023", 30.0, 2.0, 0.05
MOST_DEVICES = 64
LONGEST = 32_768   # tokens of a request: with its whole context gpt-oss-120b does not start on one H100
NEARLY = 0.9   # of the memory: engines leave some of it free
BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0 + 4 / 128**2, "mxfp4": (4 + 8 / 32) / 8}
ARITHMETIC = {"bf16": "bf16", "fp8": "fp8", "fp8-block": "fp8", "mxfp4": "bf16"}   # the device's peak that counts


def bits(dtype: str) -> int:
    """Return the bits of a weight without scales: FP8 with one scale is not narrower than FP8 with many, but has other
    kernels."""
    return round(8.0 * BYTES[dtype])


class Needs(NamedTuple):
    """What a load takes, in devices: of memory, of memory bandwidth, of arithmetic."""

    memory: float
    bandwidth: float
    flops: float


class Lengths(NamedTuple):
    """Means over requests, in tokens.

    prompt, output: of a request. context: of the answers in flight, in which long answers count for longer; windowed:
    the same of a layer with the model's window. pairs: of tokens that attend to each other, a prompt's and an answer's.
    """

    prompt: float
    output: float
    context: float
    windowed: float
    pairs: float


@dataclass(frozen=True)
class Hand:
    """Bytes and operations of a model in a precision, counted from its description.

    Not counted: norms, biases, scales of activations, the sampler, what tensor parallelism copies of weights, and
    everything that a kernel loses. So the counts are too low, and what they forbid is impossible.
    """

    model: ModelDescription
    dtype: str   # of all matrices but the experts'
    expert_dtype: str

    @classmethod
    def of(cls, name: str, dtype: str) -> Hand:
        model = load_model(name)
        dtype = (model.dtype or "bf16") if dtype == "auto" else dtype
        return cls(model, dtype, model.expert_dtype or dtype)

    @property
    def attention(self) -> float:
        """Weights of one layer's attention."""
        it = self.model
        if it.mla is None:
            return it.hidden_size * it.head_dim * (2.0 * it.num_heads + 2.0 * it.num_kv_heads)
        mla = it.mla
        return (it.hidden_size * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
                + mla.q_lora_rank * it.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
                + mla.kv_lora_rank * it.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
                + float(it.num_heads * mla.v_head_dim * it.hidden_size))

    @property
    def dense(self) -> float:
        """Weights that every token uses in the layers' precision: attention, dense layers, shared experts."""
        it = self.model
        inner = it.dense_layers * it.dense_intermediate_size + self.layers * it.shared_intermediate_size
        return it.num_layers * self.attention + 3.0 * it.hidden_size * inner

    @property
    def layers(self) -> int:
        """Layers with experts."""
        return self.model.num_layers - self.model.dense_layers

    @property
    def expert(self) -> float:
        """Weights of one expert of one layer: gate, up, down."""
        return 3.0 * self.model.hidden_size * self.model.intermediate_size

    @property
    def head(self) -> float:
        """Weights of the output head, which are as many as the embeddings'; 16 bits."""
        return float(self.model.hidden_size * self.model.vocab_size)

    @property
    def weights_bytes(self) -> float:
        """Bytes of all weights."""
        return self.read_bytes(float(self.model.num_experts)) + 2.0 * self.head

    def read_bytes(self, experts: float) -> float:
        """Bytes of weights that a step reads in which so many experts of each layer have a token."""
        return (self.dense * BYTES[self.dtype] + 2.0 * self.head
                + self.layers * experts * self.expert * BYTES[self.expert_dtype])

    def chosen(self, tokens: float) -> float:
        """Experts of a layer that so many tokens choose, the i-th in proportion to 1 / i: fewer than if all were alike.
        """
        ranks = np.arange(1.0, self.model.num_experts + 1.0)
        likely = np.minimum(1.0, self.model.experts_per_token / ranks / (1.0 / ranks).sum())
        return float((1.0 - (1.0 - likely) ** max(tokens, 1.0)).sum())

    def kv_bytes(self, devices: int, lengths: Lengths) -> float:
        """Bytes of KV, 16 bits, of an answer in flight: each device keeps at least one head, or the latent vector."""
        it = self.model
        values = (devices * it.mla.cached if it.mla is not None else
                  2.0 * max(it.num_kv_heads, devices) * it.head_dim)
        return 2.0 * values * ((it.num_layers - it.window_layers) * lengths.context
                               + it.window_layers * lengths.windowed)

    def flop_s(self, device: DeviceDescription, lengths: Lengths) -> float:
        """Seconds of one device's peak arithmetic for a request: two operations for each weight and token, and for each
        value of keys and values of the tokens that attend to each other."""
        it, tokens = self.model, lengths.prompt + lengths.output - 1.0
        attend = it.num_heads * (it.head_dim + it.v_dim) * (it.num_layers - it.window_layers) * lengths.pairs
        routed = self.layers * it.experts_per_token * self.expert
        return (2.0 * tokens * self.dense / device.flops[ARITHMETIC[self.dtype]]
                + 2.0 * tokens * routed / device.flops[ARITHMETIC[self.expert_dtype]]
                + 2.0 * (lengths.output * self.head + attend) / device.flops["bf16"])

    def bound(self, device: DeviceDescription, devices: int, rate: float, lengths: Lengths) -> tuple[int, Needs]:
        """Return the fewest devices, in clients of so many, that could serve so many requests per second, and what the
        load needs of each resource then."""
        kv = self.kv_bytes(devices, lengths)
        for clients in count(1):
            per_s = rate / clients * lengths.output   # tokens of answers, each client
            slow = per_s * TPOT_S                     # answers in flight when tokens take as long as they may
            needs = Needs(
                memory=clients * (self.weights_bytes + self.fewest_in_flight(device, devices, per_s, kv) * kv)
                / device.memory,
                bandwidth=clients * (self.read_bytes(self.chosen(slow)) + slow * kv) / TPOT_S / device.memory_bandwidth,
                flops=rate * self.flop_s(device, lengths))
            if max(needs) <= clients * devices or self.weights_bytes > devices * device.memory:
                return clients * devices, needs
        raise AssertionError("unreachable")

    def fewest_in_flight(self, device: DeviceDescription, devices: int, per_s: float, kv: float) -> float:
        """Return how many answers are in flight when each step takes only the time to read weights and KV: Little's
        law. It stops where their KV exceeds the memory."""
        batch = 1.0
        while batch * kv <= devices * device.memory:
            step_s = (self.read_bytes(self.chosen(batch)) + batch * kv) / (devices * device.memory_bandwidth)
            if per_s * step_s <= batch + 1e-3:
                return per_s * step_s
            batch = per_s * step_s
        return batch


def lengths_of(model: ModelDescription) -> Lengths:
    drawn = EmpiricalLengths(profile=PROFILE).draw(100_000, np.random.default_rng(0))
    prompt, output = drawn.prompt_tokens.astype(np.float64), drawn.output_tokens.astype(np.float64)
    context = prompt + output / 2.0
    windowed = np.minimum(context, model.window)
    return Lengths(float(prompt.mean()), float(output.mean()), float((output * context).mean() / output.mean()),
                   float((output * windowed).mean() / output.mean()), float(((prompt + output) ** 2 / 2.0).mean()))


@dataclass(frozen=True)
class Row:
    """One line of the table. best: The answer; None if there is none, and then `why`."""

    model: str
    dtype: str
    device: str
    best: Tried | None
    bound: int
    needs: Needs
    why: str = ""

    @property
    def devices(self) -> int | None:
        return None if self.best is None else self.best.devices

    def cells(self) -> list[str]:
        answer = [self.why, *[""] * 5] if self.best is None else [
            str(self.best.devices), f"TP{self.best.kind.tp}", str(self.bound), *(f"{need:.2f}" for need in self.needs)]
        return [self.model, self.dtype, self.device, f"{RATES[self.model]:g}", *answer]


HEAD = ["model", "precision", "card", "requests/s", "devices", "layout", "bound", "memory", "bandwidth", "FLOPs"]


def scenario(model: str, dtype: str, device: str) -> dict[str, Any]:
    return {
        "name": f"{model} {dtype}",
        "workload": {"duration": ARRIVALS_S, "arrivals": {"kind": "poisson", "rate": RATES[model]},
                     "lengths": {"kind": "empirical", "profile": PROFILE}},
        "clients": [{"name": "box", "model": model, "device": device, "max_model_len": LONGEST,
                     "hardware": {"kind": "composed", "dtype": dtype}}],
        "router": {"kind": "least_loaded", "load": "requests"}, "slo": {"ttft": TTFT_S, "tpot": TPOT_S},
    }


def layouts(model: str, device: str) -> tuple[int, ...]:
    """Return the numbers of cards of a client to try."""
    return SMALL[model].get(device, (1,)) if model in SMALL else (4, 8)


def sized(model: str, dtype: str, device: str, executor: Executor | None = None) -> Row:
    """Size a model on a card, and count its bound in the layout of the answer; without one, in the largest layout."""
    hand, card = Hand.of(model, dtype), load_device(device)
    tps = layouts(model, device)
    best, why = None, ""
    try:
        found = size(scenario(model, dtype, device), devices=[device], tps=tps, splits=Splits([1], [1], [False]),
                     layouts=["mixed"], max_devices=MOST_DEVICES, executor=executor)
        best = found.ranked[0] if found.ranked else None
        why = "" if best else f"{MOST_DEVICES} devices miss: {found.found[0].tried[-1].misses}"
    except InputError:
        if hand.weights_bytes < NEARLY * max(tps) * card.memory:
            raise
        why = f"weights of {hand.weights_bytes / 1e9:.0f} GB do not fit in {counted(max(tps), 'card')}"
    bound, needs = hand.bound(card, max(tps) if best is None else best.kind.tp, RATES[model], lengths_of(hand.model))
    stored = hand.dtype if hand.dtype == hand.expert_dtype else hand.expert_dtype
    return Row(model, stored, device, best, bound, needs, why)


def faults(rows: Sequence[Row]) -> list[str]:
    """Return what is impossible in a table, a line each."""
    found = [f"{row.model} {row.dtype} on {row.device}: {row.devices} devices, below the bound of {row.bound}"
             for row in rows if row.devices is not None and row.devices < row.bound]
    for wide, narrow in ((wide, narrow) for i, wide in enumerate(rows) for narrow in rows[i + 1:]
                         if (wide.model, wide.device) == (narrow.model, narrow.device)
                         and bits(narrow.dtype) < bits(wide.dtype)):
        if wide.devices is not None and (narrow.devices is None or narrow.devices > wide.devices):
            found.append(f"{wide.model} on {wide.device}: {narrow.dtype} needs {narrow.devices}, {wide.dtype} "
                         f"{wide.devices}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PRECISIONS))
    parser.add_argument("--device", default=",".join(DEVICES))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    rows = []
    with closing(of_workers(given.workers)) as executor:
        for model in given.only.split(","):
            for device in given.device.split(","):
                for dtype in PRECISIONS[model]:
                    rows.append(sized(model, dtype, device, executor))
                    print("  ".join(f"{cell:>{len(name)}}" for cell, name in zip(rows[-1].cells(), HEAD, strict=True)),
                          flush=True)
    if given.csv is not None:
        with given.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEAD, *(row.cells() for row in rows)])
    wrong = faults(rows)
    print("\n".join(wrong) or f"{sum(row.best is not None for row in rows)} answers of {len(rows)}, none below its "
          "bound; no narrower precision needs more devices")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
