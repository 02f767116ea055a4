"""Flags of SGLang's server and the keys of a client that they set.

Names and kinds (sglang_flags.json) are those of SGLang's own source, where argparse takes unique
beginnings (`--tp 4` is `--tp-size 4`); what a flag does was read, not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from hermes.deploy.flags import Kind
from hermes.deploy.options import options
from hermes.deploy.vllm_flags import Flag

__all__ = ["ALIASES", "BESIDE", "FLAGS", "KINDS", "OTHERS", "READ", "REFUSED"]

VERSION = "0.5.14"

FLAGS = {
    "tp-size": Flag("parallel.tp", "int"),
    "chunked-prefill-size": Flag("scheduler.chunked_prefill_size", "int"),
    "max-running-requests": Flag("scheduler.max_running_requests", "int"),
    "max-prefill-tokens": Flag("scheduler.max_prefill_tokens", "int"),
    "schedule-policy": Flag("scheduler.schedule_policy", "text"),
    "schedule-conservativeness": Flag("scheduler.schedule_conservativeness", "float"),
    "enable-mixed-chunk": Flag("scheduler.enable_mixed_chunk", "switch"),
    "disable-overlap-schedule": Flag("scheduler.disable_overlap_schedule", "switch"),
    "disable-radix-cache": Flag("scheduler.disable_radix_cache", "switch"),
    "page-size": Flag("memory.block_size", "int"),
    "mem-fraction-static": Flag("memory.utilization", "float"),
    "context-length": Flag("max_model_len", "int"),
    "disable-hybrid-swa-memory": Flag("memory.hybrid", "off"),
}
ALIASES = {
    "model": "model-path", "tensor-parallel-size": "tp-size", "data-parallel-size": "dp-size", "ep": "ep-size",
    "pipeline-parallel-size": "pp-size", "expert-parallel-size": "ep-size", "nccl-init-addr": "dist-init-addr",
    "decode-context-parallel-size": "dcp-size", "attention-context-parallel-size": "attn-cp-size",
    "moe-data-parallel-size": "moe-dp-size", "attention-data-parallel-size": "attn-dp-size",
    "speculative-draft-model": "speculative-draft-model-path"}
READ = ("model-path", "dp-size", "ep-size", "max-total-tokens", "kv-cache-dtype", "dtype", "quantization")
REFUSED = {
    "enable-dp-attention": ("", "ranks that share a model have requests and KV of their own"),
    "attn-dp-size": ("1", "ranks that share a model have requests and KV of their own"),
    "pp-size": ("1", "pipeline stages of SGLang"), "dcp-size": ("1", "ranks that share the KV of a sequence"),
    "attn-cp-size": ("1", "ranks that share the tokens of a prompt"), "moe-dp-size": ("1", "copies of the experts"),
    "disaggregation-mode": ("null", "SGLang's hand-over of KV between engines"),
    "speculative-algorithm": ("", "SGLang's drafts, which take memory and change every step"),
    "cpu-offload-gb": ("0", "weights in host memory"),
}
"""Flags that change what fits into memory or every step and are not modelled: the value that changes nothing, and what
others do."""
BESIDE = frozenset(options("sglang", "beside"))
"""Flags that do not change when a token is computed; others of SGLang may, and no key stands for them."""
_RECORDED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def _kinds(versions: Iterable[str]) -> dict[str, Kind]:
    return {name: kind for version in versions for kind, names in _RECORDED[version].items() for name in names.split()}


KINDS = _kinds([VERSION])
"""Every word that names a flag of the version whose scheduler is simulated."""
_EARLIER: dict[str, Kind] = dict.fromkeys(options("sglang", "earlier_switches"), "switch")
OTHERS = {name: kind for name, kind in (_kinds(_RECORDED) | _EARLIER).items() if name not in KINDS}
"""Those of other versions only."""
