"""Flags of `vllm serve` that stand for more than one key: speculation, KV offload, CUDA graphs, performance mode.

Read from the source of vLLM 0.32 and 0.33: SpeculativeConfig (vllm/config/speculative.py),
EngineArgs.create_speculative_config and _set_default_max_num_seqs_and_batched_tokens_args
(vllm/engine/arg_utils.py), in vllm/config/vllm.py
_post_init_kv_transfer_config and _set_cudagraph_sizes, and FlexibleArgumentParser (vllm/utils/argparse_utils.py).
Names of flags and fields are printed, values are not: they may be secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, get_args

from hermes.clients.tier_config import HostOffloadConfig
from hermes.deploy.options import options, pairs
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.engines import EngineDescription, device_class
from hermes.hardware.engine_memory import captured_sizes
from hermes.hardware.info import HardwareInfo
from hermes.schedulers.chunked_config import Speculation
from hermes.units import parse_duration

__all__ = ["FEATURES", "MANY", "Features", "Told", "apply_mode", "draft_config"]

JSON = {"speculative-config", "kv-transfer-config", "compilation-config"}
FEATURES = frozenset(JSON | {
    "spec-method", "spec-model", "spec-tokens", "kv-offloading-size", "kv-offloading-backend", "performance-mode",
    "optimization-level", "cudagraph-capture-sizes", "max-cudagraph-capture-size", "cpu-offload-gb",
    "offload-group-size",
})
"""The flags that this module reads."""
MANY = frozenset(options("vllm", "many"))
"""Flags that take one value or more."""

METHODS = get_args(Speculation.model_fields["method"].annotation)
HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator")   # what drafts is a checkpoint that no key names
UNPRICED = ("medusa", "mlp_speculator")
DRAFT_HEAD = "DRAFT_HEAD"
"""Stands in exported commands for the checkpoint of a head that drafts."""
SUFFIX_TOKENS = 24        # vLLM's suffix_decoding_max_tree_depth
# what they change is the acceptance, which is given, or nothing
SPECULATION_BESIDE, COMPILATION_BESIDE = options("vllm", "speculation_beside"), options("vllm", "compilation_beside")
OFFLOAD_KEYS = ("cpu_bytes_to_use", "blocks_per_chunk", "eviction_policy", "offload_prompt_only", "store_threshold")
OFFLOAD_BESIDE = {"block_size", "canonical_layout", "max_tracker_size", "self_describing_kv_events"}
TRANSFER_BESIDE = {"kv_connector", "kv_role", "kv_connector_extra_config", "engine_id", "kv_port", "kv_buffer_device",
                   "kv_load_failure_policy"}
KV_TRANSFER = "--kv-transfer-config"
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
CONNECTORS = pairs("vllm", "connectors")
"""Connectors of vLLM, and what they do."""
GIB = 2**30
FINE = 32                 # largest batch that performance mode interactivity captures without padding
SYNCHRONOUS = "asynchronous scheduling beside KV offload (--no-async-scheduling is simulated)"


@dataclass(frozen=True)
class Told:
    """Statements of the user about an engine that no command contains.

    Args:
        acceptance: Share of drafts that are accepted: one number, or one by position with commas between.
        draft_model: A model description of the drafter, instead of the command's.
        draft_time: Time of one run of the drafter.
    """

    acceptance: str | None = None
    draft_model: str | None = None
    draft_time: str | None = None

    def check_needed(self) -> None:
        """Raise `InputError` for what is said of drafts, of engines that have none."""
        for name, value in vars(self).items():
            if value is not None:
                raise InputError(Verbatim("no engine has speculative decoding; leave it out"),
                                 field=f"--{name.replace('_', '-')}")


@dataclass
class Features:
    """Values of the flags in `FEATURES` as a command gives them, and what is made of them.

    Args:
        flags: The last value of each flag that is no JSON.
        fields: Fields of the flags that are JSON.
        not_modelled: Fields that may change a result, and that nothing stands for.
    """

    flags: dict[str, str] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)   # Any: JSON
    dotted: set[str] = field(default_factory=set)   # flags that were set field by field
    not_modelled: list[str] = field(default_factory=list)

    def add(self, name: str, value: str | None) -> bool:
        """Note a flag, with `.FIELD` after its name or without; return whether it is one of these."""
        head, dot, path = name.partition(".")
        if head not in FEATURES or (dot and head not in JSON):
            return False
        if value is None:
            raise InputError(Verbatim("needs a value"), field=f"--{name}")
        if dot:
            if head not in self.dotted:   # vLLM's parser puts them behind a JSON object, which they replace
                self.dotted.add(head)
                self.fields[head] = {}
            self._set(head, path.removesuffix("+").replace("-", "_").split("."),
                      value.split(",") if path.endswith("+") else _scalar(value))
        elif head in JSON or value.lstrip().startswith("{"):   # older versions: -O '{...}'
            head = head if head in JSON else "compilation-config"
            if head not in self.dotted:
                self.fields[head] = _object(f"--{name}", value)
        else:
            self.flags[head] = value
        return True

    def _set(self, head: str, path: list[str], value: Any) -> None:   # Any: JSON
        place = self.fields.setdefault(head, {})
        for key in path[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise InputError(Verbatim(f"{key} has a value and fields"), field=f"--{head}")
        place[path[-1]] = value

    # -- speculation -------------------------------------------------------------------------------------------

    def speculative(self, told: Told) -> dict[str, Any] | None:   # Any: keys of `Speculation`
        """Return the scheduler's `speculative`, the draft model by the name that the command has; None without.

        Raises `InputError` for a method that is not modelled, and for an acceptance that is missing.
        """
        given = self._speculative_config()
        if given is None:
            return None
        method = _method(given)
        tokens = given.get("num_speculative_tokens")
        if tokens is None and method == "suffix":
            tokens = given.get("suffix_decoding_max_tree_depth", SUFFIX_TOKENS)
        if tokens is None or not _is_count(tokens):
            raise InputError("num_speculative_tokens, the drafts of each step (left out, vLLM takes it from the draft "
                             "model's config.json)", tokens, field="--speculative-config")
        found: dict[str, Any] = {"method": method, "num_speculative_tokens": int(tokens)}   # Any: as above
        found |= _acceptance(given, method, int(tokens), told)
        if method == "draft_model":
            if told.draft_model is not None or told.draft_time is None:
                found["draft_model"] = told.draft_model or str(given["model"])
        elif told.draft_model is not None:
            raise InputError(Verbatim(f"{method} has no model of its own; leave it out"), field="--draft-model")
        if told.draft_time is not None:
            with inside("--draft-time"):
                parse_duration(told.draft_time)
            found["draft_time"] = told.draft_time
        elif method in UNPRICED:
            raise InputError(Verbatim(f"missing: heads of {method} have no price here; add --draft-time 1ms, the time "
                                      "of one run of what drafts"), field="--draft-time")
        self._name("--speculative-config", given, SPECULATION_BESIDE)
        return found

    def _speculative_config(self) -> dict[str, Any] | None:   # Any: JSON
        """Return the fields of vLLM's `speculative_config`, those of its short flags included."""
        given = {key.replace("-", "_"): value for key, value in self.fields.get("speculative-config", {}).items()}
        for flag, key in (("spec-method", "method"), ("spec-model", "model"),
                          ("spec-tokens", "num_speculative_tokens")):
            if flag in self.flags:
                if key in given:
                    raise InputError(Verbatim(f"--speculative-config has {key}, too; leave one out"), field=f"--{flag}")
                given[key] = self.flags[flag]
        return given or None

    @property
    def plans_behind(self) -> bool:
        """Whether vLLM schedules synchronously because of the drafts, whatever their method."""
        return bool((self._speculative_config() or {}).get("disable_padded_drafter_batch"))

    # -- KV offload --------------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """The phases that the engine serves, as its KV transfer says: `both`, `prefill` or `decode`."""
        return next((ROLES[role] for transfer in self._transfers() if (role := transfer.get("kv_role")) in ROLES),
                    "both")

    def _transfers(self) -> list[dict[str, Any]]:   # Any: JSON
        """Return the KV transfer, and those that a MultiConnector has."""
        given = self.fields.get("kv-transfer-config", {})
        extra = given.get("kv_connector_extra_config")
        inner = extra.get("connectors", []) if isinstance(extra, dict) else []
        return [given, *(one for one in inner if isinstance(one, dict))]

    def kv_offload(self, block_size: int) -> dict[str, Any] | None:   # Any: keys of `HostOffloadConfig`
        """Return the memory's `kv_offload`, or None without it. block_size: Tokens of a KV block."""
        size, transfer = self.flags.get("kv-offloading-size"), dict(self.fields.get("kv-transfer-config", {}))
        if size is not None and size.lower() != "none":
            backend = self.flags.get("kv-offloading-backend", "native")
            if backend != "native":
                self.not_modelled.append(f"--kv-offloading-backend {backend} (its copies of KV in host memory)"
                                         if backend == "lmcache" else "--kv-offloading-backend")
                return None
            extra = transfer.get("kv_connector_extra_config") or {}
            transfer |= {"kv_connector": "OffloadingConnector",   # vLLM puts it in place of another one, too
                         "kv_connector_extra_config": {**extra, "cpu_bytes_to_use": _gib(size)}}
        elif not transfer:
            return None
        extra = transfer.get("kv_connector_extra_config") or {}
        if transfer.get("kv_connector") != "OffloadingConnector" or not isinstance(extra, dict):
            self.not_modelled += [f"{KV_TRANSFER} ({name}: {CONNECTORS[name]})" if name in CONNECTORS else KV_TRANSFER
                                  for name in dict.fromkeys(str(one.get("kv_connector")) for one in self._transfers())
                                  if name != "MultiConnector"]
            return None
        self._name("--kv-transfer-config", transfer, TRANSFER_BESIDE)
        if extra.get("spec_name", "CPUOffloadingSpec") == "CPUOffloadingSpec":
            extra = {key: value for key, value in extra.items() if key != "spec_name"}
        self._name("--kv-transfer-config.kv_connector_extra_config", extra, {*OFFLOAD_KEYS, *OFFLOAD_BESIDE})
        found = {key: extra[key] for key in OFFLOAD_KEYS if key in extra}
        if "block_size" in extra:
            tokens = extra["block_size"]
            if not _is_count(tokens) or int(tokens) % block_size:
                raise InputError(f"a multiple of {block_size} tokens, a KV block", tokens,
                                 field="--kv-transfer-config.kv_connector_extra_config.block_size")
            found["blocks_per_chunk"] = int(tokens) // block_size
        if "cpu_bytes_to_use" not in found:
            raise InputError(Verbatim("missing: the bytes of host memory"),
                             field="--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use")
        found = {key: int(value) if isinstance(value, float) and value == int(value) else value
                 for key, value in found.items()}
        return {key: value for key, value in found.items() if value != HostOffloadConfig.model_fields[key].default}

    # -- CUDA graphs and the rest ------------------------------------------------------------------------------

    def capture_sizes(self) -> list[int]:
        """Return the sizes of CUDA graphs that the command gives, in order; none for the engine's own."""
        given = self.fields.get("compilation-config", {})
        sizes = self.flags.get("cudagraph-capture-sizes", given.get("cudagraph_capture_sizes"))
        most = self.flags.get("max-cudagraph-capture-size", given.get("max_cudagraph_capture_size"))
        if sizes is not None:
            words = sizes.split() if isinstance(sizes, str) else sizes
            if not isinstance(words, list) or not words or not all(map(_is_count, words)):
                raise InputError("whole numbers of tokens, such as 1 2 4 8", sizes, field="--cudagraph-capture-sizes")
            return sorted({int(word) for word in words})
        if most is None:
            return []
        if not _is_count(most):
            raise InputError("a number of tokens", most, field="--max-cudagraph-capture-size")
        return list(captured_sizes(int(most)))

    def read_compilation(self) -> None:
        """Name what the optimization level and the compilation change that is not modelled."""
        level = self.flags.get("optimization-level")
        if level is not None and level not in ("0", "1", "2", "3"):
            raise InputError("a level from 0 to 3", level, field="--optimization-level")
        if level in ("0", "1"):   # 3 is what 2 is, vLLM's default
            self.not_modelled.append("--optimization-level 0 (no CUDA graphs, no compilation)" if level == "0" else
                                     "--optimization-level 1 (CUDA graphs without attention, fewer fused kernels)")
        given = dict(self.fields.get("compilation-config", {}))
        for key, usual in (("mode", (3, "VLLM_COMPILE", "3")), ("level", (3, "3")),
                           ("cudagraph_mode", ("FULL_AND_PIECEWISE",))):
            if given.get(key) in usual:
                del given[key]
        self._name("--compilation-config", given, COMPILATION_BESIDE)

    def check_weights(self) -> None:
        """Raise `InputError` for weights in host memory."""
        for name in ("cpu-offload-gb", "offload-group-size"):
            value = self.flags.get(name, "0")
            try:
                there = float(value) > 0
            except ValueError:
                raise InputError("a number", value, field=f"--{name}") from None
            if there:
                raise InputError(Verbatim("weights in host memory are not modelled: every step would read them over "
                                          "the host's link; leave it out, and give the engine more devices or weights "
                                          "of fewer bits"), field=f"--{name}")

    @property
    def mode(self) -> str:
        """The performance mode."""
        mode = self.flags.get("performance-mode", "balanced")
        if mode not in ("balanced", "interactivity", "throughput"):
            raise InputError("balanced, interactivity or throughput", mode, field="--performance-mode")
        return mode

    def _name(self, flag: str, given: Mapping[str, Any], beside: Iterable[str]) -> None:   # Any: JSON
        """Note fields that are set and not among those that are read or change nothing."""
        self.not_modelled += [f"{flag}.{key}" for key, value in given.items()
                              if key not in beside and value not in (None, False, [], {}, "")]


