"""The features that tests mark name every command, and every kind that can be named."""

import re

from generated_pages import marked, part

import hermes.calibration.importers
import hermes.scenario
import hermes.workload.importers  # noqa: F401  # these make the registries
from hermes.cli import command as root_command
from hermes.config.registry import Registry

PAGE = part("features")
QUOTED = set(re.findall(r"`([^`]+)`", PAGE))


def test_rows_are_the_marks_of_tests() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| feature", "| ---"))]
    assert len(rows) > 100
    assert [row for row in rows if "::" not in row.rsplit(" | ", 1)[1]] == []
    (row,) = [row for row in rows if row.startswith("| Same scenario, same bytes |")]
    assert "`core/test_same_bytes.py::test_same_bytes_in_any_process`" in row


def test_a_mark_is_read() -> None:
    source = '@pytest.mark.feature("Hardware", ("a, "\n    "b"))\nclass TestX:\n    pass\n'
    assert list(marked(source)) == [("Hardware", "a, b", "TestX")]
    assert not list(marked("@pytest.mark.long\ndef test_x(): pass\n"))


def test_every_kind_is_on_the_page() -> None:
    missing = []
    found = [registry for registry in Registry.every if registry.name != "studies"]   # each has a page
    for registry in found:
        missing += [f"{registry.name}: {name}" for name in registry.names()
                    if name not in QUOTED and registry.get(name).__module__.startswith("hermes.")]
    assert len(found) >= 10
    assert missing == []


def test_every_command_is_on_the_page() -> None:
    missing = []
    for name, one in root_command().commands.items():
        inner = getattr(one, "commands", None)
        missing += [f"hermes {name}"] if inner is None and f"hermes {name}" not in QUOTED else []
        missing += [f"hermes {name} {sub}" for sub in inner or () if f"hermes {name} {sub}" not in QUOTED]
    assert missing == []
