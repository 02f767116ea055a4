"""The scenario that `hermes size` starts from, and the files that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hermes.config.writing import replacing
from hermes.config.yaml_document import as_node
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.explore.objective import rate_option
from hermes.explore.size import Sizing
from hermes.explore.size.groups import groups_in, only
from hermes.explore.size.spare import whole
from hermes.explore.size.text import chart, speed
from hermes.scenario import Scenario, load_scenario
from hermes.scenario.loading import apply_override, moved_path
from hermes.units import counted
from hermes.workload.base import ArrivalProcess
from hermes.workload.profiles import workload_profile_names

__all__ = ["Start", "from_options", "from_scenario", "write", "write_best"]

WINDOW_S, FEWEST, MOST = 60.0, 1000, 20_000   # arrivals of a simulation
TRACES = (".parquet", ".csv")
BEST = "best.yaml"


class Start(NamedTuple):
    """A scenario's document, and the folder that its paths are relative to."""

    document: dict[str, Any]
    base_dir: Path


def from_options(model: str | None, workload: str | None, rate: str | None, overrides: Sequence[str]) -> Start:
    """Return a scenario of a model, a workload and a rate, with one client that has no device yet.

    Requests arrive for a minute, at least 1,000 and at most 20,000 of them. A router sends each to the client with the
    fewest requests. Raises `InputError` for what is missing or unknown.
    """
    if model is None or workload is None or rate is None:
        name = "--model" if model is None else "--workload" if workload is None else "--rate"
        missing = "missing: give --model, --workload and --rate, or a scenario with lengths of your own"
        raise InputError(Verbatim(missing), field=name)
    per_s = rate_option(rate)
    lengths: dict[str, Any] = {"kind": "empirical", "profile": workload}
    if workload.endswith(TRACES):
        lengths = {"kind": "trace", "path": workload, "repeat": True}
    elif workload not in workload_profile_names():
        names = workload_profile_names()
        raise InputError(f"a workload profile ({', '.join(names)}) or a trace file ({' or '.join(TRACES)}); or give a "
                         "scenario with lengths of your own", workload, field="--workload",
                         suggestion=suggest(workload, names))
    requests = int(min(max(per_s * WINDOW_S, FEWEST), MOST))
    node = as_node({
        "name": f"{Path(model).stem if '/' in model else model} at {per_s:g} per s",
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": per_s}, "lengths": lengths},
        "clients": [{"model": model}], "router": {"kind": "least_loaded", "load": "requests"},
    })
    for override in overrides:
        node = apply_override(node, override, Path())
    return Start(node.plain(), Path())


def from_scenario(source: str, model: str | None, workload: str | None, rate: str | None, overrides: Sequence[str],
                  group: str | None = None) -> Start:
    """Return a scenario with the rate asked for (its requests in proportion). It has its own model and workload.

    group: Group of LLM clients to size, the others staying as they are; its clients stand first.
    """
    start = _from_scenario(source, model, workload, rate, overrides)
    names = list(groups_in(start.document)) if group is None else [group]
    return start._replace(document=only(start.document, names[0])) if len(names) == 1 else start


def _from_scenario(source: str, model: str | None, workload: str | None, rate: str | None, overrides: Sequence[str]
                   ) -> Start:
    for name, value in (("--model", model), ("--workload", workload)):
        if value is not None:
            raise InputError(Verbatim("the scenario has one of its own; change it with --set"), field=name)
    checked = load_scenario(source, overrides)
    if not any(client.kind == "llm" for client in checked.clients):
        raise InputError("a scenario with LLM clients", source, field="clients")
    if rate is None:
        return _start(checked)
    workloads = checked.workload
    own = getattr(workloads[0].arrivals, "rate", None) if len(workloads) == 1 else None
    if own is None or not isinstance(workloads[0].arrivals, ArrivalProcess):
        raise InputError("a scenario with one workload that has a rate (or leave --rate out)", source, field="--rate")
    more = [f"workload.arrivals.rate={rate_option(rate)!r}"]
    if workloads[0].requests is not None:
        more.append(f"workload.requests={max(1, round(workloads[0].requests * rate_option(rate) / own))}")
    return _start(load_scenario(source, [*overrides, *more]))


def _start(checked: Scenario) -> Start:
    assert checked.source.node is not None
    return Start(checked.source.node.plain(), checked.source.base_dir)


def write(sizing: Sizing, folder: Path) -> None:
    """Write `front.png`, if a simulation was not ended early, and `best.yaml`, if a layout meets the SLO."""
    from hermes.results.plots import image

    folder.mkdir(parents=True, exist_ok=True)
    if any(speed(tried) for tried in sizing.tried):
        with replacing(folder / "front.png") as path:
            path.write_bytes(image(chart(sizing), "png"))
    if not sizing.meets:
        return
    best = sizing.meets[0]
    write_best(whole(sizing, best), sizing.scenario.source.base_dir,
               f"{best.label}, {counted(best.devices, 'device')}", folder)


def write_best(document: dict[str, Any], base_dir: Path, what: str, folder: Path) -> None:
    """Write `best.yaml`: a scenario with the clients found."""
    folder.mkdir(parents=True, exist_ok=True)
    text = to_yaml(document, f"hermes size: {what}", lambda value: moved_path(value, base_dir, folder))
    with replacing(folder / BEST) as path:
        path.write_text(text, encoding="utf-8", newline="\n")
