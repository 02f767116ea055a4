"""Generated parts of the pages: a line `<!-- generated: NAME -->` of a page stands for what `PARTS[NAME]` writes.

    python scripts/generated_pages.py NAME       prints a part
    python scripts/generated_pages.py            lists them

`make docs` writes the parts into the site's pages (`expand`). They are in no commit: the code that they come from is.
"""

from __future__ import annotations

import ast
import csv
import html
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"(?m)^<!-- generated: ([\w/.-]+) -->$")


def expand(text: str) -> str:
    """Return a page with its generated parts. Raises `KeyError` for a part that does not exist."""
    return MARK.sub(lambda found: part(found[1]), text)


@cache
def part(name: str) -> str:
    """Return a generated part, without the last line end; `NAME.csv` is a table of docs/."""
    return (csv_table(ROOT / "docs" / name) if name.endswith(".csv") else PARTS[name]()).strip("\n")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def anchor(heading: str) -> str:
    """As GitHub makes them from headings."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def scenario() -> str:
    """Return every key of a scenario, a table for each section, in the order in which they are first mentioned."""
    from hermes.config.registry import Registry
    from hermes.results.layout import markdown_table
    from hermes.scenario import Scenario
    from hermes.scenario.key_reference import Section, keys_of, title

    pending: list[Section] = [Scenario]
    seen = list(pending)

    def link(item: Section) -> str:
        if item not in seen:
            seen.append(item)
            pending.append(item)
        return f"[{title(item).lower()}](#{anchor(title(item))})"

    def model(item: type[BaseModel], heading: str) -> str:
        rows = [(f"`{key.name}`", key.type, cell(key.default), key.text) for key in keys_of(item, link)]
        table = markdown_table(("key", "type", "default", ""), rows) if rows else "No keys."
        return f"{heading}\n\n{' '.join((item.__doc__ or '').split())}\n\n{table}\n"

    parts = []
    while pending:
        item = pending.pop(0)
        if isinstance(item, Registry):
            parts.append(f"## {title(item)}\n\nOne of {', '.join(f'`{name}`' for name in item.names())}, chosen by "
                         "`kind`.\n")
            parts += [model(item.get(name), f"### {title(item)}: {name}") for name in item.names()]
        else:
            parts.append(model(item, f"## {title(item)}"))
    return "\n".join(parts)


PLACEHOLDERS = {"value": "it", "name": "the client", "kind": "it", "method": "METHOD", "version": "of that version",
                "tp": "another", "keys": "of the other scheduler", "found": "this one"}
GROUPS = ("parallel", "scheduler", "memory", "hardware", "workload", "gateway")


def compatibility() -> str:
    """Return the options that exclude or need each other, a table for each part of a client."""
    from hermes.engine.compatibility import ROWS, Option
    from hermes.results.layout import markdown_table

    def named(option: Option) -> str:
        plain = option.name in (option.key.rpartition(".")[2], option.key)
        return cell(f"`{option.key}`" if plain else f"`{option.key}` ({option.name})")

    parts = []
    for group in ("client", *GROUPS):
        rows = [row for row in ROWS if group == (first if (first := row.option.key.partition(".")[0]) in GROUPS
                                                 else "client")]
        table = markdown_table(("option", "does not go", "why, and what to do"), [
            (named(row.option), f"{'with' if row.excludes else 'without'} {named(row.other)}",
             re.sub(r"\{([a-z]+)\}", lambda found: PLACEHOLDERS[found[1]], row.message)) for row in rows])
        parts.append(f"## {group.capitalize()}\n\n{table}\n")
    return "\n".join(parts)


def figures() -> str:
    """Return the figures of a summary, a row each."""
    from hermes.results.figures.catalogue import FIGURES
    from hermes.results.layout import markdown_table

    better = {1: "more", -1: "less", 0: ""}
    return markdown_table(("figure", "name", "unit", "better", "in the verdict"), [
        (f"`{row.path}`", cell(row.name), row.unit, better[row.better], "yes" if row.judged else "")
        for row in FIGURES.values()])


def papers() -> str:
    """Return the verdicts, and for each paper its figures with those of the studies, from `studies/NAME/paper.csv`."""
    from hermes.results.layout import markdown_table
    from hermes.study import VERDICTS, known_studies, load_study
    from hermes.study.report import BLOCKS

    by: dict[str, list[dict[str, str]]] = {}
    for name, folder in known_studies().items():
        config = load_study(folder).config
        with (folder / "paper.csv").open(encoding="utf-8", newline="") as file:
            by.setdefault(config.paper, []).extend(
                {key: cell(text or "-") for key, text in row.items()}
                | {"study": f"[{name}](../../studies/{folder.name}/page.md)"} for row in csv.DictReader(file))
    parts = [markdown_table(("verdict", "meaning"), list(VERDICTS.items()))]
    for paper, rows in by.items():
        parts += [f"## {paper}", f"Rows: {counted(rows)}."]
        parts += [markdown_table(head, [[row.get(key, "-") for key in head] for row in rows])
                  for head in (BLOCKS[0] + ("study",), BLOCKS[1])]
    return "\n\n".join(one.strip("\n") for one in parts)


def counted(rows: Iterable[dict[str, str]]) -> str:
    """Return how many rows have each verdict, the most frequent first; rows without a figure of the paper have none."""
    counts = Counter(row["verdict"] for row in rows if row["verdict"] != "-")
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def verdicts(folder: str) -> str:
    """Return one line of the verdicts of a study's `paper.csv`."""
    with (ROOT / "studies" / folder / "paper.csv").open(encoding="utf-8", newline="") as file:
        return f"Verdicts on the paper's figures: {counted(csv.DictReader(file))} ([every row](paper.csv))."


