"""The scenario of a launch command, or of the deployments in a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hermes.config.files import MAX_BYTES
from hermes.config.yaml_document import read_text
from hermes.deploy.engine_words import ENGINES, EngineWords, engine_of_image, of_text
from hermes.deploy.manifests_read import Group, groups_of, is_yaml
from hermes.deploy.refusals import Written, explaining, placing
from hermes.deploy.sglang_command import set_chunk, sglang_client
from hermes.deploy.trtllm_command import trtllm_client
from hermes.deploy.vllm import Client, Read, client_of
from hermes.deploy.vllm_features import KV_TRANSFER, SYNCHRONOUS, Told, apply_mode
from hermes.deploy.vllm_flags import FLAGS
from hermes.engine.compatibility import OFFLOAD_VERSIONS
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, load_engine
from hermes.hardware.descriptions.models import load_model
from hermes.scenario import load_scenario
from hermes.schedulers.chunked_config import is_since, newer_keys

__all__ = ["ENGINES", "Source", "read_source", "text_of", "together"]

READERS: dict[str, Callable[[EngineWords, str | None, Told], Read]] = {
    "vllm": client_of, "sglang": sglang_client, "trtllm": trtllm_client}
IDLE_ADAPTERS = ("--enable-lora: the workload has no adapters, so that their slots stay idle; write "
                 "`adapters: {count: N}` in it")
EXPORTED = re.compile(r"(?m)^# (\S.{0,99}): (\d{1,6}) of them(?: \((prefill|decode)\))?$")
FIRST_RATE = 4.0   # of one engine, where the search for a rate begins
FILES = (".yaml", ".yml", ".json", ".sh", ".txt", ".bash", ".slurm", ".sbatch")
# what a warning is about, the largest effect first; `unknown` may be anything
EFFECTS = (r"GPUs, its engine takes", r"kv-|KV|[cC]ache|offload|parallel|nnodes|speculative|lora|LoRA|quanti|sliding",
           r"unknown|overrides", r"--", r"")


@dataclass
class Source:
    """Engines that were read, with the remarks on them.

    Args:
        clients: Groups of LLM clients of a scenario.
        warnings: What is not modelled or unknown, one each, the largest effect first.
        notes: What stands for something that the command leaves open.
        router: A kind of router that was asked for, or None.
        name: The scenario's.
        drafts: Whether an engine has speculative decoding.
        written: Where each group is written.
    """

    clients: list[Client]
    name: str
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    router: str | None = None
    drafts: bool = False
    written: list[Written] = field(default_factory=list, repr=False)   # its texts may have secrets

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(str(client["model"]) for client in self.clients))

    def document(self, model: str, workload: str, rate: float | None) -> Client:
        """Return a scenario of the engines of a model. rate: Requests per second of all engines together."""
        mine = [client for client in self.clients if client["model"] == model]
        engines, everyone = (sum(client.get("count", 1) for client in clients) for clients in (mine, self.clients))
        own = FIRST_RATE * engines if rate is None else rate * engines / everyone
        load: Client = {"requests": 1000, "arrivals": {"kind": "poisson", "rate": own},
                                "lengths": {"kind": "empirical", "profile": workload}}
        if len(self.models) > 1:
            load = {"name": model.rpartition("/")[2], "model": model, **load}
        document: Client = {"name": self.name, "workload": load, "clients": mine}
        if everyone > 1:
            document["router"] = {"kind": self.router} if self.router else {"kind": "least_loaded", "load": "requests"}
        return {**document, "slo": {"ttft": "1 s", "tpot": "50 ms"}}

    @contextmanager
    def explaining(self, model: str) -> Iterator[None]:
        """Turn refusals of the scenario of a model into refusals of what the user wrote."""
        with explaining([written for client, written in zip(self.clients, self.written, strict=True)
                         if client["model"] == model]):
            yield

    def check(self, document: Client) -> None:
        """Raise `InputError`, in the words of the command, for a scenario that cannot be loaded."""
        model = document["clients"][0]["model"]
        with self.explaining(model):
            load_scenario(document)


def text_of(word: str) -> tuple[str, str | None]:
    """Return the text that a command-line word stands for, and the name of the file that it is from: a command itself,
    a file, or standard input (`-`). Raises `InputError` for an input that is too long."""
    if word == "-":
        text = sys.stdin.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise InputError(f"at most {MAX_BYTES} characters on standard input", Verbatim("more"))
        return text, None
    is_file = len(word.split()) == 1 and (word.endswith(FILES) or Path(word).is_file())
    return (read_text(word), word) if is_file else (word, None)


def read_source(text: str, file: str | None, kind: str = "vllm", *, device: str, engine: str | None, model: str | None,
                told: Told = Told()) -> Source:  # noqa: B008  (frozen)
    """Read a launch command or script, or a file of manifests or Helm values.

    Args:
        text: The command, or the file's text.
        file: The file's name; None for a command.
        kind: The engine whose commands are read, of `ENGINES`.
        engine: Version for all engines, instead of the one of their image.
        model: Description for all engines, instead of the model that they name.
        told: What the user states of all engines, and no command does.

    Raises `InputError` for what is neither, and for a model without a description.
    """
    source = Source([], "")
    if model is not None:
        with inside("--model"):
            load_model(model)
    groups = _groups(text, file, kind, source)
    source.written = [_written(group, text, file) for group in groups]
    reads = []
    for group, written in zip(groups, source.written, strict=True):
        with placing(written):
            reads.append(READERS[kind](group.engine, model, told))
            written.flags = reads[-1].flags
    _pair(groups, reads, source)
    for group, read, written in zip(groups, reads, source.written, strict=True):
        with placing(written):
            source.clients.append(_client(group, read, source, device, engine, kind))
            if read.kv_bytes is not None:
                source.clients[-1]["memory"] = _with_kv(source.clients[-1], read.kv_bytes, written)
    _merge(source)
    if not source.drafts:
        told.check_needed()
    source.warnings.sort(key=_effect)
    source.notes.sort(key=lambda note: re.search("phases|outside of the known", note) is None)
    source.name = " and ".join(Path(name).stem if Path(name).exists() else name.rpartition("/")[2]
                               for name in source.models)
    return source


def _groups(text: str, file: str | None, kind: str, source: Source) -> list[Group]:
    """Return the engines of the kind that is asked for. Raises `InputError` without one."""
    if is_yaml(text):
        found = groups_of(text, file, kind)
        source.router = found.router
        source.warnings += [f"not modelled: {name}" for name in found.not_modelled]
        source.warnings += [f"unknown: {name}" for name in found.unknown]
        groups = found.groups
    else:
        try:
            engines = of_text(text, kind)
        except InputError as error:
            raise error.located(file=file) from None
        groups = [Group("llm" if not place else f"llm-{place + 1}", 1, "both", engine, None)
                  for place, engine in enumerate(engines)]
        exported = EXPORTED.findall(text)   # what `hermes export vllm` writes above each command
        for group, (name, count, role) in zip(groups, exported if len(exported) == len(groups) else (), strict=False):
            group.name, group.count, group.role = "-".join(name.split()), int(count), role or "both"
    groups = [group for group in groups if not _of_another(group.engine)] or groups
    own = [group for group in groups if group.engine.kind == kind]
    others = list(dict.fromkeys(group.engine.kind for group in groups if group.engine.kind != kind))
    if not own:
        other, at = others[0], next(group.at for group in groups)
        command = f"this starts {ENGINES[other]}, not {ENGINES[kind]}: hermes import {other} reads it"
        raise InputError(Verbatim(command), field="command", file=file,
                         line=None if at is None else at.mark.line)
    source.warnings += [f"left out: {group.name} is {ENGINES[group.engine.kind]} (hermes import {group.engine.kind})"
                        for group in groups if group.engine.kind != kind]
    return own


def _of_another(engine: EngineWords) -> bool:
    """Whether words start the part of an engine on a further node."""
    return "--headless" in engine.words or engine.number("--node-rank", 0) > 0


def _written(group: Group, text: str, file: str | None) -> Written:
    name = "" if group.at is None else group.name
    return Written(name, group.engine, nodes=(group.at,) if group.at is not None else (), text=text, file=file)


def _pair(groups: Sequence[Group], reads: Sequence[Read], source: Source) -> None:
    """Give each group its role: of a phase only where engines of the other one are there."""
    for group, read in zip(groups, reads, strict=True):
        group.role = group.role if group.role != "both" else read.role
    roles = {group.role for group in groups}
    if roles == {"prefill", "both"}:   # Dynamo's engines without a flag decode what others prefill
        for group in groups:
            group.role = "decode" if group.role == "both" and group.engine.program == "dynamo.vllm" else group.role
        roles = {group.role for group in groups}
    for group, read in zip(groups, reads, strict=True):
        if not {"prefill", "decode"} <= roles:
            if read.role != "both":
                other = "decode" if read.role == "prefill" else "prefill"
                source.notes.append(f"{group.name}: an engine for {read.role} without one for {other}: simulated as "
                                    "one that serves both phases")
            group.role = "both"


def _client(group: Group, read: Read, source: Source, device: str, engine: str | None, kind: str) -> Client:
    """Return the keys of a group of clients, and add to the source what the user should know of it."""
    words = group.engine
    whose = "" if group.at is None else f" of {group.name}"
    if engine is None and words.image is not None:
        engine, note = engine_of_image(words.image, kind)
        source.notes += [note] if note is not None and note not in source.notes else []
    engine = engine or {"trtllm": "trtllm-1.2"}.get(kind)
    source.drafts |= read.drafts
    if kind == "vllm":
        _drop_newer(read, engine)
        read.notes += _with_mode(read, engine, device)
    elif kind == "sglang":
        engine = None   # its scheduler has the rules
        with inside("--device"):
            read.notes += set_chunk(read.client, load_device(device))
    if group.role != "both":   # the scenario's clients hand their KV over
        read.not_modelled = [flag for flag in read.not_modelled if not flag.startswith(KV_TRANSFER)]
        if read.client.pop("api_servers", None) is not None:
            read.not_modelled.append("--api-server-count of an engine that serves one phase")
    variables = [words.variables[0] if len(words.variables) == 1 else f"the variables {', '.join(words.variables)}"
                 ] if words.variables else []
    lines = [*(f"not modelled: {flag}{whose}" for flag in (*read.not_modelled, *variables)),
             *(f"unknown: {flag}{whose}" for flag in (*read.unknown, *words.unread))]
    source.warnings += [line for line in lines if line not in source.warnings]
    source.notes += [note for note in read.notes if note not in source.notes]
    if "max_loras" in read.client.get("scheduler", {}) and IDLE_ADAPTERS not in source.notes:
        source.notes.append(IDLE_ADAPTERS)
    _check_gpus(read, words, whose, source)
    own = {key: value for key, value in read.client.items() if key != "count"}
    total = group.count * read.client.get("count", 1)
    return {"name": group.name, **({"count": total} if total > 1 else {}),
            **({"role": group.role} if group.role != "both" else {}), **own, "device": device,
            **({"engine": engine} if engine is not None else {}), **_fleet(group, read, source, kind, total)}


def _fleet(group: Group, read: Read, source: Source, kind: str, total: int) -> Client:
    """Return the key `fleet` of a group whose pods say how they start and end, and name what it leaves out."""
    life = group.engine.life
    found, notes = life.fleet(read.shutdown_s or 0, aborts=kind == "vllm") if life is not None else ({}, [])
    if found and ({"dp", "pp"} & read.client.get("parallel", {}).keys() or "api_servers" in read.client):
        source.warnings.append(f"not modelled: {' and '.join(found)} of the pods of {group.name}, whose engines have "
                               "ranks, stages or API servers")
        return {}
    source.notes += [f"{group.name}: {note}" for note in notes]
    return {"fleet": {"start": total, "start_up": {"kind": "phases"}, **found}} if found else {}


def _merge(source: Source) -> None:
    """Make one group of equal engines that a script starts one by one."""
    kept: list[int] = []
    for place, client in enumerate(source.clients):
        same = next((own for own in kept if not source.written[own].nodes and client["name"].startswith("llm-")
                     and {**source.clients[own], "name": "", "count": 1} == {**client, "name": "", "count": 1}), None)
        if same is None:
            kept.append(place)
        else:
            first = source.clients[same]
            total = first.get("count", 1) + client.get("count", 1)
            source.clients[same] = {"name": first["name"], "count": total, **{
                key: value for key, value in first.items() if key not in ("name", "count")}}
    source.clients = [source.clients[place] for place in kept]
    source.written = [source.written[place] for place in kept]


def _with_kv(client: Client, kv_bytes: int, written: Written) -> Client:
    """Return the memory of a client whose KV takes so many bytes of each device (`--kv-cache-memory-bytes`), whatever
    the share of the memory that the engine may use."""
    memory = {key: value for key, value in client.get("memory", {}).items() if key != "utilization"}
    if "num_blocks" in memory:   # vLLM: the number of blocks overrides what was found
        return memory
    one = {**client, "role": "both", "count": 1, "fleet": None, "memory": {**memory, "num_blocks": 1}}
    load = {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1, "output": 1}}
    with explaining([written]):
        config = (scenario := load_scenario({"workload": load, "clients": [one]})).clients[0]
        budget = config.engine_memory(scenario.source.hardware[0], None)
    blocks = int(kv_bytes * budget.devices // (budget.block_size * budget.kv_bytes_per_token))
    if blocks < 1:
        raise InputError(Verbatim("these bytes hold no block of KV; give more"), field="--kv-cache-memory-bytes")
    return {**memory, "num_blocks": blocks}


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
    with inside("--engine"):
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
        names = [name for name, flag in FLAGS.items() if flag.path == f"scheduler.{key}" and name in read.given]
        hardware = read.client.get("hardware", {})
        if key == "max_loras" and hardware.pop("lora", None) is not None:   # the rank is of adapters in one step
            names.append("max-lora-rank")
            if hardware == {"kind": "composed"}:
                del read.client["hardware"]
        flags = " and ".join(f"--{name}" for name in names) or "--speculative-config"
        read.not_modelled.append(f"{flags} with {engine} (only from {newer[key].removeprefix('vllm-')} on)")


def _check_gpus(read: Read, words: EngineWords, whose: str, source: Source) -> None:
    """Warn if a container has other devices than its engine takes."""
    parallel = read.client.get("parallel", {})
    needs = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", read.client.get("count", 1))
    if words.gpus is not None and words.gpus != needs:
        source.warnings.append(f"the container{whose} has {words.gpus} GPUs, its engine takes {needs} "
                               "(--tensor-parallel-size)")


def _effect(line: str) -> int:
    return next(place for place, pattern in enumerate(EFFECTS) if re.search(pattern, line))


def together(documents: Sequence[Client], source: Source) -> Client:
    """Return one scenario of those of single models; limits of their own stay theirs."""
    if len(documents) == 1:
        return documents[0]
    usual = {"ttft": "1 s", "tpot": "50 ms"}
    own = {document["workload"]["name"]: document["slo"] for document in documents if document["slo"] != usual}
    if len({document["workload"]["name"] for document in documents}) < len(documents):
        raise InputError(Verbatim("two of the models have the same name: import them one by one"), field="command")
    return {**documents[0], "workload": [document["workload"] for document in documents], "clients": source.clients,
            "slo": {**usual, **({"workloads": own} if own else {})}}
