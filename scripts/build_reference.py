"""Write pages of the reference: every key of a scenario, which options exclude or need each other, figures of papers,
names of figures.

    python scripts/build_reference.py            writes docs/reference/{scenario,compatibility,papers}.md, figures.csv
    python scripts/build_reference.py --check    exits 1 if one is out of date
"""

from __future__ import annotations

import csv
import io
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hermes.config import Component, Shorthand, field_docs
from hermes.config.registry import Registry
from hermes.config.yaml_writer import to_flow, unit_of
from hermes.engine.compatibility import ROWS, Option
from hermes.results.figures.catalogue import FIGURES
from hermes.results.layout import markdown_table
from hermes.scenario import Scenario
from hermes.study import known_studies, load_study

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
INTRODUCTION = """\
# Reference: every key of a scenario

Written by `python scripts/build_reference.py` from the models that read scenarios; a test keeps it up to date.

A quantity is a number in SI units or text with a unit:

- durations: `20 ms`, `1 sec`, `3 min`, `2 hours`
- sizes: `80 GiB`, `80 gb` (a small `b` after a capital letter, `80 Gb`, is refused: it could mean bits)
- bandwidths: `32 GB/s`, `400 Gbit/s`, `400 Gbps` (`Gb/s` and `Gbps` are bits, `GB/s` and `GBps` are bytes)
- rates: `40 /s`, `40 rps`, `40 req/s`, `40 qps`, `600 /min`

Keys without a default are required. `hermes validate --resolved SCENARIO` prints a scenario with every default filled
in; `hermes schema` prints the same reference as JSON Schema for editors ([how to use it](../how-to/editors.md)).
Besides the keys below, a file may say `extends: other.yaml` to be put over another scenario (relative to itself):
mappings merge, everything else is replaced, and so is a mapping whose `kind` differs.
"""
QUANTITIES = {"s": "duration", "B": "size", "B/s": "bandwidth", "/s": "rate"}
WORDS = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


class Reference:
    """Sections in the order in which they are first mentioned."""

    def __init__(self) -> None:
        self.pending: list[type[BaseModel] | Registry[Any]] = [Scenario]
        self.seen: list[type[BaseModel] | Registry[Any]] = [Scenario]

    def text(self) -> str:
        parts = [INTRODUCTION]
        while self.pending:
            item = self.pending.pop(0)
            parts += self._registry(item) if isinstance(item, Registry) else [self._model(item, "##", title(item))]
        return "\n".join(parts)

    def _registry(self, registry: Registry[Any]) -> Iterator[str]:
        names = ", ".join(f"`{name}`" for name in registry.names())
        yield f"## {title(registry)}\n\nOne of {names}, chosen by `kind`.\n"
        for name in registry.names():
            yield self._model(registry.get(name), "###", f"{title(registry)}: {name}")

    def _model(self, model: type[BaseModel], level: str, heading: str) -> str:
        docs = field_docs(model)
        rows = [
            (f"`{name}`", self.type_of(field.annotation, field.metadata), default(field),
             " ".join(docs.get(name, "").split()))
            for name, field in model.model_fields.items() if name != "kind" and not field.exclude
        ]
        table = markdown_table(("key", "type", "default", ""), rows) if rows else "No keys."
        return f"{level} {heading}\n\n{' '.join((model.__doc__ or '').split())}\n\n{table}\n"

    def _link(self, item: type[BaseModel] | Registry[Any]) -> str:
        if item not in self.seen:
            self.seen.append(item)
            self.pending.append(item)
        return f"[{title(item).lower()}](#{anchor(title(item))})"

    def type_of(self, annotation: Any, metadata: Any = ()) -> str:
        """A field's type in words."""
        for item in metadata:
            if isinstance(item, Component):
                short = [WORDS[other.kind_of] for other in metadata if isinstance(other, Shorthand)]
                return " or ".join([*short, self._link(item.registry)])
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.type_of(arguments[0], arguments[1:])
        unit = unit_of(None, metadata)
        if unit:
            return f"{QUANTITIES[unit]} ({unit}){bounds(metadata, skip_zero=True)}"
        if origin in (Union, types.UnionType):
            some = [self.type_of(a, metadata) for a in arguments if a is not type(None)]
            return " or ".join(dict.fromkeys(some))
        if origin is Literal:
            return ", ".join(f"`{to_flow(value)}`" for value in arguments)
        if origin in (list, set, tuple):
            return f"list of {self.type_of(arguments[0])}"
        if origin is dict:
            return f"mapping to {self.type_of(arguments[1])}"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self._link(annotation)
        word = WORDS.get(annotation, "any")
        return word + bounds(metadata)


