"""Tenants and classes of requests: drawn, or columns of a trace, and what a gateway makes of their names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hermes.api import simulate
from hermes.errors import InputError
from hermes.results.figures.tenants import jain
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.workload.importers import TRACE_IMPORTERS
from hermes.workload.traces import read_trace, write_trace

HARDWARE = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}
CLIENT = {"name": "llm", "model": "llama-3.1-8b", "hardware": HARDWARE, "memory": {"num_blocks": 500}}
ROWS = "arrival_s,prompt_tokens,output_tokens,tenant,class\n0,10,2,b,gold\n0.5,20,3,a,\n1,30,4,b,batch\n"


def scenario(gateway: dict[str, Any] | None = None, **workload: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"workload": {"requests": 400, "arrivals": {"kind": "at_once"},
                                         "lengths": {"kind": "fixed", "prompt": 10, "output": 2}} | workload,
                            "clients": [CLIENT]}
    return data if gateway is None else data | {"gateway": gateway}


def names(data: dict[str, Any], column: str) -> list[str]:
    labels = build(load_scenario(data))._labels
    codes, found = labels[column]
    return [found[code] for code in codes.tolist()]


def test_names_are_drawn_by_weight_and_change_nothing_else() -> None:
    plain, with_tenants = scenario(), scenario(tenants={"values": ["a", "b"], "weights": [1, 3]})
    counts = Counter(names(with_tenants, "tenant"))
    assert 60 < counts["a"] < 140
    assert counts["a"] + counts["b"] == 400
    first, second = simulate(plain), simulate(with_tenants)
    assert first.requests["finish_s"].tolist() == second.requests["finish_s"].tolist()


def test_turns_of_a_conversation_have_one_tenant() -> None:
    data = scenario(lengths={"kind": "conversations", "turns": 4, "message": 10, "output": 2, "think_time": 0.1},
                    tenants={"values": ["a", "b", "c"]}, classes={"values": ["x", "y"]})
    simulation = build(load_scenario(data))
    sessions = simulation.streams[0].table.session
    for column in ("tenant", "class"):
        codes = simulation._labels[column][0]
        each = [set(codes[sessions == session].tolist()) for session in np.unique(sessions)]
        assert all(len(mine) == 1 for mine in each)
        assert len(set.union(*each)) > 1


def test_workloads_without_names_beside_one_that_has_them() -> None:
    one = scenario(name="one", requests=2, tenants={"values": ["b"]})
    data = one | {"workload": [one["workload"], scenario(name="two", requests=1)["workload"]]}
    assert names(data, "tenant") == ["b", "b", ""]
    by = simulate(data).summary["gateway"]["tenant"]
    assert {name: found["requests"] for name, found in by.items()} == {"": 1, "b": 2}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_trace_has_names(tmp_path: Path, suffix: str) -> None:
    """The round trip of a trace with both columns; an empty class is none."""
    path = tmp_path / f"trace.{suffix}"
    (tmp_path / "trace.csv").write_text(ROWS)
    if suffix == "parquet":
        write_trace(pd.read_csv(tmp_path / "trace.csv", keep_default_na=False), path, source="test")
    table = read_trace(path)
    assert table.tenant is not None
    assert table.service_class is not None
    assert [table.tenant.names[code] for code in table.tenant.codes] == ["b", "a", "b"]
    assert [table.service_class.names[code] for code in table.service_class.codes] == ["gold", "", "batch"]
    replayed = {"kind": "trace", "path": str(path)}
    data = scenario({"flow_control": {}, "classes": {"gold": {"priority": 1}, "batch": {"priority": -1}}},
                    requests=None, arrivals=replayed, lengths=replayed)
    assert names(data, "tenant") == ["b", "a", "b"]
    assert names(data, "band") == ["1", "0", "-1"]
    assert simulate(data).record.held["priority"].tolist() == [1, 0, -1]
    assert names(scenario(requests=None, arrivals=replayed, lengths=replayed, tenants={"values": ["own"]}),
                 "tenant") == ["own"] * 3


def test_an_imported_table_has_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens,who,what\n0,10,2,7,gold\n1,20,3,3,batch\n")
    found = TRACE_IMPORTERS.get("csv")(tenant="who", service_class="what").read(tmp_path / "t.csv")
    assert found["tenant"].tolist() == ["7", "3"]
    assert found["class"].tolist() == ["gold", "batch"]


TWO = {"classes": {"values": ["gold", "batch"]}, "tenants": {"values": ["a"]}}


@pytest.mark.parametrize(("gateway", "field", "message"), [
    ({"flow_control": {}}, "gateway.classes", "no entry for class 'batch'"),
    ({"flow_control": {}, "classes": {"gold": {}, "batch": {}, "bach": {}}}, "gateway.classes.bach", "batch"),
    ({"flow_control": {}, "classes": {"gold": {}, "batch": {}}, "tenants": {"z": {}}}, "gateway.tenants.z", "a tenant"),
    ({"flow_control": {}, "queue": {}}, "gateway.queue", "leave it out"),
    ({"flow_control": {}, "admission": {}}, "gateway.admission", "leave it out"),
    ({"classes": {"gold": {}}}, "gateway.classes", "flow_control or admission"),
    ({"flow_control": {"detector": {"kind": "utilization", "stale": 0.01}}, "classes": {"gold": {}, "batch": {}}},
     "gateway.flow_control.detector.stale", "0.05 s"),
])
def test_mistakes_are_one_line(gateway: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        build(load_scenario(scenario(gateway, **TWO)))
    assert error.value.field == field
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_names_twice_are_refused() -> None:
    with pytest.raises(InputError, match="'a' stands in it twice"):
        load_scenario(scenario(tenants={"values": ["a", "b", "a"]}))


def test_jains_index() -> None:
    assert jain(np.array([3.0, 3.0])) == 1.0
    assert jain(np.array([4.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / 42)
    assert jain(np.array([0.0, 0.0])) == 1.0
    assert jain(np.array([1.0])) is None
