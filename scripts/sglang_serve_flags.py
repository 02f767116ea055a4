"""Print the flags of `sglang serve`, read from the source in wheels of SGLang.

    python scripts/sglang_serve_flags.py 0.5.14 0.5.23 > hermes/deploy/sglang_flags.json

Each argument is a folder named as the version, with sglang/srt/server_args.py and sglang/srt/arg_groups of the wheel
(`pip download --no-deps sglang==0.5.14`, unzip). Nothing is imported: the fields of its argument records and its calls
of `add_argument` are read. By version, names without dashes: those that take one value, several, or none (switches).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    found = {}
    for folder in map(Path, sys.argv[1:]):
        flags = flags_of(folder / "sglang" / "srt")
        found[folder.name] = {kind: " ".join(sorted(name for name, own in flags.items() if own == kind))
                              for kind in ("switch", "value", "values")}
    print(json.dumps(found, indent=1))


def flags_of(folder: Path) -> dict[str, str]:
    flags: dict[str, str] = {}
    for path in [folder / "server_args.py", *sorted((folder / "arg_groups").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                flags |= dict(of_field(node))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and \
                    node.func.attr == "add_argument":
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                for word in texts(node.args):
                    flags[word.removeprefix("--")] = kind_of(given, False, False)
    return flags


def of_field(node: ast.AnnAssign) -> Iterator[tuple[str, str]]:
    """Yield (name, kind) of the words of a field `name: A[TYPE, HELP or Arg(...)] = DEFAULT`."""
    if not (isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "A"
            and isinstance(node.annotation.slice, ast.Tuple) and isinstance(node.target, ast.Name)):
        return
    type_, *rest = node.annotation.slice.elts
    arg = next((one for one in rest if isinstance(one, ast.Call) and ast.unparse(one.func) == "Arg"), None)
    given = {keyword.arg: keyword.value for keyword in arg.keywords} if arg is not None else {}
    if "no_cli" in given:
        return
    text = ast.unparse(type_)
    kind = kind_of(given, text in ("bool", "Optional[bool]"), "List[" in text and "type_parser" not in given)
    own = given.get("cli_name")
    name = ast.literal_eval(own) if own is not None else "--" + node.target.id.replace("_", "-")
    aliases = given.get("aliases")
    for word in [name, *(texts(aliases.elts) if isinstance(aliases, ast.List) else ())]:
        yield word.removeprefix("--"), kind
        if "action" in given and "BooleanOptional" in ast.unparse(given["action"]):
            yield "no-" + word.removeprefix("--"), "switch"


def kind_of(given: dict[str | None, ast.expr], is_bool: bool, is_list: bool) -> str:
    action = ast.unparse(given["action"]) if "action" in given else ""
    if is_bool or re.search(r"store_true|BooleanOptional|Deprecated(?!Alias)", action):
        return "switch"
    nargs = ast.unparse(given["nargs"]) if "nargs" in given else ""
    return "values" if "+" in nargs or "*" in nargs or (is_list and not nargs) else "value"


def texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
            and node.value.startswith("--")]


if __name__ == "__main__":
    main()
