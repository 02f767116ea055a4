"""`hermes profile`: the descriptions that come with hermes."""

from __future__ import annotations

import typer

from hermes.cli.output import Json, print_json, print_table
from hermes.cli.profile_import import ImportGroup

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    profile = typer.Typer(help="Hardware profiles, models, devices and workloads.", no_args_is_help=True)
    profile.command("list")(list_)
    importers = typer.Typer(
        cls=ImportGroup, help="Turn measurements from elsewhere into measured steps.", no_args_is_help=True
    )
    profile.add_typer(importers, name="import")
    app.add_typer(profile, name="profile")


def list_(as_json: Json = False) -> None:
    """List what scenarios can refer to by name."""
    from hermes.hardware.files import names_in
    from hermes.workload import workload_profile_names

    names = {
        "hardware profiles": names_in(""), "hardware tables": names_in("tables"), "models": names_in("models"),
        "devices": names_in("devices"), "workload profiles": workload_profile_names(),
    }
    if as_json:
        print_json(names)
    else:
        print_table("", ["what", "name"], [[what, name] for what, found in names.items() for name in found])
