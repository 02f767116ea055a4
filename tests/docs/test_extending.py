"""The examples of docs/extending.md (docs/examples) run: each registers, stands in YAML, and keeps its contract."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from markdown_blocks import blocks

import hermes
from hermes.config.registry import Registry
from hermes.errors import InputError
from hermes.scenario.editor_schema import json_schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, EXAMPLES = DOCS / "extending.md", DOCS / "examples"
MODULES = DOCS / "reference" / "extension-modules.md"
PLUG_INS = {   # example -> registry, name
    "my_router": ("routers", "least_work"), "my_scheduler": ("schedulers", "one_prompt"),
    "my_packing": ("packing", "newest_first"), "my_slots": ("slots", "square_root"),
    "my_prefetch": ("prefetch", "hot_first"),
    "my_hardware": ("hardware", "linear"), "my_arrivals": ("arrivals", "ramp"), "my_lengths": ("lengths", "summaries"),
    "my_counts": ("token_counts", "two_sizes"), "my_traces": ("trace_importers", "access-log"),
    "my_pipeline": ("pipelines", "best_of_two"), "my_careful_pipeline": ("pipelines", "shorter_when_full"),
    "my_graph": ("pipelines", "debate"), "my_client": ("clients", "web_search"),
    "my_refresh": ("clients", "refreshed_index"),
    "my_service": ("services", "brute_force"), "my_network": ("network", "sites"),
    "my_eviction": ("eviction", "largest_first"), "my_executor": ("executors", "threads"),
    "my_measurement": ("measurements", "block_hashes"), "my_chooser": ("metis_choosers", "load_aware"),
    "my_quality": ("metis_quality", "recall_only"), "my_step": ("metis_steps", "rerank"),
    "my_autoscaler": ("autoscalers", "office_hours"), "my_start_up": ("start_ups", "one_by_one"),
}
IN_SCENARIOS = [name for name in PLUG_INS if name not in ("my_traces", "my_executor", "my_measurement")]


def registry(name: str) -> Registry:
    (found,) = [one for one in Registry.every if one.name == name]
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All examples, importable; what they register is forgotten afterwards."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module, (point, name) in PLUG_INS.items():
        if any(name in one._entries for one in Registry.every if one.name == point):
            registry(point).unregister(name)
        for stale in (module, f"test_{module}"):
            sys.modules.pop(stale, None)


def test_the_folder_has_all_examples():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {f"{p}{n}.py" for n in PLUG_INS for p in ("", "test_")}
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == {"base.yaml", *(f"{name}.yaml" for name in IN_SCENARIOS)}


def test_every_extension_point_has_an_example(folder):
    """Those that scenarios, `hermes trace import` and `hermes calibrate` reach; importers of profiles have none."""
    importlib.import_module("hermes.calibration.measurements").MEASUREMENTS.get("llm")
    for name in ("routing", "schedulers", "plugins.orthrus", "plugins.metis", "plugins.telerag", "hardware",
                 "workload.importers", "pipelines", "clients", "services", "network", "memory"):
        importlib.import_module(f"hermes.{name}")
    points = {one.name for one in Registry.every for entry in one._entries.values()
              if not entry.__module__.startswith(("hermes.calibration.importers", "hermes.plugins.telerag.overlap"))
              and entry.__module__.startswith("hermes.")}
    assert points <= {point for point, _ in PLUG_INS.values()}


@pytest.mark.parametrize("name", PLUG_INS)
def test_an_example_is_short_and_uses_what_is_documented(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("\n") < 40
    modules = set(re.findall(r"^from (hermes[\w.]*) import", text, flags=re.M))
    assert modules <= documented(), "docs/reference/extension-modules.md lists what plug-ins import"
    assert not re.search(r"(self|super\(\)|pool|group)\._[a-z]", text), "a private helper"


def documented() -> set[str]:
    return set(re.findall(r"^\| `(hermes[\w.]*)` \|", MODULES.read_text(), flags=re.M))


@cache
def base_finish_ns():
    """When the requests of the scenario that the examples extend finish without any of them."""
    return hermes.simulate(EXAMPLES / "base.yaml").record.finish_ns


@pytest.mark.drawn
@pytest.mark.parametrize("name", IN_SCENARIOS)
def test_an_example_stands_in_yaml_once_it_is_imported(name, folder):
    kind = PLUG_INS[name][1]
    text = Path(f"{name}.yaml").read_text()
    Path("unnamed.yaml").write_text(text.replace(f"plugins: [{name}.py]\n", ""))
    with pytest.raises(InputError, match=kind):
        hermes.simulate("unnamed.yaml")
    options = {"overrides": [f"plugins+={name}.py"]} if "plugins:" not in text else {}
    results = hermes.simulate(f"{name}.yaml", **options)
    assert (results.record.status == 1).all()
    assert kind in results.meta["scenario_text"]
    assert not np.array_equal(results.record.finish_ns, base_finish_ns()), "the plug-in changed nothing"
    steps = hermes.simulate(f"{name}.yaml", stepping="every_step", **options)
    assert np.array_equal(results.record.finish_ns, steps.record.finish_ns)


def test_editors_know_the_examples(folder):
    """The schema has their kinds once they are imported, but for pipelines and their parameters."""
    kinds = {name: kind for name, (point, kind) in PLUG_INS.items()
             if point != "pipelines" and not point.startswith("metis_") and name in IN_SCENARIOS}
    for name in kinds:
        importlib.import_module(name)
    known = str(json_schema())
    for kind in kinds.values():
        assert f"'{kind}'" in known, kind


def test_a_trace_format_reads_a_file(folder):
    from hermes.workload.importers import import_trace

    importlib.import_module("my_traces")
    Path("a.log").write_text('{"t": 3, "in": 5, "out": 7}\n{"t": 4.5, "in": 9, "out": 1}\n')
    assert import_trace("access-log", "a.log").to_dict("list") == {
        "arrival_s": [0, 1.5], "prompt_tokens": [5, 9], "output_tokens": [7, 1]}
    Path("b.log").write_text('{"t": 3, "in": 5, "out": 7}\n{"t": 4.5, "in": 9}\n')
    with pytest.raises(InputError, match=r"b\.log:2: out: "):
        import_trace("access-log", "b.log")


@pytest.mark.feature("Measuring and fitting", (
    "Measurements by name (`terms`, `llm`, ...) and of plug-ins: `hermes.measurements`"))
@pytest.mark.drawn
@pytest.mark.parametrize("name", PLUG_INS)
def test_an_example_keeps_its_contract(name, folder):
    module = importlib.import_module(f"test_{name}")
    (suite,) = [cls for key, cls in vars(module).items() if key.startswith("Test")]
    tests = [attribute for attribute in dir(suite) if attribute.startswith("test_")]
    assert len(tests) >= 3
    for test in tests:
        getattr(suite(), test)()


def test_the_page_shows_the_example_of_a_scheduler():
    shown = [block.text.strip() for block in blocks(PAGE)]
    for name in ("my_scheduler.py", "my_scheduler.yaml", "test_my_scheduler.py", "base.yaml"):
        assert (EXAMPLES / name).read_text().strip() in shown, name


def test_the_page_links_every_example():
    text = PAGE.read_text()
    for name, (point, _) in PLUG_INS.items():
        assert f"(examples/{name}.py)" in text, name
        assert f"`hermes.{point}`" in text, point


def test_the_entry_points_name_what_the_examples_define(folder):
    (toml,) = [block for block in blocks(PAGE) if block.language == "toml"]
    for group, points in tomllib.loads(toml.text)["project"]["entry-points"].items():
        for kind, target in points.items():
            module, _, attribute = target.partition(":")
            found = getattr(importlib.import_module(module), attribute)
            assert (group.removeprefix("hermes."), kind) == PLUG_INS[module]
            assert registry(group.removeprefix("hermes.")).get(kind) is found
