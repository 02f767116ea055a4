"""What an autoscaler would have done: beside the run's own it does the same; by hand; and from dumps of metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.cli import main
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.core.scraped import Sample
from hermes.errors import InputError
from hermes.fleet.advice import NO_LIMIT, Ask, Noted, Shadow, advice
from hermes.fleet.autoscalers import Pod
from hermes.fleet.dump import read_dump
from hermes.fleet.hpa import Hpa
from hermes.fleet.replay import Dump, replay
from hermes.fleet.replicas import Replicas
from hermes.results.files.stored import digest_of, scenario_digest
from hermes.scenario import load_scenario
from hermes.scenario.advise import advise_run, autoscaler_of, beside
from hermes.scenario.build import build

Data = dict[str, Any]
S = 10**9
ENGINE = {"memory": {"num_blocks": 60}, "model": "llama-3.1-8b",
          "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}
BURSTS = {"requests": 400, "arrivals": {"kind": "mmpp", "rates": [150, 5], "dwells": [2, 4]},
          "lengths": {"kind": "fixed", "prompt": 64, "output": 32}}
HPA = {"kind": "hpa", "period": 0.5, "scrape": 0.1, "metrics": [{"metric": "running", "target": 3}],
       "scale_up": {"period": 1.0}, "scale_down": {"window": 1.0, "period": 1.0}}
KPA = {"kind": "kpa", "metric": "running", "target": 3.0, "period": 0.5, "window": 3.0, "down_cooldown": 1.0}
APA = {"kind": "apa", "metric": "waiting", "target": 1.0, "period": 0.5, "window": 3.0, "down_cooldown": 1.0}
KEDA = {"kind": "keda", "triggers": [{"metric": "queue", "target": 4}, {"metric": "running", "target": 3}],
        "polling": 0.3, "cooldown": 0.4, "sync": 0.3, "scrape": 0.1,
        "scale_down": {"window": 0.5, "period": 0.5}}
WVA = {"kind": "wva", "interval": 0.5, "window": 0.5, "scrape": 0.1, "sync": 0.5,
       "scale_up": {"window": 0.5, "pods": 10, "period": 1.0}, "scale_down": {"window": 0.5, "pods": 10, "period": 1.0}}
DYNAMO = {"kind": "dynamo_planner", "target": "latency", "load_interval": 0.5}


def group(name: str = "llm", **fleet: Any) -> Data:
    return {"name": name, "count": 4, **ENGINE, "fleet": {"start": 1, "start_up": {"total": 0.4}, **fleet}}


def scenario(*groups: Data, **keys: Any) -> Data:
    return {"workload": BURSTS, "clients": list(groups), **keys}


def own_and_advised(data: Data, autoscaler: Data, *names: str) -> tuple[list[list[Ask]], list[list[Ask]]]:
    """Return what the autoscaler of each group asked for in the run, and what the same one asked for beside it."""
    simulation = build(load_scenario(data))
    own, noted = [], []
    act = Shadow.__init__

    def made(self: Shadow, replicas: Replicas) -> None:
        act(self, replicas)
        noted.append(self)
        own.append(replicas)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shadow, "__init__", made)
        beside(simulation, autoscaler_of(autoscaler), names or ("llm",), queued="gateway" in data)
    return ([[Ask(*row) for row in replicas.decided] for replicas in own],
            [[ask for ask in view.asked if ask.wanted != ask.recorded] for view in noted])


QUEUED = {"gateway": {"queue": {"ttl": 60.0}, "retries": 2}}
CRASHES = [{"at": 1.0, "replica": 0}, {"at": 3.3, "replica": 1}, {"at": 4.0, "replica": 0}]
PROBE = {"period": 0.1, "failures": 2, "delay": 0.1}


@pytest.mark.feature("Plug-ins of research", (
    "What an autoscaler would have done, on a run or on metrics of a real service: `hermes advise`"))
@each("autoscaler, keys", [(HPA, {}), (KPA, {}), (APA, {}), (KEDA, QUEUED), (WVA, {}), (DYNAMO, {}),
                           ({"kind": "schedule", "changes": [{"at": 1.0, "replicas": 3}, {"at": 2.5, "replicas": 2}]},
                            {})], ids=lambda one: one.get("kind", "") or "keys")
def test_the_runs_own_autoscaler_decides_as_in_the_run(autoscaler: Data, keys: Data) -> None:
    own, advised = own_and_advised(scenario(group(autoscaler=autoscaler), **keys), autoscaler)
    assert own == advised
    assert len(own[0]) > 1, "it decides"


@each("autoscaler", [HPA, KPA, WVA], ids=lambda one: one["kind"])
def test_the_same_where_replicas_crash_and_requests_wait(autoscaler: Data) -> None:
    data = scenario(group(autoscaler=autoscaler, crashes=CRASHES, probe=PROBE), **QUEUED)
    own, advised = own_and_advised(data, autoscaler)
    assert own == advised
    assert own[0]


def test_the_same_of_several_groups_with_one_autoscaler_or_one_each() -> None:
    split = [group("prefill") | {"role": "prefill"}, group("decode") | {"role": "decode"}]
    data = {"workload": BURSTS, "network": {"kind": "link", "bandwidth": "5 GB/s"}}
    for autoscaler in (WVA, DYNAMO):
        own, advised = own_and_advised(
            data | {"clients": split, "autoscalers": [{"groups": ["prefill", "decode"], "autoscaler": autoscaler}]},
            autoscaler, "prefill", "decode")
        assert own == advised
        assert any(own)
    each_own = [one | {"fleet": one["fleet"] | {"autoscaler": HPA, "crashes": CRASHES, "probe": PROBE}}
                for one in split]
    own, advised = own_and_advised(data | {"clients": each_own} | QUEUED, HPA, "prefill", "decode")
    assert own == advised
    assert any(own)


@quick_and_full(5, 60, thorough=150, derandomize=True)
@given(data=st.data())
def test_its_scrapers_see_what_those_of_the_run_saw(data: st.DataObject) -> None:
    """The pods of each look equal those that the run's own autoscaler saw, with runs and in single steps, and the run
    is the one that it is without advice."""
    draw = data.draw
    autoscaler = {
        **HPA, "period": draw(st.sampled_from([0.05, 0.3])), "scrape": draw(st.sampled_from([0.01, 0.2])),
        "metrics": [{"metric": draw(st.sampled_from(["waiting", "running", "kv_use"])),
                     "target": draw(st.sampled_from([0.1, 0.5, 4.0]))}]}
    crashes = draw(st.lists(st.fixed_dictionaries({"at": st.integers(1, 40).map(lambda n: n / 20),
                                                   "replica": st.integers(0, 3)}), max_size=3))
    one = group(autoscaler=autoscaler, start=draw(st.integers(1, 4)), crashes=crashes, probe=PROBE,
                start_up={"total": draw(st.sampled_from([0.0, 0.05, 0.4]))})
    one["memory"] = {"num_blocks": draw(st.sampled_from([40, 400])), "prefix_caching": draw(st.booleans())}
    one["scheduler"] = {"kind": draw(st.sampled_from(["chunked", "continuous", "mixed"])), "max_num_seqs": 8}
    base = {"clients": [one], "seed": draw(st.integers(0, 5)), **QUEUED, "workload": {
        "requests": 80, "arrivals": {"kind": "poisson", "rate": draw(st.sampled_from([10.0, 60.0, 200.0]))},
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 5, "max": 300},
                    "output": {"kind": "uniform", "min": 1, "max": 60}}}}
    for stepping in ("runs", "every_step"):
        live: list[tuple[int, list[Pod]]] = []
        shadow: list[tuple[int, list[Pod]]] = []
        pods, shadowed = Replicas.pods, Shadow.pods

        def seen(self: Replicas, live: Any = live, pods: Any = pods) -> list[Pod]:
            live.append((round(self.now_s * S), pods(self)))
            return live[-1][1]

        def seen_beside(self: Shadow, shadow: Any = shadow, pods: Any = shadowed) -> list[Pod]:
            shadow.append((self.now_ns, pods(self)))
            return shadow[-1][1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Replicas, "pods", seen)
            patch.setattr(Shadow, "pods", seen_beside)
            simulation = build(load_scenario({**base, "stepping": stepping}))
            found, record = beside(simulation, autoscaler_of(autoscaler), ["llm"], queued=True)
        assert live == shadow
        assert found[0].differs_ns == 0
        alone = build(load_scenario({**base, "stepping": stepping})).run()
        assert record.membership.tolist() == alone.membership.tolist()
        assert record.finish_ns.tolist() == alone.finish_ns.tolist()


# -- figures -----------------------------------------------------------------------------------------------------------


@quick_and_full(100, 2000)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 3)), max_size=8),
       st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), max_size=6, unique_by=lambda one: one[0]),
       st.integers(1, 32))
def test_figures_are_those_of_every_nanosecond(asked: list[tuple[int, int, int]], changes: list[tuple[int, int]],
                                               end: int) -> None:
    view = Noted("llm", 0)
    view.asked = [Ask(time, recorded, wanted, "why" if wanted != recorded else "") for time, recorded, wanted in
                  sorted(asked, key=lambda one: one[0])]
    recorded = [(0, 1), *sorted(changes)]
    found = advice(view, recorded, end)
    differs = more = fewer = 0
    for time in range(end):
        there = [n for at, n in recorded if at <= time][-1]
        last = [ask for ask in view.asked if ask.time_ns <= time][-1:]
        beyond = last[0].wanted - there if last and last[0].wanted != last[0].recorded else 0
        differs, more, fewer = differs + bool(beyond), more + max(beyond, 0), fewer + max(-beyond, 0)
    assert (found.differs_ns, found.more_ns, found.fewer_ns) == (differs, more, fewer)


# -- runs --------------------------------------------------------------------------------------------------------------


STEADY = """\
workload: {requests: 3, arrivals: {kind: closed_loop, users: 1}, lengths: {kind: fixed, prompt: 64, output: 400}}
clients: [{name: llm, count: 4, model: llama-3.1-8b, device: h100-sxm%s}]
"""
HALF = "{kind: hpa, period: 0.5, scrape: 0.25, metrics: [{metric: running, target: 0.5}]}"


def ran(folder: Path, fleet: str = ", fleet: {start: 1, start_up: {total: 100}}") -> Path:
    (folder / "steady.yaml").write_text(STEADY % fleet)
    assert main(["run", str(folder / "steady.yaml"), "-o", str(folder / "run"), "-q"]) == 0
    return folder / "run"


def asked_of(folder: Path, autoscaler: str) -> list[tuple[float, float, int, int]]:
    (found,) = advise_run(folder, parse_yaml(autoscaler))
    return [(row.start_ns / S, row.end_ns / S, row.recorded, row.wanted) for row in found.decisions]


def test_a_run_by_hand(tmp_path: Path) -> None:
    """One sequence runs all the time on the one replica; the target is half a sequence, so two are wanted from the
    first look after a scrape, at 0.5 s, until the end. `sequence` is its own time, about 2 s."""
    folder = ran(tmp_path)
    (found,) = advise_run(folder, parse_yaml(HALF))
    assert [(row.start_ns, row.end_ns, row.recorded, row.wanted) for row in found.decisions] == [
        (S // 2, found.end_ns, 1, 2)]
    assert found.differs_ns == found.more_ns == found.end_ns - S // 2
    assert found.fewer_ns == 0
    assert found.per_day == 86_400 * S / found.end_ns


def test_a_run_whose_clients_serve_throughout(tmp_path: Path) -> None:
    """Three of four replicas are idle: ceil(0.25 / 0.5 x 4) = 2 once a window of 0 s allows it."""
    rows = asked_of(ran(tmp_path, ""), HALF.replace("period: 0.5", "period: 0.5, scale_down: {window: 0}"))
    start, end, recorded, wanted = rows[0]
    assert (start, recorded, wanted) == (0.5, 4, 2)
    assert end >= 2.5   # the first request ends at 2.7 s; a scrape between two of them sees none


def test_what_it_wants_has_no_limit_but_its_own_max(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 users for four replicas, ten on each: of a target of 2 the metric asks for 10 / 2 x 4 = 20. Its limits allow 4
    pods or 100% more at once: 8, or its `max` of 6."""
    (tmp_path / "s.yaml").write_text(STEADY.replace("requests: 3", "requests: 200").replace("users: 1", "users: 40")
                                     % ", scheduler: {kind: chunked}")
    assert main(["run", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "run"), "-q"]) == 0
    two = HALF.replace("0.5}]", "2}]")
    for options, wanted, asked in ((two, 8, 20), (two.replace("hpa,", "hpa, max: 6,"), 6, 6)):
        (found,) = advise_run(tmp_path / "run", parse_yaml(options))
        assert (found.slots, found.most, max(found.asked)) == (4, wanted, asked)
        assert found.decisions[0].wanted == wanted
        capsys.readouterr()
        assert main(["advise", str(tmp_path / "run"), "--autoscaler", options]) == 0
        text = capsys.readouterr().out
        mean = sum(found.asked) / len(found.asked)
        assert (f"its metrics ask for {mean:.3g} replicas on average, {asked} at" in text) == (asked > wanted)
        assert f"the group has 4 (its `count`); it would have taken up to {wanted} at a look" in text


