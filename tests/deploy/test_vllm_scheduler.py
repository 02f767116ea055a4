"""`scheduler: {kind: vllm}`: a client whose decisions another process takes.

With HERMES_VLLM_PYTHON, an interpreter that has vLLM, that is vLLM's own scheduler; without, a stand-in with HERMES's
rules (synchronous, or with drafts) behind the same lines.
"""

import stat
import sys
from pathlib import Path

import pytest
from drafting_scenarios import drawn
from ending_scenarios import SCENARIOS as ENDING
from test_engine_conform import CASES, CHUNKED, CLIENT, DRAFTS, TIGHT, scenario

from hermes.api import simulate
from hermes.cli import main
from hermes.deploy.vllm_scheduler import VllmConfig
from hermes.errors import HermesError, InputError
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, DeviceClass, load_engine
from hermes.testing.schedulers import SchedulerContract

FAKE = Path(__file__).with_name("fake_vllm.py")


def script(folder, text):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return script(tmp_path_factory.mktemp("fake"), f"exec {sys.executable} {FAKE}")


def own(given, python, **more):
    """The same scenario with vLLM's own scheduler."""
    clients = []
    for client in given["clients"]:
        options = {key: value for key, value in client.get("scheduler", {}).items() if key != "kind"}
        known = {key: value for key, value in options.items() if key in VllmConfig.model_fields}
        others = {key: value for key, value in options.items() if key not in known}
        clients.append({**client, "scheduler": {
            "kind": "vllm", "python": python, **known, "scheduler_config": others, **more}})
    return {**given, "clients": clients}


def alike(ours, theirs, *, blocks=True):
    """Whether all times are the same; sums of watts differ in the last bits, for the runs are cut otherwise.

    blocks: Whether both count the blocks at the same time. With drafts a step's blocks are taken when it is scheduled,
    which is a step early with asynchronous scheduling.
    """
    columns = ["energy_j", "emitted_tokens"]
    assert ours.requests.drop(columns=columns).equals(theirs.requests.drop(columns=columns))
    # of one given up, the token of the step in flight counts as work here; the engine does not count it
    done = ours.requests.status == "completed"
    assert ours.requests.emitted_tokens[done].equals(theirs.requests.emitted_tokens[done])
    if done.all():   # joules are shared by tokens
        assert ours.requests.energy_j.tolist() == pytest.approx(theirs.requests.energy_j.tolist(), rel=1e-9)
    assert ours.itl_s().mean == pytest.approx(theirs.itl_s().mean, rel=1e-12)
    for name, client in ours.summary["clients"].items() if blocks else ():
        other = theirs.summary["clients"][name]
        assert client["kv_mean_blocks"] == pytest.approx(other["kv_mean_blocks"], rel=1e-9)
        assert client["kv_peak_blocks"] == other["kv_peak_blocks"]


SYNC = {**CHUNKED, "async_scheduling": False}
WITHOUT_CACHE = {**TIGHT, "prefix_caching": False}
SMALL = {name: scenario(clients=[{**CLIENT, "memory": WITHOUT_CACHE, "scheduler": {**SYNC, **more}}])
         for name, more in {"plain": {}, "a cap": {"long_prefill_token_threshold": 100},
                            "few seats": {"max_num_seqs": 6}}.items()}


@pytest.mark.feature("LLM clients", "vLLM's own scheduler as a client's: `scheduler: {kind: vllm}`")
@pytest.mark.parametrize("name", SMALL)
def test_another_process_decides_and_the_times_are_the_same(name, fake):
    given = SMALL[name]
    alike(simulate(given), results := simulate(own(given, fake)))
    assert results.summary["clients"]["llm"]["engine"] == "vllm 0.33.0 (abc)"


GIVEN_UP = ("patience, synchronous", "drafts, patience", "drafts, synchronous, patience")


@pytest.mark.parametrize("name", GIVEN_UP)
def test_requests_that_are_given_up_leave_the_process_too(name, fake):
    given = ENDING[name]
    [client] = given["clients"]
    given = {**given, "clients": [{**client, "memory": {**client["memory"], "prefix_caching": False}}]}
    alike(ours := simulate(given), simulate(own(given, fake)), blocks=not name.startswith("drafts"))
    assert ours.summary["requests"]["rejected"]


LONELY = {"requests": 12, "arrivals": {"kind": "uniform", "rate": 0.2}, "lengths": {
    "kind": "independent", "prompt": {"kind": "uniform", "min": 40, "max": 400},
    "output": {"kind": "uniform", "min": 20, "max": 90}}}


@pytest.mark.parametrize("workload", [LONELY, {**LONELY, "requests": 60, "arrivals": {"kind": "poisson", "rate": 8}}],
                         ids=["one at a time", "several"])
