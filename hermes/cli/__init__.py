"""The command `hermes`.

Each command imports its modules when it runs, so that `hermes --help` is immediate.

Exit codes:
- 2: a mistake of the user, with one line on stderr.
- 1: the answer is "no" (`conform`, `regress check`, `doctor`).
- 130: an interrupt.

Any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hermes import __version__
from hermes.cli.groups import Groups
from hermes.cli.output import add_command
from hermes.cli.paths import plugins_as_overrides, refuse_empty_names, without_plugins
from hermes.cli.streams import guarded_streams, silence_stdout
from hermes.errors import HermesError, InputWarning, printable, shown_once

__all__ = ["MODULES", "app", "command", "main"]

# typer brings its own copy of click in some versions; this is the base of usage errors in both
_USAGE_ERROR: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")

MODULES = {
    "scenarios": ("run", "validate", "schema", "scenarios"), "services": ("services",), "explain": ("explain",),
    "checks": ("conform", "compare", "regress"), "evidence": ("accuracy",), "traces": ("trace",),
    "profiles": ("profile",), "calibrate": ("calibrate",), "fit": ("fit",), "roofline": ("fit-roofline",),
    "observe": ("observe",), "study": ("study",),
    "fit_overhead": ("fit-overhead",),
    "pipelines": ("pipeline",), "network": ("network",), "plot": ("plot",), "report": ("report",), "sweep": ("sweep",),
    "advise": ("advise",),
    "availability": ("availability",), "capacity": ("capacity",), "size": ("size",), "optimize": ("optimize",),
    "deploy": ("import", "export"), "init": ("init",), "doctor": ("doctor",),
}
"""The commands of each module of this package: functions, or groups of commands, of the same name (`import_`)."""


def _version(value: bool) -> None:
    if value:
        from hermes.compiled import environment

        build, python, numpy = environment().values()
        print(f"hermes {__version__} ({build}, Python {python}, NumPy {numpy})")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@cache
def app(only: str = "") -> typer.Typer:
    """Return the application `hermes`, with the commands of one module of `MODULES`, or of all.

    Reading the signatures of all commands takes as long as reading and building a scenario.
    """
    made = typer.Typer(
        name="hermes", help="Simulate multi-stage LLM serving.", no_args_is_help=True, add_completion=True, cls=Groups,
        pretty_exceptions_enable=False, rich_markup_mode=None,
    )
    made.callback()(_root)
    for module in [only] if only else MODULES:
        found = importlib.import_module(f"hermes.cli.{module}")
        for name in MODULES[module]:
            word = name.replace("-", "_")
            add_command(made, name, getattr(found, f"{word}_" if iskeyword(word) else word))
    return made


@cache
def command(only: str = "") -> Callable[..., int | None]:
    """Return the click command of `app`. `_run` takes `--no-plugins` out of the arguments: here it is for `--help`."""
    found: Any = typer.main.get_command(app(only))
    option = _no_plugins_option()
    waiting = [found]
    while waiting:
        one = waiting.pop()
        one.params.append(option)
        waiting += one.commands.values() if isinstance(one, TyperGroup) else ()
    return found  # type: ignore[no-any-return]


def _no_plugins_option() -> Any:
    """Return the option as the installed typer makes one."""
    def taken(no_plugins: Annotated[bool, typer.Option(
            "--no-plugins", help="Refuse code that files name.")] = False) -> None:
        pass

    made = typer.Typer(add_completion=False)
    made.command()(taken)
    option = typer.main.get_command(made).params[0]
    option.expose_value = False
    return option


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if arguments is None:   # the process is ours: imports make half a million objects, none of them garbage
        gc.set_threshold(100_000)
        atexit.register(gc.freeze)   # nor are they freed one by one at exit
        if "calibrate" not in sys.argv:   # no command multiplies matrices that are worth a thread per core
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with guarded_streams(), warnings.catch_warnings():
        warnings.simplefilter("default", InputWarning)
        warnings.showwarning = shown_once()
        return _run(sys.argv[1:] if arguments is None else list(arguments))


def _run(given: Sequence[str]) -> int:
    try:
        given, refuses = without_plugins(given)
        if refuses:
            from hermes.config.own_code import refusing_own_code

            with refusing_own_code():
                return _run(given)
        refuse_empty_names(given)
        given = plugins_as_overrides(given)
        module = next((module for module, names in MODULES.items() if given and given[0] in names), "")
        code = command(module)(given, prog_name="hermes", standalone_mode=False)
        sys.stdout.flush()
    except HermesError as error:
        code = _refuse(str(error))
        try:
            sys.stdout.flush()
        except (HermesError, OSError):   # a full disk: the buffered text would fail again when the process ends
            silence_stdout()
        return code
    except _USAGE_ERROR as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help text
            print(message)
            return 0
        return _refuse(message)
    except BrokenPipeError:  # `hermes ... | head`: the reader has seen enough
        silence_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{name}{(error.strerror or str(error)).lower()}")
    if code == 130:
        print("hermes: interrupted", file=sys.stderr)
    return int(code or 0)


def _refuse(message: str) -> int:
    print("hermes:", printable(" ".join(message.split())), file=sys.stderr)
    return 2
