"""Consistency checks of an LLM client with its hardware model: model, device, devices, precision, context.

A profile gives the step times of the model, card and parallelism that it was measured with. A client with others is an
error, unless it sets `allow_mismatch`. Two models agree if their layers have the same shapes, two devices if they have
the same arithmetic and memory. A name without a description is not compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.devices import DeviceDescription, device_named_in, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.models import ModelDescription, load_model, precision
from hermes.hardware.info import HardwareInfo

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig
    from hermes.clients.memory import MemoryConfig

__all__ = ["check_agreement", "described_model", "longest_request"]

ALLOW = "or set `allow_mismatch: true`"
_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "gated_ffn",
          "num_experts", "experts_per_token")
_BITS_APART = 1.4   # ratio of another precision: scales and 16-bit embeddings add some bits, the next precision is 2


def described_model(name: str, base_dir: Path | None) -> str:
    """Return the name or path of a model's description, "" for a model without one.

    Profiles may give a model in words, or as its publisher does (`meta-llama/Llama-3.1-8B`).
    """
    if not name:
        return ""
    shipped = name.rsplit("/", 1)[-1].lower()
    if shipped in names_in("models"):
        return shipped
    try:
        load_model(name, base_dir)
    except InputError:
        return ""
    return name


def _model(name: str, base_dir: Path | None) -> ModelDescription | None:
    found = described_model(name, base_dir)
    return load_model(found, base_dir) if found else None


def longest_request(config: LLMClientConfig, model: str, base_dir: Path | None) -> int | None:
    """Return the limit of prompt plus output tokens: the client's `max_model_len`, or the context of `model`.

    None if there is no limit. Raises `InputError` for a `max_model_len` beyond the model's context.
    """
    given: int | None = config.max_model_len
    if config.allow_mismatch or (found := _model(model, base_dir)) is None or found.max_context is None:
        return given
    if given is None:
        return found.max_context
    if given > found.max_context:
        raise InputError(Verbatim(f"{given} is more than {found.max_context}, the context of {found.name}; lower it, "
                                  f"{ALLOW}"), field="max_model_len")
    return given


def check_agreement(config: LLMClientConfig, info: HardwareInfo, base_dir: Path | None) -> None:
    """Raise `InputError` if an LLM client's configuration contradicts its hardware model."""
    if config.allow_mismatch:
        return
    if config.model and info.model and config.model != info.model:
        _check_model(config, info, base_dir)
    if config.device and (device := _device(info)) is not None and config.device != device.name:
        _check_device(config, info, device, base_dir)
    if config.devices is not None and info.devices is not None and config.devices != info.devices:
        raise _devices_error(config, info, base_dir)
    _check_bits(config.memory, info)


def _device(info: HardwareInfo) -> DeviceDescription | None:
    return info.device or device_named_in(info.hardware)


def _device_name(info: HardwareInfo) -> str:
    device = _device(info)
    return "" if device is None else device.name


def _source(info: HardwareInfo) -> str:
    return f"the hardware's {info.kind} {info.name}" if info.kind != "roofline" else "`hardware`"


def _profiles(model: str, device: str, tp: int | None = None) -> list[str]:
    """Return the shipped profiles of a model on a device (any if ""), of parallelism `tp` if it is given."""
    found = [name for name in names_in("") if f"{model}-" in f"{name}-"]
    for part in (f"-{device}-", f"-{device.split('-')[0]}-") if device else ():
        if any(part in name for name in found):
            found = [name for name in found if part in name]
            break
    else:
        if device:
            return []
    return found if tp is None else [name for name in found if f"-tp{tp}-" in f"{name}-"]


def _instead(model: str, device: str, tp: int | None = None) -> str:
    names = _profiles(model, device, tp)
    if names:
        return f"profile {' or '.join(names[:2])}"
    on = f", device: {device}" if device else ", device: ..."
    return f"{{kind: roofline, model: {model or '...'}{on}{'' if tp is None else f', tp: {tp}'}}}"


def _check_model(config: LLMClientConfig, info: HardwareInfo, base_dir: Path | None) -> None:
    ours, theirs = _model(config.model, base_dir), _model(info.model, base_dir)
    if ours is None or theirs is None or all(getattr(ours, name) == getattr(theirs, name) for name in _SHAPE):
        return
    device = config.device or _device_name(info)
    if info.kind == "roofline":
        instead = "write the same model in both"
    else:
        instead = f"for {ours.name} write {_instead(ours.name, device)}"
    raise InputError(Verbatim(f"{config.model} is not {info.model}, the model of {_source(info)}; {instead}, {ALLOW}"),
                     field="model")


def _check_device(
    config: LLMClientConfig, info: HardwareInfo, theirs: DeviceDescription, base_dir: Path | None
) -> None:
    try:
        ours = load_device(config.device, base_dir)
    except InputError:   # `LLMClientConfig.resources` reports it
        return
    if (ours.flops, ours.memory_bandwidth, ours.memory) == (theirs.flops, theirs.memory_bandwidth, theirs.memory):
        return
    if info.kind == "roofline":
        instead = "write the same device in both"
    else:
        model = described_model(config.model or info.model, base_dir)
        instead = f"for {ours.name} write {_instead(model, ours.name)}"
    raise InputError(Verbatim(f"{config.device} is not {theirs.name}, the device of {_source(info)}; {instead}, "
                              f"{ALLOW}"), field="device")


def _devices_error(config: LLMClientConfig, info: HardwareInfo, base_dir: Path | None) -> InputError:
    if info.kind == "roofline":
        parts = f"tp {info.tp} x pp {info.pp} of `hardware`"
        instead = f"leave it out, or write hardware.tp: {config.devices}"
    else:
        parts = f"the tensor parallelism of {_source(info)}"
        model = described_model(config.model or info.model, base_dir)
        instead = f"leave it out, or for {config.devices} write {_instead(model, _device_name(info), config.devices)}"
    return InputError(Verbatim(f"{config.devices} is not {info.devices}, {parts}; {instead}, {ALLOW}"), field="devices")


def _check_bits(memory: MemoryConfig, info: HardwareInfo) -> None:
    """Raise `InputError` for weights or KV of another precision than the step times have."""
    if info.dtype is None:
        return
    stored = precision(info.dtype)
    bits = 8 * stored.layer_bytes
    if memory.weight_bits is not None and not 1 / _BITS_APART < memory.weight_bits / bits < _BITS_APART:
        raise InputError(
            Verbatim(f"{memory.weight_bits:g} is not about {bits:.3g} bits, the precision of {_source(info)}, "
                     f"{info.dtype}; leave it out, {ALLOW}"), field="memory.weight_bits",
        )
    if memory.kv_bits is None:
        return
    # A profile of 8-bit weights does not say how it stored KV: in 8 or 16 bits.
    auto = {8 * stored.other_bytes} | ({bits} if info.kind != "roofline" and bits == 8 else set())
    expected = auto if info.kv_dtype == "auto" else {8 * precision(info.kv_dtype).layer_bytes}
    if memory.kv_bits not in expected:
        instead = (f"write hardware.kv_dtype: fp{memory.kv_bits:g}" if info.kind == "roofline" and memory.kv_bits in
                   (8, 16, 32) else "leave it out")
        raise InputError(
            Verbatim(f"{memory.kv_bits:g} is not {' or '.join(f'{n:g}' for n in sorted(expected))} bits, with which "
                     f"steps of {_source(info)} read KV; {instead}, {ALLOW}"), field="memory.kv_bits",
        )
