"""Warn of latency limits without a unit that look like milliseconds: `slo: {tpot: 50}` is 50 seconds.

The rule: a number without a unit, above 1 for a TPOT or above 100 for a TTFT. E2E may be long, and a limit with a unit
is meant as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from hermes.config.yaml_document import Node
from hermes.units import parse_number

__all__ = ["warn_of_milliseconds"]

LONGEST_S = {"tpot": 1.0, "ttft": 100.0}


def warn_of_milliseconds(root: Node) -> None:
    """Issue an `InputWarning` for each such limit of a scenario's document, with its position."""
    slo = root.child("slo")
    for node, path, number in () if slo is None else _limits(slo, "slo"):
        node.mark.warn(f"{path} is read as {number:g} s; write `{number:g} ms` for milliseconds, or `{number:g} s`")


def _limits(node: Node, path: str) -> Iterator[tuple[Node, str, float]]:
    """Yield limits (node, dotted path, number) by this rule, those of pipelines and workloads included."""
    for key, child in node.value.items() if isinstance(node.value, dict) else ():
        longest = LONGEST_S.get(key.removeprefix("baseline_"))
        if longest is None:
            yield from _limits(child, f"{path}.{key}")
            continue
        try:
            number = parse_number(child.value)
        except (TypeError, ValueError):   # it has a unit
            continue
        if number > longest:
            yield child, f"{path}.{key}", number
