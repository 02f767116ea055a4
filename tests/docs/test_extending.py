"""The examples of docs/extending.md run: each plug-in registers, stands in YAML, and keeps its contract."""

import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from markdown_blocks import Block, blocks

import hermes
from hermes.clients import CLIENTS
from hermes.errors import InputError
from hermes.hardware import HARDWARE
from hermes.memory.eviction import EVICTION
from hermes.network import NETWORKS
from hermes.pipelines import PIPELINES
from hermes.plugins.orthrus import SLOTS
from hermes.routing import ROUTERS
from hermes.scenario import json_schema
from hermes.schedulers import SCHEDULERS
from hermes.schedulers.queues import PACKING
from hermes.services import SERVICES
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.lengths import LENGTHS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
REGISTRIES = (
    ROUTERS, PACKING, SLOTS, HARDWARE, ARRIVALS, PIPELINES, LENGTHS, SCHEDULERS, NETWORKS, CLIENTS, SERVICES, EVICTION,
)
PLUG_INS = {
    "my_router": (ROUTERS, "least_work"), "my_packing": (PACKING, "newest_first"),
    "my_slots": (SLOTS, "square_root"), "my_hardware": (HARDWARE, "linear"),
    "my_arrivals": (ARRIVALS, "ramp"), "my_pipeline": (PIPELINES, "best_of_two"),
    "my_careful_pipeline": (PIPELINES, "shorter_when_full"),
    "my_graph": (PIPELINES, "debate"), "my_client": (CLIENTS, "web_search"),
    "my_service": (SERVICES, "brute_force"), "my_eviction": (EVICTION, "largest_first"),
}


def named(language: str) -> dict[str, Block]:
    """The page's blocks in a language, by the file that their first line names."""
    found = {}
    for block in blocks(PAGE):
        if block.language == language:
            first = block.text.partition("\n")[0]
            assert first.startswith("# "), f"docs/extending.md:{block.line}: the first line names the file"
            found[first.removeprefix("# ")] = block
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All files of the page, importable; what they register is forgotten afterwards."""
    for name, block in (named("python") | named("yaml")).items():
        (tmp_path / name).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module, (registry, name) in PLUG_INS.items():
        if name in registry:
            registry.unregister(name)
        for stale in (module, f"test_{module}"):
            sys.modules.pop(stale, None)


def test_the_page_has_all_examples():
    assert set(named("python")) == {f"{prefix}{name}.py" for name in PLUG_INS for prefix in ("", "test_")}
    assert set(named("yaml")) == {"base.yaml", *(f"{name}.yaml" for name in PLUG_INS)}


@pytest.mark.parametrize("name", PLUG_INS)
def test_an_example_is_short(name):
    assert named("python")[f"{name}.py"].text.count("\n") < 40


@pytest.mark.parametrize("name", PLUG_INS)
def test_an_example_stands_in_yaml_once_it_is_imported(name, folder):
    registry, kind = PLUG_INS[name]
    with pytest.raises(InputError, match=kind):
        hermes.simulate(f"{name}.yaml")
    base = hermes.simulate("base.yaml")
    importlib.import_module(name)
    results = hermes.simulate(f"{name}.yaml")
    assert (results.record.status == 1).all()
    assert kind in results.meta["scenario_text"]
    assert not np.array_equal(results.record.finish_ns, base.record.finish_ns), "the plug-in changed nothing"
    steps = hermes.simulate(f"{name}.yaml", stepping="every_step")
    assert np.array_equal(results.record.finish_ns, steps.record.finish_ns)
    if registry is not PIPELINES:
        assert f'"{kind}"' in str(json_schema()).replace("'", '"'), "editors know it"


@pytest.mark.parametrize("name", PLUG_INS)
def test_an_example_keeps_its_contract(name, folder):
    module = importlib.import_module(f"test_{name}")
    (suite,) = [cls for key, cls in vars(module).items() if key.startswith("Test")]
    tests = [attribute for attribute in dir(suite) if attribute.startswith("test_")]
    assert len(tests) >= 3
    for test in tests:
        getattr(suite(), test)()


def test_the_entry_points_name_registries_and_what_the_examples_define(folder):
    (toml,) = [block for block in blocks(PAGE) if block.language == "toml"]
    groups = tomllib.loads(toml.text)["project"]["entry-points"]
    names = {f"hermes.{registry.name}": registry for registry in REGISTRIES}
    announced = {}
    for group, points in groups.items():
        for kind, target in points.items():
            module, _, attribute = target.partition(":")
            found = getattr(importlib.import_module(module), attribute)
            assert names[group].get(kind) is found
            announced[module] = (names[group], kind)
    assert announced == PLUG_INS
    text = PAGE.read_text().rpartition("```")[2]
    for group in ("hermes.lengths", "hermes.schedulers", "hermes.network"):
        assert group in names
        assert f"`{group}`" in text
