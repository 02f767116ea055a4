"""The scenario of a launch command, or of the deployments in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.config.yaml_document import Node
from hermes.deploy.engine_words import EngineWords, engine_of_image, of_command
from hermes.deploy.manifests_read import groups_of, is_yaml, placed
from hermes.deploy.vllm import Read, client_of
from hermes.deploy.vllm_features import SYNCHRONOUS, Told, apply_mode
from hermes.deploy.vllm_flags import FLAGS
from hermes.engine.compatibility import OFFLOAD_VERSIONS
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, load_engine
from hermes.hardware.descriptions.models import load_model
from hermes.schedulers.chunked_config import is_since, newer_keys

__all__ = ["Source", "read_source"]

KV_TRANSFER = "--kv-transfer-config"
IDLE_ADAPTERS = ("--enable-lora: the workload has no adapters, so that their slots stay idle; write "
                 "`adapters: {count: N}` in it")
FIRST_RATE = 4.0   # of one engine, where the search for a rate begins


@dataclass
class Source:
    """Engines that were read, with the remarks on them.

    Args:
        clients: Groups of LLM clients of a scenario.
        warnings: What is not modelled or unknown, one each.
        notes: What stands for something that the command leaves open.
        router: A kind of router that was asked for, or None.
        name: The scenario's.
        drafts: Whether an engine has speculative decoding.
    """

    clients: list[dict[str, Any]]
    name: str
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    router: str | None = None
    drafts: bool = False

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(str(client["model"]) for client in self.clients))

    def document(self, model: str, workload: str, rate: float | None) -> dict[str, Any]:
        """Return a scenario of the engines of a model. rate: Requests per second of all engines together."""
        mine = [client for client in self.clients if client["model"] == model]
        engines, everyone = (sum(client.get("count", 1) for client in clients) for clients in (mine, self.clients))
        own = FIRST_RATE * engines if rate is None else rate * engines / everyone
        load: dict[str, Any] = {"requests": 1000, "arrivals": {"kind": "poisson", "rate": own},
                                "lengths": {"kind": "empirical", "profile": workload}}
        if len(self.models) > 1:
            load = {"name": model.rpartition("/")[2], "model": model, **load}
        document: dict[str, Any] = {"name": self.name, "workload": load, "clients": mine}
        if everyone > 1:
            document["router"] = {"kind": self.router} if self.router else {"kind": "least_loaded", "load": "requests"}
        return {**document, "slo": {"ttft": "1 s", "tpot": "50 ms"}}


def read_source(text: str, file: str | None, *, device: str, engine: str | None, model: str | None,
                told: Told = Told()) -> Source:  # noqa: B008  (frozen)
    """Read a launch command, or a file of manifests or Helm values.

    Args:
        text: The command, or the file's text.
        file: The file's name; None for a command.
        engine: Version for all engines, instead of the one of their image.
        model: Description for all engines, instead of the model that they name.
        told: What the user states of all engines, and no command does.

    Raises `InputError` for what is neither, and for a model without a description.
    """
    if file is None and not is_yaml(text):
        words = of_command(text)
        source = Source([], "")
        source.clients.append(_client("llm", 1, "both", words, None, source, device, engine, model, told))
    else:
        found = groups_of(text, file)
        source = Source([], "", router=found.router)
        source.warnings += [f"not modelled: {name}" for name in found.not_modelled]
        source.warnings += [f"unknown: {name}" for name in found.unknown]
        for group in found.groups:
            with placed(group.at):
                source.clients.append(_client(group.name, group.count, group.role, group.engine, group.at, source,
                                              device, engine, model, told))
    if not source.drafts:
        told.check_needed()
    source.name = " and ".join(Path(name).stem if Path(name).exists() else name.rpartition("/")[2]
                               for name in source.models)
    return source


def _client(name: str, count: int, role: str, words: EngineWords, at: Node | None, source: Source, device: str,
            engine: str | None, model: str | None, told: Told) -> dict[str, Any]:
    """Return the keys of a group of clients, and add to the source what the user should know of it."""
    read = client_of(words, model, told)
    whose = "" if at is None else f" of {name}"
    if engine is None and words.image is not None:
        engine, note = engine_of_image(words.image)
        source.notes += [note] if note is not None and note not in source.notes else []
    source.drafts |= read.drafts
    _drop_newer(read, engine)
    read.notes += _with_mode(read, engine, device)
    if role != "both":   # the scenario's clients hand their KV over
        read.not_modelled = [flag for flag in read.not_modelled if flag != KV_TRANSFER]
    lines = [*(f"not modelled: {flag}{whose}" for flag in (*read.not_modelled, *words.variables)),
             *(f"unknown: {flag}{whose}" for flag in (*read.unknown, *words.unread))]
    source.warnings += [line for line in lines if line not in source.warnings]
    source.notes += [note for note in read.notes if note not in source.notes]
    if "max_loras" in read.client.get("scheduler", {}) and IDLE_ADAPTERS not in source.notes:
        source.notes.append(IDLE_ADAPTERS)
    _check_gpus(read, words, whose, source)
    own = {key: value for key, value in read.client.items() if key != "count"}
    total = count * read.client.get("count", 1)
    return {"name": name, **({"count": total} if total > 1 else {}), **({"role": role} if role != "both" else {}),
            **own, "device": device, **({"engine": engine} if engine is not None else {})}


def _with_mode(read: Read, engine: str | None, device: str) -> list[str]:
    """Put in the defaults that the performance mode changes; return the notes about it."""
    if read.mode == "balanced":
        return []
    with inside("--device"):
        described = load_device(device)
    longest = read.client.get("max_model_len") or load_model(read.client["model"]).max_context
    return apply_mode(read.client, read.mode, load_engine(engine or NEWEST_ENGINE), described, longest)


def _drop_newer(read: Read, engine: str | None) -> None:
    """Take keys out of the client whose rules its engine does not have, and name their flags as not modelled."""
    if engine is None:
        return
    with inside("engine"):
        version = load_engine(engine).version
        newer = newer_keys(version)
    scheduler = read.client.get("scheduler", {})
    if not is_since(load_engine(engine).rules, "0.33.0") and read.client.get("parallel", {}).get("dp", 1) == 1:
        scheduler.pop("prefill_schedule_interval", None)   # vLLM ignores it without ranks
    if "kv_offload" in read.client.get("memory", {}) and version not in OFFLOAD_VERSIONS:
        del read.client["memory"]["kv_offload"]
        if SYNCHRONOUS in read.not_modelled:
            read.not_modelled.remove(SYNCHRONOUS)
            del scheduler["async_scheduling"]
        read.not_modelled.append(f"KV offload with {engine} (only {' and '.join(OFFLOAD_VERSIONS)})")
    for key in [key for key in scheduler if key in newer]:
        del scheduler[key]
        flags = " and ".join(f"--{name}" for name, flag in FLAGS.items()
                             if flag.path == f"scheduler.{key}" and name in read.given) or "--speculative-config"
        read.not_modelled.append(f"{flags} with {engine} (only from {newer[key].removeprefix('vllm-')} on)")


def _check_gpus(read: Read, words: EngineWords, whose: str, source: Source) -> None:
    """Warn if a container has other devices than its engine takes."""
    parallel = read.client.get("parallel", {})
    needs = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", read.client.get("count", 1))
    if words.gpus is not None and words.gpus != needs:
        source.warnings.append(f"the container{whose} has {words.gpus} GPUs, its engine takes {needs} "
                               "(--tensor-parallel-size)")


def together(documents: Sequence[dict[str, Any]], source: Source) -> dict[str, Any]:
    """Return one scenario of those of single models; limits of their own stay theirs."""
    if len(documents) == 1:
        return documents[0]
    usual = {"ttft": "1 s", "tpot": "50 ms"}
    own = {document["workload"]["name"]: document["slo"] for document in documents if document["slo"] != usual}
    if len({document["workload"]["name"] for document in documents}) < len(documents):
        raise InputError(Verbatim("two of the models have the same name: import them one by one"), field="model")
    return {**documents[0], "workload": [document["workload"] for document in documents], "clients": source.clients,
            "slo": {**usual, **({"workloads": own} if own else {})}}
