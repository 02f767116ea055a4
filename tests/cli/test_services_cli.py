"""`hermes services`: flops, bytes and time of the phases that a simulation charges."""

import json

from hermes.cli import main
from hermes.core.stage import ServiceStage
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def test_phases_are_those_of_the_scenario(capsys):
    assert main(["services", "pipelines/rag", "--batch", "3", "--tokens", "200", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    scenario = load_scenario("pipelines/rag")
    client = next(c for c in build(scenario).clients if c.name == "cpu")
    for kind, service in client.services.items():
        mine = [row for row in printed["phases"] if (row["client"], row["stage"]) == ("cpu", kind)]
        charged = service.work([ServiceStage(kind, tokens=200) for _ in range(3)]).alone_s
        assert abs(sum(row["seconds"] for row in mine) - charged) < 1e-12 * charged
        assert all(row["flops"] > 0 and row["bytes"] > 0 for row in mine)
        assert {row["memory_bytes"] for row in printed["services"] if row["stage"] == kind} >= {service.memory_bytes}


def test_a_scenario_without_services_says_so(capsys):
    assert main(["services", "quickstart"]) == 0
    assert "no client" in capsys.readouterr().out
    assert main(["services", "pipelines/rag", "--batch", "0"]) == 2


def test_what_is_wrong_is_said_with_its_place(capsys, tmp_path):
    file = tmp_path / "large.yaml"
    file.write_text("""extends: pipelines/rag
clients:
  - {kind: rag, name: cpu, device: cpu-large, serves: {retrieve: {kind: ivf_flat, vectors: 1000000000, nlist: 1000}}}
""")
    assert main(["services", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hermes: {file}:3:92: clients.0.serves.retrieve.vectors: an index of ")
    assert said.count("\n") == 1
