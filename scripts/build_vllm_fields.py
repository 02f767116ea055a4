"""Write docs/reference/vllm-fields.md: what becomes of every field of vLLM's configurations.

    python scripts/build_vllm_fields.py            writes the page
    python scripts/build_vllm_fields.py --check    exits 1 if it is out of date

The fields are those of the engine's own classes (scripts/vllm_config_fields.py, which an interpreter with vLLM runs),
the answers those of hermes/schedulers/vllm_fields.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.results.layout import markdown_table
from hermes.schedulers.chunked_config import SINCE
from hermes.schedulers.vllm_fields import ANSWERS, BESIDE, Answer

ROOT = Path(__file__).resolve().parents[1]
FIELDS = ROOT / "tests" / "data" / "vllm-config-fields.json"
TARGET = ROOT / "docs" / "reference" / "vllm-fields.md"
INTRODUCTION = """\
# Fields of vLLM's configurations

Written by `python scripts/build_vllm_fields.py` from the engine's own classes, versions {first} to {last}; a test
keeps it up to date.

Every field of SchedulerConfig, CacheConfig and LoRAConfig has one of three answers:

- a key of the client (serving instance) honours it. Write the key; `hermes import vllm` reads it from a launch command.
- *nothing*: it changes nothing that is simulated, or the engine sets it by itself.
- *refused*: it would change something, and is not modelled. A scenario that gives it is told why.

"Versions" are those that have the field (all: {first} to {last}). A key that a version does not have is refused with
`engine:` of that version. LoRA: [adapters](../how-to/workloads.md#adapters). Rules: [how the scheduler follows
vLLM](../background/vllm.md).
"""


def shown(answer: Answer) -> str:
    """Return an answer as a cell."""
    if answer.how == "key":
        return f"`{answer.text}`" + (f" ({answer.note})" if answer.note else "")
    return f"{'nothing' if answer.how == 'none' else 'refused'}: {answer.text}"


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def span(versions: list[str], all_of_them: list[str]) -> str:
    """Return versions as ranges of those that were looked at."""
    if versions == all_of_them:
        return "all"
    places, parts = [all_of_them.index(version) for version in versions], []
    start = before = places[0]
    for place in [*places[1:], -1]:
        if place != before + 1:
            ends = [minor(all_of_them[end]) for end in (start, before)]
            parts.append(ends[0] if start == before else f"{ends[0]} to {ends[1]}")
            start = place
        before = place
    return ", ".join(parts)


def rows(fields: dict[str, Any], answers: dict[str, Answer], versions: list[str]) -> Iterator[tuple[str, ...]]:
    for name, entry in fields.items():
        default = entry["default"] if entry["default"] in ("required", "set by the engine") else f"`{entry['default']}`"
        earlier = "".join(f" (`{value}` to {minor(last)})" for last, value in entry["before"].items())
        yield f"`{name}`", f"{default}{earlier}", span(entry["versions"], versions), shown(answers[name])


def text() -> str:
    """Return the page."""
    found = json.loads(FIELDS.read_text(encoding="utf-8"))
    versions = found["versions"]
    parts = [INTRODUCTION.format(first=minor(versions[0]), last=minor(versions[-1]))]
    for name, answers in ANSWERS.items():
        table = markdown_table(("field", "default", "versions", "here"), list(rows(found[name], answers, versions)))
        parts += [f"## {name}\n", table, ""]
    parts += ["## Not fields of these classes\n",
              markdown_table(("name", "here"), [(f"`{name}`", shown(answer)) for name, answer in BESIDE.items()]), "",
              "## Keys that not every version has\n",
              markdown_table(("key", "from vLLM"), [(f"`scheduler.{key}`", f"0.{first[1]}")
                                                    for key, first in SINCE.items()])]
    return "\n".join(parts) + "\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text(encoding="utf-8") == text():
            return 0
        print(f"{TARGET} is out of date: python scripts/build_vllm_fields.py")
        return 1
    TARGET.write_text(text(), encoding="utf-8")
    print(f"written: {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
