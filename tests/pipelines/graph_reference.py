"""Random graphs, and a reader of records that decides by itself whether a graph was kept to.

Every node is told apart in the record: a service by a kind of its own, a generation by a prompt length of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from hermes.core.record import RunRecord

FIRST_PROMPT = 40
Stages = dict[str, dict[str, Any]]


class Row(NamedTuple):
    """One served stage, or both halves of a disaggregated generation."""

    assigned: int
    start: int
    end: int
    client: int


def walk(stages: Stages) -> Iterator[tuple[str, dict[str, Any]]]:
    """All nodes that are stages, those in loops included; names are unique."""
    for name, node in stages.items():
        if node["kind"] == "loop":
            yield from walk(node["stages"])
        else:
            yield name, node


@st.composite
def graphs(draw: st.DrawFn, *, generations: bool = True, chance: bool = True) -> Stages:
    """A random graph with fan-out, joins, copies and data to move; by chance also choices, leaving out, loops."""
    numbers = iter(range(1000))
    return draw(_graph(numbers, draw(st.integers(1, 6)), generations, chance, depth=0))


@st.composite
def _graph(
    draw: st.DrawFn, numbers: Iterator[int], size: int, generations: bool, chance: bool, depth: int,
) -> Stages:
    stages: Stages = {}
    for place in range(size):
        number = next(numbers)
        open_to = [name for name, node in stages.items() if not node.get("background")]
        parents = draw(st.lists(st.sampled_from(open_to), unique=True, max_size=3)) if open_to else []
        node: dict[str, Any] = {"after": parents}
        shape = draw(st.sampled_from(["stage"] * 4 + (["chance", "choice", "loop"] if chance and place else [])))
        if shape == "loop" and depth == 0:
            # its first node always runs, so that the record shows the rounds
            inner = draw(_graph(numbers, draw(st.integers(1, 3)), generations, chance, depth=1))
            node |= {"kind": "loop", "stages": inner, "max_times": draw(st.integers(1, 3)), "again": 0.5}
            stages[f"n{number}"] = node
            continue
        sends = bool(parents) or depth > 0   # nobody does before the first nodes of all
        _stage(draw, node, number, generations, sends)
        stages[f"n{number}"] = node
        if shape == "chance":
            node["probability"] = 0.5
        elif shape == "choice":
            node |= {"choice": f"c{number}", "weight": draw(st.integers(1, 3))}
            other = next(numbers)
            twin = {"after": parents, "choice": f"c{number}"}
            _stage(draw, twin, other, generations, sends)
            stages[f"n{other}"] = twin
        elif place and depth == 0 and draw(st.integers(0, 5)) == 0:
            node["background"] = True
    return stages


def _stage(draw: st.DrawFn, node: dict[str, Any], number: int, generations: bool, sends: bool) -> None:
    node["copies"] = draw(st.sampled_from([1, 1, 1, 2, 3]))
    node["input_bytes"] = draw(st.sampled_from([0, 0, 10_000_000])) if sends else 0
    if generations and draw(st.integers(0, 2)) == 0:
        node |= {"kind": "generate", "prompt": FIRST_PROMPT + number, "output": draw(st.integers(1, 4))}
    else:
        node["kind"] = f"k{number}"


def rows_of(record: RunRecord, stages: Stages) -> list[dict[str, list[Row]]]:
    """Per request: node -> its rows, by the time at which they were assigned."""
    names = {node.get("prompt") if node["kind"] == "generate" else node["kind"]: name for name, node in walk(stages)}
    found: list[dict[str, list[Row]]] = [{} for _ in record.arrival_ns]
    decodes: list[dict[str, list[Row]]] = [{} for _ in record.arrival_ns]
    columns = record.stages
    for i in np.lexsort((columns["end_ns"], columns["assigned_ns"])).tolist():
        kind = record.stage_kinds[int(columns["kind"][i])]
        generated = kind in ("generate", "prefill", "decode")
        name = names[int(columns["prompt_tokens"][i]) if generated else kind]
        row = Row(*(int(columns[key][i]) for key in ("assigned_ns", "start_ns", "end_ns", "client")))
        into = decodes if kind == "decode" else found
        into[int(columns["request"][i])].setdefault(name, []).append(row)
    for mine, theirs in zip(found, decodes, strict=True):
        for name, rows in theirs.items():   # the k-th prefill that ended goes on as the k-th decode
            firsts = sorted(mine[name], key=lambda row: row.end)
            joined = [Row(a.assigned, a.start, b.end, b.client) for a, b in zip(firsts, rows, strict=True)]
            mine[name] = sorted(joined)
    return found


class Reader:
    """Follows a graph through the rows of one request; `begin` returns when the request is through.

    Rows are used up as they are met: what is left over ran although no node asked for it.
    """

    def __init__(self, rows: dict[str, list[Row]]) -> None:
        self.left = {name: list(found) for name, found in rows.items()}

    def through(self, stages: Stages, ready: int) -> int:
        """Check one pass through a graph that begins at `ready`; when all but the background is done."""
        done: dict[str, int] = {}
        alive: dict[str, bool] = {}
        chosen: dict[str, list[bool]] = {}
        for name, node in stages.items():   # in the order they were made, parents first
            at = max((done[parent] for parent in node["after"]), default=ready)
            done[name], alive[name] = at, not node["after"] or any(alive[parent] for parent in node["after"])
            if not alive[name]:
                assert not self._taken(name, node, at), f"{name} ran though all that it comes after was left out"
                continue
            if node["kind"] == "loop":
                done[name] = self._rounds(node, at)
                continue
            mine = self._taken(name, node, at)
            if "choice" in node:
                chosen.setdefault(node["choice"], []).append(bool(mine))
                alive[name] = bool(mine)
            elif "probability" not in node:
                assert mine, f"{name} did not run at {at}, when all that it comes after was done"
            if mine:
                assert len(mine) == node["copies"]
                done[name] = at if node.get("background") else max(row.end for row in mine)
        assert all(sum(taken) == 1 for taken in chosen.values()), f"one of each choice: {chosen}"
        return max(done.values())

    def _rounds(self, node: dict[str, Any], at: int) -> int:
        first = next(iter(node["stages"]))
        for number in range(node["max_times"]):
            again = any(row.assigned == at for row in self.left.get(first, []))
            assert again or number, "a loop that did not begin"
            if not again:
                break
            at = self.through(node["stages"], at)
        return at

    def _taken(self, name: str, node: dict[str, Any], at: int) -> list[Row]:
        """The node's rows that were handed over at `at`: exactly when it was ready."""
        if node["kind"] == "loop":
            return []
        mine = [row for row in self.left.get(name, []) if row.assigned == at]
        self.left[name] = [row for row in self.left.get(name, []) if row.assigned != at]
        return mine
