"""A `vllm serve` command as an LLM client of a scenario, and the other way round."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

from hermes.clients.config import LLMClientConfig
from hermes.deploy.engine_words import EngineWords, of_text
from hermes.deploy.flags import Kind, Parser, settings_of
from hermes.deploy.options import options, pairs
from hermes.deploy.vllm_features import DRAFT_HEAD, FEATURES, MANY, SYNCHRONOUS, Features, Told, draft_config
from hermes.deploy.vllm_flags import (
    BESIDE,
    CAPACITY,
    EARLIER,
    FLAGS,
    NOT_MODELLED,
    ON,
    SHORT,
    SWITCHES,
    USUAL,
    Flag,
    canonical,
    whole_number,
)
from hermes.deploy.vllm_models import hub_name, precision_of, quantization_flag, simulated
from hermes.errors import InputError, Verbatim, inside, printable
from hermes.fleet.config import FleetConfig
from hermes.hardware.composed.term_sources import Backend
from hermes.hardware.descriptions.checkpoints import Stored
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.scenario import Scenario
from hermes.schedulers.chunked_config import ChunkedConfig

__all__ = ["Client", "Launch", "Read", "assumed_names", "checkpoint_of", "client_of", "command_lines", "commands_of",
           "launches_of", "parser", "set_flag", "set_key"]

Client = dict[str, Any]
"""Keys of a client of a scenario."""
_KV = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "float16": "bf16"}
_ALL2ALL = get_args(Backend)   # the first is the default
BLOCK_SIZE = 16   # vLLM's default on GPUs
_OWN = pairs("vllm", "own")   # flags that this module reads by name, and the keys that they set
_PATHS = [*((flag.path, name) for name, flag in FLAGS.items()),
          *((path, name) for name, path in (_OWN | pairs("vllm", "features")).items())]
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
"""KV transfer of clients that only prefill or decode: vLLM's connector for them."""


@dataclass
class Read:
    """A launch command that was read.

    Args:
        client: Keys of an LLM client.
        beside: Flags that do not change when a token is computed.
        not_modelled: Flags that may, and that the simulator does not model.
        unknown: Flags that are neither.
        notes: What the client's keys do not keep.
        given: Names of all flags, without dashes and without `no-`, and as they are given.
        engine: The words, and the container around them.
        mode: The performance mode, which changes defaults that depend on the device.
        drafts: Whether it has speculative decoding.
        role: The phases that it serves: `both`, `prefill` or `decode`.
        kv_bytes: KV memory of a device in bytes, where the command says it.
        shutdown_s: How long the engine goes on at SIGTERM.
        flags: Keys of the client, and the flags that set them.
    """

    client: Client
    beside: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    engine: EngineWords | None = None
    mode: str = "balanced"
    drafts: bool = False
    role: str = "both"
    kv_bytes: int | None = None
    shutdown_s: int | None = None
    flags: dict[str, str] = field(default_factory=dict)


@cache
def parser(dynamo: bool = False) -> Parser:
    """Return the flags of `vllm serve`, with those of Dynamo's worker where it starts the engine."""
    def kind(name: str) -> Kind:
        flag = FLAGS.get(name)
        is_switch = name in SWITCHES or (flag is not None and flag.kind in ("switch", "off"))
        return "switch" if is_switch else "values" if name in MANY else "value"

    kinds = {name: kind(name) for name in (*FLAGS, *BESIDE, *NOT_MODELLED, *FEATURES, *CAPACITY, *_OWN)}
    for name in [name for name, own in kinds.items() if own == "switch" and name not in EARLIER]:
        kinds[f"no-{name}"] = "switch"
        for prefix, inverse in (("enable-", "disable-"), ("disable-", "enable-")):
            if name.startswith(prefix):
                kinds.setdefault(inverse + name.removeprefix(prefix), "switch")
    if dynamo:
        kinds |= {word.rstrip("*+"): "switch" if word.endswith("*") else "values" if word.endswith("+") else "value"
                  for word in options("dynamo.vllm", "beside")}
    return Parser("vLLM", {name: own for name, own in kinds.items() if name not in EARLIER},
                  {name: kinds[name] for name in EARLIER}, SHORT, canonical)


