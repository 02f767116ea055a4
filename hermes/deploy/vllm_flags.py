"""Flags of `vllm serve` and the keys of an LLM client that they set.

Names as in vLLM 0.33 (`vllm serve --help=all`), where a dash and an underscore mean the same. A switch is turned off
by `--no-NAME`; one that begins with `enable-` or `disable-` from 0.33 on by the opposite word as well
(`--disable-prefix-caching`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hermes.deploy.options import options, pairs
from hermes.errors import InputError, Verbatim

__all__ = ["BESIDE", "CAPACITY", "EARLIER", "FLAGS", "NOT_MODELLED", "ON", "SHORT", "SWITCHES", "USUAL", "Flag",
           "canonical", "flags_of", "whole_number"]


@dataclass(frozen=True)
class Flag:
    """A flag that a key stands for.

    Args:
        path: Key of the client, by dotted path.
        kind: "int" (with a suffix: 8k, 8K), "float", "text", "switch" (`--x` and `--no-x`), or "off": a
            switch that sets false.
        default: A value that sets nothing, in addition to -1.
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


def flags_of(program: str) -> dict[str, Flag]:
    """Return the flags of a program that set a key."""
    return {name: Flag(*text.split()) for name, text in pairs(program, "keys").items()}


FLAGS = flags_of("vllm")   # `enable-lora` before `max-loras`, which vLLM ignores without it
SHORT = pairs("vllm", "short")
_BESIDE, _NOT_MODELLED, _EARLIER_BESIDE, _EARLIER_NOT_MODELLED = (
    options("vllm", use) for use in ("beside", "not_modelled", "earlier_beside", "earlier_not_modelled"))


def _names(words: list[str]) -> frozenset[str]:
    return frozenset(word.rstrip("*") for word in words)


EARLIER = _names(_EARLIER_BESIDE + _EARLIER_NOT_MODELLED)
"""Flags that versions before 0.33 have, of which no beginning names one."""
BESIDE = _names(_BESIDE + _EARLIER_BESIDE)
"""Flags that do not change when a token is computed."""
NOT_MODELLED = _names(_NOT_MODELLED + _EARLIER_NOT_MODELLED)
"""Flags that may change it, and that no key stands for."""
SWITCHES = frozenset(name[:-1] for name in _BESIDE + _NOT_MODELLED + _EARLIER_BESIDE + _EARLIER_NOT_MODELLED
                     if name.endswith("*"))
"""Those of the two lists that take no value."""
CAPACITY = {
    "decode-context-parallel-size": ("1", "ranks share the KV of a sequence, so that more sequences fit"),
    "prefill-context-parallel-size": ("1", "ranks share the tokens of a prompt, and its KV"),
    "kv-cache-dtype-skip-layers": ("", "layers keep KV of another precision"),
}
"""Flags that change how much KV fits and are not modelled: the value that changes nothing, and what others do."""
USUAL = {
    "nnodes": ("1",), "task": ("auto", "generate"), "runner": ("auto", "generate"),
    "convert": ("auto", "none"), "num-scheduler-steps": ("1",), "max-num-partial-prefills": ("1",),
    "model-impl": ("auto", "vllm"), "moe-backend": ("auto",), "lora-dtype": ("auto",), "ubatch-size": ("0",),
    "mamba-cache-dtype": ("auto",), "mamba-ssm-cache-dtype": ("auto",)}
"""Values of flags that are not modelled with which they change nothing."""
ON = frozenset(options("vllm", "on"))
"""Switches that are not modelled and on, or as vLLM finds best, where the command leaves them out."""

_ALL = BESIDE | NOT_MODELLED | FLAGS.keys()
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)\Z")


def whole_number(name: str, text: str) -> int:
    """Read a whole number as vLLM does: 8k is 8,000, 8K is 8,192. Raises `InputError`."""
    found = _NUMBER.match(text.strip())
    if found is None:
        raise InputError("a whole number, such as 8192, 8k (8,000) or 8K (8,192)", text, field=f"--{name}")
    factor = 1
    if found[2]:
        power = "kmgt".index(found[2].lower()) + 1
        factor = (1000 if found[2].islower() else 1024) ** power
    value = float(found[1]) * factor
    if not value.is_integer():   # nor is infinity, which 400 digits are
        raise InputError(Verbatim(f"{text} is not a whole number; write it out"), field=f"--{name}")
    return int(value)


def canonical(name: str) -> str:
    """Return the name of a flag as the lists have it, after `no-` where it turns a switch off."""
    for prefix, inverse in (("enable-", "disable-"), ("disable-", "enable-")):
        other = inverse + name.removeprefix(prefix)
        if name.startswith(prefix) and other in _ALL and name not in _ALL:
            return f"no-{other}"
    return name
