"""`hermes profile show`: contents of a description."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer

if TYPE_CHECKING:
    from hermes.hardware.fitted.profile import PhaseProfile, Profile
    from hermes.results.layout import Section

__all__ = ["described_names", "engine_of", "kind_of", "phases_of", "show"]

AnyName = Annotated[
    str, typer.Argument(help="A name that `hermes profile list` prints, or the path of a profile file.",
                        show_default=False)]

FOLDERS = {
    "hardware tables": "tables", "models": "models", "devices": "devices", "analytical descriptions": "roofline",
    "efficiency factors": "efficiency", "links": "links", "memories": "memories", "engine overheads": "overhead",
    "times of a start": "start_up", "retrieval profiles": "retrieval", "lookahead profiles": "lookahead",
    "RAG data sets": "rag_datasets",
}
"""Kinds of description that `hermes profile list` prints besides hardware profiles -> folder of `hw_profiles`."""
WORKLOADS = "workload profiles"
YEARS = {range(14, 33): 2026}   # minor versions of vLLM 0.x -> year of their releases

_KINDS = (("aiconfigurator", "kernel tables"), ("operator tables", "kernel tables"), ("roofline", "analytical"))


def kind_of(profile: Profile) -> str:
    """Return the origin of the steps in two words: measured whole, composed from kernel tables, or computed."""
    text = f"{profile.provenance.source} {profile.provenance.engine}".lower()
    return next((kind for word, kind in _KINDS if word in text), "measured steps")


def engine_of(profile: Profile) -> tuple[str, int | None]:
    """Return name, version and year of the steps' engine: the year of the measurement, else of the release."""
    source = profile.provenance
    version = re.match(r"[\w-]+ [\d.]+", source.engine)
    engine = version[0] if version else "vLLM" if "vLLM" in source.engine else source.engine
    dated = re.match(r"\d{4}", str(source.date))
    if dated:
        return engine, int(dated[0])
    minor = re.match(r"vllm 0\.(\d+)", engine)
    return engine, next((year for minors, year in YEARS.items() if minor and int(minor[1]) in minors), None)


def described_names() -> dict[str, list[str]]:
    """Return the names of all shipped descriptions except hardware profiles, by kind."""
    from hermes.hardware.descriptions.files import names_in
    from hermes.workload.profiles import workload_profile_names

    return {what: names_in(folder) for what, folder in FOLDERS.items()} | {WORKLOADS: workload_profile_names()}


def phases_of(profile: Profile) -> dict[str, PhaseProfile]:
    """Return the phases of a profile by name."""
    parts = {"prefill": profile.phases.prefill, "decode": profile.phases.decode, "mixed": profile.phases.mixed}
    return {name: part for name, part in parts.items() if part is not None}


def show(name: AnyName) -> Answer:
    """Print a description in full: for a profile its source, range, errors, terms, memory and power."""
    from hermes.config.yaml_document import load_yaml
    from hermes.hardware.descriptions.files import names_in
    from hermes.hardware.fitted.profile import load_profile

    others = {what: _file(what, name) for what, found in described_names().items() if name in found}
    if not others or name in names_in(""):
        return _of_profile(load_profile(name))
    stated = {what: load_yaml(path).plain() for what, path in others.items()}
    parts = [f"{name} ({what}): {path.parent.name}/{path.name}\n\n{path.read_text(encoding='utf-8').rstrip()}"
             + ("\n" if len(others) > 1 else "")   # a device and its efficiency factors share a name
             for what, path in others.items()]
    return Answer(next(iter(stated.values())) if len(stated) == 1 else stated, parts)


def _file(what: str, name: str) -> Path:
    from hermes.config.data_files import resource_dir

    folder = resource_dir("traces") if what == WORKLOADS else resource_dir("hw_profiles") / FOLDERS[what]
    return folder / f"{name}.yaml"


def _of_profile(profile: Profile) -> Answer:
    source = profile.provenance
    lines = [
        ("engine", source.engine), ("source", source.source), ("kind", kind_of(profile)), ("date", str(source.date)),
        ("fitted by", source.fitted_by), ("memory", profile.memory.source if profile.memory else ""),
        ("power", profile.power.source if profile.power else ""),
        *(("left out", text) for text in source.excluded), *(("note", text) for text in source.notes),
    ]
    return Answer(profile.model_dump(mode="json"), [
        f"{profile.name}: {source.model} on {source.hardware}, TP{source.tensor_parallel}, {source.dtype}",
        *(f"  {label}: {text}" for label, text in lines if text), "", *_tables(profile)])


def _tables(profile: Profile) -> list[Section]:
    from hermes.results.layout import Section

    phases = phases_of(profile)
    out: list[Section] = []
    errors = [
        [name, part.points, f"{e.mape:.2%}", f"{e.in_sample_mape:.2%}", f"{e.worst:.1%}", f"{e.mse_s2:.3g}", e.method]
        for name, part in phases.items() if (e := part.error) is not None
    ]
    head = ["phase", "steps", "held-out MAPE", "in sample", "worst", "MSE, s^2", "method"]
    out.append(Section("errors", head, errors))
    ranges = [[name, key, low, high] for name, part in phases.items() for key, (low, high) in part.range.items()]
    out.append(Section("measured range", ["phase", "feature", "lowest", "highest"], ranges))
    terms = [[name, entry.term, f"{entry.seconds:.6g}"] for name, part in phases.items() for entry in part.terms]
    terms += [[name, "never below", f"{part.floor_s:.6g}"] for name, part in phases.items()]
    terms.append(["each step", "engine overhead", f"{profile.overhead_s:.6g}"])
    out.append(Section("terms", ["phase", "term", "seconds"], terms))
    worst = [
        [name, entry.configuration, entry.points, f"{entry.mape:.2%}"]
        for name, part in phases.items() if part.error is not None
        for entry in sorted(part.error.by_configuration, key=lambda group: -group.mape)[:3]
    ]
    if worst:
        out.append(Section("worst configurations, held out", ["phase", "configuration", "steps", "MAPE"], worst))
    noise = [
        [name, f"{part.noise.median_cv:.2%}", f"{part.noise.max_cv:.2%}", f"{part.noise.median_ci95:.2%}"]
        for name, part in phases.items() if part.noise is not None
    ]
    if noise:
        out.append(Section("noise of repeated steps", ["phase", "median CV", "largest CV", "median 95% interval"],
                           noise))
    if profile.memory is not None:
        memory = profile.memory
        rows: list[list[Any]] = [
            ["memory", memory.capacity_bytes], ["weights", memory.weights_bytes],
            ["activations and engine", memory.activation_bytes], ["KV cache of one token", memory.kv_bytes_per_token],
        ]
        out.append(Section("bytes of one device", ["", "bytes"], rows))
    if profile.power is not None:
        power = profile.power
        watts: list[list[Any]] = [["idle", power.idle_w], ["prefill", power.prefill_w], ["decode", power.decode_w]]
        out.append(Section("watts of one device", ["", "W"], watts))
    return [part for part in out if part.rows]
