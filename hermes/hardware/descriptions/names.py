"""Other names of shipped devices and models, and the message for a name that nothing ships under.

A name is compared in lower case, without its vendor. A model may have its name at Hugging Face: an instruction-tuned
variant has the architecture of its base. Names that people use for one of several cards mean the usual one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.machines import card_of
from hermes.site import page_url

__all__ = ["meant", "remark", "type_of", "unknown"]

NEAREST = 5
ALIKE = 2.0   # at most so many times the bandwidth of a card that is asked for

_DEVICES = {
    "h100": "h100-sxm", "h100-sxm5": "h100-sxm", "h100-80gb": "h100-sxm", "h100-80gb-hbm3": "h100-sxm",
    "h100-sxm-80gb": "h100-sxm", "h100-sxm5-80gb": "h100-sxm", "h100-pcie-80gb": "h100-pcie",
    "a100": "a100-80gb", "a100-sxm": "a100-80gb", "a100-sxm4": "a100-80gb", "a100-sxm-80gb": "a100-80gb",
    "a100-sxm4-80gb": "a100-80gb", "a100-sxm-40gb": "a100-40gb", "a100-sxm4-40gb": "a100-40gb",
    "h200-sxm": "h200", "h200-141gb": "h200", "h200-sxm-141gb": "h200", "h20-96gb": "h20",
    "b200-sxm": "b200", "b200-180gb": "b200", "b300-sxm": "b300", "gb200-nvl72": "gb200",
    "gh200-96gb": "gh200", "gh200-480gb": "gh200", "l4-24gb": "l4", "t4-16gb": "t4", "l40s-48gb": "l40s",
    "mi300": "mi300x", "mi325": "mi325x", "mi355": "mi355x", "4090": "rtx-4090",
    "rtx-pro-6000-blackwell": "rtx-pro-6000", "v5e": "tpu-v5e", "v6e": "tpu-v6e", "trillium": "tpu-v6e",
}
_MODELS = {
    "llama-3.3-70b": "llama-3.1-70b", "llama-3.1-nemotron-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3", "deepseek-r1-0528": "deepseek-v3", "deepseek-r1-zero": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3", "deepseek-v3.1-terminus": "deepseek-v3.1",
    "kimi-k2-instruct-0905": "kimi-k2", "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    **{f"minimax-m2{minor}": "minimax-m2.5" for minor in ("", ".1", ".7")},
    **{f"qwen3-{size}-{kind}-2507": f"qwen3-{size}" for size in ("4b", "30b-a3b", "235b-a22b")
       for kind in ("instruct", "thinking")},
    **{f"deepseek-r1-distill-qwen-{size}": f"qwen2.5-{size}" for size in ("7b", "14b", "32b")},
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b", "hermes-3-llama-3.1-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b", "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b", "mistral-7b-v0.1": "mistral-7b",
    "phi-3-mini": "phi-3.5-mini", "phi-3-mini-128k": "phi-3.5-mini", "phi-3-medium-128k": "phi-3-medium",
    "phi-4-reasoning": "phi-4", "phi-4-reasoning-plus": "phi-4",
    **{f"qwen2.5-coder-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b")},
}
ALIASES = {"devices": _DEVICES, "models": _MODELS}
"""Other names of shipped files, by folder. Two models share a description where their layers have the same shapes."""

_VENDOR = re.compile(r"^(nvidia|geforce|tesla|amd|radeon|instinct|intel|google|meta)-(?=.)")
_VARIANT = re.compile(r"-(instruct|chat|it|base|hf)(?=-|$)")
_HUB = re.compile(r"[\w.-]+/[\w.-]+\Z")

_BANDWIDTHS = {   # GB/s of cards that do not ship, from their data sheets
    "a2": 200, "a10": 600, "a10g": 600, "a16": 200, "a30": 933, "a800": 2039, "a100-pcie": 1935, "a6000": 768,
    "rtx-a6000": 768, "rtx-6000-ada": 960, "rtx-3090": 936, "rtx-5090": 1792, "l20": 864, "l40": 864, "h800": 3350,
    "h100-nvl": 3900, "h200-nvl": 4800, "v100": 900, "p100": 732, "p4": 192, "mi210": 1638, "mi250": 3277,
    "mi250x": 3277, "mi300a": 5300, "mi350x": 8000, "gb300": 8000, "b100": 8000, "gaudi-2": 2450, "tpu-v4": 1228,
    "tpu-v5p": 2765, "trainium2": 2900, "inferentia2": 820,
}

_TYPES = tuple((re.compile(pattern), kind) for pattern, kind in (   # model_type by name, the first that matches
    (r"deepseek-v3\.2|deepseek-v32", "deepseek_v32"), (r"deepseek-v4", "deepseek_v4"),
    (r"deepseek-r1.*-qwen-?3", "qwen3"), (r"deepseek-r1.*-qwen", "qwen2"), (r"deepseek-r1.*-llama", "llama"),
    (r"deepseek-(v3|r1)", "deepseek_v3"), (r"deepseek-(coder-)?v2", "deepseek_v2"), (r"kimi-k2", "kimi_k2"),
    (r"llama-?4", "llama4"), (r"llama-3\.2-(11|90)b", "mllama"), (r"(code)?llama", "llama"),
    (r"qwen-?3-next", "qwen3_next"), (r"qwen-?3\.5", "qwen3_5"), (r"qwen-?3-vl", "qwen3_vl"),
    (r"qwen-?3.*-a\d", "qwen3_moe"), (r"qwen-?3", "qwen3"), (r"qwen-?(2|2\.5|1\.5).*-a\d", "qwen2_moe"),
    (r"qwen-?(2|2\.5)-vl", "qwen2_vl"), (r"qwen-?(2|1\.5)", "qwen2"),
    (r"glm-4\.5v|glm-4\.6v", "glm4v_moe"), (r"glm-4\.[56]", "glm4_moe"), (r"glm-5", "glm_moe_dsa"), (r"glm", "glm"),
    (r"phi-3\.5-moe", "phimoe"), (r"phi-4-multimodal", "phi4mm"), (r"phi-[34]", "phi3"), (r"phi", "phi"),
    (r"gemma-?3n", "gemma3n"), (r"gemma-?3", "gemma3_text"), (r"gemma-?2-", "gemma2"), (r"gemma", "gemma"),
    (r"mixtral", "mixtral"), (r"mistral-small-3|mistral-small-.*25", "mistral3"), (r"mistral", "mistral"),
    (r"gpt-oss", "gpt_oss"), (r"minimax-m2", "minimax_m2"), (r"minimax", "minimax"), (r"bloom", "bloom"),
))


def meant(folder: str, text: str, names: Sequence[str]) -> str | None:
    """Return the shipped name that another one stands for, None for an unknown one."""
    if folder not in ALIASES:
        return None
    plain = _plain(folder, text)
    if folder == "devices":
        plain = card_of(text) or plain
    tight = {name.replace("-", ""): name for name in (*ALIASES[folder], *names)}
    for name in (plain, _VARIANT.sub("", plain)):
        name = tight.get(name.replace("-", ""), name)
        name = ALIASES[folder].get(name, name)
        if name in names:
            return name
    return None


def _plain(folder: str, text: str) -> str:
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    if folder == "models" and _HUB.match(plain):
        plain = plain.rsplit("/", 1)[-1]
    while (shorter := _VENDOR.sub("", plain)) != plain:
        plain = shorter
    return plain


def at_hub(text: str) -> bool:
    """Return whether a text may be a model's name at Hugging Face (OWNER/NAME)."""
    return _HUB.match(text) is not None and not text.startswith(".")


