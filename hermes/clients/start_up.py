"""What the engine of a client needs to start, from its model, device and version; and its slow first step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.clients.memory import describe_model
from hermes.clients.parts import StepPart
from hermes.errors import InputError, Verbatim, inside
from hermes.fleet.start_ups import EngineStart, Host, WarmStart
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, load_engine
from hermes.hardware.engine_memory import captured_sizes
from hermes.hardware.info import hardware_info
from hermes.hardware.start_up import Started, load_start_up

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig
    from hermes.clients.llm import LLMClient
    from hermes.schedulers.plan import Plan

__all__ = ["engine_start", "slow_first"]

GIVE = "give all of process, tokenizer, weights, compile, profiling and capture"


def engine_start(config: Any, client: Any, base_dir: Path | None, times: str, host: Host = None) -> EngineStart:
    """Return what each of a group's engines needs to start.

    Args:
        config: The group's configuration, of any kind.
        client: One of its clients.
        times: Name or file of the engine's times.
        host: What is known of the host that it starts on; for phases of a `Phases`.

    Raises `InputError` for clients that are no LLM engines, and for a model or a device without a description.
    """
    if not config.serves_llm:
        raise InputError(Verbatim(f"these clients are no LLM engines, whose phases are known: give the `total`, or "
                                  f"{GIVE}"))
    info = hardware_info(client.hardware)
    name, device = config.memory_model(info, base_dir), config.device_of(info, base_dir)
    if not name or device is None:
        raise InputError(Verbatim(f"the times of its phases follow from a model and a device with descriptions; name "
                                  f"them, or {GIVE}"))
    with inside("times"):
        found = load_start_up(times, base_dir)
    devices = config.num_devices(info)
    of_all = devices * info.dp
    peak = device.flops.get("bf16") or max(device.flops.values())
    graphs = _graphs(config, device.type == "gpu")

    def started(named: str, given: float | None = None) -> Started:
        model = describe_model(named, base_dir)
        weights = model.weight_bytes(info.dtype or model.dtype or "bf16", info.tp) if given is None else given
        per_token = 2.0 * (model.active_params() - model.outer_params()) / info.tp
        return Started(model.num_layers, model.vocab_size, round(weights), per_token, peak, graphs)

    weights = None if config.memory.weights is None else config.memory.weights / devices
    own, factor = started(name, weights), None if isinstance(host, WarmStart) else host
    if isinstance(host, WarmStart):
        with inside("host"):
            factor = found.host_of(host.warm, own if host.model is None else started(host.model))
    phases, model = found.phases(own, factor), describe_model(name, base_dir)
    dtype = info.dtype or model.dtype or "bf16"
    slower = 1.0 if factor is None else factor
    said = "" if factor is None else f", host x{factor:.3g}"
    engine = config.engine or NEWEST_ENGINE
    return EngineStart(
        {phase: cold for phase, (cold, _) in phases.items()}, {phase: warm for phase, (_, warm) in phases.items()},
        own.weight_bytes * of_all, found.weights.rate * of_all / slower, found.weights.fixed * slower,
        device.copied_from_host * of_all, engine, f"{model.name} {dtype}",
        f"{model.name} {dtype} on {of_all} {device.name} by {engine}",
        f"{found.name}: {found.engine} on {found.device}{said}", found.spread(known=factor is not None))


def _graphs(config: LLMClientConfig, has_graphs: bool) -> tuple[int, ...]:
    """Return the tokens of the captured steps."""
    if not has_graphs:
        return ()
    given = config.hardware.value_of("cudagraph_capture_sizes")
    return tuple(given) if given else captured_sizes(load_engine(config.engine or NEWEST_ENGINE).step.largest_graph)


class _SlowFirst(StepPart):
    """Makes the first single step of an engine longer, once."""

    def __init__(self, more_ns: int) -> None:
        self._more_ns = more_ns
        self._clients: list[LLMClient] = []

    def attach(self, client: LLMClient) -> None:
        """See `ClientPart`."""
        self._clients.append(client)
        if client.step_parts.stages is None:
            client.step_parts.loads += (self,)
        else:
            client.step_parts.holds += (self,)   # each stage would load for so long

    def load_ns(self, client: LLMClient, plan: Plan) -> int:
        """See `StepPart`."""
        for one in self._clients:
            one.step_parts.loads = tuple(part for part in one.step_parts.loads if part is not self)
            one.step_parts.holds = tuple(part for part in one.step_parts.holds if part is not self)
        return self._more_ns

    def held_up_ns(self, client: LLMClient, plan: Plan) -> int:
        """See `StepPart`."""
        return self.load_ns(client, plan)


def slow_first(clients: Iterable[LLMClient], more_ns: int) -> None:
    """Make the first single step of an engine take `more_ns` longer. clients: All of it."""
    part = _SlowFirst(more_ns)
    for client in clients:
        part.attach(client)
