"""Closed-form lower bounds on the number of clients, by Little's law.

Requests arrive at rate r per client, with prompts of p and answers of a tokens. While b answers are in flight, a step
takes t(b) seconds (the hardware model's price of b decodes at their mean context), and a prompt takes P of the client's
time. In equilibrium

    b = r * E[a] * t(b) / (1 - r * P)

A client serves the load only if the prompts leave time (r * P < 1), if b is at most `max_num_seqs`, if the mean step is
within the limit of the TPOT, and if the KV of the answers in flight fits: b times their mean context,

    c = E[a * (p + a / 2)] / E[a]

which is longer than the mean context of a request, since long answers stay longer. Waiting, bursts and the spread of
contexts only add to this, so fewer clients cannot do. Clients that prefill are at least r * P, and those that decode
are as many as serve the answers alone. The estimate also says how long a simulation must be: an answer
of the 99th percentile takes its tokens times t(b).

Where prompts share text (conversations, prefixes, hashes of blocks) a cache may spare their work and memory, so that
only decodes count. An engine of several pipeline stages has as many batches, each with its part of the KV memory and a
step that takes at least the sum of the stages: r is then per batch. Not covered: several workloads or stages of a
request, branches, data-parallel ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hermes.dispatch.simulation import Simulation
from hermes.hardware.base import StepStats
from hermes.scenario import Scenario
from hermes.scenario.build import build
from hermes.units import NS_PER_S

__all__ = ["Demand", "Equilibrium", "demand_of", "equilibrium", "fewest_clients", "fewest_split"]

MOST = 1 << 20   # clients
ROUNDS = 200     # of the fixed point
UNBOUNDED = 1 << 50   # tokens
NEAR = 1e-3


@dataclass(frozen=True)
class Demand:
    """What arrives, and what one client can do.

    Attributes:
        rate: Requests per second of all clients. arrivals_s: For how long they arrive.
        output, prompt: Mean tokens. context: Mean context of the answers in flight. long_output: The p99 of the output.
        step_s: Price of a step by (decodes, context of each); prompt_s: of a mean prompt.
        slots: Sequences of a batch. kv_tokens: KV capacity; None if unbounded.
        tpot_s: Limit of the mean step; None without one.
        batches: In flight at one client, one of each pipeline stage.
    """

    rate: float
    arrivals_s: float
    output: float
    prompt: float
    context: float
    long_output: float
    step_s: Callable[[int, float], float]
    prompt_s: float
    slots: int
    kv_tokens: int | None
    tpot_s: float | None
    batches: int = 1


@dataclass(frozen=True)
class Equilibrium:
    """Answers in flight in one batch, and the time of a token."""

    batch: float
    token_s: float


def demand_of(scenario: Scenario) -> Demand | None:
    """Return the demand on the LLM clients of a scenario; None where the closed form does not cover it."""
    simulation = build(scenario)
    llm = [config for config in scenario.clients if config.kind == "llm"]
    if len(llm) != 1 or llm[0].role != "both" or len(scenario.clients) != 1 or len(scenario.workload) != 1:
        return None
    if getattr(llm[0].parallel, "dp", 1) > 1:
        return None
    workload = scenario.workload[0]
    if workload.branches > 1 or workload.pipeline != "plain":
        return None
    return _demand(scenario, simulation)


def _demand(scenario: Scenario, simulation: Simulation) -> Demand | None:
    workload, table = scenario.workload[0], simulation.streams[0].table
    client: Any = simulation.clients[0]   # an LLM client: explore does not import the package of clients
    if table.arrival_ns is None:
        return None
    arrival = table.arrival_ns[table.arrival_ns >= 0]   # later turns of conversations arrive after an answer
    if len(arrival) < 2 or arrival.max() <= arrival.min():
        return None
    if client.tiers or client.scheduler.pool is None:
        return None
    hardware = getattr(client.hardware, "pure", client.hardware)   # of one batch alone
    prompt, output = table.prompt_tokens.astype(np.float64), table.output_tokens.astype(np.float64)
    mean = int(prompt.mean())

    def step_s(decodes: int, context: float) -> float:
        stats = StepStats(decode_seqs=decodes, decode_ctx=round(decodes * context), decode_ctx_max=round(context),
                          sampled=decodes)
        return float(hardware.step_ns(stats)) / NS_PER_S

    whole = StepStats(prefill_seqs=1, prefill_tokens=mean, prefill_attn=mean * (mean + 1) // 2, prefill_max=mean,
                      sampled=1)
    shared = (table.hash_ids is not None or bool(table.prefix_tokens.any()) or workload.contexts is not None
              or table.turn is not None)
    arrivals_s = float(arrival.max() - arrival.min()) / NS_PER_S
    return Demand(
        rate=(len(table) - 1) / arrivals_s, arrivals_s=arrivals_s, output=float(output.mean()),
        prompt=float(prompt.mean()), context=float((output * (prompt + output / 2)).mean() / output.mean()),
        long_output=float(np.percentile(output, 99)), step_s=step_s,
        # what a prompt adds to a step that runs anyway; nothing that a cache may spare
        prompt_s=0.0 if shared or mean < 1 else max(float(hardware.step_ns(whole)) / NS_PER_S - step_s(1, 1.0), 0.0),
        slots=int(client.scheduler.max_num_seqs or 1 << 30),
        kv_tokens=None if shared else _kv_tokens(client), tpot_s=scenario.slo.tpot,
        batches=getattr(scenario.clients[0].parallel, "pp", 1),
    )


def _kv_tokens(client: Any) -> int | None:
    pool = client.scheduler.pool
    tokens = int(pool.num_blocks * pool.block_size)
    return tokens if tokens < UNBOUNDED else None


def equilibrium(demand: Demand, clients: int) -> Equilibrium | None:
    """Return the state of each of so many clients; None if they cannot serve the load."""
    rate = demand.rate / (clients * demand.batches)
    free = 1.0 - rate * demand.prompt_s
    if free <= 0:
        return None
    most = min(demand.slots, int((demand.kv_tokens or 1 << 60) / demand.context))
    batch = 1.0
    for _ in range(ROUNDS):   # t(b) grows with b: the fixed point is approached from below
        token_s = demand.step_s(max(1, round(batch)), demand.context) / free
        if demand.tpot_s is not None and token_s > demand.tpot_s:
            return None
        following = rate * demand.output * token_s
        if following > max(most, 1):
            return None
        if following <= batch * (1 + NEAR) + 0.5:
            return Equilibrium(following, token_s)
        batch = following
    return None


def fewest_clients(demand: Demand) -> tuple[int, Equilibrium] | None:
    """Return the fewest clients that can serve the load, and their state; None if no number can."""
    high = 1
    while (found := equilibrium(demand, high)) is None:
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        state = equilibrium(demand, middle)
        low, high, found = (middle, high, found) if state is None else (low, middle, state)
    return high, found


def fewest_split(demand: Demand) -> int | None:
    """Return the fewest clients that prefill and decode, together, that can serve the load; None if no number can."""
    decodes = fewest_clients(replace(demand, prompt_s=0.0))
    return None if decodes is None else max(math.ceil(demand.rate * demand.prompt_s), 1) + decodes[0]
