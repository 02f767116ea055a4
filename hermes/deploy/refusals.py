"""Refusals of a scenario that was made from a launch command, in the words of the command or file that it came from.

The user wrote flags and fields, and no key of a scenario: a refusal names the flag, and its line where there is a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hermes.config.yaml_document import Mark, Node
from hermes.deploy.engine_words import EngineWords
from hermes.deploy.nodes import walk
from hermes.deploy.vllm_flags import SHORT
from hermes.engine.compatibility import ROWS, Row
from hermes.errors import InputError, Verbatim

__all__ = ["Written", "explaining", "placing"]

_KEY = re.compile(r"`?\b(?:clients\.\d+\.)?(?:scheduler|memory|hardware|parallel|clients\.\d+)\.([\w.]+)(?:: \S+?)?`?")
_ENGINE = re.compile(r"`engine: ([\w.-]+)`|`engine`")


@dataclass
class Written:
    """Where an engine is written.

    Args:
        name: Its name, or "" for the engine of a lone command.
        flags: Key of a client -> the flag that set it.
        engine: Its words; a settings file that they name is looked at first.
        nodes: Nodes in which its flags and fields are.
        text: The script that it stands in, where there are no nodes.
        file: The name of that script's file, or None.
    """

    name: str
    engine: EngineWords | None = field(default=None, repr=False)
    flags: Mapping[str, str] = field(default_factory=dict)
    nodes: Sequence[Node] = field(default=(), repr=False)
    text: str = field(default="", repr=False)
    file: str | None = None

    def mark(self, flag: str | None) -> Mark:
        """Return the place of a flag, of the engine if the flag stands nowhere."""
        settings = None if self.engine is None else self.engine.settings
        for node in ([settings] if settings is not None else []) + list(self.nodes) if flag else ():
            for keys, child in walk(node):
                if f"--{_kebab(keys[-1] if keys else '')}" == flag or _names(child.value, flag or ""):
                    return child.key or child.mark
        if self.nodes:
            return self.nodes[-1].mark
        lines = self.text.splitlines() if self.file else []
        return Mark(self.file, next((number for number, line in enumerate(lines, 1) if _names(line, flag or "")), None))

    def error(self, error: InputError) -> InputError:
        """Return a refusal of this engine's client, whose field is a key of the client."""
        path = error.field or ""
        flag = self.flag(path)
        row = next((row for row in ROWS if row.explains(f"{path}: {_words(error)}")), None)
        text = _words(error) if row is None else self._of_row(row, error)
        where = flag or (f"the engine of {self.name}" if self.name else "the engine")
        return self.mark(flag).error(Verbatim(_without_keys(text)), field=where)

    def flag(self, path: str) -> str | None:
        """Return the flag that set a key, or the nearest key above or below it."""
        flags = {**self.flags, "device": "--device", "engine": "--engine"}   # two are options of hermes
        above = [key for key in flags if f"{path}.".startswith(f"{key}.")]
        return flags[max(above, key=len)] if above else None

    def _of_row(self, row: Row, error: InputError) -> str:
        other, why = self.flag(row.other.key), row.missing or row.unrecorded
        if why or (row.needs is not None and other is not None):
            return f"not modelled with {other or row.other.name}: {why or row.rule}; leave one out"
        return _words(error)


@contextmanager
def explaining(engines: Sequence[Written]) -> Iterator[None]:
    """Turn refusals of a scenario whose clients are these engines into refusals of what the user wrote."""
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        found = re.fullmatch(r"clients(?:\.(\d+))?(?:\.(.*))?", error.field or "")
        if found is None:   # of the scenario that is made: its rate, its model
            raise InputError(Verbatim(_without_keys(_words(error))),
                             field="--rate" if error.field == "rate" else None) from None
        own = engines[int(found[1] or 0)]
        raise own.error(InputError(error.expected, error.found, field=found[2], suggestion=error.suggestion)) from None


@contextmanager
def placing(engine: Written) -> Iterator[None]:
    """Give refusals of flags, which name no file, the place of the flag."""
    try:
        yield
    except InputError as error:
        mark = engine.mark(error.field)
        if error.file is not None:
            raise
        expected = type(error.expected)(_without_keys(error.expected))
        raise mark.error(expected, error.found, field=error.field, suggestion=error.suggestion) from None


def _names(value: object, flag: str) -> bool:
    """Whether a text has a flag, or a beginning of it."""
    if not isinstance(value, str) or not flag.startswith("--"):
        return False
    return any(flag == word or (len(word) > 4 and flag.startswith(word)) or flag == f"--{SHORT.get(word[1:])}"
               for word in re.findall(r"(?<![\w-])--?[\w-]+", value.replace("_", "-")))


def _kebab(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", key).lower().replace("_", "-")


def _words(error: InputError) -> str:
    return str(InputError(error.expected, error.found, suggestion=error.suggestion))


def _without_keys(text: str) -> str:
    text = re.sub(r"write `[\w.]+: \w+` for its (--[\w-]+)", r"add \1", text)
    text = re.sub(r",? or (?:set|write|give) `[\w.]+: [^`]+`| \(`\w+: \{[^`]*\}`\)", "", text)
    return _ENGINE.sub(lambda found: f"--engine {found[1]}" if found[1] else "--engine", _KEY.sub(r"\1", text))