@pytest.mark.parametrize("more", DRAFTS.values(), ids=list(DRAFTS))
def test_no_batch_with_drafts_stays_in_flight_until_the_next_request(workload, more, fake):
    """The engine may compute a sequence once more than it needs; that step ends before the next request comes."""
    given = scenario(workload=workload, clients=[
        {**CLIENT, "memory": WITHOUT_CACHE, "scheduler": {**CHUNKED, **more}}])
    alike(ours := simulate(given), theirs := simulate(own(given, fake)), blocks=False)
    assert theirs.record.runs["end_ns"].tolist() == ours.record.runs["end_ns"].tolist()


def fleet(python):
    plain = {**CLIENT, "memory": WITHOUT_CACHE, "scheduler": SYNC}
    return scenario(
        workload={**scenario()["workload"], "requests": 120},
        clients=[{**plain, "name": "fast", "count": 7},
                 {**plain, "name": "real", "scheduler": {**SYNC, "kind": "vllm", "python": python}}])


@pytest.mark.long
def test_one_of_eight_clients_is_the_engine(fake):
    first, again = simulate(fleet(fake)), simulate(fleet(fake))
    assert first.record.stages["client"].tolist() == again.record.stages["client"].tolist()
    assert first.requests.equals(again.requests)
    assert set(first.record.stages["client"].tolist()) == set(range(8))
    alike(simulate(scenario(workload=fleet(fake)["workload"], clients=[
        {**CLIENT, "memory": WITHOUT_CACHE, "scheduler": SYNC, "name": name, "count": count}
        for name, count in (("fast", 7), ("real", 1))])), first)


@pytest.mark.long   # a process for each example
class TestContract(SchedulerContract):
    examples = 2
    branches = False

    @pytest.fixture(autouse=True)
    def _python(self, fake):
        self.python = fake

    def make(self, pool, every_step):
        config = VllmConfig(python=self.python, max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=False)
        return config.build(pool, every_step=every_step)


def test_defaults_are_those_of_the_engine_on_its_device():
    defaults = load_engine("vllm-0.32").defaults(DeviceClass("h100", 80 * 2**30))
    config = VllmConfig().completed(defaults)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.async_scheduling) == (8192, 1024, True)
    assert VllmConfig(max_num_batched_tokens=100).completed(defaults).max_num_seqs == 100
    with pytest.raises(InputError, match=r"write `scheduler\.policy`"):
        VllmConfig(scheduler_config={"policy": "fcfs"}).completed(defaults)


@pytest.mark.long
def test_what_cannot_serve_is_one_line(tmp_path, fake, capsys, monkeypatch):
    given = SMALL["plain"]
    with pytest.raises(InputError, match="an interpreter that has vLLM"):
        simulate(own(given, str(tmp_path / "nothing")))
    with pytest.raises(HermesError, match="does not serve as vLLM's scheduler: no vllm here"):
        simulate(own(given, script(tmp_path, "echo no vllm here >&2; exit 1")))
    with pytest.raises(HermesError, match=r"failed: TypeError: no such field"):
        simulate(own(given, script(tmp_path, """read line; echo '{"error": "TypeError: no such field"}'""")))
    monkeypatch.setenv("FAKE_VLLM", "0.27.1")
    with pytest.raises(InputError, match=r"the client's engine, vLLM 0\.33\.0, found '0\.27\.1'.*engine: vllm-0\.27"):
        simulate(own(given, fake))
    simulate(own({**given, "clients": [{**given["clients"][0], "engine": "vllm-0.27"}]}, fake))
    client = given["clients"][0]
    for more, line in (({"count": "1P1D"}, "role: vLLM's own"), ({"memory": {"prefix_eviction": "lfu"}}, "prefix_evic"),
                       ({"model": "gemma-3-27b"}, "hybrid: false")):
        with pytest.raises(InputError, match=line):
            simulate(own({**given, "clients": [{**client, **more}]}, fake))
    path = tmp_path / "scenario.yaml"
    path.write_text(f"""
name: bad
workload: {{requests: 3, arrivals: {{kind: poisson, rate: 1}}, lengths: {{kind: fixed, prompt: 20, output: 4}}}}
clients:
- {{model: llama-3.1-8b, device: l40s, scheduler: {{kind: vllm, python: {fake}, max_num_sequences: 4}}}}
""")
    assert main(["run", str(path)]) == 2
    assert "max_num_sequences" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*CASES, *ENDING])
def test_the_engine_itself_gives_the_same_times(name, warm_engine):
    given = CASES.get(name) or ENDING[name]
    with_drafts = name.startswith(("speculation", "drafts"))
    alike(simulate(given), results := simulate(own(given, warm_engine)), blocks=not with_drafts)
    assert all(client["engine"].startswith("vllm 0.") for client in results.summary["clients"].values())


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 10, 15, 16, 26, 28])
def test_the_engine_itself_gives_the_same_times_of_random_drafts_with_a_prefix_cache(seed, warm_engine):
    given = drawn(seed, NEWEST_ENGINE)
    alike(simulate(given), simulate(own(given, warm_engine)), blocks=False)


def test_a_fleet_with_the_engine_itself_repeats(warm_engine):
    first, again = simulate(fleet(warm_engine)), simulate(fleet(warm_engine))
    assert first.requests.equals(again.requests)
    assert first.summary["headline"] == again.summary["headline"]
