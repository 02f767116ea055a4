"""Flags of an engine's command line, as Python's argparse takes them.

A flag may be cut to a beginning that no other flag has, a value may follow `=`, a dash and an underscore mean the same.
The settings of a file (`--config FILE`) stand in front of the command's own words, so that these win.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal

from hermes.config.yaml_document import Node, parse_documents, read_text
from hermes.deploy.engine_words import EngineWords
from hermes.errors import InputError, Verbatim

__all__ = ["Kind", "Option", "Parser", "is_true", "settings_of", "taken_settings"]

Kind = Literal["value", "values", "switch"]
MOST_NAMED = 4   # flags that a message lists


@dataclass(frozen=True)
class Option:
    """A flag of a command.

    Args:
        name: Its full name, without dashes; with `.FIELD` where the command sets one field of it.
        value: None for a switch, and where no value follows.
    """

    name: str
    value: str | None


@dataclass
class Parser:
    """Flags of an engine.

    Args:
        engine: Its name in messages.
        kinds: Every word that names a flag, without dashes.
        earlier: Those of earlier versions, of which no beginning names one.
        short: Words of one dash, and the flags that they stand for.
        canonical: Return the name under which a flag is known, `no-NAME` for one that turns a switch off.
        abbreviates: Whether a unique beginning names a flag.
    """

    engine: str
    kinds: Mapping[str, Kind]
    earlier: Mapping[str, Kind] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    canonical: Callable[[str], str] = str
    abbreviates: bool = True

    def resolved(self, name: str) -> str:
        """Return the full name of a flag, itself where none begins so. Raises `InputError` for an ambiguous one."""
        if name in self.kinds or name in self.earlier or not self.abbreviates:
            return name
        found = sorted(own for own in self.kinds if own.startswith(name))
        if len(found) > 1:
            listed = ", ".join(f"--{own}" for own in found[:MOST_NAMED]) + (", ..." if found[MOST_NAMED:] else "")
            raise InputError(Verbatim(f"several flags of {self.engine} begin so ({listed}), so that it does not start: "
                                      "write the flag in full"), field=f"--{name}")
        return found[0] if found else name

    def _short(self, name: str) -> str:
        """Return the flag of a word of one dash, which may be a beginning of one, too."""
        found = [name] if name in self.short else [own for own in self.short if own.startswith(name)]
        return self.short[found[0]] if len(found) == 1 else name

    def read(self, words: Sequence[str], named: list[str]) -> Iterator[Option]:
        """Yield every flag; what is no flag goes to `named`. Raises `InputError`."""
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if not _is_flag(word):
                named.append(word)
                continue
            if word == "--":
                named += words[place:]
                return
            if "optimization-level" in self.kinds and re.match(r"-O[^.]", word):   # as -O3 and -O=3
                yield Option("optimization-level", word[2:].removeprefix("="))
                continue
            name, equals, value = word.partition("=")
            name, dot, fields = name.lstrip("-").partition(".")
            name = name.replace("_", "-")
            name = self.resolved(name if word.startswith("--") and name not in self.short else self._short(name))
            kind, name = self.kinds.get(name) or self.earlier.get(name, "value"), self.canonical(name)
            name += dot + fields
            if equals:
                yield self._switched(name, value) if kind == "switch" and not dot else Option(name, value)
            elif kind == "values" and not dot:
                values = list(takewhile(lambda word: not _is_flag(word), words[place:]))
                place += len(values)
                yield Option(name, " ".join(values) or None)
            elif kind == "switch" and not dot:
                given = is_true(words[place]) if place < len(words) else None   # of older versions, or of a template
                place += given is not None
                yield Option(name, None) if given is not False else self._switched(name, "false")
            elif place < len(words) and not _is_flag(words[place]):
                yield Option(name, words[place])
                place += 1
            else:
                yield Option(name, None)

    def _switched(self, name: str, value: str) -> Option:
        """Return a switch with a value, which older versions take."""
        on = is_true(value)
        if on is None:
            raise InputError(Verbatim("is a switch and takes no value"), field=f"--{name}")
        return Option(name if on else name.removeprefix("no-") if name.startswith("no-") else f"no-{name}", None)


def is_true(text: str) -> bool | None:
    """Return the truth of the words true and false, None for another one."""
    return {"true": True, "false": False}.get(text.lower())


def settings_of(engine: EngineWords, parser: Parser, flags: Sequence[str] = ("config",)) -> tuple[list[str], list[str]]:
    """Return an engine's words with the settings of its file in front of them, and a line on each oddity.

    Args:
        flags: Names of the flag that names the file.

    Raises `InputError` for a file that is not there, and for one that is no mapping.
    """
    words, glued = taken_settings(engine, flags)
    said = [f"{flag}=FILE ({parser.engine} reads settings from {flag} FILE, with a blank; here they are read)"
            for flag in glued]   # vLLM 0.33.0 was run, SGLang 0.5's server_args_config_parser.py read
    return (words if engine.settings is None else _words_of(engine.settings, parser) + words), said


def taken_settings(engine: EngineWords, flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return an engine's words without the flag of a settings file, which becomes `engine.settings`; and the flag where
    its file follows `=`. Raises `InputError`."""
    words, glued = list(engine.words), []
    for place, word in reversed(list(enumerate(words))):
        name, equals, path = word.lstrip("-").partition("=")
        if not word.startswith("--") or name.replace("_", "-") not in flags:
            continue
        if equals:
            glued.append(f"--{name}")
        elif place + 1 < len(words):
            path = words[place + 1]
        else:
            raise InputError(Verbatim("needs a file"), field=f"--{name}")
        del words[place:place + 1 if equals else place + 2]
        engine.settings = _settings(path, engine, f"--{name}")
    return words, glued


