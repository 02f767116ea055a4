"""What a user reads when a document does not fit its model."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator
from pydantic_core import SchemaSerializer

from hermes.config import Bandwidth, Component, ConfigModel, Duration, FileName, NameOrFile
from hermes.config.registry import Registry
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.scenario import load_scenario

PARTS: Registry[Any] = Registry("test_parts", "a part")


class Inner(ConfigModel):
    text: str
    count: int = Field(2, gt=1, le=8)
    mode: Literal["runs", "steps"] = "runs"
    wait: Duration = 3.0
    ratio: float = 0.5

    @field_validator("text")
    @classmethod
    def _check(cls, value):
        if value == "bad":
            raise InputError("a good text", value, suggestion="good")
        if value == "worse":
            raise ValueError("it is worse")
        return value


@PARTS.register("plain")
class Plain(ConfigModel):
    kind: Literal["plain"] = "plain"
    plain: int
    size: int | Literal["auto"] = "auto"


@PARTS.register("wide")
class Wide(ConfigModel):
    kind: Literal["wide"] = "wide"
    width: Bandwidth | None = None
    inner: Inner | None = None


class Whole(ConfigModel):
    part: Annotated[Any, Component(PARTS)]
    parts: list[Annotated[Any, Component(PARTS)]] = []
    named: dict[str, Inner] = {}
    pair: Annotated[list[float], Field(min_length=2, max_length=2)] = [1, 2]
    flag: bool = False


OK = "part: {kind: wide}\n"


@pytest.mark.parametrize(("text", "line"), [
    ("", "f:1:1: expected a mapping, found nothing"),
    ("[1]", "f:1:1: expected a mapping, found a list"),
    ("{}", "f:1:1: part: expected a value (required), found nothing"),
    ("part: 3", "f:1:7: part: expected a mapping with `kind`: plain, wide, found 3"),
    ("part: {}", "f:1:7: part.kind: expected one of plain, wide, found nothing"),
    ("part: {kind: wid}", "f:1:14: part.kind: expected one of plain, wide, found 'wid' (did you mean 'wide'?)"),
    ("part: {kind: 7}", "f:1:14: part.kind: expected one of plain, wide, found 7"),
    ("part: {kind: plain}", "f:1:7: part.plain: expected a value (required), found nothing"),
    ("part: {kind: plain, plain: x}", "f:1:28: part.plain: expected an integer, found 'x'"),
    ("part: {kind: plain, plain: true}", "f:1:28: part.plain: expected an integer, found true"),
    ("part: {kind: plain, plain: 1.0}", "f:1:28: part.plain: expected an integer, found 1.0"),
    ("part: {kind: plain, plain: 1, size: atuo}", "f:1:37: part.size: expected an integer or 'auto', found 'atuo'"),
    ("part: {kind: plain, plaim: 1}",
     "f:1:21: part.plaim: expected one of the keys kind, plain, size, found 'plaim' (did you mean 'plain'?)"),
    ("part:\n  kind: wide\n  width: 3 ms",
     "f:3:10: part.width: expected a bandwidth such as '32 GB/s' or '400 Gbit/s' (a bare number is bytes/s), "
     "found '3 ms'"),
    ("part:\n  kind: wide\n  inner:\n    text: a\n    cuont: 3",
     "f:5:5: part.inner.cuont: expected one of the keys text, count, mode, wait, ratio, found 'cuont' "
     "(did you mean 'count'?)"),
    (OK + "parts: {kind: wide}", "f:2:8: parts: expected a list, found a mapping"),
    (OK + "parts: [{kind: wide}, {kind: plain, plain: null}]",
     "f:2:44: parts.1.plain: expected an integer, found nothing"),
    (OK + "named: {a: {text: 1}}", "f:2:19: named.a.text: expected text, found 1"),
    (OK + "named: {a: {text: x, mode: step}}",
     "f:2:28: named.a.mode: expected 'runs' or 'steps', found 'step' (did you mean 'steps'?)"),
    (OK + "named: {a: {text: x, count: 9}}", "f:2:29: named.a.count: expected a number of at most 8, found 9"),
    (OK + "named: {a: {text: x, count: 1}}", "f:2:29: named.a.count: expected a number greater than 1, found 1"),
    (OK + "named: {a: {text: x, count: " + "9" * 200 + "}}",
     "f:2:29: named.a.count: expected a number of at most 8, found an integer of 665 bits"),
    (OK + "named: {a: {text: x, ratio: .nan}}", "f:2:29: named.a.ratio: expected a finite number, found nan"),
    (OK + "named: {a: {text: x, ratio: 1e999}}", "f:2:29: named.a.ratio: expected a finite number, found inf"),
    (OK + "named: {a: {text: x, wait: -1 s}}",
     "f:2:28: named.a.wait: expected a number of at least 0 in SI units, found '-1 s'"),
    (OK + "named: {a: {text: bad}}", "f:2:19: named.a.text: expected a good text, found 'bad' (did you mean 'good'?)"),
    (OK + "named: {a: {text: worse}}", "f:2:19: named.a.text: expected a valid value (it is worse), found 'worse'"),
    (OK + "pair: [1]", "f:2:7: pair: expected at least 2 item(s), found a list"),
    (OK + "pair: [1, 2, 3]", "f:2:7: pair: expected at most 2 item(s), found a list"),
    (OK + "pair: [1, x]", "f:2:11: pair.1: expected a number, found 'x'"),
    ("part: wid",
     "f:1:7: part: expected a mapping with `kind`: plain, wide, found 'wid' (did you mean '{kind: wide}'?)"),
    ("part: {plain: 1}", "f:1:7: part.kind: missing; with these keys it is plain (all kinds: plain, wide)"),
    ("part: {kind: wide, inner: 3}",
     "f:1:27: part.inner: expected a mapping with keys of text, count, mode, wait, ratio, found 3"),
    ("part: {kind: wide, count: 3}",     # below
     "f:1:20: part.count: expected one of the keys kind, width, inner, found 'count' (did you mean "
     "'part.inner.count'?)"),
    ("part: {kind: wide, inner: {text: a, width: 3}}",     # above
     "f:1:37: part.inner.width: expected one of the keys text, count, mode, wait, ratio, found 'width' (did you mean "
     "'part.width'?)"),
    (OK + "pair: []", "f:2:7: pair: expected at least 2 item(s), found an empty list"),
    (OK + "flag: yes", "f:2:7: flag: expected true or false, found 'yes'"),
    (OK + "flags: true",
     "f:2:1: flags: expected one of the keys part, parts, named, pair, flag, found 'flags' (did you mean 'flag'?)"),
])
def test_one_line(text, line):
    with pytest.raises(InputError) as caught:
        validate(Whole, parse_yaml(text, "f"))
    assert str(caught.value) == line


def test_plain_dicts_have_no_position():
    with pytest.raises(InputError) as caught:
        validate(Whole, {"part": {"kind": "wide", "width": 0}})
    assert str(caught.value) == "part.width: expected a number greater than 0, found 0"
    with pytest.raises(InputError, match=r"^given: part: expected a value"):
        validate(Whole, {}, "given")


def test_models_without_a_json_schema_still_give_one_line():
    class Thing:
        pass

    class Odd(BaseModel):
        model_config = {"arbitrary_types_allowed": True, "extra": "forbid"}
        thing: Thing | None = None
        number: int

    with pytest.raises(InputError, match="numbr: expected"):
        validate(Odd, {"numbr": 3})


def test_an_error_inside_a_validator_points_at_its_own_field():
    class Outer(ConfigModel):
        inner: dict[str, int]

        @field_validator("inner")
        @classmethod
        def _check(cls, value):
            raise InputError("something smaller", value["b"], field="b")

    with pytest.raises(InputError) as caught:
        validate(Outer, parse_yaml("inner:\n  a: 1\n  b: 2", "f"))
    assert str(caught.value) == "f:3:6: inner.b: expected something smaller, found 2"


def test_paths_are_relative_to_the_scenario() -> None:
    """Also in a component inside; without a folder they stay as they are."""
    things: Registry[Any] = Registry("things-of-a-test", "a thing")

    @things.register("filed")
    class Filed(ConfigModel):
        kind: Literal["filed"] = "filed"
        file: FileName

    class Holder(ConfigModel):
        thing: Annotated[Any, Component(things)]
        source: NameOrFile

    try:
        for source, found in (("squad", "squad"), ("./a.yaml", "/here/a.yaml"), ("a.json", "/here/a.json"),
                              ("/there/a.yaml", "/there/a.yaml")):
            data = {"thing": {"kind": "filed", "file": "f1.csv"}, "source": source}
            held = validate(Holder, data, base_dir=Path("/here"))
            assert (held.thing.file, held.source) == ("/here/f1.csv", found)
            plain = validate(Holder, data)
            assert (plain.thing.file, plain.source) == ("f1.csv", source)
    finally:
        Registry.every.remove(things)


def test_the_class_of_every_component_is_complete() -> None:
    """Pydantic 2.10 to 2.13 cannot write a model that holds an instance of a class whose build is deferred. 2.14 can,
    so that writing one here would show nothing."""
    left: list[Any] = [load_scenario("chatbot")]
    seen = set()
    while left:
        value = left.pop()
        if isinstance(value, ConfigModel):
            left += vars(value).values()
            if "kind" in type(value).model_fields:   # chosen by a registry: its holder knows no schema to write it with
                seen.add(type(value).__name__)
                assert isinstance(type(value).__pydantic_serializer__, SchemaSerializer), type(value)
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
    assert {"Poisson", "ChunkedConfig", "LLMClientConfig"} <= seen
