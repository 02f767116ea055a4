"""The pages on vLLM: totals, names, and the recordings that they say would notice a broken rule."""

import re
from pathlib import Path

import pytest
import rule_mutations
from each import check_each, each
from mutations import notices, rows_of
from rule_mutations import FILES, GROUPS, MUTATIONS, SCHEDULES, table_of

import hermes.clients.llm
import hermes.clients.lockstep
import hermes.core.block_hashes
import hermes.core.generation
import hermes.hardware.descriptions.engines
import hermes.memory.prefix
import hermes.memory.reference
import hermes.schedulers.adapters
import hermes.schedulers.base
import hermes.schedulers.cadence
import hermes.schedulers.chunked
import hermes.schedulers.chunked_config
import hermes.schedulers.decode_group
import hermes.schedulers.parts
import hermes.schedulers.queues
from evidence.schedules.vllm_replay import conform_file, find_files, load_schedule

ROOT = Path(__file__).resolve().parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8")
               for name in ("background/vllm.md", "reference/schedules.md", "reference/engines.md"))
CONFORMANCE = (ROOT / "tests" / "schedulers" / "test_conformance.py").read_text(encoding="utf-8")
MODULES = (hermes.clients.llm, hermes.core.generation, hermes.memory.prefix, hermes.memory.reference,
           hermes.schedulers.base, hermes.schedulers.chunked, hermes.schedulers.decode_group, hermes.schedulers.queues,
           hermes.schedulers.adapters, hermes.schedulers.cadence, hermes.schedulers.parts, hermes.clients.lockstep,
           hermes.core.block_hashes, hermes.schedulers.chunked_config, hermes.hardware.descriptions.engines)


EVERY = [mutation for mutations, _folders in GROUPS for mutation in mutations]
PARTS = 12   # tests that the mutations are dealt to


@pytest.mark.drawn
@pytest.mark.parametrize("part", range(PARTS))
def test_breaking_a_rule_is_noticed(part):
    check_each(EVERY[part::PARTS], rule_is_noticed, lambda mutation: f"{mutation.rule}: {mutation.what}")


def rule_is_noticed(mutation):
    assert notices(mutation, SCHEDULES / f"{mutation.noticed_by}.json")


@pytest.mark.parametrize("number", range(len(GROUPS)), ids=lambda n: FILES[n].stem)
def test_the_tables_show_every_mutation(number):
    mutations, folders = GROUPS[number]
    head, *rows = rows_of(FILES[number])
    assert [column.partition(" (")[0] for column in head[2:-1]] == list(folders)
    assert all(count.isdecimal() for row in rows for count in row[2:-1])
    shown = sorted((row[0], row[1], row[-1]) for row in rows)
    assert shown == sorted((one.rule, one.what, one.noticed_by) for one in mutations), \
        f"`python tests/docs/rule_mutations.py {number}` writes the table anew"
    assert re.search(rf"\| \[{FILES[number].name}\]\(schedules/{FILES[number].name}\) \| .* \| {len(mutations)} \|",
                     PAGE)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(1, len(GROUPS)))   # the first takes ten minutes
def test_the_counts_of_a_table(number):
    assert table_of(number) == FILES[number].read_text(encoding="utf-8")


def test_mutations_leave_nothing_behind():
    for mutation in MUTATIONS[:3]:
        notices(mutation, SCHEDULES / "given" / "small-budget-0.json")
    assert conform_file(SCHEDULES / "given" / "small-budget-0.json", every_step=True).ok


@pytest.mark.long
@each("folder", [folder for _mutations, folders in GROUPS for folder in folders])
def test_the_totals_on_the_page(folder):
    """`test_conformance.py` replays the same files, and asserts that every step is identical in both modes."""
    assert f'"{folder}"' in CONFORMANCE
    files = find_files([SCHEDULES / folder])
    steps = sum(len(load_schedule(path).rows) for path in files)
    cells = " | ".join(f"{number:,}" for number in (len(files), steps, steps, steps))
    assert re.search(rf"(?m)^\| `{folder}`: [^|]+ \| {cells} \|$", PAGE), f"{folder}: {cells}"


def test_the_totals_together() -> None:
    rows = [[int(cell.replace(",", "")) for cell in row.split(" | ")] for row in re.findall(
        r"(?m)^\| (?:`[\w-]+`: [^|]+|together) \| ((?:[\d,]+ \| ){3}[\d,]+) \|$", PAGE)]
    *folders, together = rows
    assert together == [sum(column) for column in zip(*folders, strict=True)]
    files, steps = len(find_files([SCHEDULES])), 2 * together[1]
    assert together[0] == files
    assert f"{files} schedules were recorded" in PAGE
    assert f"`{2 * files:,} of {2 * files:,} replays identical, {steps:,} of {steps:,} steps`" in PAGE


def named_things() -> set[str]:
    """`Class.method`, `Class` and `_method` in backticks."""
    return set(re.findall(r"`([A-Z]\w+(?:\.\w+)?|_\w+)`", PAGE))


@each("name", sorted(named_things()))
def test_names_exist(name):
    owner, _, attribute = name.partition(".")
    if name.startswith("_"):
        classes = [cls for module in MODULES for cls in vars(module).values() if isinstance(cls, type)]
        assert any(name in vars(cls) for cls in classes)
        return
    found = [vars(module)[owner or name] for module in MODULES if owner in vars(module)]
    assert found
    if attribute:
        assert hasattr(found[0], attribute) or attribute in getattr(found[0], "__slots__", ())


def test_the_script_and_the_files_named_exist():
    for path in re.findall(r"\b(?:scripts|tests|hermes)/[\w./-]+\.(?:py|json)\b", PAGE):
        assert (ROOT / path).exists(), path
    assert rule_mutations.__file__ == str(ROOT / "tests" / "docs" / "rule_mutations.py")
