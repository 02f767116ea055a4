"""The fewest devices for a scenario with several groups of LLM clients, such as a small model that routes and a large
one that answers.

Each group is sized by `hermes.explore.size` while the others have clients in plenty. Then all answers are simulated
together; a group gets a client more where the SLO is missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes.api import simulate
from hermes.config.yaml_document import as_node
from hermes.errors import InputError, Verbatim, suggest
from hermes.explore.objective import Row, missed
from hermes.explore.size import Sizing, Tried, changes, size
from hermes.explore.sweep.figures import figures
from hermes.scenario import scenario_of

__all__ = ["Grouped", "groups_in", "only", "size_groups"]

MOST_ADDED = 6   # rounds in which groups get a client more

Document = dict[str, Any]


@dataclass(frozen=True)
class Grouped:
    """The answers of all groups.

    Args:
        sizings: Group -> its answers, the other groups having clients in plenty.
        best: Group -> the layout taken; empty if a group has none that meets the SLO.
        document: The scenario with these layouts.
        misses: What they miss together, or None.
        row: Their flat figures.
        added: Groups that got a client more, in order.
    """

    sizings: dict[str, Sizing]
    best: dict[str, Tried] = field(default_factory=dict)
    document: Document = field(default_factory=dict)
    misses: str | None = None
    row: Row = field(default_factory=dict)
    added: list[str] = field(default_factory=list)

    @property
    def meets(self) -> bool:
        return bool(self.best) and self.misses is None


def groups_in(document: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the places in `clients` of every group of LLM clients, by name. A group that prefills and one that decodes
    the same model are one."""
    found: dict[str, list[int]] = {}
    roles: dict[str, str] = {}   # model -> name of its group with roles
    for place, client in enumerate(document["clients"]):
        if client.get("kind", "llm") == "llm":
            name, model = str(client.get("name", "llm")), str(client.get("model", ""))
            if client.get("role", "both") != "both":
                name = roles.setdefault(model, name)
            found.setdefault(name, []).append(place)
    return found


def only(document: Mapping[str, Any], name: str, ample: int | None = None) -> Document:
    """Return a document whose first LLM clients are those of a group, the one that `size` replaces.

    Args:
        ample: Devices for each of the other groups; left out, they have the clients that the scenario gives them.

    Raises `InputError` for an unknown name.
    """
    groups = groups_in(document)
    if name not in groups:
        raise InputError(f"one of the groups {', '.join(groups)}", name, field="--group",
                         suggestion=suggest(name, groups))
    mine = groups[name]
    others = [dict(client) for place, client in enumerate(document["clients"]) if place not in mine]
    if ample is not None:
        for client in others:
            if client.get("kind", "llm") == "llm":
                client["count"] = _plenty(client, ample)
    return {**document, "clients": [document["clients"][mine[0]], *others]}


def _plenty(client: Mapping[str, Any], devices: int) -> Any:
    parallel, count = client.get("parallel") or {}, client.get("count", 1)
    each = max(1, parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", 1))
    return max(count, devices // each) if isinstance(count, int) else count


def size_groups(document: Mapping[str, Any], *, base_dir: str | Path = ".", max_devices: int = 64,
                out: Path | None = None, **options: Any) -> Grouped:
    """Size every group of LLM clients, and all together.

    Args:
        max_devices: Most devices of a group.
        out: Folder that keeps the simulations of each group, under its name.
        options: As in `hermes.explore.size.size`.

    Raises `InputError` for two groups that serve the same requests.
    """
    base, groups = dict(document), groups_in(document)
    models = [str(base["clients"][places[0]].get("model", "")) for places in groups.values()]
    for model in models:
        if models.count(model) > 1:
            same = [name for name, own in zip(groups, models, strict=True) if own == model]
            raise InputError(Verbatim(f"{' and '.join(same)} serve the same requests ({model}), and size gives a group "
                                      f"equal clients: keep one of them, or size one (--group {same[0]}) with the "
                                      "others as they are"), field="clients")
    sizings = {name: size(only(base, name, max_devices), base_dir=base_dir, max_devices=max_devices,
                          out=None if out is None else out / name, **options) for name in groups}
    found = Grouped(sizings)
    if not all(sizing.meets for sizing in sizings.values()):
        return found
    return _together(base, Path(base_dir), replace(found, best={name: sizing.meets[0]
                                                               for name, sizing in sizings.items()}))


def _together(base: Document, base_dir: Path, found: Grouped) -> Grouped:
    """Simulate all groups together, and add clients until the SLO is met."""
    loads = [sizing.settings(found.best[name])["workload"] for name, sizing in found.sizings.items()]
    base = {**base, "workload": max(loads, key=_requests)}   # the longest, which let each group's answer settle
    found = _tried(base, base_dir, found)
    for _ in range(MOST_ADDED):
        if found.misses is None:
            break
        more = [_tried(base, base_dir, replace(found, best={**found.best, name: grown}, added=[*found.added, name]))
                for name, tried in found.best.items() for grown in _grown(tried)]
        meets = [one for one in more if one.misses is None]
        if meets:
            return min(meets, key=lambda one: sum(tried.devices for tried in one.best.values()))
        all_more = {name: _grown(tried)[-1] for name, tried in found.best.items()}
        found = _tried(base, base_dir, replace(found, best=all_more, added=[*found.added, *all_more]))
    return found


def _tried(base: Document, base_dir: Path, found: Grouped) -> Grouped:
    document = combined(base, found.best)
    row = figures(simulate(scenario_of(as_node(document), base_dir), whole=True))
    return replace(found, document=document, row=row, misses=missed(row))


def combined(base: Mapping[str, Any], best: Mapping[str, Tried]) -> Document:
    """Return a document with the layout of every group."""
    clients: list[Any] = []
    groups = groups_in(base)
    taken = {place for places in groups.values() for place in places}
    for name, tried in best.items():
        own = only(base, name)["clients"]
        mine = changes(own, tried.kind, tried.clients)["clients"]
        clients += mine[:len(mine) - (len(own) - 1)]
    return {**base, "clients": [*clients, *(client for place, client in enumerate(base["clients"])
                                            if place not in taken)]}


def _grown(tried: Tried) -> list[Tried]:
    """Return a layout with a client more: on either side, if it has two."""
    sides: Sequence[int] = range(len(tried.clients))
    return [replace(tried, clients=tuple(count + (place == side) for place, count in enumerate(tried.clients)))
            for side in sides]


def _requests(workload: Any) -> float:
    several = workload if isinstance(workload, list) else [workload]
    return float(sum(one.get("requests") or 0 for one in several))
