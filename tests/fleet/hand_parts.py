"""Scenarios that can be followed by hand: arrivals at given nanoseconds, and steps whose times are round.

A step takes 1,000 ns, and 100 ns more for each prompt token that it computes. So a prompt of 10 tokens takes 2,000 ns
alone, and each further token 1,000 ns. `ns` in a scenario are nanoseconds written as the seconds of a `Duration`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from conservation import assert_conserved, assert_nothing_leaks

from hermes.arrays import IntArray
from hermes.core.record import ATTEMPT_OUTCOMES, FATES, MEMBER_STATES, RunRecord
from hermes.dispatch.simulation import Simulation
from hermes.hardware.base import HARDWARE, StepStats
from hermes.hardware.config import HardwareConfig
from hermes.results.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.base import ArrivalProcess

Data = dict[str, Any]
STEP_NS, TOKEN_NS = 1000, 100
MODES = ("runs", "every_step")


class Steps:
    """Prices steps as the module's docstring says."""

    name = "hand"

    def step_ns(self, stats: StepStats) -> int:
        return STEP_NS + TOKEN_NS * stats.prefill_tokens

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        return np.full(num_steps, self.step_ns(stats), dtype=np.int64)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return np.zeros(len(num_steps), dtype=np.int64)


class StepsConfig(HardwareConfig):
    kind: Literal["hand_steps"] = "hand_steps"

    def build(self, base_dir: Path | None = None) -> Steps:
        return Steps()


class Times(ArrivalProcess):
    """Arrivals at given times in ns."""

    kind: Literal["hand_times"] = "hand_times"
    at: list[int]

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.array(self.at[:n], dtype=np.int64)


@contextmanager
def registered(**more: type[Any]) -> Iterator[None]:
    """The components above can stand in scenarios; afterwards the registries are as they were. more: Hardware by kind.
    """
    hardware = {"hand_steps": StepsConfig, **more}
    for kind, config in hardware.items():
        HARDWARE.register(kind)(config)
    ARRIVALS.register("hand_times")(Times)
    try:
        yield
    finally:
        for kind in hardware:
            HARDWARE.unregister(kind)
        ARRIVALS.unregister("hand_times")


def s(ns: float) -> float:
    """Return nanoseconds as seconds, as keys of a scenario take them."""
    return ns / 1e9


def ask(at: int, prompt: int = 10, output: int = 8, **more: Any) -> Data:
    """Return a workload of one request that arrives at a time in ns."""
    return {"requests": 1, "arrivals": {"kind": "hand_times", "at": [at]},
            "lengths": {"kind": "fixed", "prompt": prompt, "output": output}} | more


def fleet(*crashes: tuple[int, int], start: int = 2, up: int = 100_000, scale: tuple[tuple[int, int], ...] = (),
          probe: tuple[int, int, int, int] = (1_000_000, 1, 0, 0)) -> Data:
    """Return a fleet. Times in ns.

    Args:
        crashes: Time and slot of each.
        up: Start-up time.
        scale: Time and number of replicas of each change of a schedule.
        probe: Period, failures, delay and offset. By default no crash is noticed before a replica is up again.
    """
    period, failures, delay, offset = probe
    changes = [{"at": s(at), "replicas": n} for at, n in scale]
    return {"start": start, "start_up": {"total": s(up)},
            "crashes": [{"at": s(at), "replica": slot} for at, slot in crashes],
            "restarts": {"backoff": 0},
            "probe": {"period": s(period), "failures": failures, "delay": s(delay), "offset": s(offset)},
            "autoscaler": {"kind": "schedule", "changes": changes} if changes else {"kind": "static"}}


def client(own: Data | None = None, *, name: str = "llm", count: int = 2, blocks: int = 1000, size: int = 1,
           caching: bool = False, scheduler: Data | None = None, **more: Any) -> Data:
    """Return a group of clients whose engines plan no step ahead, with 1,000 bytes of KV a token."""
    return {
        "name": name, "count": count, "hardware": {"kind": "hand_steps"},
        "scheduler": {"kind": "chunked", "async_scheduling": False} | (scheduler or {}),
        "memory": {"block_size": size, "num_blocks": blocks, "kv_bytes_per_token": 1000.0, "prefix_caching": caching},
    } | ({} if own is None else {"fleet": own}) | more


