"""What single causes are worth on the recorded servers: mean errors with one of them left out or treated otherwise.

    python scripts/server_causes.py DATA
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from evidence.accuracy import h100_sets, recorded
from evidence.accuracy.served import Row
from hermes.config.data_files import resource_dir
from hermes.results.layout import markdown_table

Client = dict[str, Any]
FIGURES = (("ttft", "mean"), ("ttft", "p99"), ("e2e", "mean"))


def card(folder: Path, name: str, **changes: Any) -> str:
    """Write a shipped device with keys changed, None for left out; returns its path."""
    data = yaml.safe_load((resource_dir("hw_profiles") / "devices" / f"{name}.yaml").read_text())
    data = {key: value for key, value in (data | changes).items() if value is not None}
    path = folder / f"{name}-{'-'.join(changes)}.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def with_hardware(client: Client, **options: Any) -> Client:
    """The client with options of its hardware."""
    return client | {"hardware": {"kind": "composed", **client.get("hardware", {}), **options}}


def variants(folder: Path) -> Iterator[tuple[str, Callable[[Client], Client]]]:
    """(what is changed, how a client changes)."""
    def on(**changes: Any) -> Callable[[Client], Client]:
        return lambda client: client | {"device": card(folder, client["device"], **changes)}

    yield "all terms", lambda client: client
    yield "clocks that never sink", on(clocks=None)
    yield "KV read by each query head", on(mixed_attention="per_head")
    yield "both", on(clocks=None, mixed_attention="per_head")
    yield "no cost of top-p", lambda client: with_hardware(client, top_p=False)
    yield "no first step of an idle engine", lambda client: with_hardware(client, step={
        "exposed": "0.8 ms", "uncaptured": "0.3 ms", "host": "0.55 ms", "host_per_seq": "32 us"})
    yield "element-wise operators from memory", on(cache=None)


def main() -> None:
    """Print one table."""
    data, found = Path(sys.argv[1]), {}
    replay, simulate = h100_sets.replay, recorded.simulate
    with tempfile.TemporaryDirectory() as temporary:
        for name, change in variants(Path(temporary)):
            h100_sets.replay = lambda client, *more, change=change, **options: (
                replay(change(dict(client)), *more, **options))
            recorded.simulate = lambda scenario, change=change: simulate(scenario | {"clients": [
                change(client) if client.get("hardware", {}).get("kind") != "layerwise" else client
                for client in scenario["clients"]]})
            for rows in (h100_sets.residency, h100_sets.blis_experiments, h100_sets.blis_training,
                         recorded.recorded_runs):
                for row in rows(data):
                    note(found, name, row)
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print(markdown_table(("server", "error of", *names), [
        (server, figure, *(f"{100 * errors[name]:+.1f}%" for name in names))
        for (server, figure), errors in found.items()]))


def note(found: dict[tuple[str, str], dict[str, float]], name: str, row: Row) -> None:
    """Keep the figures that the table shows."""
    if (row.metric, row.stat) in FIGURES and row.case.set != "RTX, layerwise":
        server = f"{row.case.model} on {row.case.card}, {row.case.case} ({row.case.set})"
        found.setdefault((server, f"{row.metric} {row.stat}"), {})[name] = row.error


if __name__ == "__main__":
    main()
