"""`hermes size` with several groups of LLM clients: one by one, then together."""

import json

import pytest

from hermes.api import load_scenario, simulate
from hermes.cli import main
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError
from hermes.explore.size.groups import groups_in, only, size_groups

ROUTER = {"name": "router", "model": "llama-3.1-8b", "device": "l40s"}
MAIN = {"name": "main", "model": "qwen3-32b", "device": "h100-sxm", "parallel": {"tp": 2}}
STEPS = {"route": {"kind": "generate", "model": "llama-3.1-8b", "output": 10},
         "answer": {"kind": "generate", "after": "route", "model": "qwen3-32b"}}


def workload(name, model, rate, requests):
    return {"name": name, "model": model, "requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
            "lengths": {"kind": "independent", "prompt": 500, "output": 60}}


def two_models(**more):
    loads = [workload("small", "llama-3.1-8b", 24, 400), workload("large", "qwen3-32b", 12, 200)]
    return {"seed": 1, "workload": loads,
            "clients": [dict(ROUTER), dict(MAIN)], "router": {"kind": "least_loaded", "load": "requests"},
            "slo": {"ttft": "1 s", "tpot": "60 ms"}, **more}


@pytest.mark.long
def test_two_models_have_each_their_fewest_clients():
    found = size_groups(two_models(), devices=["h100-sxm"], tps=[1, 2], layouts=["mixed"], max_devices=16, workers=0)
    assert found.meets
    assert not found.added
    for name, tried in found.best.items():   # one fewer misses, whatever the other has
        assert tried.clients == (1,) or _misses_with(found.document, name, tried.clients[0] - 1)
    assert {name: tried.devices for name, tried in found.best.items()} == {"router": 1, "main": 2}
    assert simulate(found.document).summary["slo"]["pass"] is True


def _misses_with(document, name, count):
    clients = [{**client, "count": count} if client["name"] == name else {**client, "count": 8}
               for client in document["clients"]]
    summary = simulate({**document, "clients": clients}).summary
    return summary["slo"]["pass"] is not True or summary["headline"]["stable"] is False


@pytest.mark.thorough
def test_models_of_one_pipeline_get_more_where_together_they_miss(tmp_path, capsys):
    """Each alone leaves the other no time; the check together adds clients."""
    document = two_models(
        workload={"requests": 400, "arrivals": {"kind": "poisson", "rate": 20}, "pipeline": "routed",
                  "model": "qwen3-32b", "lengths": {"kind": "fixed", "prompt": 500, "output": 60}},
        pipelines={"routed": {"stages": STEPS}}, slo={"e2e": "3 s"})
    document["clients"][1]["max_model_len"] = 8192   # one H100 does not hold a request of the model's 40,960 tokens
    (tmp_path / "s.yaml").write_text(to_yaml(document))
    out = tmp_path / "out"
    assert main(["size", str(tmp_path / "s.yaml"), "--device", "l40s,h100-sxm", "--tp", "1", "--layout", "mixed",
                 "--workers", "0", "--max-devices", "24", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    for label in ("groups", "router", "main", "added     router: a client more", "together", "SLO       met: "):
        assert f"\n{label}" in f"\n{said}"
    best = load_scenario(out / "best.yaml")
    assert {client.name for client in best.clients} == {"router", "main"}
    assert simulate(out / "best.yaml").summary["slo"]["pass"] is True
    assert "# router:" in (out / "launch.sh").read_text()
    assert len({tuple(sorted(path.name for path in (out / "simulations" / name).iterdir()))
                for name in ("router", "main")}) == 1


@pytest.mark.long
def test_one_group_alone_keeps_the_others_as_they_are(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(to_yaml(two_models()))
    options = ["--device", "h100-sxm", "--tp", "2", "--layout", "mixed", "--workers", "0", "--json"]
    assert main(["size", str(tmp_path / "s.yaml"), "--group", "main", *options, "--set", "clients.0.count=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranked"][0]["clients"] == [1]
    assert main(["size", str(tmp_path / "s.yaml"), "--group", "mian", *options]) == 2
    assert "--group: expected one of the groups router, main, found 'mian' (did you mean 'main'?)" in (
        capsys.readouterr().err)


def test_groups_of_the_same_requests_are_refused_with_what_to_do(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(to_yaml(two_models(clients=[ROUTER, MAIN, {**MAIN, "name": "spare"}])))
    assert main(["size", str(tmp_path / "s.yaml"), "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert "main and spare serve the same requests (qwen3-32b)" in error
    assert "--group main" in error
    assert error.count("\n") == 1


def test_sides_of_one_model_are_one_group():
    """Layouts replace prefill and decode clients."""
    document = {"clients": [{"kind": "rag"}, {"name": "p", "role": "prefill", "model": "m"},
                            {"name": "d", "role": "decode", "model": "m"}, {"name": "x", "model": "n"}]}
    assert groups_in(document) == {"p": [1, 2], "x": [3]}
    assert only(document, "p", 8)["clients"] == [
        {"name": "p", "role": "prefill", "model": "m"}, {"kind": "rag"}, {"name": "x", "model": "n", "count": 8}]
    with pytest.raises(InputError):
        only(document, "d")


@pytest.mark.long
def test_a_scenario_with_prefill_and_decode_clients_is_sized(tmp_path, capsys):
    one = {"model": "llama-3.1-8b", "device": "h100-sxm"}
    document = two_models(workload=workload("small", "llama-3.1-8b", 10, 200),
                          clients=[{"name": "p", "role": "prefill", **one}, {"name": "d", "role": "decode", **one}])
    (tmp_path / "s.yaml").write_text(to_yaml(document))
    assert main(["size", str(tmp_path / "s.yaml"), "--tp", "1", "--workers", "0", "--max-devices", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {layout["layout"] for layout in (*found["ranked"], *found["dearer"])} == {"mixed", "pd"}
