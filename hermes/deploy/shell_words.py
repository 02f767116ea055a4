"""Words of the simple commands in a shell script: its variables, arrays and here-documents put in.

A reader of launch commands, not a shell: commands of all branches and loops are read in order, each once. Nothing is
run, and no file is read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hermes.errors import InputError

__all__ = ["SHELLS", "Script", "filled", "script_of", "simple_commands"]

SHELLS = {"sh", "bash", "dash", "zsh", "ash"}
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^}]*))?\}|\((\w+)\)|([A-Za-z_]\w*))")
_SUM = re.compile(r"\$\(\(\s*\$?\{?(\w+)\}?\s*(?:([*/+-])\s*\$?\{?(\w+)\}?\s*)?\)\)")
_AWAY = re.compile(r"(?<=\s)(?:\d|&)?>{1,2}\s*(?:&\d|[^\s'\"]+)")   # redirected output
_HERE = re.compile(r"(?m)^(.*?)<<-?[ \t]*(['\"]?)(\w+)\2(.*)\n((?:.*\n)*?)[ \t]*\3[ \t]*$")
_TARGET = re.compile(r"(?:>{1,2}|\btee\b(?:\s+-\w+)*)\s*([^\s<>|;&]+)")
_ARRAY = re.compile(
    r"(?m)(?:^|(?<=[;\s]))(?:(?:local|declare|readonly|export)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\("
    r"((?:[^()'\"]|'[^']*'|\"[^\"]*\"|\([^()]*\))*)\)")
_SETTING = ("export", "local", "declare", "typeset", "readonly", "env")
_RUN = re.compile(r"\$\((?!\()[^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`")   # what another command prints
_LEADING = {"then", "do", "else", "{", "(", "!", "time"}


@dataclass
class Script:
    """What a script does, as far as it is read.

    Args:
        commands: Words of its simple commands.
        files: Text of the files that it writes as here-documents, by path.
        env: Values of its variables, at the end.
    """

    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def script_of(text: str, env: Mapping[str, str] = {}) -> Script:
    """Read a script. env: Variables that it finds. Raises `InputError` for one that a shell cannot read."""
    script = Script(env=dict(env))
    text = re.sub(r"\\[ \t]*\n", " ", text) if "<<" not in text else text
    here: list[tuple[str, str, bool]] = []

    def cut(found: re.Match[str]) -> str:
        target = _TARGET.search(f"{found[1]} {found[4]}")
        if target is None:   # the body is what a shell reads
            return f"{found[1]}{found[4]}\n{found[5]}"
        here.append((target[1].strip("'\""), found[5], not found[2]))
        return ""

    text = re.sub(r"\\[ \t]*\n", " ", _HERE.sub(cut, text))
    text = _RUN.sub(lambda found: found[0] if re.fullmatch(r"\$\(\w+\)", found[0]) else "$(...)", text)
    text = re.sub(r"(?m)(?<=\s)#\s[^'\"\n]*$", "", re.sub(r"(?m)^\s*#.*$", "", text))
    text = re.sub(r"\n(?=\s*-)", " ", _arrays(text))   # flags that were pasted without a backslash
    for name, value in re.findall(r"\$\{(\w+):?=([^}]*)\}", text):
        script.env.setdefault(name, value)
    for words in _commands(text):
        words = words[next((i for i, word in enumerate(words) if word not in _LEADING), 0):]
        assigned = [match for word in words if (match := ASSIGNED.fullmatch(word))]
        if words[0] in _SETTING or len(assigned) == len(words):
            script.env |= {match[1]: filled(match[2], script.env) for match in assigned}
    script.files = {path: filled(body, script.env) if fills else body for path, body, fills in here}
    script.commands = list(_commands(expanded(text, script.env)))
    return script


def simple_commands(text: str, env: Mapping[str, str] = {}) -> Iterable[list[str]]:
    """Return the words of each simple command of a script. Raises `InputError` for one that a shell cannot read."""
    return script_of(text, env).commands


def _arrays(text: str) -> str:
    """Put arrays (`ARGS=(--a 1)`, `ARGS+=(--b)`) where they are used."""
    found: dict[str, str] = {}

    def noted(array: re.Match[str]) -> str:
        found[array[1]] = f"{found.get(array[1], '') if array[2] else ''} {' '.join(array[3].split(chr(10)))}"
        return ""

    text = _ARRAY.sub(noted, text)
    for name, words in found.items():
        use = re.compile(rf"\"?\$\{{{name}\[[@*]\]\}}\"?")
        text = words.join(use.split(text))
    return text


def _commands(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(_AWAY.sub(" ", text), posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and not word.strip(";&|\n"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise InputError(f"a command that a shell can read ({error})", field="command") from None
    if words:
        yield words


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables whose values are known, as a shell does: not in single quotes, and outside of double quotes
    a value may be several words."""
    out, place, quote = [], 0, ""
    while place < len(text):
        char = text[place]
        found = None
        if char == "\\" and quote != "'":
            out.append(text[place:place + 2])
            place += 2
            continue
        if char == "$" and quote != "'":
            found = _SUM.match(text, place) or _NAMED.match(text, place)
        if found is None:
            quote = "" if char == quote else quote or (char if char in "'\"" else "")
            out.append(char)
            place += 1
            continue
        value = filled(found[0], env)
        if value == found[0]:   # unknown: no words of the shell's own
            out.append(value if quote else re.sub(r"([;&|()\s])", r"\\\1", value))
        elif quote:
            out.append(re.sub(r'(["\\`])', r"\\\1", value))
        else:
            out.append(" ".join(map(shlex.quote, value.split())))
        place = found.end()
    return "".join(out)


def filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables whose values are known, as Kubernetes (`$(NAME)`) and compose (`${NAME:-VALUE}`) do."""
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3] or found[4]
        return env.get(name, found[0] if found[2] is None else found[2])

    def calculated(found: re.Match[str]) -> str:
        first, second = (env.get(name, name) if name else "1" for name in (found[1], found[3]))
        if not (first.isdecimal() and second.isdecimal()) or (found[2] == "/" and int(second) == 0):
            return found[0]
        one, two = int(first), int(second)
        return str({"*": one * two, "/": one // max(two, 1), "+": one + two, "-": one - two}[found[2] or "*"])

    return _NAMED.sub(value, _SUM.sub(calculated, text))
