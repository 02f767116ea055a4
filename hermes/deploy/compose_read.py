"""Groups of engines in a compose file: its services, with variables from the file `.env` beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hermes.config.files import read_text
from hermes.config.yaml_document import Node
from hermes.deploy.deployed import Deployed, role_of
from hermes.deploy.engine_words import of_container
from hermes.deploy.nodes import at, fields, items, placed, text, whole
from hermes.deploy.shell_words import ASSIGNED, filled, split

__all__ = ["read_compose"]


def read_compose(document: Node, found: Deployed) -> None:
    """Read the services that start an engine."""
    folder = Path(found.file).parent if found.file else Path()
    env = _variables(folder / ".env")
    for name, service in fields(at(document, "services")):
        image = text(service, "image")
        own = {key: filled(value, env) for key, value in _environment(service).items()}
        mounts = dict(_mount(item, folder, env) for item in items(service, "volumes"))
        with placed(service):
            engine = of_container(None if image is None else filled(image, env), _words(service, "entrypoint", env),
                                  _words(service, "command", env), own, own)
        if engine is None:
            continue
        deploy = at(service, "deploy")
        engine.gpus, engine.mounts = _gpus(service), mounts
        found.add(name, whole(service, "scale", whole(deploy, "replicas", 1)), role_of(name), engine, service)


def _variables(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    found = (ASSIGNED.fullmatch(line.strip().removeprefix("export ")) for line in read_text(str(file)).splitlines())
    return {match[1]: match[2].strip().strip("'\"") for match in found if match}


def _words(service: Node, key: str, env: Mapping[str, str]) -> list[str]:
    """Return a command: a list, or one text that compose splits into words. `$$` stands for a `$` of the container."""
    node = at(service, key)
    if node is None or node.value is None:
        return []
    if isinstance(node.value, list):
        return [_filled(str(item.value), env) for item in node.value]
    with placed(node):
        return split(_filled(str(node.value), env))


def _filled(value: str, env: Mapping[str, str]) -> str:
    return "$".join(filled(part, env) for part in value.split("$$"))


def _environment(service: Node) -> dict[str, str]:
    """Return the variables of a service: a mapping, or a list of NAME=VALUE."""
    node = at(service, "environment")
    if node is not None and isinstance(node.value, list):
        pairs = (str(item.value).partition("=") for item in node.value)
        return {name: value for name, _, value in pairs}
    return {name: "" if own.value is None else str(own.value) for name, own in fields(node)}


def _mount(item: Node, folder: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """Return (path in the container, path on the host) of a volume."""
    if isinstance(item.value, dict):
        host, there = text(item, "source") or "", text(item, "target") or ""
    else:
        host, there = (*_filled(str(item.value), env).split(":"), "")[:2]
    return there, str(folder / host) if re.match(r"\.{0,2}/|\.", host) else host


def _gpus(service: Node) -> int | None:
    """Return the number of devices that a service reserves, None for all."""
    for device in items(service, "deploy", "resources", "reservations", "devices"):
        names, count = items(device, "device_ids"), text(device, "count")
        if names:
            return len(names)
        if count is not None and count.isdecimal():
            return int(count)
    return None
