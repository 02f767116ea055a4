"""Words of the simple commands in a shell script: its variables, arrays and here-documents put in.

A reader of launch commands, not a shell: commands of all branches and loops are read in order, each once. Nothing is
run, and no file is read.
"""

from __future__ import annotations

import ast
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hermes.errors import InputError, Verbatim

__all__ = ["SHELLS", "Script", "filled", "script_of", "split"]

SHELLS = {"sh", "bash", "dash", "zsh", "ash"}
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^}]{0,2000}))?\}|\((\w+)\)|([A-Za-z_]\w*))")
_SUM = re.compile(r"\$\(\(((?:[^()]|\([^()]{0,99}\)){0,99})\)\)")
_AWAY = re.compile(r"(?<=\s)(?:\d|&)?>{1,2}\s*(?:&\d|[^\s'\"]+)")   # redirected output
_HERE = re.compile(r"(.*?)<<-?[ \t]*(['\"]?)(\w+)\2(.*)")
LONGEST = 1_000_000   # characters of a value or script with its variables put in
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
        changing: Variables that it sets to several values, of which the last is read.
    """

    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)


def script_of(text: str, env: Mapping[str, str] = {}) -> Script:
    """Read a script. env: Variables that it finds. Raises `InputError` for one that a shell cannot read."""
    script = Script(env=dict(env))
    text, here = _without_files(text.replace("\r\n", "\n"))
    text = re.sub(r"\\[ \t]*\n", " ", text)
    text = _RUN.sub(lambda found: found[0] if re.fullmatch(r"\$\(\w+\)", found[0]) else "$(...)", text)
    text = re.sub(r"(?m)(?<=\s)#\s[^'\"\n]*$", "", re.sub(r"(?m)^\s*#.*$", "", text))
    text = re.sub(r"\n(?=\s*-)", " ", _arrays(text))   # flags that were pasted without a backslash
    for name, value in re.findall(r"\$\{(\w+):?=([^}]*)\}", text):
        script.env.setdefault(name, value)
    for words in _commands(text):
        words = words[next((i for i, word in enumerate(words) if word not in _LEADING), 0):]
        assigned = [match for word in words if (match := ASSIGNED.fullmatch(word))]
        if words[0] in _SETTING or len(assigned) == len(words):
            own = {match[1]: filled(match[2], script.env) for match in assigned}
            script.changing |= {name for name, value in own.items() if script.env.get(name, value) != value}
            script.env |= own
    script.files = {path: filled(body, script.env) if fills else body for path, body, fills in here}
    script.commands = list(_commands(expanded(text, script.env)))
    script.changing = {name for name in script.changing if re.search(rf"\$\{{?{name}\b", text)}
    return script


def split(text: str) -> list[str]:
    """Return the words of a text. Raises `InputError` for one that a shell cannot read."""
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"a command that a shell can read ({error})", field="command") from None


def _without_files(text: str) -> tuple[str, list[tuple[str, str, bool]]]:
    """Cut here-documents out of a script; return what is left, and for each its path, its text, and whether variables
    are put in. One that is written to no file is what a shell reads, and stays."""
    lines, kept, files, place = text.split("\n"), list[str](), list[tuple[str, str, bool]](), 0
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(number)
    while place < len(lines):
        found, place = _HERE.fullmatch(lines[place]), place + 1
        after = ends.get(found[3], []) if found else []
        end = bisect_left(after, place)
        if found is None or end == len(after):
            kept.append(lines[place - 1])
            continue
        body, place = lines[place:after[end]], after[end] + 1
        target = _TARGET.search(f"{found[1]} {found[4]}")
        if target is None:
            kept += [f"{found[1]}{found[4]}", *body]
        else:
            files.append((target[1].strip("'\""), "\n".join([*body, ""]), not found[2]))
    return "\n".join(kept), files


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
    out, place, quote, size = list[str](), 0, "", 0
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
        size += len(out[-1])
        if size > max(LONGEST, len(text)):
            raise InputError(Verbatim(f"variables make more than {LONGEST} characters; write them out"),
                             field="command")
    return "".join(out)


def filled(text: str, env: Mapping[str, str]) -> str:
    """Put in the variables whose values are known, as Kubernetes (`$(NAME)`) and compose (`${NAME:-VALUE}`) do."""
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3] or found[4]
        return env.get(name, found[0] if found[2] is None else found[2])

    def calculated(found: re.Match[str]) -> str:
        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: env.get(name[1], name[1]), found[1]).strip()
        number = _value(text) if re.fullmatch(r"[\d\s*/+()-]{1,99}", text) else None
        return found[0] if number is None else str(number)

    result = _SUM.sub(calculated, _NAMED.sub(value, _SUM.sub(calculated, text)))
    if len(result) > max(LONGEST, len(text)):
        raise InputError(Verbatim(f"variables make more than {LONGEST} characters; write them out"), field="command")
    return result


def _value(text: str) -> int | None:
    """Return the value of a sum of whole numbers, None if it has none."""
    def of(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            one, two = of(node.left), of(node.right)
            return (one + two if isinstance(node.op, ast.Add) else one - two if isinstance(node.op, ast.Sub) else
                    one * two if isinstance(node.op, ast.Mult) else one // two)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError

    try:
        return of(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError):
        return None