def remark(folder: str, text: str, names: Sequence[str], base_dir: Path | None = None) -> str | None:
    """Return in one line what was taken for a name that leaves a choice; None for one that does not."""
    if text in names:
        return None
    if folder == "models":
        return _remark_model(text, base_dir)
    found = meant(folder, text, names)
    if found is None:
        return None
    if card_of(text) is not None:
        return f"device {text} is a machine, of which a device is one card: {found}"
    others = [name for name in names if name != found and name.split("-")[0] == found.split("-")[0]]
    return f"device {text} is {found}; other cards: {', '.join(others)}" if others else None


def _remark_model(text: str, base_dir: Path | None) -> str | None:
    from hermes.hardware.descriptions.checkpoints import checkpoint, split_name

    found = checkpoint(text, base_dir)
    if found is None:
        return None
    lines = []
    if _family(split_name(text)[1]) != _family(found.model):
        lines.append(f"has the shape of {found.model}, whose description is used")
    if found.stored.kv_dtype:
        lines.append(f"asks for a KV cache in FP8: `hardware: {{kv_dtype: {found.stored.kv_dtype}}}`")
    return f"model {text} {'; '.join(lines)}" if lines else None


def _family(name: str) -> str:
    return _VARIANT.sub("", _plain("models", name))


def unknown(folder: str, text: str, names: Sequence[str]) -> InputError:
    """Return the error for an unknown name of a device or a model: the nearest known ones, with a figure of each.

    A card of more than twice, or less than half, the bandwidth of the one asked for is not near it, as far as that one
    is known; a model of another type never is.
    """
    plain, known, said = _plain(folder, text), list(names), ""
    card = card_of(text) if folder == "devices" else None
    if card is not None:
        plain = card
    if folder == "models":
        kind = _type(plain)
        if kind is not None:
            known = [name for name in names if _type(name) == kind]
            if not known:
                return _not_modelled(text, kind)
    elif (own := _BANDWIDTHS.get(re.sub(r"-\d+gb$", "", plain))) is not None:
        known = [name for name in names if 1 / ALIKE < _bandwidth(name) / own < ALIKE]
        said = f" (a card of {own} GB/s)" if card is None else f" (a machine with cards {card} of {own} GB/s)"
    if folder == "devices" and not plain.startswith("cpu"):
        known = [name for name in known if not name.startswith("cpu")]
    figure = _bandwidth_text if folder == "devices" else _type_text
    near = ", ".join(f"{name} ({figure(name)})" for name in _nearest(plain, known))
    what = "device" if folder == "devices" else "model"
    return InputError(Verbatim(f"no {what} is called {text!r}{said}; nearest: {near}; or {_REMEDY[folder]}"))


