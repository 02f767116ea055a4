"""`hermes profile`: list, show and import descriptions of hardware, models and workloads."""

from __future__ import annotations

from typing import Any

import typer

from hermes.cli.output import Answer, command_group
from hermes.cli.profile_import import ImportGroup
from hermes.cli.profile_show import described_names, engine_of, kind_of, phases_of, show

__all__ = ["profile"]


def _profiles() -> dict[str, dict[str, Any]]:
    """Return the shipped hardware profiles by name."""
    from hermes.hardware.descriptions.files import names_in
    from hermes.hardware.fitted.profile import load_profile

    out = {}
    for name in names_in(""):
        profile = load_profile(name)
        source = profile.provenance
        errors = {phase: part.error.mape for phase, part in phases_of(profile).items() if part.error is not None}
        engine, year = engine_of(profile)
        out[name] = {
            "model": source.model, "hardware": source.hardware, "tensor_parallel": source.tensor_parallel,
            "dtype": source.dtype, "engine": engine, "engine_year": year, "held_out_mape": errors,
            "kind": kind_of(profile),
        }
    return out


def list_() -> Answer:
    """List the names that scenarios can refer to."""
    from hermes.results.layout import Section

    profiles, names = _profiles(), described_names()
    rows = []
    for name, entry in profiles.items():
        errors = [f"{entry['held_out_mape'][p]:.1%}" if p in entry["held_out_mape"] else "-" for p in
                  ("prefill", "decode", "mixed")]
        engine = f"{entry['engine']} ({entry['engine_year'] or 'year not stated'})"
        rows.append([name, engine, *errors])   # names say device, tp and precision
    head = ["hardware profile", "engine", "prefill", "decode", "mixed"]
    others = [[what, name, _watts_of(name) if what == "devices" else ""]
              for what, found in names.items() for name in found]
    return Answer({"hardware profiles": profiles} | names, [
        Section("errors: held-out MAPE; hardware and measured steps: hermes profile show NAME", head, rows),
        Section("", ["what", "name", "watts"], others)])


def _watts_of(device: str) -> str:
    """Return class and range of a device's watts; nothing for one that states none."""
    from hermes.hardware.descriptions.devices import load_device
    from hermes.hardware.power import device_power, watts_trust

    described = load_device(device)
    return "" if device_power(described) is None else watts_trust(described).text()


profile = command_group("List, show and import hardware profiles and models.", {"list": list_, "show": show})
profile.add_typer(typer.Typer(cls=ImportGroup, help="Convert other tools' measurements to measured steps.",
                              no_args_is_help=True), name="import")
