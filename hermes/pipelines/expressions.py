"""Amounts in a pipeline's YAML: arithmetic over a request's tokens, such as `prompt + 20 * 512`.

An amount consists of numbers, the names below, + - * / // %, parentheses, `min` and `max` of two amounts or more, and
`ceil` of one. Other Python is refused.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from hermes.errors import InputError, Verbatim, suggest
from hermes.sums import float_sum

__all__ = ["NAMES", "Amount"]

NAMES = ("prompt", "output", "past")
"""Names in an amount: prompt and output tokens of the request, and tokens of its past context."""

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}
_FAILURES = (ArithmeticError, ValueError)   # ceil of NaN is a ValueError
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
_LONGEST = 200


def _known(values: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse NaN: `min` and `max` of it would depend on its place among the values."""
    total = float_sum(values)
    if total != total:
        raise OverflowError
    return values


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": lambda *values: min(_known(values)), "max": lambda *values: max(_known(values)), "ceil": math.ceil,
}


class Amount:
    """A parsed amount. Call it with the values of the names to get an integer of at least 0."""

    def __init__(self, text: str | int | float, names: tuple[str, ...] = NAMES, field: str | None = None) -> None:
        """Parse an amount. Raises `InputError` for text that is not arithmetic over `names`. field: its place, for
        errors."""
        self.text, self.field = str(text), field
        self.constant: int | None = None   # its value, if it has no names
        if len(self.text) > _LONGEST:
            raise self._error(f"an amount of at most {_LONGEST} characters", self.text)
        try:
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise self._error("an amount such as 'prompt + 20 * 512'", self.text) from None
        self._check(tree, names)
        try:
            self._value = _compiled(tree)
        except _FAILURES:
            raise self._error("an amount that can be computed", self.text) from None
        self._name = tree.id if isinstance(tree, ast.Name) else ""   # it is a single name
        self.names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) & {*names}
        if not self.names:
            self.constant = self({})

    def _error(self, expected: str, found: object, suggestion: str | None = None) -> InputError:
        return InputError(expected, found, field=self.field, suggestion=suggestion)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def _check(self, node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            self._check(node.left, names)
            self._check(node.right, names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            one, count = node.func.id == "ceil", len(node.args)
            if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
                raise self._error(f"{node.func.id}(...) of amounts", self.text)
            if count != 1 if one else count < 2:
                number = "one amount" if one else "two amounts or more"
                raise self._error(f"{number} in {node.func.id}(...)", self.text)
            for argument in node.args:
                self._check(argument, names)
        elif isinstance(node, ast.Name):
            if node.id not in names:
                raise self._error(f"numbers and {', '.join(names)}", node.id, suggest(node.id, names))
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise self._error("numbers, names, + - * / // % ( ) min max ceil", self.text)
        elif isinstance(node.value, float) and not math.isfinite(node.value):
            raise self._error("numbers of at most 1e308", self.text)

    def __call__(self, values: Mapping[str, float]) -> int:
        if self.constant is not None:
            return self.constant
        if self._name:
            return round(values[self._name])
        try:
            value = self._value(values)
        except _FAILURES:
            raise self._error("an amount that can be computed", Verbatim(f"{self.text!r}{_with(values)}")) from None
        if not 0 <= value < 2**53:
            found = Verbatim(f"{self.text!r} = {_written(value)}{_with(values)}")
            raise self._error("an amount from 0 to 2**53", found)
        return round(value)


def _compiled(node: Any) -> Callable[[Mapping[str, float]], float]:
    """Compile a checked tree to nested functions: every stage of every request evaluates an amount.

    Parts without names are computed here, so that errors in them are found before a run.
    """
    if isinstance(node, ast.Name):
        return operator.itemgetter(node.id)
    if isinstance(node, ast.Constant):
        return _always(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp):
        apply, left, right = _OPERATORS[type(node.op)], _compiled(node.left), _compiled(node.right)
        if isinstance(node.op, _DIVISIONS) and _constant(node.right) and not right({}):
            raise ZeroDivisionError
        value: Callable[[Mapping[str, float]], float] = lambda values: apply(left(values), right(values))  # noqa: E731
    else:
        function, arguments = _FUNCTIONS[node.func.id], [_compiled(a) for a in node.args]
        value = lambda values: function(*[argument(values) for argument in arguments])  # noqa: E731
    if not _constant(node):
        return value
    constant = value({})
    if not math.isfinite(constant):
        raise OverflowError
    return _always(constant)


def _always(constant: float) -> Callable[[Mapping[str, float]], float]:
    return lambda values: constant


def _constant(tree: ast.AST) -> bool:
    """Whether a part of an amount is constant: the only names in it are functions."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return not any(isinstance(node, ast.Name) and id(node) not in called for node in ast.walk(tree))


def _with(values: Mapping[str, float]) -> str:
    return f" with {', '.join(f'{name} {value:g}' for name, value in values.items())}" if values else ""


def _written(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:   # an integer above the largest float
        return "more than 1e308"
