"""A `trtllm-serve` command as an LLM client of a scenario, with the engine `trtllm-1.2`.

Options as in tensorrt_llm/commands/serve.py of TensorRT-LLM 1.2 (read, not run), where the settings of a file
(`--config`, or its older name) overwrite those of the command.
"""

from __future__ import annotations

from collections.abc import Iterator

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.engine_words import EngineWords
from hermes.deploy.flags import Kind, Parser, taken_settings
from hermes.deploy.options import options, pairs
from hermes.deploy.other_engines import not_modelled, set_precision, set_tokens, share_experts
from hermes.deploy.vllm import Client, Read, checkpoint_of, set_flag
from hermes.deploy.vllm_features import Told
from hermes.deploy.vllm_flags import flags_of, whole_number
from hermes.deploy.vllm_models import precision_of
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.checkpoints import Stored

__all__ = ["PARSER", "trtllm_client"]

RULES = ("trtllm-1.2: its own scheduler is not recorded; the rules of vllm-0.33's stand for it, which cuts long "
         "prompts and preempts")
FLAGS = flags_of("trtllm")
ALIASES = pairs("trtllm", "aliases")   # also of dynamo.trtllm
READ = ("moe-expert-parallel-size", "kv-cache-config.dtype", "kv-cache-config.max-tokens", "max-beam-width", "backend",
        "model", "quant-config.quant-algo", "server-role", "disaggregation-mode", "override-engine-args")
REFUSED = {
    "enable-attention-dp": "ranks that share a model have requests and KV of their own",
    "speculative-config": "TensorRT-LLM's drafts, which take memory and change every step",
    "context-parallel-size": "ranks that share the tokens of a prompt",
    "moe-cluster-parallel-size": "clusters of experts"}
BESIDE = frozenset(options("trtllm", "beside"))
SWITCHES = ("trust-remote-code", "enable-chunked-prefill", "fail-fast-on-attention-window-too-large",
            "publish-events-and-metrics")
ROLES = {"prefill": "prefill", "context": "prefill", "decode": "decode", "generation": "decode"}
KINDS: dict[str, Kind] = {
    **dict.fromkeys((*FLAGS, *ALIASES, *READ, *REFUSED, *BESIDE, "media-io-kwargs"), "value"),
    **dict.fromkeys(SWITCHES, "switch")}
PARSER = Parser("TensorRT-LLM", KINDS, canonical=lambda name: ALIASES.get(name, name), abbreviates=False)
OTHER_COMMANDS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "visual-gen")


def trtllm_client(engine: EngineWords, model: str | None, told: Told) -> Read:
    """Read what follows `trtllm-serve`.

    Args:
        model: A model description, or the path of a config.json, instead of the one that the command names.
        told: What the user states, for engines with drafts: TensorRT-LLM's are not modelled.

    Raises `InputError` for what changes the memory and is not modelled, and for a model without a description.
    """
    if engine.words[:1] and engine.words[0] in OTHER_COMMANDS:
        raise InputError(Verbatim(f"trtllm-serve {engine.words[0]} is no engine of language: give trtllm-serve MODEL"),
                         field="command")
    words, _ = taken_settings(engine, ("config", "extra-llm-api-options", "extra-engine-args"))
    read, named = Read({}, engine=engine, notes=[RULES]), list[str]()
    given: dict[str, str] = {}
    for option in PARSER.read(words, named):
        given[option.name] = "true" if option.value is None else option.value
    given |= dict(_settings(engine.settings, "")) if engine.settings is not None else {}
    for own in parse_documents(given.get("override-engine-args", ""), None):
        given |= dict(_settings(own, ""))
    read.role = ROLES.get(given.get("server-role", given.get("disaggregation-mode", "")).lower(), "both")
    for name, value in given.items():
        _take(read, name, value)
    path = next((word for word in named if not word.startswith("$")), given.get("model"))
    if path is None and model is None:
        raise InputError(Verbatim("the command names no model: trtllm-serve MODEL ..."), field="command")
    served, how = (model, Stored()) if model is not None else checkpoint_of(str(path), read)
    read.client = {"model": served, **read.client}
    _memory(read.client, how, given, precision_of(served, how, None, None, "TensorRT-LLM"))
    share_experts(read.client, served, whole_number("ep_size", given.get("moe-expert-parallel-size", "1")), "--ep_size")
    read.flags = {flag.path: f"--{name.replace('-', '_')}" for name, flag in FLAGS.items() if name in given}
    return read


def _settings(node: Node, above: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a file under their names in the command, fields of mappings with a dot."""
    for key, own in node.value.items():
        name = f"{above}{key}".replace("_", "-")
        name = ALIASES.get(name, name)
        if isinstance(own.value, dict) and name in ("kv-cache-config", "quant-config"):
            yield from _settings(own, f"{name}.")
        elif own.value is not None:
            yield name, str(own.value).lower() if isinstance(own.value, bool) else str(own.plain())


def _take(read: Read, name: str, value: str) -> None:
    read.given[name] = name
    if name in REFUSED:
        if value not in ("1", "false", "None"):
            raise not_modelled(REFUSED[name], f"--{name.replace('-', '_')}")
    elif name in FLAGS:
        set_flag(read.client, FLAGS[name], name.replace("-", "_"), value, on=value == "true")
    elif name == "backend" and value not in ("pytorch", "_autodeploy"):
        read.not_modelled.append(f"--backend {value} (the PyTorch back end is simulated)")
    elif name in BESIDE:
        read.beside.append(f"--{name}")
    elif name not in READ and value != "false":
        where = read.not_modelled if name in KINDS or "." in name or read.engine is None or read.engine.settings else \
            read.unknown
        where.append(f"--{name.replace('-', '_')}")


def _memory(client: Client, how: Stored, given: dict[str, str], dtype: str | None) -> None:
    kv = given.get("kv-cache-config.dtype", "auto").lower()
    if kv not in ("auto", "fp8", "bfloat16", "float16"):
        raise InputError("auto, fp8 or bfloat16", kv, field="kv_cache_config.dtype")
    set_precision(client, dtype, how.kv_dtype if kv == "auto" else "fp8" if kv == "fp8" else "bf16")
    if "kv-cache-config.max-tokens" in given:
        set_tokens(client, given["kv-cache-config.max-tokens"], "kv_cache_config.max_tokens", 32)
