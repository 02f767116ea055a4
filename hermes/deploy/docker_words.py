"""Words of `docker run`, `podman run` and `nerdctl run`: image, arguments, variables, devices and mounts.

Nothing of them is printed but names: values may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.deploy.options import options
from hermes.errors import InputError, Verbatim

__all__ = ["RUNTIMES", "Container", "container_of"]

RUNTIMES = {"docker", "podman", "nerdctl"}
# without a value, and with one; short ones may be joined (-itd)
SWITCHES, VALUES = frozenset(options("docker", "switches")), frozenset(options("docker", "values"))
SHORT_SWITCHES = set("ditqP")
SHORT_VALUES = set("acehlmpuvw")


@dataclass
class Container:
    """A container as a command starts it.

    Args:
        image: Its image.
        entry: In place of the image's entry point, or None.
        args: Words behind the image.
        env: Values of its variables, as far as the command says them.
        names: Names of all of them.
        gpus: Number of its devices, if known.
        mounts: Path in the container -> path on the host.
        unread: What was not understood.
    """

    image: str
    entry: str | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    gpus: int | None = None
    mounts: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def container_of(words: Sequence[str]) -> Container | None:
    """Return the container that a command runs, None if it runs none. Raises `InputError` for an unknown option."""
    place = next((i for i, word in enumerate(words[:-1]) if word.rpartition("/")[2] in RUNTIMES
                  and {"run", "create"} & set(words[i + 1:i + 3])), None)
    return None if place is None else _container(list(words[place + 1:]))


def _container(words: list[str]) -> Container:
    """Read what follows `docker`."""
    words = words[1:] if words[0] == "container" else words
    place, found = 1, Container("")
    while place < len(words) and words[place].startswith("-"):
        name, value, place = _option(words, place, found.unread)
        if name == "entrypoint":
            found.entry = value
        elif name == "gpus":
            found.gpus = _gpus(value or "")
        elif name in ("env", "e"):
            key, equals, text = (value or "").partition("=")
            found.names.append(key)
            found.env |= {key: text} if equals else {}
        elif name in ("volume", "v"):
            host, _, there = (value or "").partition(":")
            found.mounts[there.partition(":")[0]] = host
        elif name == "env-file":
            found.unread.append("the variables in --env-file")
    if place >= len(words):
        raise InputError(Verbatim("docker run names no image: docker run [OPTIONS] IMAGE [ARGUMENTS]"), field="command")
    found.image, found.args = words[place], words[place + 1:]
    return found


def _option(words: list[str], place: int, unread: list[str]) -> tuple[str, str | None, int]:
    """Return name and value of an option of `docker run`, and the place after it."""
    word = words[place]
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if equals or name in SWITCHES:
            if name not in SWITCHES | VALUES:
                unread.append(f"docker run --{name}")
            return name, value or None, place + 1
        if name not in VALUES:
            raise InputError(Verbatim(f"docker run has no option --{name} that is known here; leave it out"),
                             field="command")
    else:
        letters = word[1:]
        switches = len(letters) - len(letters.lstrip("".join(SHORT_SWITCHES)))
        if switches == len(letters):
            return letters, None, place + 1
        name, attached = letters[switches], letters[switches + 1:]
        if name not in SHORT_VALUES:
            raise InputError(Verbatim(f"docker run has no option -{name} that is known here; leave it out"),
                             field="command")
        if attached:
            return name, attached.removeprefix("="), place + 1
    if place + 1 >= len(words):
        raise InputError(Verbatim("needs a value"), field=f"docker run --{name}")
    return name, words[place + 1], place + 2


def _gpus(value: str) -> int | None:
    """Return the number of devices in `--gpus`: a count, or the devices by name; None for all."""
    value = value.strip("'\"")
    if value.isdecimal():
        return int(value)
    found = re.search(r"(count|device)=(.*)", value)
    if found is None or found[2] in ("all", "-1"):
        return None
    if found[1] == "count":
        count = re.match(r"\d+", found[2])
        return int(count[0]) if count else None
    return len([part for part in found[2].split(",") if part and "=" not in part])
