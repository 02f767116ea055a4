"""Plug-in of mypy: refuse `sum` of floats, which is rounded otherwise since Python 3.12; `hermes.sums` is not."""

import sys
from collections.abc import Callable

from mypy.maptype import map_instance_to_supertype
from mypy.plugin import FunctionContext, Plugin
from mypy.types import AnyType, Instance, Type, TypeOfAny, UnionType, get_proper_type

TEXT = "sum of floats differs between versions of Python: use hermes.sums.float_sum"


def _checked(context: FunctionContext) -> Type:
    given = get_proper_type(context.arg_types[0][0])
    iterable = context.api.named_generic_type("typing.Iterable", [AnyType(TypeOfAny.special_form)])
    if isinstance(given, Instance) and given.type.has_base("typing.Iterable"):
        item = get_proper_type(map_instance_to_supertype(given, iterable.type).args[0])
        parts = [get_proper_type(each) for each in (item.items if isinstance(item, UnionType) else [item])]
        if any(isinstance(each, Instance) and each.type.fullname == "builtins.float" for each in parts):
            # `sum` is overloaded: mypy tries the next overload, and prints that this one refuses instead of the text
            print(f"{context.api.path}:{context.context.line}: {TEXT}", file=sys.stderr)
            context.api.fail(TEXT, context.context)
    return context.default_return_type


class Sums(Plugin):
    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return _checked if fullname == "builtins.sum" else None


def plugin(version: str) -> type[Plugin]:
    return Sums
