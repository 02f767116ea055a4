"""`hermes schema --explain KEY`: paths, kinds, types in words, defaults, and messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from hermes.cli import main
from hermes.config import Component, ConfigModel, Duration, Shorthand
from hermes.errors import InputError
from hermes.routing import ROUTERS
from hermes.scenario.key_reference import keys_of, places


class Inner(ConfigModel):
    """Inside."""

    size: int = Field(3, ge=1, le=10**9)
    """How large."""


class Outer(ConfigModel):
    """Outside."""

    kind: Literal["outer"] = "outer"
    wait: Duration
    """How long."""
    mode: Literal["a", "b"] | None = None
    """Which."""
    inner: Inner = Inner()
    """What is inside."""
    many: list[Inner] = []
    """Several."""
    by_name: dict[str, float] = {}
    """Of each."""
    router: Annotated[Any, Component(ROUTERS), Shorthand(int, "round_robin", "tokens")] = None
    """Chooses."""


def test_types_and_defaults_in_words() -> None:
    assert [(key.name, key.type, key.default, key.text) for key in keys_of(Outer)] == [
        ("wait", "duration (s)", "**required**", "How long."),
        ("mode", "`a`, `b`", "`null`", "Which."),
        ("inner", "Inner", "its defaults", "What is inside."),
        ("many", "list of Inner", "`[]`", "Several."),
        ("by_name", "mapping to number", "`{}`", "Of each."),
        ("router", "integer or Router", "`null`", "Chooses."),
    ]
    (size,) = keys_of(Inner)
    assert size.type == "integer ≥ 1"   # a bound that nobody reaches is left out
    assert [key.sections for key in keys_of(Outer)][2:] == [(Inner,), (Inner,), (), (ROUTERS,)]


def test_places_of_a_path() -> None:
    (place,) = places("router.llm_d.scorers.prefix")
    assert (place.path, place.section) == ("router.llm_d.scorers.prefix", None)
    assert [place.path for place in places("router.scorers.prefix")] == ["router.llm_d.scorers.prefix"]
    assert "clients.llm.scheduler.chunked.max_num_seqs" in [
        place.path for place in places("clients.0.scheduler.max_num_seqs")]
    assert [place.path for place in places("")] == [""]
    assert [place.path for place in places("gateway.retry.sglang.breaker")] == ["gateway.retry.sglang.breaker"]


@pytest.mark.parametrize(("path", "said"), [
    ("workloads", "(did you mean 'workload'?)"),
    ("clients.scheduler.max_seqs", "`hermes schema --explain clients.scheduler` lists them"),
    ("router.llm_d.llm_d", "expected a key of router.llm_d"),
    ("seed.x", "no key below seed, which is a plain value, found 'x'"),
])
def test_a_path_that_does_not_exist(path: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        places(path)
    assert said in str(error.value)


@pytest.mark.feature("Scenarios and commands", "Reference of a key in the terminal: `hermes schema --explain KEY`")
def test_the_command_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--explain", "seed"]) == 0
    assert capsys.readouterr().out == (
        "key      seed\ntype     integer ≥ 0\ndefault  0\nmeaning  Seed of every random number; the same seed gives "
        "the same results, byte\n         for byte.\n")
    assert main(["schema", "--explain", "router"]) == 0
    assert "\nround_robin         " in capsys.readouterr().out
    assert main(["schema", "--explain", ""]) == 0
    assert capsys.readouterr().out.startswith("key ")
    assert main(["schema", "--explain", "sed"]) == 2
    assert "did you mean 'seed'?" in capsys.readouterr().err
