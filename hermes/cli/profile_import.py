"""`hermes profile import KIND ...`: one command per registered importer, made from its fields on demand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

__all__ = ["ImportGroup"]

Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="STEPS.yaml", help="Header to write; the rows are written beside it.")
]


class ImportGroup(TyperGroup):
    """Command group of the registered importers, plug-ins included. It imports an importer only when asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from hermes.calibration.importers import IMPORTERS

        return IMPORTERS.names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from hermes.calibration.importers import IMPORTERS

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(cmd_name)(_command(IMPORTERS.get(cmd_name)))
        return typer.main.get_command(app)


def _command(importer: type[Any]) -> Callable[..., None]:
    """Return a function with the importer's fields and `--output` as its signature; typer builds a command from it."""

    from hermes.config import field_docs

    def run(**values: Any) -> None:
        output = values.pop("output")
        _import(importer, {name: value for name, value in values.items() if value is not None}, output)

    docs = field_docs(importer)  # type: ignore[arg-type]  # classes are hashable
    fields = importer.model_fields.items()
    parameters = [_parameter(name, field, docs.get(name, "")) for name, field in fields if name != "kind"]
    parameters.append(inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, annotation=Output))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = importer.__doc__
    return run


def _scalar(annotation: Any) -> type | None:
    """Return int, float or bool for an annotation of that type, however wrapped: `float`, `int | None`,
    `Annotated[float, Field(...)] | None`."""
    if annotation in (int, float, bool):
        return annotation  # type: ignore[no-any-return]
    if get_origin(annotation) is Literal:
        return None
    return next((kind for part in get_args(annotation) if (kind := _scalar(part)) is not None), None)


def _parameter(name: str, field: Any, doc: str) -> inspect.Parameter:
    from hermes.calibration.importers.base import option_name

    kind = _scalar(field.annotation) or str  # choices are checked by the importer itself
    text = " ".join(doc.split())
    if name == "source":
        described: Any = typer.Argument(help=text, show_default=False)
    else:
        described = typer.Option(option_name(name), help=text)
    required = field.is_required()
    annotation: Any = Annotated[kind if required else (kind | None), described]
    default = inspect.Parameter.empty if required else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _import(importer: type[Any], values: dict[str, Any], output: Path) -> None:
    from hermes.calibration.steps import save_steps
    from hermes.config.validation import validate
    from hermes.errors import InputError
    from hermes.results.progress import ProgressBar
    from hermes.units import counted

    if output.suffix not in (".yaml", ".yml"):
        raise InputError("a file that ends in .yaml", str(output), field="--output")
    built = validate(importer, values)
    with ProgressBar("importing") as bar:
        steps = built.steps(bar.update)
    header = save_steps(steps, output)
    out = steps.rows.get("excluded", [])
    reasons = sum(reason != "" for reason in out)
    print(f"{output}: {counted(header.rows, 'step')} of {header.model} on {header.hardware}, TP{header.tensor_parallel}"
          + (f"; {counted(reasons, 'row')} marked excluded" if reasons else ""))
    for text in header.excluded:
        print(f"left out: {text}")
