"""A scenario with the keys that objects of a cluster describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.config.yaml_document import Node, as_node
from hermes.errors import InputError, Verbatim
from hermes.scenario import load_scenario
from hermes.scenario.loading import find_scenario, load_document, moved, set_value

__all__ = ["with_parts"]

FLOW = {"flow_control", "admission"}


def with_parts(scenario: str, parts: dict[str, Any], output: Path | None) -> dict[str, Any]:
    """Return a scenario's document with `router`, `gateway` and `autoscaler` replaced, as it is written to `output`.

    The gateway keeps its other keys. Raises `InputError` where the scenario does not take them.
    """
    root, home = load_document(scenario), find_scenario(scenario).parent
    if "router" in parts and parts["router"]["kind"] == "llm_d" and not FLOW & parts.get("gateway", {}).keys() \
            and _at(root, "gateway.flow_control") is not None:   # a picker without the gate refuses instead
        parts = parts | {"gateway": parts.get("gateway", {}) | {"flow_control": None, "admission": {}}}
    there = Path() if output is None else output.parent
    for key, value in parts.items():
        path = key
        if key == "autoscaler":
            clients = root.child("clients")
            if clients is None or not isinstance(clients.value, list) or len(clients.value) != 1:
                raise InputError(Verbatim("an autoscaler needs a scenario of one group of clients; give such a one"),
                                 field="clients", file=scenario)
            path = "clients.0.fleet.autoscaler"
            if clients.value[0].child("fleet") is None:
                raise InputError(Verbatim("an autoscaler needs `fleet` with `start` and `start_up`; give a "
                                          "scenario that has it, such as operations/hour"),
                                 field="clients.0.fleet", file=scenario)
        for name, own in value.items() if key == "gateway" else [("", value)]:
            whole = f"gateway.{name}" if name else path
            old = _at(root, whole)
            if own is None and old is None:
                continue
            if old is not None and isinstance(old.value, dict):
                old.value.clear()   # of another kind: its keys do not fit
            root = set_value(root, whole, as_node(own), home, home)
    load_scenario(root.plain())
    document: dict[str, Any] = moved(root, home, there).plain()
    return document


def _at(root: Node, path: str) -> Node | None:
    """Return the node at a dotted path, None where there is none."""
    node: Node | None = root
    for part in path.split("."):
        node = None if node is None else node.child(int(part) if part.isdecimal() else part)
    return node
