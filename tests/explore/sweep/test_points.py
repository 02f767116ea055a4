"""Which points a sweep has, what each sets, and what is refused before anything runs."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.explore import load_sweep, plan_sweep
from hermes.explore.sweep.points import points, scenario
from hermes.scenario import builtin_scenarios, builtin_sweeps, load_scenario, resolved_yaml

SMALL = (Path(__file__).parents[1] / "small.yaml").read_text()


def small():
    return parse_yaml(SMALL).plain()


def values(size):
    return st.lists(st.integers(1, 50), min_size=1, max_size=size, unique=True)


@given(
    rates=values(3), requests=values(3), outputs=values(3), labels=st.lists(st.sampled_from("abcd"), min_size=1,
                                                                            unique=True),
    seeds=st.integers(1, 3) | st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
)
def test_every_combination_once_in_order_and_as_written(rates, requests, outputs, labels, seeds):
    sweep = load_sweep({
        "scenario": small(), "seeds": seeds,
        "cases": [{"label": label, "set": {"clients.0.count": 1 + i}} for i, label in enumerate(labels)],
        "zip": {"workload.lengths.output": outputs, "workload.lengths.prompt": [2 * x for x in outputs]},
        "grid": {"workload.arrivals.rate": rates, "workload.requests": requests},
        "columns": {"workload.arrivals.rate": "rate"},
    })
    found = points(sweep)
    every = seeds if isinstance(seeds, list) else range(7, 7 + seeds)
    assert [(p.settings["case"], p.settings["workload.lengths.output"], p.settings["rate"],
             p.settings["workload.requests"], p.seed) for p in found] == list(
        itertools.product(labels, outputs, rates, requests, every))
    assert [p.index for p in found] == list(range(len(found)))
    for point in found[:: math.ceil(len(found) / 5)]:
        made = scenario(sweep, point)
        workload = made.workload[0]
        assert made.seed == point.seed
        assert made.clients[0].count == 1 + labels.index(point.settings["case"])
        assert workload.arrivals.rate == point.settings["rate"]
        assert workload.requests == point.settings["workload.requests"]
        assert workload.lengths.prompt == 2 * workload.lengths.output == 2 * point.settings["workload.lengths.output"]


def test_a_sweep_of_nothing_is_its_scenario(folder, write):
    sweep = load_sweep(write(""))
    [point] = points(sweep)
    assert scenario(sweep, point) == load_scenario(folder / "small.yaml")


def test_a_value_may_be_any_yaml(write):
    sweep = load_sweep(write("""\
grid:
  clients.0.scheduler: [{kind: static, max_num_seqs: 4}, {kind: continuous}]
  router: [{kind: round_robin}]
"""))
    found = points(sweep)
    assert [p.settings["clients.0.scheduler"] for p in found] == [
        "{kind: static, max_num_seqs: 4}", "{kind: continuous}"]
    assert [scenario(sweep, p).clients[0].scheduler.kind for p in found] == ["static", "continuous"]


def test_a_later_path_may_reach_into_an_earlier_one(write):
    sweep = load_sweep(write("""\
cases:
  - {label: one, set: {"clients.0": {hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}}}}
grid: {clients.0.count: [1, 3]}
"""))
    assert [scenario(sweep, p).clients[0].count for p in points(sweep)] == [1, 3]


def test_paths_are_relative_to_the_file_they_stand_in(folder, write):
    (folder / "inner").mkdir()
    (folder / "inner" / "other.yaml").write_text(SMALL.replace("requests: 20", "requests: 2"))
    (folder / "inner" / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n")
    sweep = folder / "inner" / "sweep.yaml"
    sweep.write_text("scenario: {extends: ../small.yaml, name: inner}\n")
    assert scenario(load_sweep(sweep), points(load_sweep(sweep))[0]).workload[0].requests == 20
    outside = write("""\
grid:
  workload: [{arrivals: {kind: trace, path: inner/trace.csv}, lengths: {kind: trace, path: inner/trace.csv}}]