def vllm_fields() -> str:
    """Return what becomes of every field of vLLM's configurations.

    The fields are those of the engine's own classes (tests/data/vllm-config-fields.json, which
    scripts/vllm_config_fields.py records), the answers those of hermes/schedulers/vllm_fields.py.
    """
    from hermes.results.layout import markdown_table
    from hermes.schedulers.chunked_config import SINCE
    from hermes.schedulers.vllm_fields import ANSWERS, BESIDE, Answer

    found = json.loads((ROOT / "tests" / "data" / "vllm-config-fields.json").read_text(encoding="utf-8"))
    looked_at: list[str] = found["versions"]

    def shown(answer: Answer) -> str:
        if answer.how == "key":
            return f"`{answer.text}`" + (f" ({answer.note})" if answer.note else "")
        return f"{'nothing' if answer.how == 'none' else 'refused'}: {answer.text}"

    def minor(version: str) -> str:
        return ".".join(version.split(".")[:2])

    def span(versions: list[str]) -> str:
        if versions == looked_at:
            return "all"
        places, parts = [looked_at.index(version) for version in versions], []
        start = before = places[0]
        for place in [*places[1:], -1]:
            if place != before + 1:
                ends = [minor(looked_at[end]) for end in (start, before)]
                parts.append(ends[0] if start == before else f"{ends[0]} to {ends[1]}")
                start = place
            before = place
        return ", ".join(parts)

    def rows(fields: dict[str, Any], answers: dict[str, Answer]) -> Iterator[tuple[str, ...]]:
        for name, entry in fields.items():
            plain = entry["default"] in ("required", "set by the engine")
            default = entry["default"] if plain else f"`{entry['default']}`"
            earlier = "".join(f" (`{value}` to {minor(last)})" for last, value in entry["before"].items())
            yield f"`{name}`", f"{default}{earlier}", span(entry["versions"]), shown(answers[name])

    parts = [f"Versions looked at: {minor(looked_at[0])} to {minor(looked_at[-1])}.\n"]
    for name, answers in ANSWERS.items():
        parts += [f"## {name}\n",
                  markdown_table(("field", "default", "versions", "here"), list(rows(found[name], answers))), ""]
    parts += ["## Not fields of these classes\n",
              markdown_table(("name", "here"), [(f"`{name}`", shown(answer)) for name, answer in BESIDE.items()]), "",
              "## Keys that not every version has\n",
              markdown_table(("key", "from vLLM"), [(f"`scheduler.{key}`", f"0.{first[1]}")
                                                    for key, first in SINCE.items()])]
    return "\n".join(parts)


