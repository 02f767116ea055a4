"""`--resolved` shows everything and means the same; the schema and plug-ins."""

import json
from typing import Any, Literal

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from hermes.config import Bytes, ConfigModel, Duration
from hermes.config.yaml_document import parse_yaml
from hermes.config.yaml_writer import to_yaml, unit_of
from hermes.errors import InputError
from hermes.routing import ROUTERS
from hermes.scenario import builtin_scenarios, load_scenario, resolved_yaml
from hermes.scenario.editor_schema import json_schema


def again(scenario):
    return load_scenario(parse_yaml(resolved_yaml(scenario)).plain())


def test_round_trip(small_file):
    scenario = load_scenario(small_file)
    assert again(scenario) == scenario
    assert resolved_yaml(again(scenario)) == resolved_yaml(scenario)


@pytest.mark.long
@each("name", builtin_scenarios())
def test_built_in_scenarios_round_trip(name):
    scenario = load_scenario(name)
    assert again(scenario) == scenario


@pytest.mark.feature("Scenarios and commands", "Every default shown; a resolved scenario gives the same bytes")
def test_every_default_is_shown(small_file):
    text = resolved_yaml(load_scenario(small_file), "two\nlines")
    assert text.startswith("# two\n# lines\nname: small\n")
    for line in ("stepping: runs", "horizon: null", "bandwidth: 32000000000.0  # B/s", "ttft: 0.5  # s", "count: 2"):
        assert line in text


class Odd(ConfigModel):
    texts: list[str] = []
    table: dict[str, list[dict[str, float]]] = {}
    nested: list[list[int]] = []
    number: float = 1
    waits: list[Duration] = []
    size: Bytes | None = None


@given(st.builds(
    Odd, texts=st.lists(st.text()), number=st.floats(allow_nan=False, allow_infinity=False),
    table=st.dictionaries(st.text(min_size=1).filter(lambda key: key != "<<"), st.lists(
        st.dictionaries(st.sampled_from(["a", "b c", "1"]), st.floats(-1, 1), max_size=2), max_size=2), max_size=3),
    nested=st.lists(st.lists(st.integers(), max_size=3), max_size=3), waits=st.lists(st.floats(0, 1e9), max_size=2),
))
def test_any_value_survives(odd):
    text = to_yaml(odd)
    try:
        assert parse_yaml(text).plain() == odd.model_dump()
    except InputError as error:
        assert "digits" in str(error)


def test_units():
    fields = Odd.model_fields
    assert unit_of(fields["waits"].annotation, fields["waits"].metadata) == "s"
    assert unit_of(fields["size"].annotation, fields["size"].metadata) == "B"
    assert unit_of(fields["number"].annotation, fields["number"].metadata) is None


# -- JSON Schema and plug-ins ------------------------------------------------------------------------------------------


def test_schema_is_json_and_described():
    schema = json.loads(json.dumps(json_schema()))
    assert schema["$defs"]["Scenario-part"]["properties"]["extends"]["type"] == "string"
    undescribed = [
        f"{name}.{key}" for name, model in schema["$defs"].items() for key, value in model.get("properties", {}).items()
        if key != "kind" and "description" not in value
    ]
    assert not undescribed, "attribute docstrings are what editors and docs/reference/scenario.md show"


def kinds_of_router(schema):
    return schema["$defs"]["Scenario"]["properties"]["router"]["discriminator"]["mapping"]


class Nearest(ConfigModel):
    """The client that is nearest."""

    kind: Literal["nearest"] = "nearest"
    radius: Duration = 1.0
    """How near."""

    def build(self, context: Any) -> Any:
        raise NotImplementedError


def test_a_plug_in_is_valid_at_once(small_data):
    small_data["router"] = {"kind": "nearest", "radius": "20 ms"}
    with pytest.raises(InputError, match=r"router\.kind: expected one of .*, found 'nearest'"):
        load_scenario(small_data)
    ROUTERS.register("nearest")(Nearest)
    try:
        scenario = load_scenario(small_data)
        assert scenario.router == Nearest(radius=0.02)
        assert again(scenario) == scenario
        schema = json_schema()
        assert "nearest" in kinds_of_router(schema)
        assert schema["$defs"]["Nearest"]["properties"]["radius"]["description"] == "How near."
    finally:
        ROUTERS.unregister("nearest")
    with pytest.raises(InputError, match="found 'nearest'"):
        load_scenario(small_data)
    assert "nearest" not in kinds_of_router(json_schema())


def test_a_plug_in_deep_inside_is_valid_at_once(small_data):
    from hermes.schedulers import SCHEDULERS, SchedulerConfig

    @SCHEDULERS.register("lottery")
    class Lottery(SchedulerConfig):
        kind: Literal["lottery"] = "lottery"
        tickets: int = 3

    try:
        small_data["clients"][0]["scheduler"] = {"kind": "lottery", "tickets": 4}
        assert load_scenario(small_data).clients[0].scheduler == Lottery(tickets=4)
        small_data["clients"][0]["scheduler"] = {"kind": "lottery", "tickts": 4}
        with pytest.raises(InputError, match=r"clients\.0\.scheduler\.tickts: .*did you mean 'tickets'"):
            load_scenario(small_data)
    finally:
        SCHEDULERS.unregister("lottery")
