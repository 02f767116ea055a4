"""`count: 3P1D`, and settings as a dict."""

import pytest

from hermes.api import load_scenario, simulate
from hermes.cli import main
from hermes.errors import InputError

CLIENT = {"model": "llama-3.1-8b", "device": "h100-sxm"}
WORKLOAD = {"requests": 20, "arrivals": {"kind": "poisson", "rate": 10},
            "lengths": {"kind": "independent", "prompt": 300, "output": 20}}


@pytest.mark.parametrize(("count", "name", "groups"), [
    ("3P1D", None, [("prefill", "prefill", 3), ("decode", "decode", 1)]),
    ("12P/20D", "fast", [("fast-prefill", "prefill", 12), ("fast-decode", "decode", 20)]),
])
def test_a_split_is_two_groups(count, name, groups):
    own = {} if name is None else {"name": name}
    clients = [{**CLIENT, **own, "count": count}, {**CLIENT, "name": "o"}]
    scenario = load_scenario({"workload": WORKLOAD, "clients": clients})
    assert [(c.name, c.role, c.count) for c in scenario.clients] == [*groups, ("o", "both", 1)]


def test_it_simulates_as_written_out():
    short = simulate({"workload": WORKLOAD, "clients": [{**CLIENT, "count": "2P1D"}]})
    long = simulate({"workload": WORKLOAD, "clients": [
        {**CLIENT, "name": "prefill", "role": "prefill", "count": 2}, {**CLIENT, "name": "decode", "role": "decode"}]})
    assert short.summary == long.summary


@pytest.mark.parametrize(("change", "said"), [
    ({"count": "3P1D", "role": "both"}, "clients.0.role|role: count 3P1D says which"),
    ({"count": "0P1D"}, "at least one client of each role"), ({"count": "3P"}, "count: expected"),
])
def test_a_mistake_has_its_place(tmp_path, capsys, change, said):
    import re

    import yaml

    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"workload": WORKLOAD, "clients": [{**CLIENT, **change}]}))
    assert main(["validate", str(file)]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert f"{file}:" in error


@pytest.mark.feature("Results, sweeps, studies", "Settings as a dict, `count: 3P1D`")
def test_settings_as_a_dict():
    base = {"workload": WORKLOAD, "clients": [CLIENT]}
    changed = load_scenario(base, {"clients.0.count": 3, "workload.arrivals": {"kind": "poisson", "rate": "4 /s"}})
    assert changed == load_scenario(base, ["clients.0.count=3", "workload.arrivals={kind: poisson, rate: 4 /s}"])
    assert simulate(base, overrides={"workload.requests": 5}, seed=3).summary["requests"]["total"] == 5
    with pytest.raises(InputError, match=r"clients\.0\.counts"):
        load_scenario(base, {"clients.0.counts": 3})