def other_hermes(folder: Path, scenario: str) -> None:
    """Write a scenario beside the results of another one, as if another version had simulated it."""
    (folder / "scenario.resolved.yaml").write_text(scenario)
    summary = json.loads((folder / "summary.json").read_text())
    del summary["run"]["digest"]
    summary["run"]["scenario"] = scenario_digest(scenario)
    summary["run"]["digest"] = digest_of(summary)
    (folder / "summary.json").write_text(json.dumps(summary))


def test_clients_that_cannot_be_replicas_are_refused(tmp_path: Path) -> None:
    folder = ran(tmp_path, "")
    text = (folder / "scenario.resolved.yaml").read_text()
    other_hermes(folder, text.replace("kind: round_robin", "kind: mixed_pool"))
    with pytest.raises(InputError, match="serve throughout"):
        advise_run(folder, parse_yaml(HALF))


def test_a_run_that_comes_out_differently_is_refused(tmp_path: Path) -> None:
    folder = ran(tmp_path)
    path = folder / "scenario.resolved.yaml"
    text = path.read_text().replace("value: 400", "value: 300").replace("output: 400", "output: 300")
    path.write_text(text)
    with pytest.raises(InputError, match="it was changed after the run"):
        advise_run(folder, parse_yaml(HALF))
    other_hermes(folder, text)
    with pytest.raises(InputError, match="comes out differently"):
        advise_run(folder, parse_yaml(HALF))
    path.unlink()
    with pytest.raises(InputError, match=r"no scenario\.resolved\.yaml"):
        advise_run(folder, parse_yaml(HALF))


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ran(tmp_path)
    (tmp_path / "half.yaml").write_text(f"autoscaler: {HALF}\n")
    capsys.readouterr()
    assert main(["advise", str(folder), "--autoscaler", str(tmp_path / "half.yaml"), "--plot",
                 str(tmp_path / "advice.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("open loop: ")
    assert lines[-1].split()[:1] + lines[-1].split()[2:4] == ["0.5", "1", "2"]
    assert (tmp_path / "advice.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["advise", str(folder), "--autoscaler", HALF, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["open_loop"] is True
    assert data["groups"][0]["decisions"][0]["wanted"] == 2


@each("words, said", [
    (["--autoscaler", "{kind: hpa}"], "metrics"), (["--autoscaler", "{kind: hpq}"], "hpa"),
    (["--autoscaler", HALF, "--group", "lln"], "llm"), (["--autoscaler", HALF, "--most", "3"], "--most"),
    (["--autoscaler", HALF.replace("hpa,", "hpa, max: 900000,")], "max"),
    (["--autoscaler", "{kind: keda, triggers: [{metric: queue, target: 1}]}"], "gateway.queue"),
    (["--autoscaler", "none.yaml"], "none.yaml"), (["--autoscaler", HALF, "--plot", "a.gif"], "--plot"),
])
def test_mistakes_are_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run" if (tmp_path / "run").exists() else ran(tmp_path)   # the same for all cases
    capsys.readouterr()
    assert main(["advise", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# -- dumps -------------------------------------------------------------------------------------------------------------


def hpa(metric: str = "running", target: float = 10.0, **keys: Any) -> Hpa:
    return validate(Hpa, {"kind": "hpa", "metrics": [{"metric": metric, "target": target}], **keys})


def csv(path: Path, text: str) -> Dump:
    path.write_text(text)
    return read_dump([str(path)], "pod")


BY_HAND = """\
time_s,replica,waiting,running,kv_use,ready
1000,a,0,40,0.5,1
1015,a,0,40,0.5,1
1015,b,,,,0
1030,a,0,20,0.5,1
1030,b,0,20,0.5,1
1045,a,0,10,0.5,1
1045,b,0,10,0.5,1
1060,a,0,10,0.5,1
1060,b,0,10,0.5,1
"""


def test_a_dump_by_hand(tmp_path: Path) -> None:
    """0 s: 40 on one of target 10: 4. 15 s: b starts and counts 0: (40 + 0) / 2 = 20, twice the target: 4. 30 s: 20 on
    each: 4. 45 s: the target asks for 2, but 4 is the highest of 300 s. Replicas: 1 until 15 s, then 2. So 4 are wanted
    for 60 s, 3 more for 15 s and 2 more for 45 s."""
    found = replay(csv(tmp_path / "d.csv", BY_HAND), hpa(), "llm", 100)
    assert [(row.start_ns // S, row.end_ns // S, row.recorded, row.wanted) for row in found.decisions] == [
        (0, 15, 1, 4), (15, 60, 2, 4)]
    assert (found.end_ns, found.differs_ns, found.more_ns, found.fewer_ns) == (60 * S, 60 * S, 135 * S, 0)
    assert found.recorded == [(0, 1), (15 * S, 2)]


def prometheus(path: Path, *series: tuple[str, str, list[list[Any]]], label: str = "pod") -> Path:
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": ({"__name__": name} if name else {}) | {label: pod}, "values": values}
        for name, pod, values in series]}}))
    return path


def points(*pairs: tuple[int, float]) -> list[list[Any]]:
    return [[time, str(value)] for time, value in pairs]


def test_prometheus_says_the_same_as_a_csv(tmp_path: Path) -> None:
    rows = {"a": [(1000, 40), (1015, 40), (1030, 20), (1045, 10), (1060, 10)],
            "b": [(1030, 20), (1045, 10), (1060, 10)]}
    text = "time_s,replica,running\n" + "".join(f"{time},{pod},{n}\n" for pod, mine in rows.items() for time, n in mine)
    expected = replay(csv(tmp_path / "d.csv", text), hpa(), "llm", 100)
    one = prometheus(tmp_path / "one.json", *(
        ("vllm:num_requests_running", pod, points(*mine)) for pod, mine in rows.items()),
        ("vllm:request_success_total", "a", points((1000, 4))),
        ("vllm:gpu_cache_usage_perc", "a", points((1000, 0.9))), ("vllm:kv_cache_usage_perc", "a", points((1000, 0.1))))
    dump = read_dump([str(one)], "pod")
    assert dump.replicas["a"].values["kv_use"][0] == 0.1
    only = prometheus(tmp_path / "only.json", *(("", pod, points(*mine)) for pod, mine in rows.items()),
                      label="instance")
    assert replay(read_dump([f"running={only}"], "instance"), hpa(), "llm", 100) == expected
    assert expected.decisions


def test_a_replica_that_leaves_and_comes_back(tmp_path: Path) -> None:
    """Rows every 10 s; b lacks those of 30 and 40 s, which may be lost scrapes, and from 60 to 130 s it had gone."""
    times = range(0, 161, 10)
    rows = [f"{time},a,1\n" for time in times]
    rows += [f"{time},b,1\n" for time in times if time not in (30, 40) and not 60 <= time < 130]
    dump = csv(tmp_path / "d.csv", "time_s,replica,running\n" + "".join(rows))
    assert dump.interval_ns == 10 * S
    assert dump.counts() == [(0, 2), (60 * S, 1), (130 * S, 2)]


def test_scrapes_of_a_run_as_a_dump_give_its_decisions(tmp_path: Path) -> None:
    """Every scrape of four replicas that serve throughout, each at its own times, written as a CSV."""
    autoscaler = {**HPA, "period": 0.3, "scrape": 0.2, "metrics": [{"metric": "running", "target": 3}]}
    data = scenario(group(start=4), workload={**BURSTS, "requests": 900})
    simulation = build(load_scenario(data))
    samples: dict[str, dict[int, Sample]] = {}
    pods = Shadow.pods

    def seen(self: Shadow) -> list[Pod]:
        found = pods(self)
        for pod in found:
            if pod.sample is not None:
                samples.setdefault(pod.name, {})[pod.sample.at_ns] = pod.sample
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shadow, "pods", seen)
        (of_run,), _ = beside(simulation, autoscaler_of(autoscaler), ["llm"])
    rows = [f"0,{name},,,\n" for name in samples]
    rows += [f"{at / S!r},{name},{one.waiting},{one.running},{one.kv_use!r}\n"
             for name, mine in samples.items() for at, one in mine.items()]
    dump = csv(tmp_path / "d.csv", "time_s,replica,waiting,running,kv_use\n" + "".join(rows))
    of_dump = replay(dump, autoscaler_of(autoscaler), "llm", NO_LIMIT)
    upto = dump.end_ns - S
    assert [row for row in of_dump.decisions if row.end_ns <= upto] == [
        row for row in of_run.decisions if row.end_ns <= upto]
    assert len(of_dump.decisions) > 1


@each("autoscaler, named", [
    ({"kind": "hpa", "metrics": [{"metric": "waiting", "target": 1}]}, "waiting"),
    ({"kind": "kpa", "metric": "kv_use", "target": 1.0}, "kv_use"),
    (KEDA, "gateway's queue"), (DYNAMO, "each step"), (WVA, "kv_use"),
], ids=lambda one: one if isinstance(one, str) else one["kind"])
def test_what_the_dump_lacks_is_named(autoscaler: Data, named: str, tmp_path: Path) -> None:
    dump = csv(tmp_path / "d.csv", "time_s,replica,running\n0,a,1\n15,a,1\n120,a,1\n")
    with pytest.raises(InputError, match=named):
        replay(dump, autoscaler_of(autoscaler), "llm", 10)


def test_wva_on_a_dump(tmp_path: Path) -> None:
    """Queue 9 is above the threshold of 5: saturated, so one more at each round; its HPA waits 240 s."""
    rows = "".join(f"{time},a,9,8,0.9\n" for time in range(0, 901, 15))
    dump = csv(tmp_path / "d.csv", "time_s,replica,waiting,running,kv_use\n" + rows)
    found = replay(dump, autoscaler_of({"kind": "wva"}), "llm", 10)
    assert [(row.recorded, row.wanted) for row in found.decisions] == [(1, 2)]
    assert found.decisions[0].start_ns >= 240 * S


@each("text, said", [
    ("replica,running\na,1\n", "time_s"), ("time_s,replica,runing\n0,a,1\n", "did you mean"),
    ("time_s,replica\n0,a\n", "waiting"), ("time_s,replica,running\n", "row"),
    ("time_s,replica,running\n0,a,-1\n", ":2: running"),
    ("time_s,replica,kv_use\n0,a,1.5\n", ":2: kv_use: expected a share from 0 to 1"),
    ("time_s,replica,running\n0,a,1\n0,a,2\n", "one row of a"), ("time_s,replica,running\n0,,1\n", "replica"),
    ("time_s,replica,running\n0,a,1\n1e9,a,2\n", "days"), ("time_s,replica,running,ready\n0,a,1,2\n", "ready"),
    ("time_s,replica,running\n1e30,a,1\n", ":2: time_s"),
])
def test_a_malformed_csv_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        csv(tmp_path / "d.csv", text)


RUNNING = "vllm:num_requests_running"


def answer(*series: Any, **keys: Any) -> Data:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)} | keys}


