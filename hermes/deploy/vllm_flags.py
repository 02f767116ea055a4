"""Flags of `vllm serve` and the keys of an LLM client that they set.

Names as in vLLM 0.32 (`vllm serve --help=all`), where a dash and an underscore mean the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hermes.errors import InputError, Verbatim

__all__ = ["BESIDE", "FLAGS", "NOT_MODELLED", "SHORT", "SWITCHES", "Flag", "whole_number"]


@dataclass(frozen=True)
class Flag:
    """A flag that a key stands for.

    Args:
        path: Key of the client, by dotted path.
        kind: "int" (with a suffix: 8k, 8K), "float", "text", "switch" (`--x` and `--no-x`), or "off": a
            switch that sets false.
        default: A value that sets nothing, beside -1.
    """

    path: str
    kind: str
    default: str | None = None

    def value(self, name: str, text: str) -> Any:
        """Read a value. Raises `InputError`."""
        if self.kind == "int":
            return whole_number(name, text)
        if self.kind == "float":
            try:
                return float(text)
            except ValueError:
                raise InputError("a number", text, field=f"--{name}") from None
        return text


FLAGS = {
    "tensor-parallel-size": Flag("parallel.tp", "int"),
    "data-parallel-size": Flag("parallel.dp", "int"),
    "pipeline-parallel-size": Flag("parallel.pp", "int"),
    "enable-expert-parallel": Flag("parallel.ep", "switch"),
    "max-num-batched-tokens": Flag("scheduler.max_num_batched_tokens", "int"),
    "max-num-scheduled-tokens": Flag("scheduler.max_num_scheduled_tokens", "int"),
    "max-num-seqs": Flag("scheduler.max_num_seqs", "int"),
    "max-num-active-seqs": Flag("scheduler.max_num_active_seqs", "int"),
    "max-num-queued-reqs": Flag("scheduler.max_num_queued_reqs", "int"),
    "max-num-queued-tokens": Flag("scheduler.max_num_queued_tokens", "int"),
    "prefill-schedule-interval": Flag("scheduler.prefill_schedule_interval", "int", "1"),
    "enable-lora": Flag("scheduler.max_loras", "switch"),   # without it vLLM ignores the next one
    "max-loras": Flag("scheduler.max_loras", "int"),
    "max-model-len": Flag("max_model_len", "int", "auto"),
    "gpu-memory-utilization": Flag("memory.utilization", "float"),
    "block-size": Flag("memory.block_size", "int"),
    "num-gpu-blocks-override": Flag("memory.num_blocks", "int"),
    "enable-prefix-caching": Flag("memory.prefix_caching", "switch"),
    "disable-hybrid-kv-cache-manager": Flag("memory.hybrid", "off"),
    "enable-chunked-prefill": Flag("scheduler.enable_chunked_prefill", "switch"),
    "long-prefill-token-threshold": Flag("scheduler.long_prefill_token_threshold", "int"),
    "long-prefill-token-threshold-adaptive": Flag("scheduler.adaptive_long_prefill_threshold", "switch"),
    "scheduler-reserve-full-isl": Flag("scheduler.reserve_full_isl", "switch"),
    "watermark": Flag("scheduler.watermark", "float"),
    "scheduling-policy": Flag("scheduler.policy", "text"),
    "async-scheduling": Flag("scheduler.async_scheduling", "switch"),
}
SHORT = {
    "tp": "tensor-parallel-size", "dp": "data-parallel-size", "pp": "pipeline-parallel-size", "n": "nnodes",
    "O": "optimization-level", "sc": "speculative-config", "ep": "enable-expert-parallel", "q": "quantization",
    "asc": "api-server-count", "cc": "compilation-config",
}

BESIDE = frozenset((
    "allow-credentials", "allowed-headers", "allowed-methods", "allowed-origins", "api-key", "api-server-count",
    "chat-template", "chat-template-content-format", "code-revision", "config-format", "data-parallel-address",
    "data-parallel-external-lb", "data-parallel-hybrid-lb", "data-parallel-rank", "data-parallel-rpc-port",
    "data-parallel-size-local", "data-parallel-start-rank", "disable-access-log-for-endpoints", "disable-fastapi-docs",
    "disable-log-requests", "disable-log-stats", "disable-uvicorn-access-log", "distributed-executor-backend",
    "download-dir", "enable-auto-tool-choice", "enable-log-requests", "enable-prompt-tokens-details",
    "enable-request-id-headers", "enable-server-load-tracking", "generation-config", "headless", "hf-config-path",
    "hf-token", "host", "load-format", "log-level", "logits-processors", "master-addr", "master-port", "max-log-len",
    "max-logprobs", "middleware", "model-loader-extra-config", "override-generation-config", "port", "reasoning-parser",
    "response-role", "revision", "root-path", "safetensors-load-strategy", "seed", "served-model-name",
    "shutdown-timeout", "skip-tokenizer-init", "ssl-ca-certs", "ssl-certfile", "ssl-keyfile", "tokenizer",
    "tokenizer-mode", "tokenizer-revision", "tool-call-parser", "tool-parser-plugin", "trust-remote-code", "uds",
    "uvicorn-log-level",
))
"""Flags that do not change when a token is computed."""

NOT_MODELLED = frozenset((
    "attention-backend", "calculate-kv-scales", "config", "decode-context-parallel-size", "disable-cascade-attn",
    "disable-custom-all-reduce", "enable-dbo", "enable-eplb", "enforce-eager", "hf-overrides", "language-model-only",
    "limit-mm-per-prompt", "max-cpu-loras", "mm-processor-cache-gb", "nnodes", "node-rank",
    "prefill-context-parallel-size", "prefix-caching-hash-algo", "scheduler-cls", "stream-interval",
))
"""Flags that may change it, and that no key stands for."""

SWITCHES = frozenset((
    "allow-credentials", "data-parallel-external-lb", "data-parallel-hybrid-lb", "disable-cascade-attn",
    "disable-custom-all-reduce", "disable-fastapi-docs", "disable-log-requests", "disable-log-stats",
    "disable-uvicorn-access-log", "enable-auto-tool-choice", "enable-dbo", "enable-eplb", "enable-log-requests",
    "enable-prompt-tokens-details", "enable-request-id-headers", "enable-server-load-tracking", "enforce-eager",
    "headless", "language-model-only", "skip-tokenizer-init", "trust-remote-code",
))
"""Those of the two lists that take no value."""

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)\Z")


def whole_number(name: str, text: str) -> int:
    """Read a whole number as vLLM does: 8k is 8,000, 8K is 8,192. Raises `InputError`."""
    found = _NUMBER.match(text)
    if found is None:
        raise InputError("a whole number, such as 8192, 8k (8,000) or 8K (8,192)", text, field=f"--{name}")
    factor = 1
    if found[2]:
        power = "kmgt".index(found[2].lower()) + 1
        factor = (1000 if found[2].islower() else 1024) ** power
    value = float(found[1]) * factor
    if value != int(value):
        raise InputError(Verbatim(f"{text} is not a whole number; write it out"), field=f"--{name}")
    return int(value)
