"""Reference set of steady decoding by batch (`data/h100/ml-energy`, ML.ENERGY's leaderboard): ITL, watts, joules.

A batch stays full: as many users as sequences, each asking again at once. Not stated there: prompt lengths (200 tokens
assumed), the spread of the answers' lengths, and the engine's version; the time that grows with the batch says that it
scheduled in step with the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evidence.accuracy.served import Case, Row, replay, trust_of_steps
from evidence.accuracy.watts import ServedLoad, fit_watts
from hermes.arrays import FloatArray
from hermes.calibration.importers.base import known_model
from hermes.clients.resources import power_model
from hermes.errors import InputError
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.devices import DeviceDescription, DevicePower
from hermes.hardware.info import hardware_info
from hermes.hardware.power import UtilisedPower, utilisation
from hermes.hardware.trust import Trust
from hermes.results import Results
from hermes.units import NS_PER_S

__all__ = ["FILES", "FREE", "Steady", "power_without", "served_load", "steady_decodes", "steady_runs"]

PROMPT = 200          # tokens
SHAPE = 2.0           # of the gamma distribution of the answers' lengths
WAVES = 3             # requests of each user, and as many beside them as fill a small batch's statistics
MORE = 200
FILES = ("measured.csv", "more.csv")
CARDS = {"H100": "h100-sxm", "B200": "b200"}
FREE = ("memory", "token_j")   # watts that these loads tell; `serving` and `most` are the card's


class Steady(NamedTuple):
    """One row of the data, and what the simulator did in its place while every user waited."""

    card: str
    model: str
    tp: int
    seqs: int
    row: Mapping[Any, Any]
    columns: dict[str, Any]
    """Columns of runs as `PowerModel.run_w` takes them."""
    power: UtilisedPower
    trust: Trust | None
    """Class and range of the step times."""

    @property
    def seconds(self) -> FloatArray:
        """Length of each run."""
        return np.asarray((self.columns["end_ns"] - self.columns["start_ns"]) / NS_PER_S)

    @property
    def span_s(self) -> float:
        """Time from the first run to the end of the last one."""
        return float(self.columns["end_ns"].max() - self.columns["start_ns"].min()) / NS_PER_S

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all users got."""
        return float((self.columns["num_steps"] * self.columns["sampled"]).sum()) / self.span_s


def steady_runs(path: Path) -> Iterator[Steady]:
    """Simulate the server of each row of a file of the data."""
    for row in pd.read_csv(path).to_dict("records"):
        model, card, tp = known_model(row["model_id"]), CARDS[row["gpu_model"]], int(row["tensor_parallel"])
        seqs = int(row["max_num_seqs"])
        found = _served(model, card, tp, seqs, float(row["avg_output_len"]))
        hardware = Composed(model=model, device=card, tp=tp, asynchronous=False).build()
        info = hardware_info(hardware)
        power = power_model(None, info, info.device, model, tp, None)
        if not isinstance(power, UtilisedPower):
            raise InputError(f"a device with watts or a TDP ({power.source})", card, file=str(path))
        yield Steady(card, model, tp, seqs, row, _columns(found, seqs), power, trust_of_steps(found))


def _served(model: str, card: str, tp: int, seqs: int, output: float) -> Results:
    count = WAVES * seqs + MORE
    lengths = np.random.default_rng(1).gamma(SHAPE, output / SHAPE, count)
    requests = pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": np.full(count, PROMPT),
                             "output_tokens": np.maximum(np.rint(lengths), 1).astype(int)})
    client: dict[str, Any] = {
        "model": model, "device": card, "parallel": {"tp": tp}, "engine": "vllm-0.15",
        "memory": {"prefix_caching": False},
        "scheduler": {"kind": "chunked", "max_num_seqs": seqs, "async_scheduling": False},
    }
    return replay(client, requests, {"kind": "closed_loop", "users": seqs})


