"""Output of commands: shared options, and the one function that prints an answer or dumps it as JSON."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from hermes.cli import complete
from hermes.cli.streams import terminal

if TYPE_CHECKING:
    from hermes.explore import Executor
    from hermes.results.layout import Part

__all__ = [
    "Answer", "DiagramFile", "DiagramFormat", "Json", "Options", "Overrides", "Plugins", "Quiet", "Scenario",
    "SearchOptions", "Verbose", "Workers", "add_command", "answering", "command_group", "cores", "print_or_write",
    "show", "to_json",
]

Scenario = Annotated[str, typer.Argument(
    help="A scenario file, or the name of a built-in one.", show_default=False, autocompletion=complete.scenarios)]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help=
                 "Set a.b=c or a.0.b=c in it, or append with a.b+=c; repeatable. `--plugin FILE` is short for "
                 "`--set plugins+=FILE`."),
]
Workers = Annotated[int, typer.Option(
    "--workers", min=-1, max=4096, help="Worker processes; 0 simulates in this process, -1 takes all cores.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DiagramFile = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FILE", help="Write to a .mmd (Mermaid) or .dot file instead of printing.")]
DiagramFormat = Annotated[Literal["mermaid", "dot"] | None, typer.Option(
    "--format", help="The language [the file's suffix, or Mermaid].")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Plugins = Annotated[bool, typer.Option(
    "--plugins", help="Run the plug-ins and programs that the folder of a run names.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every table instead of ten lines.")]


_AFTER_ASCII = re.compile("[\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        data: Plain data for `--json`.
        parts: What is printed without it: sections, and texts of one line or several.
        exit_code: Exit code of the command.
        further: Find what is printed after all this, in that order; their data join `data`, a dict then.
    """

    data: Any   # Any: of any command
    parts: Sequence[Part] = ()
    exit_code: int = 0
    further: Sequence[Callable[[], Answer]] = ()


class Options:
    """Base of data classes whose fields are options with defaults: a command with such a parameter has an option for
    each field (`add_command`)."""


@dataclass(frozen=True)
class SearchOptions(Options):
    """Where and how a command runs its simulations."""

    workers: Workers = -1
    executor: Annotated[str, typer.Option(
        "--executor", metavar="NAME", help="local: processes of this machine. ray: a Ray cluster. Or a plug-in's.")
    ] = "local"
    address: Annotated[str, typer.Option(
        "--address", metavar="HOST:PORT", help="Cluster to use; left out, the one of this machine, or a new one.")] = ""
    quiet: Quiet = False

    def executor_of(self, modules: Sequence[str] = ()) -> AbstractContextManager[Executor]:
        """Return the executor, closed at the end of a `with` block. modules: What its workers import first."""
        from hermes.explore.executors import make_executor

        return closing(make_executor(self.executor, self.workers, modules, self.address))


def add_command(app: typer.Typer, name: str, command: Callable[..., Any] | typer.Typer) -> None:
    """Add a command, or a group of them, by name. One that returns an `Answer` has it printed, and the option `--json`.
    """
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(answering(command) if command.__annotations__.get("return") == "Answer" else command)


def command_group(help_: str, commands: Mapping[str, Callable[..., Any]]) -> typer.Typer:
    """Return a group of commands by name."""
    group = typer.Typer(help=help_, no_args_is_help=True)
    group.callback()(lambda: None)   # a group, also of one command
    for name, command in commands.items():
        add_command(group, name, command)
    return group


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Return a command with the option `--json`, which prints the answer of `command`. A parameter that is `Options`
    becomes an option for each of its fields."""
    signature = inspect.signature(command, eval_str=True)
    grouped = {name: _fields(one) for name, one in signature.parameters.items()
               if inspect.isclass(one.annotation) and issubclass(one.annotation, Options)}

    @wraps(command)
    def run(*arguments: Any, as_json: bool, **options: Any) -> None:
        groups = {name: signature.parameters[name].annotation(**{one.name: options.pop(one.name) for one in fields})
                  for name, fields in grouped.items()}
        answer = command(*arguments, **options, **groups)
        if as_json:
            print(to_json(reduce(lambda data, find: data | find().data, answer.further, answer.data)))
        else:
            show(answer.parts)
            for find in answer.further:
                sys.stdout.flush()
                if parts := find().parts:
                    show(["", *parts])
        if answer.exit_code:
            raise typer.Exit(answer.exit_code)

    as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    parameters = [part for name, one in signature.parameters.items() for part in grouped.get(name, [one])] + [as_json]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _fields(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameters that the fields of a parameter's `Options` are."""
    hints = get_type_hints(parameter.annotation, include_extras=True)
    return [one.replace(annotation=hints[one.name]) for one in
            inspect.signature(parameter.annotation).parameters.values()]


def to_json(data: Any) -> str:
    """Return data as a JSON document. NaN and infinities become null."""
    text = json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)
    return _AFTER_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", text)   # json.dumps leaves these unescaped


def _plain(value: Any) -> Any:
    """Convert data classes, numpy scalars, paths and undefined numbers."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str | int | float) else str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def print_or_write(text: str | Iterable[str], output: Path | None, following: str = "") -> None:
    """Print a text, or pieces of it as they come, or write it to a file and say where it is and what to do next."""
    if output is None:
        sys.stdout.writelines([text] if isinstance(text, str) else text)
        return
    from hermes.config.writing import write_text

    write_text(output, "".join(text))
    print(f"written to {output}" + (f"; next: {following}" if following else ""))


def cores() -> int:
    """Return the number of cores of this machine."""
    return os.cpu_count() or 1


def show(parts: Sequence[Part]) -> None:
    """Print sections and texts: coloured and fitted to a terminal, otherwise as plain text.

    The width is that of the terminal, or COLUMNS, or 80 where standard output is no terminal.
    """
    from hermes.results.layout import WIDTH, to_rich, to_text

    drawn = sys.stdout.isatty()   # rich then writes escape sequences
    known = drawn or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if known else WIDTH
    if not drawn:
        print(to_text(parts, width), end="")
        return
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:   # rich would end the process with exit code 1
            raise BrokenPipeError

    Plain(file=terminal(), width=width).print(to_rich(parts, width), crop=False)