def client_of(command: str | EngineWords, model: str | None = None, told: Told = Told()) -> Read:  # noqa: B008  (frozen)
    """Read a command such as `vllm serve MODEL --tensor-parallel-size 2`, or the words of one.

    Args:
        model: A model description of this project, or the path of a config.json, instead of the one that the command
            names.
        told: What the user states and no command does.

    Raises `InputError` for a command that is none, and for a model without a description.
    """
    engine = of_text(command)[0] if isinstance(command, str) else command
    dynamo = engine.program.startswith("dynamo")
    flags = parser(dynamo)
    words, oddities = settings_of(engine, flags)
    read = Read({}, engine=engine, not_modelled=oddities)
    named, given, lora, features = list[str](), dict[str, str](), False, Features()
    longer = engine.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true")
    for option in flags.read(words, named):
        name, value = option.name, option.value
        longer = longer or name == "rope-scaling" or (
            name.startswith("hf-overrides") and re.search("rope|max_position", f"{name} {value}") is not None)
        head = name.partition(".")[0]
        read.given[head.removeprefix("no-")] = head
        if features.add(name, value) or (dynamo and _dynamo(read, name, value)):
            continue
        if name in _OWN and value is not None:
            given[name] = value
        elif name.removeprefix("no-") == "enable-lora":
            lora = not name.startswith("no-")
        elif name in CAPACITY:
            usual, why = CAPACITY[name]
            if value != usual:
                raise InputError(Verbatim(f"not modelled: {why}; leave it out"), field=f"--{name}")
        elif name in FLAGS or name.removeprefix("no-") in FLAGS:
            set_flag(read.client, FLAGS[name.removeprefix("no-")], name, value, on=not name.startswith("no-"))
        else:
            _rest(read, name, value)
    unknown = [word for word in named if word.startswith("$")]
    read.unknown += [f"the value of {word}" for word in unknown]
    named = [word for word in named if word not in unknown] or [given[name] for name in ("model",) if name in given]
    if model is None and (not named or named[0].startswith("$")):
        raise InputError(Verbatim(f"the value of {(named or unknown)[0]} is not known: write the model's name, or add "
                                  "--model NAME" if named or unknown else
                                  "the command names no model: vllm serve MODEL ..."), field="command")
    if len(named) > 1 and model is None:
        read.unknown.append("a second model, or a value without its flag")
    own, how = (model, Stored()) if model is not None else checkpoint_of(named[0], read)
    read.client = _with_ranks({"model": own, **read.client})
    read.kv_bytes, read.shutdown_s = (_whole(given, name) for name in ("kv-cache-memory-bytes", "shutdown-timeout"))
    if lora:
        read.client.setdefault("scheduler", {"kind": "chunked"}).setdefault("max_loras", 1)
    else:   # vLLM ignores the slots
        read.client.get("scheduler", {}).pop("max_loras", None)
    kv, backend, dtype, quantization, rank = (given.get(name) for name in (
        "kv-cache-dtype", "all2all-backend", "dtype", "quantization", "max-lora-rank"))
    hardware: Client = {
        "kv_dtype": how.kv_dtype or None if kv in (None, "auto") else _known(_KV, "kv-cache-dtype", kv),
        "lora": {"rank": _rank(rank)} if lora and rank is not None else None,
        "dtype": precision_of(own, how, quantization and quantization.lower(), dtype and dtype.lower())}
    if kv in (None, "auto") and how.kv_dtype:
        read.notes.append(f"kv_dtype: the checkpoint asks for a KV cache in {how.kv_dtype.upper()}, which vLLM follows "
                          "without --kv-cache-dtype")
    if backend is not None and backend not in _ALL2ALL:
        read.not_modelled.append("--all2all-backend")
    elif backend not in (None, _ALL2ALL[0]) and {"dp", "ep"} <= read.client.get("parallel", {}).keys():   # else unused
        hardware["all2all"] = backend
    for key, value in hardware.items():
        if value is not None:
            set_key(read.client, "hardware", {"kind": "composed", key: value})
    _apply_features(read, features, told)
    if longer and "max_model_len" in read.client:   # than the model's own context, which vLLM then takes
        read.client["allow_mismatch"] = True
    read.flags = {path: f"--{read.given[name]}" for path, name in _PATHS if name in read.given}
    return read