def _method(given: Mapping[str, Any]) -> str:   # Any: JSON
    """Return the draft method, as vLLM finds it where the command names none.

    Raises `InputError` for one that is not modelled.
    """
    method, model = given.get("method"), given.get("model")
    if method is None and model is None:
        raise InputError(Verbatim("names neither a method nor a model"), field="--speculative-config")
    if model is not None and not isinstance(model, str):
        raise InputError("the model's name", model, field="--speculative-config")
    if method in (None, "draft_model") and model is not None:
        text = model.lower()
        method = next((name for part, name in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"),
                                               ("dspark", "dspark"), ("ngram", "ngram")) if part in text),
                      "draft_model")
    method = "ngram" if method == "[ngram]" else str(method)
    method = "mtp" if method.endswith("_mtp") else method
    if method not in METHODS:
        raise InputError(f"a method that is modelled: {', '.join(METHODS)}", method, field="--speculative-config")
    if method == "draft_model" and model is None:
        raise InputError(Verbatim("draft_model needs the model that drafts"), field="--speculative-config")
    return method


def _acceptance(given: Mapping[str, Any], method: str, tokens: int, told: Told) -> dict[str, Any]:   # Any: JSON
    """Return the key of the acceptance: the user's, or the one of vLLM's synthetic rejection."""
    shares: Any = None   # Any: JSON
    if given.get("rejection_sample_method") == "synthetic":
        shares, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
        if told.acceptance is not None:
            raise InputError(Verbatim("the command says how many drafts are accepted (synthetic); leave it out"),
                             field="--acceptance")
        if shares is None and isinstance(length, int | float) and 1 <= length <= tokens + 1:
            shares = [min(max(length - 1 - place, 0.0), 1.0) for place in range(tokens)]
        where = "--speculative-config.synthetic_acceptance_rates"
    else:
        where = "--acceptance"
        if told.acceptance is None:
            raise InputError(Verbatim(
                f"missing: the command drafts {tokens} tokens a step ({method}), and no command says how many are "
                "accepted; add --acceptance 0.7, or by position as vLLM's metrics report it, such as 0.8,0.6,0.5"),
                field=where)
        try:
            shares = [float(part) for part in told.acceptance.split(",")]
        except ValueError:
            raise InputError("a share such as 0.7, or one by position such as 0.8,0.6,0.5", told.acceptance,
                             field=where) from None
        if len(shares) == 1:
            if not 0 <= shares[0] <= 1:
                raise InputError("a share from 0 to 1", told.acceptance, field=where)
            return {"acceptance_rate": shares[0]}
    if (not isinstance(shares, list) or len(shares) != tokens or not all(
            isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
            or any(b > a for a, b in pairwise(shares))):
        raise InputError(f"{tokens} shares from 0 to 1, one for each draft, that never rise",
                         Verbatim("others" if told.acceptance is None else told.acceptance), field=where)
    return {"acceptance_by_position": [float(share) for share in shares]}


def apply_mode(client: dict[str, Any], mode: str, engine: EngineDescription, device: DeviceDescription,
               longest: int | None) -> list[str]:
    """Put in the defaults that a performance mode changes; return the notes about it.

    Args:
        client: Keys of an LLM client, which are changed.
        device: The description of its device.
        longest: The longest request, where the command or the model says it.

    `throughput` doubles the two limits of a step that the command leaves out. `interactivity` captures a CUDA graph of
    every batch size up to 32.
    """
    if mode == "throughput":
        parallel, scheduler = client.get("parallel", {}), client.setdefault("scheduler", {"kind": "chunked"})
        devices = parallel.get("tp", 1) * parallel.get("pp", 1)
        usual = engine.defaults(device_class(device, HardwareInfo(), None, devices))
        budget, seqs = scheduler.get("max_num_batched_tokens"), scheduler.get("max_num_seqs")
        if budget is None:
            scheduler["max_num_batched_tokens"] = 2 * usual.max_num_batched_tokens
            if scheduler.get("enable_chunked_prefill") is False and longest is not None:
                scheduler["max_num_batched_tokens"] = max(longest, 2 * usual.max_num_batched_tokens)
        if seqs is None:
            scheduler["max_num_seqs"] = min(2 * usual.max_num_seqs, scheduler["max_num_batched_tokens"])
        return ["--performance-mode throughput doubles the engine's default max_num_batched_tokens and max_num_seqs"]
    if mode == "interactivity" and "cudagraph_capture_sizes" not in client.get("hardware", {}):
        hardware = client.setdefault("hardware", {"kind": "composed"})
        hardware["cudagraph_capture_sizes"] = sorted({*range(1, FINE + 1), *captured_sizes(engine.step.largest_graph)})
        return [f"--performance-mode interactivity captures CUDA graphs of all batch sizes up to {FINE}"]
    return []


def draft_config(speculative: Speculation, name: str) -> dict[str, Any]:   # Any: JSON
    """Return vLLM's `speculative_config` of a scheduler's speculation. name: The draft model's at Hugging Face."""
    config: dict[str, Any] = {"method": speculative.method}   # Any: as above
    if speculative.method == "draft_model":
        config["model"] = name
    elif speculative.method in HEADS:
        config["model"] = DRAFT_HEAD
    return config | {"num_speculative_tokens": speculative.num_speculative_tokens}


def _object(flag: str, text: str) -> dict[str, Any]:   # Any: JSON
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(Verbatim("needs a JSON object in quotes, such as '{\"a\": 1}'"), field=flag)
    return found


def _scalar(text: str) -> Any:   # Any: JSON
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and 0 < int(str(value)) <= 2**31


def _gib(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 < size < 2**30:
        raise InputError("GiB of host memory, more than 0", text, field="--kv-offloading-size")
    return round(size * GIB)