""")
    outside.write_text(outside.read_text().replace("small.yaml", "inner/other.yaml"))
    plan = plan_sweep(outside, workers=0)
    texts = [resolved_yaml(scenario(plan.sweep, planned.point)) for planned in plan.points]
    assert [text.count("path: trace.csv") for text in texts] == [2]


def test_built_in_sweeps_are_no_scenarios():
    assert "sweeps/which-batching" in builtin_sweeps()
    assert not set(builtin_sweeps()) & set(builtin_scenarios())
    for name in builtin_sweeps():
        sweep = load_sweep(name)
        for point in points(sweep):
            scenario(sweep, point)


@pytest.mark.parametrize(("text", "where", "said"), [
    ("grid: {workload.arrivals.rate: []}", ":2:", "at least 1 item"),
    ("grid: {workload.arrivals.rate: 3}", ":2:", "expected a list"),
    ("grid: {workload.requests: [5, 6, 5]}", ":2:34: grid.workload.requests", "every value once, found 5"),
    ("zip: {workload.requests: [1, 2], workload.arrivals.rate: [1]}", ":2:", "lists of equal length"),
    ("zip: {a: [1, 1], b: [2, 2]}", ":2:", "every combination once"),
    ("cases: []", ":2:", "at least 1 item"),
    ("cases: [{label: a}, {label: a}]", ":2:", "every value once, found 'a'"),
    ("cases: [{set: {a: 1}}]", ":2:", "cases.0.label: expected a value (required)"),
    ("cases: [{label: a, sets: {a: 1}}]", ":2:20: cases.0.sets", "did you mean 'set'?"),
    ("seeds: 0", ":2:8", "seeds: expected"),
    ("seeds: true", ":2:8", "seeds: expected"),
    ("seeds: [1, 1]", ":2:", "seeds: expected every value once, found 1"),
    ("seeds: [3, -1]", ":2:8", "seeds: expected a number of repeats from 1, or a list of seeds from 0, found a list"),
    ("grid: {seed: [1, 2]}", ":2:8", "the seeds under `seeds`"),
    ("zip: {workload.requests: [1]}\ngrid: {workload.requests: [1, 2]}", ":3:8", "a path that leaves"),
    ("grid: {workload.requests: [1], workload: [{}]}", ":2:32", "a path that leaves workload.requests"),
    ("columns: {workload.requests: n}", ":2:", "a path of the sweep"),
    ("grid: {a: [1], b: [2]}\ncolumns: {a: x, b: x}", ":1:1", "a different name for each column, found 'x'"),
    ("grid: {a: [1]}\ncolumns: {a: status}", ":1:1", "a different name for each column, found 'status'"),
    ("scenarios: x", ":2:1", "did you mean 'scenario'?"),
    ("keep: everything", ":2:7", "keep: expected 'summary', 'requests' or 'all'"),
    ("extract: nothing", ":2:10", "extract: expected text that matches"),
    ("extract: no_such_module_:f", ":2:10", "extract: expected module:function"),
    ("grid: {a..b: [1]}", ":2:8: point 0 (a..b=1)", "expected KEY.KEY"),
    ("grid: {workload.requests: [5, -1]}", ":2:31: point 1 (workload.requests=-1): workload.requests", "at least 1"),
    ("grid: {workload.requets: [5]}", ":2:8: point 0", "did you mean 'requests'?"),
    ("grid: {clients.9.count: [5]}", ":2:8: point 0", "a list index from 0 to 1"),
    ("cases:\n  - {label: bad, set: {clients.0.hardware.profile: llama}}",
     ":3:52: point 0 (case=bad): clients.0.hardware",
     "a hardware profile: one of"),
    ("grid:\n  workload.model: [other]\n  clients.0.model: [llama-2-70b]",
     ":3:20: point 0 (workload.model=other, clients.0.model=llama-2-70b): workload.model: ",
     "expected a model that a client serves"),
])
def test_a_mistake_is_one_line_with_its_place(write, text, where, said):
    path = write(text + "\n")
    with pytest.raises(InputError) as raised:
        plan_sweep(path, workers=0)
    line = str(raised.value)
    assert line.startswith(f"{path}{where}"), line
    assert said in line
    assert "\n" not in line


def test_a_mistake_in_the_scenario_names_the_sweep_and_the_point(folder, write):
    (folder / "small.yaml").write_text(SMALL.replace("count: 2", "count: two"))
    with pytest.raises(InputError) as raised:
        plan_sweep(write("grid: {workload.requests: [1]}\n"), workers=0)
    line = str(raised.value)
    assert line.startswith(f"{folder / 'small.yaml'}:8:12: {folder / 'sweep.yaml'}: point 0 (workload.requests=1): ")
    assert "clients.0.count: expected an integer" in line


@pytest.mark.parametrize("said", ["nothing.yaml", "quickstrat", "7", "[a]"])
def test_a_scenario_that_is_not_there(folder, said):
    path = folder / "sweep.yaml"
    path.write_text(f"scenario: {said}\n")
    with pytest.raises(InputError, match=r"sweep.yaml:1:11: scenario"):
        load_sweep(path)


def test_too_many_points_are_not_even_listed(write):
    many = "[" + ", ".join(map(str, range(1, 1200))) + "]"
    with pytest.raises(InputError, match="at most 1,000,000 points, found 1437601"):
        plan_sweep(write(f"grid: {{workload.requests: {many}, workload.lengths.output: {many}}}\n"))


def test_the_scenario_of_all_points_can_be_changed(write):
    sweep = write("grid: {workload.arrivals.rate: [1, 2]}\nseeds: 2\n")
    changed = load_sweep(sweep, ["workload.requests=5", "seed=100"])
    made = [scenario(changed, point) for point in points(changed)]
    assert [(s.workload[0].requests, s.seed) for s in made] == [(5, 100), (5, 101)] * 2
    for override in ("workload.arrivals.rate=3", "workload.arrivals={kind: at_once}", "workload=[]"):
        with pytest.raises(InputError, match=r"--set: .*it sets workload.arrivals.rate"):
            load_sweep(sweep, [override])
    with pytest.raises(InputError, match=r"^--set workload.requests=x: .*sweep.yaml: point 0 \(.*\): workload.req"):
        plan_sweep(sweep, overrides=["workload.requests=x"], workers=0)