def commands() -> str:
    """Return every command with its arguments and options, as `--help` has them."""
    from hermes.cli import command as root_command
    from hermes.cli.groups import GROUPS as PANELS
    from hermes.results.layout import markdown_table

    def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, command in getattr(node, "commands", {}).items():
            if getattr(command, "commands", None):
                yield from leaves(command, (*path, name))
            else:
                yield (*path, name), command

    def of(words: tuple[str, ...], command: Any) -> str:
        rows = [(" ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)) if one.param_type_name == "option"
                 else f"`{one.name.upper()}`", said(one)) for one in command.params if not one.hidden]
        taken = [one.name.upper() for one in command.params if one.param_type_name == "argument"]
        table = f"\n\n{markdown_table(('argument, option', ''), rows)}" if rows else ""
        return (f"### hermes {' '.join(words)}\n\n`{' '.join(['hermes', *words, *taken])}`\n\n"
                f"{' '.join((command.help or '').split())}{table}\n")

    def said(one: Any) -> str:
        return html.escape(" ".join((getattr(one, "help", "") or "").split()), quote=False)

    found = dict(leaves(root_command()))
    parts = []
    for panel, names in PANELS.items():
        parts.append(f"## {panel}\n")
        parts += [of(words, found[words]) for name in names for words in found if words[0] == name]
    return "\n".join(parts)


def states() -> str:
    """Return what policies see when they are asked: fields, properties and methods of their states' classes."""
    from hermes.plugins.metis import Choice, QueryState, Reading
    from hermes.plugins.orthrus import BatchState, Resource
    from hermes.plugins.telerag import PrefetchState
    from hermes.results.layout import markdown_table

    def described(item: type) -> dict[str, str]:
        """Return the entries of a docstring's `Attributes:`, by name."""
        entries = (inspect.getdoc(item) or "").partition("Attributes:\n")[2]
        found = {}
        for entry in re.split(r"\n(?=    \w)", entries):
            names, _, text = " ".join(entry.split()).partition(": ")
            found |= dict.fromkeys(names.split(", "), text)
        return found

    parts = []
    for item in (QueryState, Reading, Choice, PrefetchState, BatchState, Resource):
        text = described(item)
        rows = [(f"`{name}`", f"`{hint}`", text.get(name, "")) for name, hint in item.__annotations__.items()]
        for name, member in vars(item).items():
            called = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and inspect.isfunction(called) and called.__doc__:
                shown = f"`{name}`" if isinstance(member, property) else f"`{name}{inspect.signature(called)}`"
                rows.append((re.sub(r"\(self(, )?", "(", shown).replace("'", ""),
                             "property" if isinstance(member, property) else "method",
                             " ".join(called.__doc__.split("\n\n")[0].split())))
        parts += [f"### {item.__name__}", (inspect.getdoc(item) or "").partition("\n\n")[0],
                  markdown_table(("name", "type", ""), [tuple(map(cell, row)) for row in rows])]
    return "\n\n".join(parts)


def features() -> str:
    """Return the features of HERMES, each with a test: those of `@pytest.mark.feature(SECTION, TEXT)`."""
    from hermes.results.layout import markdown_table

    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for section, text, name in marked(path.read_text(encoding="utf-8")):
            place = f"`{path.relative_to(ROOT / 'tests').as_posix()}::{name}`"
            found.setdefault(section, {}).setdefault(text, []).append(place)
    return "\n\n".join(f"## {section}\n\n" + markdown_table(
        ("feature", "tests"), [(text, ", ".join(tests)) for text, tests in found[section].items()])
        for section in sorted(found))


def marked(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (section, text, name of the test) of the features that a module of tests marks."""
    for node in ast.walk(ast.parse(source)) if "mark.feature(" in source else ():
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.feature":
                section, text = map(ast.literal_eval, mark.args)
                yield section, text, node.name   # type: ignore[attr-defined]


def csv_table(path: Path) -> str:
    """Return a CSV file as an HTML table, which docs/site/table.js filters and sorts in the browser."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)

    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in cells) + "</tr>"

    return "\n".join(['<div class="filtered" markdown="0">', "<table>", "<thead>", line("th", head), "</thead>",
                      "<tbody>", *(line("td", row) for row in rows), "</tbody>", "</table>", "</div>"])


PARTS: dict[str, Callable[[], str]] = {
    "scenario": scenario, "compatibility": compatibility, "papers": papers, "vllm-fields": vllm_fields,
    "commands": commands, "features": features, "figures": figures, "states": states,
    **{f"verdicts/{path.parent.name}": partial(verdicts, path.parent.name)
       for path in sorted((ROOT / "studies").glob("*/paper.csv"))},
}


def main(arguments: list[str]) -> int:
    if len(arguments) == 1 and (arguments[0] in PARTS or arguments[0].endswith(".csv")):
        print(part(arguments[0]))
        return 0
    print("parts:", ", ".join(PARTS), "or a CSV file of docs/")
    return 0 if not arguments else 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
