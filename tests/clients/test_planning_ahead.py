"""The price of a step follows the scheduler: one that plans a step while the one before runs hides the host's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from hermes.clients.llm import LLMClient
from hermes.hardware.base import StepStats
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.descriptions.engines import load_engine
from hermes.hardware.fitted.monotone import Batch
from hermes.memory.blocks import BlockPool
from hermes.scenario import Scenario, load_scenario
from hermes.scenario.build import build
from hermes.schedulers import SCHEDULERS, LLMScheduler, Plan, SchedulerConfig
from hermes.sums import float_sum

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
DECODES, MIXED = Batch((), (500,) * 16).stats(), Batch(((300, 0),), (500,) * 16).stats()
SYNCHRONOUS: list[dict[str, Any]] = [
    {"kind": "chunked", "async_scheduling": False}, {"kind": "continuous"}, {"kind": "static"}, {"kind": "mixed"},
    {"kind": "heterogeneous"}, {"kind": "sglang", "disable_overlap_schedule": True},
    {"kind": "chunked", "speculative": {"method": "suffix", "num_speculative_tokens": 2, "acceptance_rate": 0.5}}]
AHEAD: list[dict[str, Any]] = [
    {"kind": "chunked"}, {"kind": "sglang"}, {"kind": "chunked", "max_loras": 4},
    {"kind": "chunked", "speculative": {"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5}}]


class PlansAheadScheduler(LLMScheduler):
    asynchronous = True

    def plan(self, max_steps: int) -> Plan | None:
        return None


class PlansAhead(SchedulerConfig):
    """Says that it plans ahead in the class of its scheduler alone."""

    kind: Literal["plans_ahead"] = "plans_ahead"

    def build(self, pool: BlockPool, *, every_step: bool) -> LLMScheduler:
        return PlansAheadScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)


def scenario(scheduler: dict[str, Any] | None = None, plugins: tuple[str, ...] = (), **client: Any) -> Scenario:
    return load_scenario({
        "workload": {"requests": 5, "arrivals": {"kind": "poisson", "rate": 1.0},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 10}},
        "plugins": list(plugins), "clients": [{
            "model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 2000},
            **({} if scheduler is None else {"scheduler": scheduler}), **client}]})


def parts(made: Scenario) -> tuple[LLMScheduler, ComposedModel]:
    client = build(made).clients[0]
    assert isinstance(client, LLMClient)
    assert isinstance(client.hardware, ComposedModel)
    return client.scheduler, client.hardware


@pytest.mark.parametrize(("scheduler", "hidden"), [
    *((one, False) for one in SYNCHRONOUS), *((one, True) for one in AHEAD)], ids=str)
def test_the_price_is_that_of_the_scheduler(scheduler: dict[str, Any], hidden: bool) -> None:
    built, hardware = parts(scenario(scheduler))
    assert (built.asynchronous or built.ahead > 0, hardware.host.asynchronous) == (hidden, hidden)


@pytest.mark.parametrize("stats", [DECODES, MIXED], ids=["decodes", "prompt and decodes"])
def test_every_synchronous_scheduler_pays_the_same_host_time(stats: StepStats) -> None:
    """Also an own one (`docs/examples/my_scheduler.py`): the device's time, and then the host's."""
    step = load_engine("vllm-0.33").step
    host = 1e9 * (step.host + step.host_per_seq * (stats.decode_seqs + stats.prefill_seqs))
    hidden = parts(scenario({"kind": "chunked"}))[1]
    assert hidden.step_ns(stats) > host
    own = parts(scenario({"kind": "one_prompt"}, plugins=(str(EXAMPLES / "my_scheduler.py"),)))[1]
    assert own.step_ns(stats) == pytest.approx(hidden.step_ns(stats) + host, abs=1.0)
    for scheduler in SYNCHRONOUS:
        hardware = parts(scenario(scheduler))[1]
        device = float_sum(hardware.terms_ns(stats).values())   # SGLang's kernels and times are its own
        assert hardware.step_ns(stats) == pytest.approx(device + host, abs=1.0)
        assert scheduler["kind"] == "sglang" or hardware.step_ns(stats) == own.step_ns(stats)


@pytest.mark.parametrize(("kind", "idle_ns"), [("continuous", 0), ("chunked", 3_500_000)])
def test_the_first_step_of_an_idle_engine_is_slower_if_it_plans_ahead(kind: str, idle_ns: int) -> None:
    history = parts(scenario({"kind": kind}))[1].history()
    assert history is not None
    assert history.idle_ns == idle_ns


def test_the_price_follows_the_class_of_an_own_scheduler() -> None:
    SCHEDULERS.register("plans_ahead")(PlansAhead)
    try:
        assert scenario({"kind": "plans_ahead"}).clients[0].hardware.asynchronous is True
    finally:
        SCHEDULERS.unregister("plans_ahead")


@pytest.mark.parametrize(("asynchronous", "hidden"), [(None, True), (False, False)])
def test_vllms_own_scheduler_says_it_by_its_option(asynchronous: bool | None, hidden: bool) -> None:
    made = scenario({"kind": "vllm", "async_scheduling": asynchronous})   # starts no engine
    assert made.clients[0].hardware.asynchronous is hidden


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("scheduler", "hidden"), [({"kind": "continuous"}, False), ({"kind": "chunked"}, True)])
def test_roles_are_priced_alike(role: str, scheduler: dict[str, Any], hidden: bool) -> None:
    made = scenario(scheduler, role=role)
    assert made.clients[0].hardware.asynchronous is hidden


def test_an_engine_that_does_not_plan_ahead_on_a_cpu() -> None:
    built, hardware = parts(scenario(device="cpu-large", hardware={"kind": "composed", "step": {"host": "1 ms"}}))
    assert built.asynchronous is hardware.host.asynchronous is False


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_given_value_changes_the_price_alone(asynchronous: bool) -> None:
    given = {"kind": "composed", "asynchronous": asynchronous}
    for scheduler, plans in (({"kind": "continuous"}, False), ({"kind": "chunked"}, True)):
        built, hardware = parts(scenario(scheduler, hardware=given))
        assert (built.asynchronous, hardware.host.asynchronous) == (plans, asynchronous)
