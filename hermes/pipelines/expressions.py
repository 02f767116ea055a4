"""Amounts in a pipeline's YAML: small arithmetic over what is known of a request, `prompt + 20 * 512`.

Numbers, the names given, + - * / // %, parentheses, and min, max, ceil. Nothing else of Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from hermes.errors import InputError, suggest

__all__ = ["NAMES", "Amount"]

NAMES = ("prompt", "output", "past")
"""What an amount may name: the request's prompt and output tokens, and those of the past context it brings along."""

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil}
_LONGEST = 200


class Amount:
    """A parsed amount. Calling it with the values of the names gives an integer of at least 0."""

    def __init__(self, text: str | int | float, names: tuple[str, ...] = NAMES) -> None:
        """Raises `InputError` for anything but small arithmetic over `names`."""
        self.text = str(text)
        self.constant: int | None = None   # its value, if it names nothing
        if len(self.text) > _LONGEST:
            raise InputError(f"an amount of at most {_LONGEST} characters", self.text)
        try:
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise InputError("an amount such as 'prompt + 20 * 512'", self.text) from None
        self._check(tree, names)
        self._value = _compiled(tree)
        self._name = tree.id if isinstance(tree, ast.Name) else ""   # it is nothing but a name
        self.names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) & {*names}
        if not self.names:
            self.constant = self({})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def _check(self, node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            self._check(node.left, names)
            self._check(node.right, names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            if node.keywords or not node.args:
                raise InputError(f"{node.func.id}(...) of amounts", self.text)
            for argument in node.args:
                self._check(argument, names)
        elif isinstance(node, ast.Name):
            if node.id not in names:
                raise InputError(
                    f"numbers and {', '.join(names)}", node.id, suggestion=suggest(node.id, names)
                )
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise InputError("numbers, names, + - * / // % ( ) min max ceil", self.text)

    def __call__(self, values: Mapping[str, float]) -> int:
        if self.constant is not None:
            return self.constant
        if self._name:
            return round(values[self._name])
        try:
            value = self._value(values)
        except (ZeroDivisionError, OverflowError):
            raise InputError("an amount that can be computed", self.text) from None
        if not 0 <= value < 2**53:
            raise InputError("an amount from 0 to 2**53", f"{self.text} = {value:g}")
        return round(value)


def _compiled(node: Any) -> Callable[[Mapping[str, float]], float]:
    """A checked tree as nested functions: an amount is asked for every stage of every request."""
    if isinstance(node, ast.BinOp):
        apply, left, right = _OPERATORS[type(node.op)], _compiled(node.left), _compiled(node.right)
        return lambda values: apply(left(values), right(values))
    if isinstance(node, ast.Call):
        function, arguments = _FUNCTIONS[node.func.id], [_compiled(a) for a in node.args]  # type: ignore[attr-defined]
        return lambda values: function(*[argument(values) for argument in arguments])
    if isinstance(node, ast.Name):
        return operator.itemgetter(node.id)
    constant = node.value
    return lambda values: constant
