"""A loop like HyDE's on a real device, compared with its simulation.

The collector (`hermes.calibration.collect.ivf_overlap_cuda`) times generation, copy and scan apart, and then the loop:
the copy beside the generation, then the scan. Here pipeline `telerag-hyde` runs with these three times, with the copy
as a flow on a link, and predicts the loop's time.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.hardware.profile import PhaseProfile, Phases, Profile, ProfileTerm, Provenance, dump_yaml
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

__all__ = ["compared", "simulated_loop_s"]

_CLUSTERS = 64


def simulated_loop_s(loop: dict[str, Any]) -> float:
    """Return seconds from the start of the generation to the end of the scan. loop: as the collector returns it."""
    with TemporaryDirectory() as folder:
        _write_engine(Path(folder) / "steps.yaml", loop["generate_s"] / loop["steps"])
        checked = load_scenario(_content(loop, str(Path(folder) / "steps.yaml")))
        simulation = build(checked)
        stages = Results(simulation.run(), {"name": checked.name}, checked.slo).stages
    searched = stages[stages["kind"] == "gpu_search"]["end_s"].iloc[0]
    return float(searched - stages[stages["kind"] == "generate"]["start_s"].iloc[0])


def compared(loop: dict[str, Any]) -> dict[str, Any]:
    """Return the loop with `simulated_s` and `error`, simulated over measured - 1."""
    seconds = simulated_loop_s(loop)
    return {**loop, "simulated_s": seconds, "error": round(seconds / loop["loop_s"] - 1, 4)}


def _write_engine(path: Path, step_s: float) -> None:
    """Hardware model whose steps all take this long."""
    phase = PhaseProfile(terms=[ProfileTerm(term="1", seconds=step_s)])
    dump_yaml(Profile(
        format="hermes-profile/1", name="loop", phases=Phases(prefill=phase, decode=phase),
        provenance=Provenance(source="measured by hermes calibrate run (measure: ivf)", hardware="the measured device",
                              engine="torch", model="a product with a matrix", dtype="fp32", date="measured just now"),
    ), path, "Steps of the measured loop.")


def _content(loop: dict[str, Any], profile: str) -> dict[str, Any]:
    """HyDE at batch 1: all probed clusters are prefetched."""
    num_bytes = int(loop["copy_bytes"])
    return {
        "workload": {
            "requests": 1, "arrivals": {"kind": "closed_loop", "users": 1, "think": 0},
            "lengths": {"kind": "fixed", "prompt": 1, "output": 1},
            "pipeline": {"name": "telerag-hyde", "budget": num_bytes, "strength": 0.0, "nprobe": _CLUSTERS,
                         "embed": False, "window": int(loop["steps"])},
        },
        "clients": [
            {"kind": "ivf_index", "name": "index", "buffer": num_bytes, "index": {
                "clusters": _CLUSTERS, "total": num_bytes, "vector_bytes": 4 * int(loop["dim"]), "size_sigma": 0.0}},
            {"kind": "rag", "name": "cpu", "serves": {"miss_search": {"kind": "cluster_scan", "rate": 1e9}}},
            {"kind": "rag", "name": "gpu", "serves": {
                "prefetch": {"kind": "per_item"}, "merge": {"kind": "per_item"},
                "gpu_search": {"kind": "cluster_scan", "rate": num_bytes / loop["scan_s"]}}},
            {"name": "llm", "model": "llama-3.2-3b", "device": "rtx-4090",
             "hardware": {"kind": "polynomial", "profile": profile}},
        ],
        "network": {
            "kind": "topology", "nodes": ["host", "card"],
            "links": [{"a": "host", "b": "card", "bandwidth": num_bytes / loop["copy_s"]}],
            "attach": {"index": "host", "cpu": "host", "gpu": "card", "llm": "card"},
        },
    }
