"""Groups of engines that a file deploys, and the containers that start them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes.config.yaml_document import Mark, Node
from hermes.deploy.engine_words import EngineWords, of_container
from hermes.deploy.nodes import at, fields, placed, text
from hermes.deploy.pods import Container, Environment, Life, Pod, Resources
from hermes.deploy.shell_words import filled
from hermes.deploy.typed import Keys, read

__all__ = ["Deployed", "Group", "environment", "gpus_of", "read_container", "role_of", "words_of"]

PHASES = ("prefill", "decode")


@dataclass
class Group:
    """Equal engines.

    Args:
        count: Replicas.
        role: `both`, `prefill` or `decode`.
        at: Where they are written, for messages; None for those of a command.
    """

    name: str
    count: int
    role: str
    engine: EngineWords
    at: Node | None


@dataclass
class Deployed:
    """Deployments in a file.

    Args:
        groups: Engines.
        not_modelled, unknown: Fields with their lines that may change a result.
        router: `round_robin` where the file asks for it, else None.
        kinds: Names of the file's documents that have no engine, with their lines.
        config_maps: Data of the file's ConfigMaps, by name.
        runtimes: KServe's ServingRuntimes of the file, by name.
        file: The file's name.
    """

    groups: list[Group] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    router: str | None = None
    kinds: list[str] = field(default_factory=list)
    config_maps: dict[str, Node] = field(default_factory=dict)
    runtimes: dict[str, Node] = field(default_factory=dict)
    file: str | None = None

    @property
    def files(self) -> dict[str, Node]:
        """Files that containers mount, by the keys of ConfigMaps."""
        return {key: node for data in self.config_maps.values() for key, node in fields(data)}

    def add(self, name: str, count: int, role: str, engine: EngineWords | None, node: Node) -> None:
        """Add a group, if there is an engine and there is one of it."""
        if engine is not None and count:
            self.groups.append(Group(name, count, role, engine, node))


def role_of(name: str | None) -> str:
    """Return the phases that the name of a role, a label or a component stands for."""
    found = [phase for phase in PHASES if phase in (name or "").lower()]
    return found[0] if len(found) == 1 else "both"


def environment(node: Node | None, found: Deployed) -> tuple[dict[str, str], list[str]]:
    """Return the values of a container's variables as far as the file has them, and the names of all."""
    own, known, names = read(Environment, node or Node(None, Mark())), dict[str, str](), list[str]()
    for source in own.env_from or ():
        data = {key: str(node.value) for key, node in fields(_config_map(source.get("configMapRef"), found))}
        known |= data
        names += data
    for entry in own.env or ():
        value, reference = entry.value, (entry.value_from or {}).get("configMapKeyRef")
        if value is None and reference is not None:
            value = text(_config_map(reference, found), str(reference.get("key")))
        if entry.name is not None:
            names.append(entry.name)
            known |= {} if value is None else {entry.name: filled(value, known)}
    return known, names


def _config_map(reference: Keys | str | None, found: Deployed) -> Node | None:
    return found.config_maps.get(str(reference.get("name"))) if isinstance(reference, dict) else None


def read_container(container: Node, found: Deployed, env: Mapping[str, str] = {}, before: Sequence[str] = (),
                   pods: int = 1, args: Sequence[str] | None = None, pod: Node | None = None,
                   command: Sequence[str] | None = None) -> EngineWords | None:
    """Return the engine that a container starts, None if it starts none.

    Args:
        env: Variables that it has besides its own.
        before: Words in front of its own.
        pods: How many of its pods make an engine.
        args, command: In place of its own.
        pod: The specification of its pod.
    """
    known, names = environment(container, found)
    own = read(Container, container)
    files: dict[str, str | Node] = {key: node if not isinstance(node.value, str) or key.endswith((".yaml", ".yml"))
                             else node.value for key, node in found.files.items()}
    words = (own.args or ()) if args is None else args
    with placed(container):
        engine = of_container(own.image, (own.command or ()) if command is None else command, [*before, *words],
                              {**env, **known}, names, files)
    if engine is not None:
        engine.gpus = None if own.resources.gpus is None else own.resources.gpus * pods
        engine.life = Life(own, None if pod is None else read(Pod, pod).termination_grace_period_seconds)
    return engine


def gpus_of(container: Node | None) -> int | None:
    """Return the devices of a container, None if it does not say."""
    return read(Resources, at(container, "resources") or Node(None, Mark())).gpus


def words_of(name: str, value: Node) -> list[str]:
    """Return the words of a flag whose value a file has: true is the flag, false the word that turns it off."""
    if isinstance(value.value, bool):
        return [f"--{name}" if value.value else f"--no-{name}"]
    if isinstance(value.value, dict | list):
        return [f"--{name}", json.dumps(value.plain())]
    return [] if value.value is None else [f"--{name}={value.value}"]
