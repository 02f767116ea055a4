"""What `hermes optimize` writes and prints: the front as a table, a figure, and scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes.config.writing import replacing, write_text
from hermes.explore.optimize import Found, Tried, scenario_text

__all__ = ["failed_lines", "front_rows", "plain", "write"]

MOST_SCENARIOS = 10
MOST_FAILED = 5


def plain(found: Found) -> dict[str, Any]:
    """Return a search as plain data."""
    config = found.space.config
    return {
        "name": config.name, "whole": found.whole, "tried": len(found.tried),
        "feasible": sum(one.feasible for one in found.tried),
        "refused": sum(bool(one.refused) for one in found.tried), "failed": len(found.failed),
        "objectives": dict(config.objectives), "front": [_entry(found, one) for one in found.front],
        "all": [_entry(found, one) for one in found.tried],
    }


def _entry(found: Found, one: Tried) -> dict[str, Any]:
    config = found.space.config
    entry: dict[str, Any] = {"settings": dict(one.settings), "long": one.long}
    if one.unsettled:
        entry = {**entry, "unsettled": one.unsettled}
    if one.refused:
        return {**entry, "refused": one.refused}
    if one.failed:
        return {**entry, "failed": one.failed}
    return {**entry, "objectives": dict(zip(config.objectives, one.values, strict=True)),
            "excess": dict(zip(config.constraints, one.excess, strict=True)), "feasible": one.feasible}


def failed_lines(found: Found) -> list[str]:
    """Return a line about each of the first settings whose simulation failed: what they are, and how it ended."""
    lines = [", ".join(f"{name}={_shown(value)}" for name, value in one.settings.items()) + f": {one.failed}"
             for one in found.failed[:MOST_FAILED]]
    more = len(found.failed) - MOST_FAILED
    return lines + ([f"and {more} more: front.json has all"] if more > 0 else [])


def front_rows(found: Found) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a table of the front."""
    config = found.space.config
    columns = ["", *(path.removeprefix("clients.0.").removeprefix("workload.") for path in config.space),
               *(f"{name} ({way[:3]})" for name, way in config.objectives.items())]
    rows = [[str(number), *map(_shown, one.settings.values()), *(f"{value:.4g}" for value in one.values)]
            for number, one in enumerate(found.front)]
    return columns, rows


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=repr)


def write(found: Found, folder: Path) -> list[str]:
    """Write front.json, front.png (with two objectives or more) and best-N.yaml; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["front.json"]
    write_text(folder / "front.json", json.dumps(plain(found), indent=1, default=repr) + "\n")
    for old in folder.glob("best-*.yaml"):
        old.unlink()
    for number, one in enumerate(found.front[:MOST_SCENARIOS]):
        write_text(folder / f"best-{number}.yaml", scenario_text(found.space, one.simulated, folder.resolve()))
        names.append(f"best-{number}.yaml")
    if len(found.space.config.objectives) > 1 and found.front:
        _draw(found, folder / "front.png")
        names.append("front.png")
    return names


def _draw(found: Found, path: Path) -> None:
    from hermes.explore.sweep.plots import front_panel
    from hermes.results.charts import Chart
    from hermes.results.plots import image

    x, y = (f"{name} ({way})" for name, way in list(found.space.config.objectives.items())[:2])
    groups: dict[str, list[tuple[float, float]]] = {"outside the constraints": [], "within them, beaten": []}
    for one in found.tried:
        if one.values and not any(one is best for best in found.front):
            name = "within them, beaten" if one.feasible else "outside the constraints"
            groups[name].append((one.values[0], one.values[1]))
    best = [(one.values[0], one.values[1], f"{number}") for number, one in enumerate(found.front)]
    panel = front_panel("First two objectives; numbers as in front.json", x, y, groups, best)
    title = f"{found.space.config.name}: {len(found.front)} of {len(found.tried)} settings are on the front"
    with replacing(path) as temporary:
        temporary.write_bytes(image(Chart(title, "", [panel]), "png"))