def _dynamo(read: Read, name: str, value: str | None) -> bool:
    """Read a flag of Dynamo's worker; return whether it is one."""
    own = {word.rstrip("*+") for word in options("dynamo.vllm", "beside")}
    if name == "disaggregation-mode" and value in ("prefill", "decode"):
        read.role = value
    elif name in ("is-prefill-worker", "is-decode-worker"):
        read.role = name.split("-")[1]
    return name in own


def _rest(read: Read, name: str, value: str | None) -> None:
    """Name a flag that sets no key."""
    flag = name.removeprefix("no-").partition(".")[0]   # one field of it, in `--watchdog-config.timeout`
    default = flag in SWITCHES and (name == flag) == (flag in ON)
    beside = flag in BESIDE or (flag in NOT_MODELLED and default) or value in USUAL.get(flag, ())
    where = read.beside if beside else read.not_modelled if flag in NOT_MODELLED else read.unknown
    where.append(f"--{name}")


def checkpoint_of(name: str, read: Read) -> tuple[str, Stored]:
    """Return the client's name of a checkpoint, and how it is stored; note the part of the name that is lost."""
    own, how, note = simulated(name)
    read.notes += [note] if note is not None else []
    return own, how


def _apply_features(read: Read, features: Features, told: Told) -> None:
    """Set the keys of speculation, KV offload and CUDA graphs, and name what they leave out."""
    features.check_weights()
    features.read_compilation()
    read.mode = features.mode
    read.role = features.role if read.role == "both" else read.role
    if sizes := features.capture_sizes():
        set_key(read.client, "hardware", {"kind": "composed", "cudagraph_capture_sizes": sizes})
    drafts = features.speculative(told)
    if drafts is not None:
        read.drafts = True
        if "draft_model" in drafts and told.draft_model is None:
            with inside("--speculative-config"):
                drafts["draft_model"] = _draft_model(drafts["draft_model"], read)
        set_key(read.client, "scheduler.speculative", drafts)
        if features.plans_behind:
            set_key(read.client, "scheduler.async_scheduling", False)
    offload = features.kv_offload(read.client.get("memory", {}).get("block_size", BLOCK_SIZE))
    if offload is not None:
        set_key(read.client, "memory.kv_offload", offload)
        if read.client.get("scheduler", {}).get("async_scheduling") is not False:
            set_key(read.client, "scheduler.async_scheduling", False)
            features.not_modelled.append(SYNCHRONOUS)
    read.not_modelled += features.not_modelled


def _draft_model(name: str, read: Read) -> str:
    try:
        return checkpoint_of(name, read)[0]
    except InputError:
        raise InputError(Verbatim(f"no description of {name}, which drafts: save its config.json (from its page at "
                                  "Hugging Face), add --draft-model PATH; or add --draft-time, of one of its runs"),
                         field="model") from None


def _with_ranks(client: Client) -> Client:
    """Return the client's keys with what its ranks are: those of a dense model are so many clients."""
    parallel = client.get("parallel")
    if parallel is None:
        return client
    mixture = bool(load_model(client["model"]).num_experts)
    ranks, whole = parallel.get("dp", 1), parallel.pop("ep", False)
    if ranks > 1 and not mixture:
        del parallel["dp"]
        client["count"] = ranks
    if whole and mixture:
        parallel["ep"] = parallel.get("tp", 1) * ranks
    parallel = {key: value for key, value in parallel.items() if value != 1}
    rest = {key: value for key, value in client.items() if key != "parallel"}
    return {**rest, "parallel": parallel} if parallel else rest


def set_flag(client: Client, flag: Flag, name: str, value: str | None, *, on: bool) -> None:
    """Set the key of a flag. on: Whether it is given so, and not as its `no-`."""
    if flag.kind in ("switch", "off"):
        set_key(client, flag.path, on == (flag.kind == "switch"))
    elif value is None:
        raise InputError(Verbatim("needs a value"), field=f"--{name}")
    elif value not in (flag.default, "-1"):
        set_key(client, flag.path, flag.value(name, value))


