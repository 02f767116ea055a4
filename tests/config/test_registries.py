"""Registries: what is listed where a registry is made is there, under its name; nothing is imported before."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Literal

import pytest
from each import each
from pydantic import TypeAdapter

from hermes.config import Component, ConfigModel
from hermes.config.registry import Registry
from hermes.errors import InputError

for _package in ("clients", "hardware", "memory", "network", "pipelines", "routing", "schedulers", "services",
                 "workload", "workload.importers", "explore.executors", "calibration.measurements", "plugins.metis"):
    importlib.import_module(f"hermes.{_package}")
LISTED = [(registry, name) for registry in Registry.every for name in registry._built_in]


@each(("registry", "name"), LISTED, ids=lambda part: getattr(part, "name", part))
def test_what_is_listed_is_there(registry: Registry[Any], name: str) -> None:
    found = registry.get(name)
    kind = getattr(found, "model_fields", {}).get("kind")
    assert kind is None or kind.default == name
    assert found.__module__.startswith(registry._built_in[name].module.rpartition(".")[0])


def test_every_extension_point_is_listed() -> None:
    names = {registry.name for registry, _ in LISTED}
    assert names == {"autoscalers", "clients", "eviction", "executors", "hardware", "lengths", "measurements",
                     "metis_choosers", "metis_quality", "network", "pipelines", "routers", "schedulers", "services",
                     "start_ups", "trace_importers"}


@pytest.fixture
def things() -> Any:
    registry: Registry[Any] = Registry("things", "a thing", {"path": "pathlib:Path"})
    yield registry
    Registry.every.remove(registry)


def test_a_name_that_is_listed_belongs_to_its_class(things: Registry[Any]) -> None:
    assert "path" in things
    assert things.names() == ["path"]
    with pytest.raises(ValueError, match="a thing named 'path' is registered already, by pathlib"):
        @things.register("path")
        class Path:
            pass
    assert things.get("path") is importlib.import_module("pathlib").Path
    with pytest.raises(InputError, match="a thing: one of path, found 'pat'"):
        things.get("pat")


def test_a_component_that_registers_later_is_valid_at_once(things: Registry[Any]) -> None:
    class Holder(ConfigModel):
        things: list[Annotated[Any, Component(things)]]

    with pytest.raises(ValueError, match="union_tag_invalid"):
        Holder.model_validate({"things": [{"kind": "late"}]})

    @things.register("late")
    class Late(ConfigModel):
        kind: Literal["late"] = "late"
        inner: Annotated[Any, Component(things)] | None = None

    held = Holder.model_validate({"things": [{"kind": "late", "inner": {"kind": "late"}}]})
    assert held.things == [Late(inner=Late())]
    assert Holder.model_validate({"things": [Late()]}).things == [Late()]
    assert Holder.model_validate(held.model_dump()) == held
    things._built_in.clear()   # a path has no schema
    schema = TypeAdapter(Holder).json_schema()
    assert schema["$defs"]["Late"]["properties"]["inner"]["anyOf"][0]["discriminator"]["mapping"] == {
        "late": "#/$defs/Late"}
