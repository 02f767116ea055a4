"""`hermes services`: memory of a scenario's services, and cost of a batch by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer, Overrides, Scenario

if TYPE_CHECKING:
    from hermes.results.layout import Section

__all__ = ["services"]


def services(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    batch: Annotated[list[int], typer.Option(min=1, max=10**6, help="Tasks of a batch; repeatable.")] = [1, 64],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=0, max=10**9, help="Tokens of each task.")] = 512,
) -> Answer:
    """Print memory and costs of a scenario's services: flops, bytes and time of each phase of a batch."""
    from hermes.clients.service import ServiceClient
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    clients = build(load_scenario(scenario, overrides)).clients
    found = [client for client in clients if isinstance(client, ServiceClient)]
    memory = _memories(found)
    phases = [row for client in found for kind, service in client.services.items() for size in batch
              for row in _phases(client, kind, service, size, tokens)]
    parts = ([_section("Memory", memory), _section(f"Batches, {tokens:,} tokens a task", phases)] if found
             else ["no client of this scenario serves anything but generations and KV"])
    return Answer({"services": memory, "phases": phases}, parts)


def _memories(clients: list[Any]) -> list[dict[str, Any]]:
    """Return one row per service, with the recall of searches if a service states one."""
    services = [(client, kind, service) for client in clients for kind, service in client.services.items()]
    rows = [_memory(*service) for service in services]
    recalls = [getattr(service, "recall", None) for _, _, service in services]
    if any(recall is not None for recall in recalls):
        rows = [row | {"recall": recall} for row, recall in zip(rows, recalls, strict=True)]
    return rows


def _memory(client: Any, kind: str, service: Any) -> dict[str, Any]:
    spec = client.spec
    return {
        "client": client.name, "stage": kind, "device": spec.device.name if spec.device is not None else "-",
        "cores": spec.cores, "memory_bytes": service.memory_bytes, "of_bytes": spec.memory_bytes or None,
    }


def _phases(client: Any, kind: str, service: Any, size: int, tokens: int) -> list[dict[str, Any]]:
    """Return one row per phase; one row for the whole batch if the service reports no phases."""
    from hermes.core.stage import ServiceStage
    from hermes.services import PhaseCost

    tasks = [ServiceStage(kind, tokens=tokens) for _ in range(size)]
    costs = getattr(service, "costs", None)
    found = costs(tasks) if costs is not None else [PhaseCost("batch", 0.0, 0.0, service.work(tasks).alone_s, "-")]
    return [
        {"client": client.name, "stage": kind, "batch": size, "phase": cost.name, "flops": cost.flops,
         "bytes": cost.num_bytes, "seconds": cost.seconds, "bound": cost.bound} for cost in found
    ]


def _section(title: str, rows: list[dict[str, Any]]) -> Section:
    from hermes.results.layout import Section

    scales = {"memory_bytes": ("GB", 1e9), "of_bytes": ("of GB", 1e9), "flops": ("GFLOP", 1e9), "bytes": ("MB", 1e6),
              "seconds": ("ms", 1e-3)}
    names = [scales[name][0] if name in scales else name for name in rows[0]]
    return Section(title, names, [
        ["-" if value is None else value / scales[name][1] if name in scales else value for name, value in row.items()]
        for row in rows
    ])