@each("content, said", [
    ([], "range query"), (answer() | {"status": "error"}, "range query"), (answer(resultType="vector"), "range query"),
    (answer(3), "data.result.0"), (answer(), "at least one row"), (answer({"metric": {}, "values": []}), "waiting="),
    (answer({"metric": {"__name__": RUNNING}, "values": []}), "--label"),
    *[(answer({"metric": {"__name__": RUNNING, "pod": "a"}, "values": values}), said) for values, said in (
        ([3], "a pair"), ([[True, "1"]], "a pair"), ([[1, 1]], "as text"), ([[1, "-1"]], "running from 0"),
        ([[1, "x"]], "a number"), ([[1e20, "1"]], "seconds"), ([[1, "1"], [1, "2"]], "a second value of a"))],
], ids=lambda one: one if isinstance(one, str) else "")
def test_a_malformed_answer_of_prometheus_is_one_line(content: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        read_dump([str(tmp_path / "p.json")], "pod")


def test_the_command_on_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_text(BY_HAND)
    ten = "{kind: hpa, metrics: [{metric: running, target: 10}], scrape: 5}"
    assert main(["advise", str(tmp_path / "d.csv"), "--autoscaler", ten]) == 0
    text = capsys.readouterr().out
    assert text.startswith("open loop: ")
    assert "every 15 s" in text
    assert "every 5 s" in text
    assert main(["advise", str(tmp_path / "d.csv"), "--autoscaler", ten, "--json", "--most", "3"]) == 0
    assert [row["wanted"] for row in json.loads(capsys.readouterr().out)["groups"][0]["decisions"]] == [3, 3]
    assert main(["advise", str(tmp_path / "d.txt"), "--autoscaler", ten]) == 2
