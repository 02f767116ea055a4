"""The scenario of a launch command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.config.yaml_document import as_node
from hermes.config.yaml_writer import to_yaml
from hermes.deploy.vllm import Read
from hermes.scenario import scenario_of

__all__ = ["scenario_text"]


def scenario_text(read: Read, *, device: str, engine: str | None, rate: str, workload: str) -> str:
    """Return the scenario of a launch command as YAML, with a workload to replace. Raises `InputError` if it is none
    that can be simulated."""
    client: dict[str, Any] = {"name": "llm", **read.client, "device": device}
    if engine is not None:
        client["engine"] = engine
    document = {
        "name": str(read.client["model"]).rsplit("/", 1)[-1],
        "workload": {"requests": 1000, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "empirical", "profile": workload}},
        "clients": [client], "slo": {"ttft": "1 s", "tpot": "50 ms"},
    }
    scenario_of(as_node(document), Path())
    left = [f"not modelled: {', '.join(read.not_modelled)}"] if read.not_modelled else []
    left += [f"unknown: {', '.join(read.unknown)}"] if read.unknown else []
    header = ["From a vllm serve command. Replace the workload and the SLO by yours.", *left]
    return to_yaml(document, "\n".join(header), compact=True)
