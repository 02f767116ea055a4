"""Where the replicas of fleets are: their nodes and zones, checked for all groups together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes.clients.base import platform_name
from hermes.clients.llm import LLMClient
from hermes.core.client import Client
from hermes.errors import InputError, Verbatim, suggest
from hermes.fleet.places import Places, SlotPlace
from hermes.hardware.descriptions.devices import BOX
from hermes.hardware.info import hardware_info
from hermes.units import counted

if TYPE_CHECKING:
    from hermes.fleet.fleet import Group

__all__ = ["check_places", "place_remarks", "places_of"]

Config: TypeAlias = Any   # of clients of any kind


def places_of(config: Config, clients: Sequence[Client], base_dir: Path | None) -> Places:
    """Return where the replicas of a group are. config: Has a `fleet`. clients: All of the group."""
    shares, nodes = _shares(config, clients[0], base_dir)[0], config.fleet.nodes
    per, policy = len(clients) // config.count, config.fleet.restarts.group_policy
    slots = []
    for number in range(config.count):
        first = clients[number * per]
        shared = bool(first.platform) and len(shares) == 1
        slots.append(SlotPlace(first.platform if shared else first.name, shared, platform_name(nodes.zone, number)))
    return Places(slots, shares, _recreates(policy, shares))


def _recreates(policy: str | None, shares: Sequence[float]) -> bool:
    """Whether all pods of a replica are made anew when one restarts: by default where there are several."""
    return policy == "recreate_group" or (policy is None and len(shares) > 1)


def _shares(config: Config, client: Client, base_dir: Path | None) -> tuple[tuple[float, ...], int, str]:
    """Return the share of a replica's devices on each of its nodes, its devices, and what says how many a node has."""
    given = config.fleet.nodes.devices
    if not isinstance(client, LLMClient):
        return (1.0,), 1, ""
    info = hardware_info(client.hardware)
    device = config.device_of(info, base_dir)
    devices, machine = config.num_devices(info) * info.dp, BOX if device is None else device.machine
    whose = str(given) if given else f"{machine} of a {'usual' if device is None else device.name} machine"
    return config.fleet.nodes.shares(devices, machine), devices, whose


def check_places(groups: Sequence[Group], clients: Sequence[Client]) -> None:
    """Raise `InputError` for a node or a zone that goes down with a client that cannot, and for zones that contradict
    one another or are missing."""
    come_and_go = {client.index for group in groups for mine in group.clients for client in mine}
    zones: dict[str, str] = {}   # of nodes that several replicas share
    for group in groups:
        for slot in group.places.slots:
            if slot.shared and zones.setdefault(slot.node, slot.zone) != slot.zone:
                raise InputError(Verbatim(f"platform {slot.node!r} would be in two zones, {zones[slot.node]!r} and "
                                          f"{slot.zone!r}"), field=f"{group.field}.fleet.nodes.zone")
    for group in groups:
        known = list(dict.fromkeys(slot.zone for slot in group.places.slots if slot.zone))
        for number, failure in enumerate(group.config.failures):
            field = f"{group.field}.fleet.failures.{number}"
            if failure.kind == "zone" and not known:
                raise InputError(Verbatim("no replica of the group is in a zone; give `nodes.zone`"), field=field)
            if failure.kind == "zone" and failure.zone is not None and failure.zone not in known:
                raise InputError(f"a zone of the group: {', '.join(known)}", failure.zone, field=f"{field}.zone",
                                 suggestion=suggest(failure.zone, known))
            if failure.kind in ("node", "zone"):
                mine = {slot.node for one in (groups if failure.kind == "zone" else [group])
                        for slot in one.places.slots if slot.shared and (failure.kind == "node" or slot.zone)}
                staying = [one for one in clients if one.platform in mine and one.index not in come_and_go]
                if staying:
                    raise InputError(Verbatim(f"{staying[0].name} is on platform {staying[0].platform!r}, too, and "
                                              "cannot go down without a `fleet`; give it one, or another platform"),
                                     field=field)


def place_remarks(configs: Iterable[Config], clients: Sequence[Client], base_dir: Path | None,
                  ) -> tuple[list[str], list[str]]:
    """Return the groups whose pods are made anew when one restarts, and a line for each group whose replicas take
    several nodes. configs: Of the groups, of all kinds."""
    lines: list[str] = []
    recreated: list[str] = []
    first = 0
    for config in configs:
        client, first = clients[first], first + len(config.names)
        if config.value_of("fleet") is None:
            continue
        shares, devices, whose = _shares(config, client, base_dir)
        policy = config.fleet.restarts.group_policy
        if _recreates(policy, shares):
            recreated.append(config.name)
        if len(shares) > 1:
            again = "recreate_group, as LeaderWorkerSet's default" if policy is None else policy
            lines.append(f"{config.name}: a replica has {devices} devices on {counted(len(shares), 'node')} "
                         f"(`fleet.nodes.devices`: {whose}); `restarts.group_policy`: {again}")
    return recreated, lines