def _bandwidth(name: str) -> float:
    """Return the memory bandwidth of a shipped device in GB/s."""
    from hermes.hardware.descriptions.devices import load_device

    return load_device(name).memory_bandwidth / 1e9


def _bandwidth_text(name: str) -> str:
    return f"{_bandwidth(name):,.0f} GB/s"


def _type_text(name: str) -> str:
    from hermes.hardware.descriptions.models import load_model

    billions = load_model(name).num_params() / 1e9
    return f"{_type(name) or 'encoder'}, {f'{billions:,.0f}' if billions >= 100 else f'{billions:.3g}'}B"


def _not_modelled(text: str, kind: str) -> InputError:
    from hermes.hardware.descriptions.hf_config import SUPPORTED, lacking

    if kind in SUPPORTED:
        return InputError(Verbatim(f"no description of {text!r} ({kind}) ships; {_REMEDY['models']}"))
    what = f"; no description can say {lacking(kind)}" if lacking(kind) else ""
    return InputError(Verbatim(f"{text!r} is of the type {kind}, which is not modelled; modelled types: "
                               f"{', '.join(SUPPORTED)}{what}"))


_REMEDY = {
    "models": "give the path of its config.json",
    "devices": f"give the path of a device file ({page_url('how-to/new-card')})",
}


def type_of(name: str) -> str | None:
    """Return the `model_type` of a model by its name, None for an unknown family."""
    return _type(_plain("models", name))


def _type(name: str) -> str | None:
    return next((kind for pattern, kind in _TYPES if pattern.match(name)), None)


def _nearest(text: str, names: Sequence[str]) -> list[str]:
    """Return the names most like a text: those that continue it first, then those that begin alike."""
    def likeness(name: str) -> tuple[bool, float]:
        same = next((i for i, (one, other) in enumerate(zip(text, name, strict=False)) if one != other),
                    min(len(text), len(name)))
        ratio = difflib.SequenceMatcher(None, text, name, autojunk=False).ratio()
        return name.startswith(text), ratio + same / len(name)

    return sorted(names, key=lambda name: (*(-part for part in likeness(name)), name))[:NEAREST]