def _columns(found: Results, seqs: int) -> dict[str, Any]:
    """The runs while every user waits: from the end of the first answers, as many as users, to the last question."""
    finished = np.sort(found.requests["finish_s"])
    first, last = finished[min(seqs, len(finished) // 4)], found.requests["arrival_s"].max()
    runs = found.runs[(found.runs["start_s"] >= first) & (found.runs["end_s"] <= last)]
    columns = {name: runs[name].to_numpy() for name in (
        "num_steps", "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx",
        "sampled")}
    times = {f"{name}_ns": np.rint(runs[f"{name}_s"].to_numpy() * NS_PER_S).astype(np.int64)
             for name in ("start", "end")}
    return columns | times


def steady_decodes(data: Path) -> Iterator[Row]:
    """Median time between tokens by batch (no figure was found on it), and the watts and joules per output token of the
    devices twice: as shipped, which these loads were fitted with, and with each model's card fitted to the others."""
    found = [each for name in FILES if (path := data / "h100" / "ml-energy" / name).exists()
             for each in steady_runs(path)]
    without: dict[tuple[str, str, int], DevicePower | None] = {}
    for steady in found:
        measured_s = steady.row["median_itl_ms"] / 1e3
        yield Row(_case("ML.ENERGY", steady, steady.trust), "itl", "p50", measured_s, _itl(steady))
        yield from _energy(_case("ML.ENERGY, fitted", steady), steady, steady.power)
        key = steady.card, steady.model, steady.tp
        if key not in without:
            without[key] = power_without(key[1:], steady.power.device, found)
        power = without[key]
        if power is not None:
            yield from _energy(_case("ML.ENERGY, left out", steady), steady, replace(steady.power, power=power))


def _case(name: str, steady: Steady, trust: Trust | None = None) -> Case:
    card = steady.card if steady.tp == 1 else f"{steady.card} tp{steady.tp}"
    return Case(name, f"{steady.seqs} sequences", "not stated", card, steady.model, trust)


def _energy(case: Case, steady: Steady, power: UtilisedPower) -> Iterator[Row]:
    watts = steady.tp * float((power.run_w(steady.columns) * steady.seconds).sum()) / steady.span_s
    yield Row(case, "watts", "mean", steady.row["avg_power_watts"], watts)
    yield Row(case, "joules per token", "mean", steady.row["energy_per_token_joules"], watts / steady.tokens_per_s)


def _itl(steady: Steady) -> float:
    """Median seconds between tokens."""
    steps = steady.columns["num_steps"]
    each = steady.seconds / steps
    order = np.argsort(each)
    tokens = np.cumsum((steps * steady.columns["decode_seqs"])[order])
    return float(each[order][np.searchsorted(tokens, tokens[-1] / 2)])


def served_load(steady: Steady, *, measured_times: bool) -> ServedLoad:
    """Return what the devices of a server did, by runs of steps.

    measured_times: Whether the simulator's times are stretched to the measured tokens per second.
    """
    seconds, columns = steady.seconds, steady.columns
    slower = steady.tokens_per_s / float(steady.row["output_throughput_tokens_per_sec"]) if measured_times else 1.0
    compute, memory, _ = utilisation(steady.power.device, steady.power.work, columns)
    tokens = columns["sampled"] * columns["num_steps"] / seconds
    return ServedLoad(steady.model, steady.tp, f"{steady.seqs} sequences",
                      float(steady.row["avg_power_watts"]) / steady.tp, seconds * slower, compute / slower,
                      memory / slower, tokens / slower)


def power_without(pair: tuple[str, int], device: DeviceDescription, others: Sequence[Steady]) -> DevicePower | None:
    """Return a card's watts fitted without a (model, tp); None if no other one was measured on it."""
    left = [served_load(each, measured_times=True) for each in others
            if each.card == device.name and (each.model, each.tp) != pair]
    if device.power is None or not left:
        return None
    return fit_watts(left, FREE, serving=device.power.serving, most=device.power.most)