def bounds(metadata: Any, *, skip_zero: bool = False) -> str:
    """Bounds a user may run into; those far beyond any use are left out."""
    words = []
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:  # a FieldInfo inside Annotated holds its own
            for name, sign in BOUNDS:
                limit = getattr(part, name, None)
                if limit is not None and abs(limit) < 1000 and not (skip_zero and limit == 0):
                    words.append(f"{sign} {to_flow(limit)}")
    return " " + ", ".join(dict.fromkeys(words)) if words else ""


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel) and value == type(value).model_construct():
        return "its defaults"
    return "**required**" if value is PydanticUndefined else f"`{cell(to_flow(value))}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def title(item: type[BaseModel] | Registry[Any]) -> str:
    """`LLMClientConfig` -> "LLMClient"; a registry by what its errors call an entry."""
    if isinstance(item, Registry):
        return item.what.split(" ", 1)[1].capitalize()
    return item.__name__.removesuffix("Config")


def anchor(heading: str) -> str:
    """As GitHub makes them from headings."""
    return heading.lower().replace(" ", "-").replace(":", "")


COMPATIBILITY = """\
# Reference: compatibility of options

Written by `python scripts/build_reference.py` from `hermes/engine/compatibility.py`; a test keeps it up to date.

Options of an [LLM client](scenario.md#client-llm) that exclude or need each other, and those of the workload that
it serves. What stands in no row goes together: a test runs every pair. A client with a row's two options is refused
when the scenario is read, or when its simulation is built. [What is not modelled](../background/not-modelled.md) lists
the rest.
"""
PLACEHOLDERS = {"value": "it", "name": "the client", "kind": "it", "method": "METHOD",
                "version": "of that version", "tp": "another",
                "keys": "of the other scheduler", "found": "this one"}
PLACEHOLDER = re.compile(r"\{([a-z]+)\}")


GROUPS = ("parallel", "scheduler", "memory", "hardware", "workload")


def compatibility() -> str:
    """Return the page of options that exclude or need each other, a table for each part of a client."""
    parts = [COMPATIBILITY]
    for title in ("client", *GROUPS):
        rows = [row for row in ROWS if title == (first if (first := row.option.key.partition(".")[0]) in GROUPS
                                                 else "client")]
        table = markdown_table(("option", "does not go", "why, and what to do"), [
            (named(row.option), f"{'with' if row.excludes else 'without'} {named(row.other)}",
             PLACEHOLDER.sub(lambda found: PLACEHOLDERS[found[1]], row.message)) for row in rows])
        parts.append(f"## {title.capitalize()}\n\n{table}\n")
    return "\n".join(parts)


def named(option: Option) -> str:
    """Return an option as its key, and its name where that says more."""
    last = option.key.rpartition(".")[2]
    plain = option.name in (last, option.key)
    return cell(f"`{option.key}`" if plain else f"`{option.key}` ({option.name})")


PAPERS = """\
# Reference: figures of the papers

Written by `python scripts/build_reference.py` from `studies/NAME/paper.csv`, which `hermes study NAME` writes; a test
keeps it up to date. Every figure and table that a paper gives stands here, also those that no study computes.

Verdicts: *agrees*: all of it within 15% of the paper, or the words agree; *partly*: part of it; *direction*: on the
paper's side of no effect; *differs*; *-*: the paper gives no figure. interval: over seeds; range: over the study's
other assumptions.
"""


def papers() -> str:
    """Return the page of the papers' figures beside those of the studies."""
    by: dict[str, list[list[str]]] = {}
    counts: dict[str, Counter[str]] = {}
    for name, folder in known_studies().items():
        config = load_study(folder).config
        if not (folder / "paper.csv").is_file():
            continue
        with (folder / "paper.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                seen = [row[column] or "-" for column in ("interval", "range") if column in row]
                by.setdefault(config.paper, []).append([
                    cell(text) for text in (row["where"], row["figure"], row["paper"], row["here"], *seen,
                                            row["verdict"], row["why"])]
                    + [f"[{name}](../../studies/{folder.name}/page.md)"])
                counts.setdefault(config.paper, Counter())[row["verdict"]] += 1
    head = ("where", "figure", "paper", "here", "interval", "range", "verdict", "why", "study")
    parts = [PAPERS]
    for paper, rows in by.items():
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts[paper].most_common() if verdict != "-")
        parts += [f"## {paper}", f"Rows: {said}.", markdown_table(head, rows)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def figures() -> str:
    """Return the table of figures of a summary, a row each."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("figure", "name", "unit", "better", "in the verdict"))
    for row in FIGURES.values():
        better = {1: "more", -1: "less", 0: ""}[row.better]
        rows.writerow((row.path, row.name, row.unit, better, "yes" if row.judged else ""))
    return out.getvalue()


def main() -> int:
    texts = {"scenario.md": Reference().text(), "compatibility.md": compatibility(), "papers.md": papers(),
             "figures.csv": figures()}
    for name, text in texts.items():
        target = FOLDER / name
        if "--check" not in sys.argv[1:]:
            target.write_text(text, encoding="utf-8")
            print(f"written: {target}")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{name} is out of date: run python scripts/build_reference.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
