"""The hardware model of all layouts that `hermes size` compares, and the scenario's own layout under both models.

Every row of the table is priced by `composed`, the one model that knows every device. A scenario whose clients have
another one (a fitted profile, a roofline) is simulated as written with both, so that its author sees the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.config.yaml_document import as_node
from hermes.errors import InputError
from hermes.explore.trials import Trials
from hermes.hardware.info import hardware_info
from hermes.scenario import scenario_of

__all__ = ["COMPOSED", "OwnLayout", "as_composed", "own_kind", "run_own"]

COMPOSED = "composed"

Document = dict[str, Any]   # Any: YAML


@dataclass(frozen=True)
class OwnLayout:
    """The scenario's clients as written, under its own hardware model and under `composed`.

    Args:
        label: Clients in words.
        kind: Its own hardware model.
        own, composed: Flat figures of the two simulations; None if `composed` cannot price these clients.
        why: Reason for that.
    """

    label: str
    kind: str
    own: Mapping[str, Any]
    composed: Mapping[str, Any] | None
    why: str = ""


def own_kind(clients: list[Document]) -> str:
    """Return the kind of hardware model of the scenario's LLM clients."""
    hardware = _llm(clients).get("hardware")
    return str(hardware.get("kind", COMPOSED)) if isinstance(hardware, dict) else COMPOSED


def as_composed(document: Document, base_dir: Path) -> Document:
    """Return a scenario whose LLM clients have the hardware model `composed`, in the precision that they had.

    A scenario of composed hardware is returned as it is.
    """
    llm = _llm(document["clients"])
    if own_kind(document["clients"]) == COMPOSED:
        return document
    return _with(document, {**llm, "hardware": {"kind": COMPOSED, **_precision(document, base_dir)}})


def run_own(trials: Trials, document: Document, base_dir: Path) -> OwnLayout | None:
    """Simulate a scenario's own clients under both models; None if it has `composed`, or no clients that can run."""
    kind = own_kind(document["clients"])
    if kind == COMPOSED:
        return None
    llm = _llm(document["clients"])
    seed = trials.scenario.seed
    cases = {"as written": document["clients"]}
    why = ""
    try:
        composed = _own_as_composed(document, base_dir)
        scenario_of(as_node({**document, "clients": composed}), base_dir)
        cases["as written, composed"] = composed
    except InputError as error:
        why = str(error)
    rows = trials.run({label: ({"clients": clients}, seed) for label, clients in cases.items()})
    label = f"{llm.get('count', 1)} x {llm.get('name', 'llm')}"
    return OwnLayout(label, kind, rows["as written"], rows.get("as written, composed"), why)


def _own_as_composed(document: Document, base_dir: Path) -> list[Document]:
    """Return the scenario's clients, of the same devices, with the model `composed`. Raises `InputError`."""
    checked = scenario_of(as_node(document), base_dir)
    index = next(i for i, client in enumerate(checked.clients) if client.kind == "llm")
    info = hardware_info(checked.source.hardware[index])
    llm = {key: value for key, value in _llm(as_composed(document, base_dir)["clients"]).items() if key != "devices"}
    if not llm.get("device") and info.device is not None:
        llm["device"] = getattr(checked.clients[index].hardware, "device", "") or info.device.name
    llm.setdefault("parallel", {"tp": info.tp})
    clients: list[Document] = _with(document, llm)["clients"]
    return clients


def _precision(document: Document, base_dir: Path) -> dict[str, str]:
    """Return the precision of the scenario's hardware model, as far as it knows it."""
    checked = scenario_of(as_node(document), base_dir)
    index = next(i for i, client in enumerate(checked.clients) if client.kind == "llm")
    info = hardware_info(checked.source.hardware[index])
    found = {"dtype": info.dtype or "auto", "kv_dtype": info.kv_dtype}
    return {key: value for key, value in found.items() if value != "auto"}


def _llm(clients: list[Document]) -> Document:
    return next(client for client in clients if client.get("kind", "llm") == "llm")


def _with(document: Document, llm: Document) -> Document:
    old = _llm(document["clients"])
    return {**document, "clients": [llm if client is old else client for client in document["clients"]]}
