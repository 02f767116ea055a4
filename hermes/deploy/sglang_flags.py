"""Flags of SGLang's server and the keys of a client that they set.

Names and kinds (sglang_flags.json) are those of SGLang's own source, where argparse takes unique
beginnings (`--tp 4` is `--tp-size 4`); what a flag does was read, not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from hermes.deploy.flags import Kind
from hermes.deploy.options import options, pairs
from hermes.deploy.vllm_flags import flags_of

__all__ = ["ALIASES", "BESIDE", "FLAGS", "KINDS", "OTHERS", "READ", "REFUSED"]

VERSION = "0.5.14"

FLAGS = flags_of("sglang")
ALIASES = pairs("sglang", "aliases")
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