def set_key(client: Client, path: str, value: Any) -> None:   # Any: a scenario's
    """Set a dotted key of a client; a mapping adds to what is there."""
    *above, last = path.split(".")
    for key in above:
        client = client.setdefault(key, {"kind": "chunked"} if key == "scheduler" else {})
    client[last] = {**client.get(last, {}), **value} if isinstance(value, Mapping) else value


def _whole(given: Mapping[str, str], name: str) -> int | None:
    return whole_number(name, given[name]) if name in given else None


def _rank(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InputError("a rank such as 16", text, field="--max-lora-rank")
    return int(text)


def _known(table: Mapping[str, str], name: str, value: str | None) -> str:
    if value is None or value not in table:
        raise InputError(f"one of {', '.join(table)} (set the precision of other kinds in the scenario)", value,
                         field=f"--{name}")
    return table[value]


@dataclass(frozen=True)
class Launch:
    """Launch of the engines of a group of LLM clients.

    Args:
        name: The group's.
        count: How many engines it has.
        role: `both`, `prefill` or `decode`.
        model: The model's name at Hugging Face, or the path of its description.
        flags: Flags of `vllm serve`, without those that transfer KV.
        devices: Devices of one engine.
        device: The name of their description, None where hardware that was fitted does not tell it.
        engine_version: The version of vLLM whose rules are simulated.
        path: Of the group in the scenario.
        fleet: How its replicas come and go.
    """

    name: str
    count: int
    role: str
    model: str
    flags: tuple[str, ...]
    devices: int
    device: str | None
    engine_version: str | None
    path: str
    fleet: FleetConfig | None

    @property
    def resource(self) -> str:
        """The name that the devices have in Kubernetes: of AMD's plug-in or of NVIDIA's."""
        return "amd.com/gpu" if (self.device or "").startswith("mi") else "nvidia.com/gpu"


def launches_of(scenario: Scenario) -> list[Launch]:
    """Return what starts every group of LLM clients whose scheduler is vLLM's.

    The flags state what was simulated, defaults of the engine included. Raises `InputError` without such a client.
    """
    out = []
    for index, client in enumerate(scenario.clients):
        if isinstance(client, LLMClientConfig) and isinstance(client.scheduler, ChunkedConfig):
            hardware = scenario.source.hardware.get(index)
            info = HardwareInfo(tp=client.parallel.tp) if hardware is None else hardware_info(hardware)
            tp, model = info.tp, client.memory_model(info, scenario.source.base_dir)
            if not model:
                raise InputError(Verbatim("no model: its hardware was fitted to one that has no description; name it"),
                                 field=f"clients.{index}.model")
            devices = tp * client.parallel.pp * client.parallel.dp
            out.append(Launch(
                str(client.name), client.count, client.role, hub_name(model),
                tuple(_flags(client, tp, scenario.source.base_dir)), devices, client.device,
                client.scheduler.engine_version, f"clients.{index}", client.fleet))
    if not out:
        raise InputError("a scenario with LLM clients whose scheduler is chunked", scenario.name, field="clients")
    return out


def commands_of(scenario: Scenario) -> list[tuple[str, str]]:
    """Return (name of the group, command) for every group of LLM clients; a group of several needs as many engines.

    Raises `InputError` without an LLM client.
    """
    out = []
    for launch in launches_of(scenario):
        transfer = [] if launch.role == "both" else ["--kv-transfer-config", json.dumps(TRANSFER)]
        words = ["vllm", "serve", launch.model, *launch.flags, *transfer]
        out.append((launch.name, " ".join(map(shlex.quote, words))))
    return out


def command_lines(scenario: Scenario) -> list[str]:
    """Return the commands as a shell script: a comment with the name, number and phase of each group, then its command.

    `hermes import vllm` reads the comments, since no flag has what they say.
    """
    groups = {str(client.name): client for client in scenario.clients if client.kind == "llm"}
    phases = {name: "" if client.role == "both" else f" ({client.role})" for name, client in groups.items()}
    return [f"# {printable(' '.join(name.split()))}: {groups[name].count} of them{phases[name]}\n{command}"
            for name, command in commands_of(scenario)]


def _flags(client: LLMClientConfig, tp: int, base_dir: Path | None) -> list[str]:
    scheduler, memory, hardware = client.scheduler, client.memory, client.hardware
    words, switches, written = list[str](), list[str](), set[tuple[str, str]]()
    for name, flag in FLAGS.items():
        value = tp if flag.path == "parallel.tp" else _at(client, flag.path)
        if name in _SAID:
            value = _SAID[name](client)
        if value is None or (flag.path, flag.kind) in written:   # a second name of a flag
            continue
        written.add((flag.path, flag.kind))
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if flag.kind in ("switch", "off"):
            switches.append(f"--{name}" if bool(value) == (flag.kind == "switch") else f"--no-{name}")
        elif text != flag.default:
            words += [f"--{name}", text]
        if name == "max-loras" and (rank := _at(hardware, "lora.rank")) is not None:
            words += ["--max-lora-rank", str(rank)]
    for name, said in (
        ("quantization", quantization_flag(client.model, _at(hardware, "dtype") or "auto", base_dir)[0]),
        ("kv-cache-dtype", "fp8" if _at(hardware, "kv_dtype") == "fp8" else None),
        ("all2all-backend", None if _at(hardware, "all2all") == _ALL2ALL[0] else _at(hardware, "all2all")),
        ("kv-transfer-config", memory.kv_offload and json.dumps({
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": memory.kv_offload.extra_config()})),
        ("speculative-config", scheduler.speculative and json.dumps(
            draft_config(scheduler.speculative, hub_name(scheduler.speculative.draft_model)))),
    ):
        words += [] if said is None else [f"--{name}", str(said)]
    if sizes := _at(hardware, "cudagraph_capture_sizes"):
        words += ["--cudagraph-capture-sizes", *map(str, sizes)]
    return words + switches


def _reserves(client: LLMClientConfig) -> bool | None:
    """Return the value of a flag that vLLM has from 0.19 on; None for its default."""
    has_flag = int(str(client.engine).rsplit(".", 1)[-1]) >= 19
    return False if has_flag and not client.scheduler.reserve_full_isl else None


_SAID: dict[str, Callable[[LLMClientConfig], bool | None]] = {
    "enable-expert-parallel": lambda client: client.parallel.ep > 1 or None,
    "enable-lora": lambda client: client.scheduler.max_loras is not None or None,
    "long-prefill-token-threshold-adaptive": lambda client: client.scheduler.adaptive_long_prefill_threshold or None,
    "scheduler-reserve-full-isl": _reserves}
"""Switches whose keys do not say whether they are on."""


def _at(config: object, path: str) -> Any:   # Any: of a scenario
    """Return the value of a key; None where a component has no such key, or is not there."""
    for key in path.split("."):
        config = getattr(config, key, None)
    return config


def assumed_names(scenario: Scenario) -> list[str]:
    """Return a line for each checkpoint that `hub_name` takes from the source of a description, or that none names."""
    engines = [client for client in scenario.clients if client.kind == "llm"]
    drafts = [drafts for client in engines if (drafts := _at(client.scheduler, "speculative")) is not None]
    named = dict.fromkeys([*(str(client.model) for client in engines),
                           *(one.draft_model for one in drafts if one.draft_model)])
    lines = [f"{hub_name(model)} is assumed for `model: {model}`; for another checkpoint of this shape, such as an "
             "Instruct one, write its name at Hugging Face as the model" for model in named if hub_name(model) != model]
    base_dir = scenario.source.base_dir
    missing = (quantization_flag(client.model, _at(client.hardware, "dtype") or "auto", base_dir)[1]
               for client in engines)
    lines += dict.fromkeys(line for line in missing if line is not None)
    heads = dict.fromkeys(one.method for one in drafts if draft_config(one, "").get("model") == DRAFT_HEAD)
    return lines + [f"write the checkpoint of the {method} head in place of {DRAFT_HEAD}; no command sets how many "
                    "drafts are accepted" for method in heads]