class Run:
    """A finished simulation, of which nothing is left that should not be.

    Attributes:
        record, simulation: Of the run.
    """

    simulation: Simulation
    record: RunRecord

    def __init__(self, clients: list[Data], asks: list[Data], mode: str = "runs", **keys: Any) -> None:
        own = keys.pop("gateway", {})
        gateway = own if "retry" in own else {"backoff": 0.0, "retries": 1, "begun": "restart"} | own
        asks = [one | {"name": f"ask {number}"} for number, one in enumerate(asks)]
        data = {"workload": asks, "clients": clients, "gateway": gateway, "router": {"kind": "round_robin"},
                "stepping": mode} | keys
        self.scenario = load_scenario(data)
        self.simulation = build(self.scenario)
        self.record = self.simulation.run()
        assert_nothing_leaks(self.simulation)
        assert_conserved(self.record)

    @property
    def results(self) -> Results:
        return Results(self.record)

    @property
    def attempts(self) -> list[tuple[int, int, int, int, int, str]]:
        """(request, number, client, start, end, outcome) of each attempt."""
        table = self.record.attempts
        return [(*(int(table[name][row]) for name in ("request", "number", "client", "start_ns", "end_ns")),
                 ATTEMPT_OUTCOMES[table["outcome"][row]]) for row in range(len(table["call"]))]

    @property
    def stages(self) -> list[tuple[int, str, int, int, int, int, int, int]]:
        """(request, kind, client, assigned, start, first token, end, output tokens) of each, by order of their end."""
        stages = self.record.stages
        return [(int(stages["request"][row]), self.record.stage_kinds[stages["kind"][row]],
                 *(int(stages[name][row]) for name in ("client", "assigned_ns", "start_ns", "first_token_ns", "end_ns",
                                                       "output_tokens"))) for row in range(len(stages["kind"]))]

    @property
    def moves(self) -> list[tuple[int, int, int, int, int, int]]:
        """(request, source, target, bytes, start, end) of each transfer."""
        sent = self.record.transfers
        return [tuple(int(sent[name][row]) for name in ("request", "src", "dst", "bytes", "start_ns", "end_ns"))
                for row in range(len(sent["bytes"]))]

    def runs(self, client: int) -> list[tuple[int, int, int]]:
        """(start, end, steps) of a client's runs of steps; equal steps that follow one another are one row."""
        rows: list[tuple[int, int, int]] = []
        table = self.record.runs
        for row in range(len(table["client"])):
            if table["client"][row] == client:
                rows.append(tuple(int(table[name][row]) for name in ("start_ns", "end_ns", "num_steps")))
        return rows

    def step_ends(self, client: int) -> list[int]:
        return self.record.step_ends[client].tolist()

    def busy_ns(self, client: int) -> int:
        return sum(end - start for start, end, _ in self.runs(client))

    def members(self, client: int, since: int = 1) -> list[tuple[int, int, str, str]]:
        """(incarnation, time, state, reason) of a client's changes from a time on."""
        return [(number, time, MEMBER_STATES[state], reason) for (index, number, time, state), reason in zip(
            self.record.membership.tolist(), self.record.membership_reasons, strict=True)
            if index == client and time >= since]

    @property
    def finish(self) -> list[int]:
        """When each request was completed; -1 unless it was."""
        return [time if status == 1 else -1 for time, status in zip(
            self.record.finish_ns.tolist(), self.record.status.tolist(), strict=True)]

    @property
    def ends(self) -> list[int]:
        """When each request was over, completed or not."""
        return list(self.simulation.coordinator.finish_ns)

    @property
    def fates(self) -> dict[int, str]:
        return {int(request): FATES[code] for request, code in self.record.fates.tolist()}

    @property
    def reasons(self) -> dict[int, str]:
        return self.record.reject_reasons

    def wasted(self, outcome: str = "failed") -> tuple[int, int, int]:
        """(attempts, prompt tokens, output tokens) that were wasted by attempts of one outcome."""
        found = self.results.summary["attempts"]["wasted"].get(outcome)
        return (0, 0, 0) if found is None else (found["attempts"], found["prompt_tokens"], found["output_tokens"])