def _settings(path: str, engine: EngineWords, flag: str) -> Node:
    """Return the settings of a file, which lies in the command's own files, in a mount, or on this machine."""
    name = PurePosixPath(path).name
    own = engine.files.get(path) or next((body for there, body in engine.files.items()
                                          if PurePosixPath(there).name == name), None)
    if own is None:
        mount = next((there for there in sorted(engine.mounts, key=len, reverse=True)
                      if path == there or path.startswith(there.rstrip("/") + "/")), None)
        local = path if mount is None else engine.mounts[mount] + path[len(mount.rstrip("/")):]
        local = re.sub(r"^\$(?:PWD|\{PWD\}|\(pwd\))/?", "./", local)
        local = str(Path(local).expanduser())
        if not Path(local).is_file():
            raise InputError(Verbatim(f"the settings of {path} are not here: save the file under this name, or write "
                                      "them into the command"), field=flag)
        own = read_text(local)
        path = local
    if isinstance(own, Node) and not isinstance(own.value, dict):   # a block of text, below its key
        documents = parse_documents("\n" * (own.mark.line or 0) + str(own.value), own.mark.file)
    else:
        documents = [own] if isinstance(own, Node) else parse_documents(own, path)
    if not documents or not isinstance(documents[0].value, dict):
        raise InputError(Verbatim(f"{path} has no settings: write `max-num-seqs: 128` and the like"), field=flag)
    return documents[0]


def _words_of(settings: Node, parser: Parser) -> list[str]:
    """Return settings as words: true is the flag, false the word that turns it off, where there is one."""
    words: list[str] = []
    for key, node in settings.value.items():
        flag, value = key.replace("_", "-"), node.plain()
        if isinstance(value, bool):
            off = f"no-{flag}"
            words += [f"--{flag}"] if value else [f"--{off}"] if off in parser.kinds else []
        elif isinstance(value, dict):
            words += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)] if value else []
        elif value is not None:
            words += [f"--{flag}={value}"]
    return words


def _is_flag(word: str) -> bool:
    return (word.startswith("-") and word != "-" and " " not in word.partition("=")[0]
            and not re.match(r"-\d|-\.\d", word))
