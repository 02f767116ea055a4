"""Crashes, attempts and time-outs in every shipped scenario: pipelines, services, tiers, ranks, stages, studies."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from conservation import assert_conserved, assert_held, assert_nothing_leaks, ran
from found_parts import part_of
from long_runs import count

from hermes.config.data_files import resource_dir
from hermes.config.streams import stream
from hermes.core.record import ATTEMPT_OUTCOMES, STATUS_COMPLETED, RunRecord
from hermes.dispatch.simulation import Simulation
from hermes.errors import InputError
from hermes.gateway.flow_control import FlowControl
from hermes.gateway.gateway import Gateway
from hermes.scenario import load_scenario

FOLDER = resource_dir("scenarios")
SHIPPED = sorted(path for path in FOLDER.rglob("*.yaml") if "sweeps" not in path.parts)
CANNOT = ("come and go", "replicas of several", "serves no branches")


def shortened(path: Path, requests: int) -> list[str]:
    workload, overrides = load_scenario(path).workload, []
    for number, one in enumerate(workload):
        where = "workload" if len(workload) == 1 else f"workload.{number}"
        overrides.append(f"{where}.requests={min(one.requests or requests, requests)}")
        overrides += [f"{where}.duration=null"] if one.duration else []
    return overrides


@cache
def undisturbed(path: Path, requests: int) -> tuple[float, float]:
    """Return when a run ends, and what a request takes in the mean, in seconds."""
    record = ran(load_scenario(path, shortened(path, requests)))[1]
    took = (record.finish_ns - record.arrival_ns)[record.status == 1]
    return record.end_ns / 1e9, float(took.mean()) / 1e9


def disturbed(path: Path, requests: int, seed: int) -> list[str]:
    """Return settings that make clients of a scenario crash, requests time out, and attempts go on for too long."""
    (end_s, took_s), rng = undisturbed(path, requests), stream(seed, "failures")
    gateway = {"retries": int(rng.integers(0, 4)), "begun": str(rng.choice(["fail", "restart"])),
               "backoff": 0.1 * took_s, "cancel_delay": float(rng.choice([0, 0.1])) * took_s,
               "per_try": float(rng.choice([0.6, 1.5, 5])) * took_s, "timeout": float(rng.choice([1, 3, 20])) * took_s,
               "queue": {"ttl": took_s} if rng.random() < 0.5 else None}
    overrides = [*shortened(path, requests), f"gateway={json.dumps(gateway)}"]
    for number, client in enumerate(load_scenario(path, shortened(path, requests)).clients):
        if client.serves_llm:
            if client.parallel.dp > 1 or client.parallel.pp > 1:
                continue
        elif client.kind not in ("rag", "processing"):
            continue
        slots = len(client.names)
        crashes = [{"at": float(rng.random()) * end_s, "replica": int(rng.integers(0, slots))}
                   for _ in range(min(2 * slots, 8))]
        own = {"start": slots, "start_up": {"total": float(rng.choice([0, 0.05])) * end_s}, "crashes": crashes,
               "probe": {"period": 0.02 * end_s, "failures": 2, "delay": 0}}
        overrides.append(f"clients.{number}.fleet={json.dumps(own)}")
    return overrides


def conserved(path: Path, overrides: list[str]) -> tuple[list[str], Simulation, RunRecord]:
    """Simulate a scenario with settings, without its fleets where these are refused, and check that nothing is lost.
    Return the settings that it ran with, too."""
    try:
        simulation, record = ran(load_scenario(path, overrides))
    except InputError as error:
        assert any(text in str(error) for text in CANNOT), error
        overrides = [one for one in overrides if ".fleet=" not in one]
        simulation, record = ran(load_scenario(path, overrides))
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    return overrides, simulation, record


@pytest.mark.drawn(one_of=8)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
@pytest.mark.thorough
@pytest.mark.long(quick=1)
def test_whatever_fails_in_a_pipeline_nothing_is_lost(path: Path) -> None:
    requests, lost = count(25, 30, thorough=60), 0
    for seed in range(count(1, 2, thorough=12)):
        overrides = disturbed(path, requests, seed)
        overrides, _simulation, record = conserved(path, overrides)
        lost += int((record.attempts["outcome"] > 1).sum())
        _other, steps = ran(load_scenario(path, [*overrides, "stepping=every_step"]))
        assert record.finish_ns.tolist() == steps.finish_ns.tolist()
        for name, column in record.attempts.items():
            assert column.tolist() == steps.attempts[name].tolist(), name
    assert lost, "nothing went wrong in it"


def holding(path: Path, requests: int, seed: int) -> list[str]:
    """Return the settings of `disturbed` with flow control in the place of the queue."""
    overrides, rng = disturbed(path, requests, seed), stream(seed, "flow control")
    number = next(place for place, one in enumerate(overrides) if one.startswith("gateway="))
    own = json.loads(overrides[number].removeprefix("gateway="))
    scrape = min(0.05, undisturbed(path, requests)[0] / 100)
    detector = {"kind": "utilization", "queue": 1, "kv": 1e-6, "scrape": scrape}   # any KV in use fills the pool
    if seed % 2:
        detector = {"kind": "concurrency", "limit": 1}
    fairness = str(rng.choice(["round_robin", "least_attained_service", "deficit_round_robin"]))
    own |= {"queue": None, "timeout": None, "classes": {"gold": {"priority": 1}, "batch": {"priority": -1}},
            "flow_control": {"detector": detector, "fairness": {"kind": fairness}, "revoke": {}}}
    overrides[number] = f"gateway={json.dumps(own)}"
    count_of = len(load_scenario(path).workload)
    for place in range(count_of):
        where = "workload" if count_of == 1 else f"workload.{place}"
        overrides += [f"{where}.tenants.values=[a, b, c]", f"{where}.classes.values=[gold, batch]"]
    return overrides


def test_a_request_whose_work_in_the_background_fails_is_completed() -> None:
    """METIS refines its profile beside request 37, in 30 calls; a client that dies a second after the answer has them.
    """
    path = FOLDER / "studies" / "metis" / "base.yaml"
    record = conserved(path, holding(path, 40, 2))[2]
    late = (record.attempts["outcome"] == ATTEMPT_OUTCOMES.index("failed")) & (record.attempts["request"] == 37)
    assert late.sum() == 30
    assert (record.attempts["end_ns"][late] > record.finish_ns[37]).all()
    assert record.status[37] == STATUS_COMPLETED
    assert 37 not in record.fates[:, 0]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
@pytest.mark.thorough
def test_flow_control_in_a_pipeline(path: Path) -> None:
    """Each call of a pipeline at an engine waits at the gateway, in runs as in single steps."""
    requests, waited = 40, 0
    for seed in range(count(2, 2, thorough=4)):
        overrides = holding(path, requests, seed)
        overrides, simulation, record = conserved(path, overrides)
        engines = len(part_of(part_of(simulation.coordinator.parts, Gateway).parts, FlowControl)._pools)
        if engines == 1:
            assert_held(record)
        waited += int((record.held["left_ns"] > record.held["asked_ns"]).sum())
        _other, steps = ran(load_scenario(path, [*overrides, "stepping=every_step"]))
        assert record.finish_ns.tolist() == steps.finish_ns.tolist()
        for name, column in record.held.items():
            assert column.tolist() == steps.held[name].tolist(), name
    assert waited, "nothing waited in it"
