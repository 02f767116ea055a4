"""Configuration of LLM clients, and construction of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from hermes.clients.base import ClientConfig
from hermes.clients.build import build_clients
from hermes.clients.consistency import described_model, longest_request
from hermes.clients.describe import client_info
from hermes.clients.frontend import ApiServers, FrontEnd
from hermes.clients.llm import LLMClient
from hermes.clients.memory import MemoryConfig, describe_model
from hermes.clients.overhead import RequestOverhead
from hermes.clients.resources import ClientResources, PowerConfig, power_model, price
from hermes.clients.tier_config import TiersConfig
from hermes.config import Bytes, Component, ConfigModel, Name
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.record import Describe
from hermes.engine.compatibility import Case, check
from hermes.errors import InputError, Verbatim, inside
from hermes.fleet.config import FleetConfig
from hermes.hardware import HARDWARE
from hermes.hardware.base import HardwareModel
from hermes.hardware.capacity import KvBudget
from hermes.hardware.config import ClientTerms
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, device_class, load_engine
from hermes.hardware.engine_memory import Around, sglang_share
from hermes.hardware.fitted.adjusted import StepAdjustment
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.schedulers import SCHEDULERS

__all__ = ["LLMClientConfig", "MemoryConfig", "PowerConfig"]


class Parallel(ConfigModel):
    """Parallelism of a client: the division of a model among its devices."""

    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share every layer (tensor parallelism)."""
    pp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pipeline stages of `tp` devices each, with as many batches in flight. Routers and reports list each batch as a
    client, NAME.pp0, NAME.pp1, ..."""
    dp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks of one engine, each with requests of its own on `tp` devices, that share a mixture's experts and take their
    steps together (data parallelism). Routers and reports list each rank as a client, NAME.dp0, NAME.dp1, ..."""
    ep: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share a mixture's experts, whole ones on each (expert parallelism): all `tp * dp` of them. 1: every
    device has a part of each expert."""

    @property
    def stages(self) -> int | None:
        """Pipeline stages, None for one."""
        return self.pp if self.pp > 1 else None

    @property
    def ranks(self) -> int | None:
        """Data-parallel ranks, None for one."""
        return self.dp if self.dp > 1 else None


_COUNT = WithJsonSchema({"anyOf": [
    {"type": "integer", "minimum": 1, "maximum": 100_000}, {"type": "string", "pattern": r"^\d+\s*P\s*/?\s*\d+\s*D$"}]})


class LLMClientConfig(ClientConfig):
    """Clients that serve generations: a scheduler over a hardware model, with KV memory."""

    serves_llm: ClassVar[bool] = True

    kind: Literal["llm"] = "llm"
    name: Name = "llm"
    """Name; clients of a group are called NAME-0, NAME-1, ..."""
    count: Annotated[int, Field(ge=1, le=100_000), _COUNT] = 1
    """Number of equal clients. `3P1D` stands for two groups: three clients that prefill, one that decodes."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model served: a built-in description or the path of a config.json. Left out, the client serves any model; its
    memory and context limit are then those of the model that its hardware was measured with, if that has a description.
    """
    role: Literal["both", "prefill", "decode"] = "both"
    """Phases that the client serves: both, or one of the two (disaggregated serving)."""
    platform: str | None = None
    """Group of clients that are local to each other (routing and local disaggregation). `{i}` stands for the client's
    number, `{i//4}` for the number divided by 4."""
    devices: int | None = Field(default=None, ge=1, le=2**20)
    """Devices of one client, for memory, power and cost. Left out, the hardware model's parallelism (1 if it has
    none)."""
    engine: Annotated[str, Field(max_length=100)] | None = None
    """Engine that the client runs, e.g. `vllm-0.33`. It sets the rules of the `chunked` scheduler, and the defaults of
    this version on this device for what `scheduler` and `memory` leave out. Left out, the newest known engine. Other
    schedulers follow no engine."""
    device: Annotated[str, Field(max_length=4096)] = ""
    """Device description: a shipped name or a YAML file. Its memory, power and price apply unless others are given.
    Left out, the hardware model's device, if it has one."""
    parallel: Parallel = Parallel()
    """Devices of one client that share a model."""
    # Any: of a plug-in, too; so is the scheduler
    hardware: Annotated[Any, Component(HARDWARE), Field(default={"kind": "composed"}, validate_default=True)]
    """Hardware model: the duration of a step. Left out, composed of named terms for the model, the device and the
    engine."""
    adjust: StepAdjustment = StepAdjustment()
    """Changes of the hardware model's step times, such as `hermes calibrate from-requests` fits."""
    max_model_len: int | None = Field(default=None, ge=1, le=2**41)
    """Limit of prompt plus output tokens. The client rejects longer requests, as `vllm serve` does. Left out, the
    model's context."""
    allow_mismatch: bool = False
    """Accept a hardware model for another model, device, number of devices or precision than the client's, and requests
    beyond the model's context. Use it for deliberate stand-ins; otherwise contradictions are errors."""
    scheduler: Annotated[Any, Component(SCHEDULERS), Field(default={"kind": "chunked"}, validate_default=True)]
    """Scheduler: the order in which the client serves sequences."""
    memory: MemoryConfig = MemoryConfig()
    """KV memory. May be left out if the client or its hardware model has a device."""
    adapter_bytes: Bytes | None = None
    """Bytes of one LoRA adapter on a device. A step that first uses an adapter waits for them to come over the device's
    link to the host; `scheduler.max_loras` stay, the least recently used goes first. Left out, loads take no time."""
    request_overhead: RequestOverhead | None = None
    """Time of the serving stack for each request, in addition to the steps. Left out, none."""
    frontend: FrontEnd | None = None
    """Time of the API server for each request, before and after the engine, while the engine continues. Left out,
    none."""
    api_servers: ApiServers | None = None
    """Processes through which requests come in and tokens go out, each with a limit of its own. Left out, they keep up
    with any load."""
    tiers: Annotated[TiersConfig, AfterValidator(TiersConfig.without_hit_rates)] | None = None
    """Tiers that extend the prefix cache: looked up after the device's own, filled as prompts complete."""
    power: PowerConfig | None = None
    """Watts of one device. Left out, those of the profile, or else from the device's TDP and utilisation."""
    price_per_hour: float | None = Field(default=None, ge=0, le=1e6)
    """Dollars per hour of one device. Left out, the device's (a rough list price)."""
    fleet: FleetConfig | None = None
    """Replicas that come and go; `count` is the most that exist at a time. Left out, all clients serve throughout."""

    @property
    def names(self) -> list[str]:
        """Names of the group's clients."""
        engines = self.engine_names
        for kind in ("pp", "dp"):
            parts = getattr(self.parallel, kind)
            if parts > 1:
                engines = [f"{name}.{kind}{part}" for name in engines for part in range(parts)]
        return engines

    @property
    def engine_names(self) -> list[str]:
        """Names of the group's engines."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    def sampled(self, sorts: bool) -> LLMClientConfig:
        return self.model_copy(update={"hardware": self.hardware.sampled(sorts)})

    def completed(self, base_dir: Path | None) -> tuple[LLMClientConfig, HardwareModel]:
        """Return this configuration with the engine's defaults filled in, and the built hardware model.

        Compatibility is checked as soon as more is known: with what is given, with the hardware, with the defaults.
        """
        case = self._case(base_dir)
        check(case)
        given = self.model_copy(update=self._of_terms(base_dir)) if self.hardware.of_terms else self
        hardware = given._built_hardware(base_dir)
        case = case._replace(client=given, hardware=hardware, mixed=partial(given._mixes_windows, hardware, base_dir))
        check(case)
        filled = given._filled(hardware, base_dir)
        check(case._replace(client=filled, windowed=partial(filled._has_window_groups, hardware, base_dir)))
        return filled, hardware

    def _case(self, base_dir: Path | None) -> Case:
        """Return what is known of this client before its hardware is built."""
        if not self.scheduler.follows_engine:
            return Case(self)
        with inside("engine"):
            engine = load_engine(self.engine or NEWEST_ENGINE)
        return Case(self, version=engine.version, rules=engine.rules)

    def _mixes_windows(self, hardware: HardwareModel, base_dir: Path | None) -> bool:
        """Whether the model has layers with and without a sliding window; False for one without a description."""
        try:
            model = describe_model(self.memory_model(hardware_info(hardware), base_dir), base_dir)
        except InputError:
            return False
        return 0 < model.window_layers < model.num_layers

    def _has_window_groups(self, hardware: HardwareModel, base_dir: Path | None) -> bool:
        return self.memory.groups(self.memory_model(hardware_info(hardware), base_dir), base_dir) is not None

    def _of_terms(self, base_dir: Path | None) -> dict[str, object]:
        """Return hardware of named terms, completed by what the client says, and the engine's front end.

        A model fitted to whole steps says what it contains; the fit includes a front end, or the scenario adds one.
        The host's time hides behind the device's if the scheduler plans ahead.
        """
        with inside("engine"):
            engine = load_engine(self.engine or self.scheduler.engine)
        given = {"model": self.model, "device": self.device}
        for key, own in self.hardware.names.items():
            if not own and not given[key]:
                whole = "name a `model` and a `device`, or give `hardware`"
                text = f"name a `{key}`" if "hardware" in self.model_fields_set else whole
                raise InputError(Verbatim(f"missing: {text}"), field=key)
        named, times = self.device or self.hardware.names.get("device", ""), engine.frontend
        with inside("device" if self.device else "hardware.device"):
            device = load_device(named, base_dir) if named else None
        defaults = engine.defaults(device_class(device, HardwareInfo(), self.memory.capacity, self.parallel.tp))
        return {
            "hardware": self.hardware.completed(ClientTerms(
                self.model, self.device, engine.name, self.parallel.tp, self.scheduler.plans_ahead(defaults),
                self.parallel.dp, self.parallel.ep, self.parallel.pp, engine.kernels,
                self.scheduler.options.max_loras is not None)),
            "frontend": self.frontend or FrontEnd(before=times.before, after=times.after),
        }

    def _built_hardware(self, base_dir: Path | None) -> HardwareModel:
        try:
            with inside("hardware"):
                return self.adjust.apply(self.hardware.build(base_dir))
        except InputError as error:
            raise self._where_it_was_given(error) from None

    def _filled(self, hardware: HardwareModel, base_dir: Path | None) -> LLMClientConfig:
        """Return this with the defaults of its engine, or of a scheduler that follows none."""
        if not self.scheduler.follows_engine:
            with inside("memory"):
                return self.model_copy(update={"memory": self._own_memory(hardware, base_dir)})
        with inside("engine"):
            engine = load_engine(self.engine or NEWEST_ENGINE)
        info = hardware_info(hardware)
        device = self.device_of(info, base_dir)
        defaults = engine.defaults(device_class(device, info, self.memory.capacity, self.num_devices(info)))
        memory = self.memory.completed(defaults)
        if memory.hybrid is None and memory.kv_offload is None and self.connected:
            memory = memory.model_copy(update={"hybrid": False})   # vLLM turns it off beside KV connectors
        longest = longest_request(self, self.memory_model(info, base_dir), base_dir)
        return self.model_copy(update={
            "engine": engine.name, "scheduler": self.scheduler.completed(defaults, longest), "memory": memory,
        })

    def _own_memory(self, hardware: HardwareModel, base_dir: Path | None) -> MemoryConfig:
        """Return the memory of a scheduler that follows no engine, by the sum of the one that it is of."""
        rules = load_engine(self.engine or self.scheduler.engine).memory_rules
        info = hardware_info(hardware)
        device, memory = self.device_of(info, base_dir), self.scheduler.with_memory(self.memory)
        if rules.sums == "sglang" and memory.utilization is None and device is not None:
            memory = memory.model_copy(update={"utilization": sglang_share(
                device.memory, self.scheduler.options.max_num_batched_tokens, self.num_devices(info))})
        completed: MemoryConfig = memory.completed(None)
        return completed.ruled(rules)

    def _where_it_was_given(self, error: InputError) -> InputError:
        """Return an error of the hardware that names the key of the client that it took over."""
        key = (error.field or "").removeprefix("hardware.")
        own = {"model": self.model, "device": self.device}.get(key, "")
        if error.file is None and own and own == self.hardware.names.get(key):
            error.field = key
        if error.file is None and key in type(self.parallel).model_fields and getattr(self.parallel, key) > 1:
            error.field = f"parallel.{key}"
        return error

    def build(self, env: Clock, first_index: int, runs: RowLog, events: ClientEvents, *, every_step: bool,
              base_dir: Path | None,
              moves_kv: Literal["", "full", "layerwise"] = "", seed: int = 0, hardware: HardwareModel | None = None,
              ) -> list[LLMClient]:
        """Build the group's clients, numbered from `first_index`. They share one stateless hardware model.

        Args:
            moves_kv: Granularity of KV transfers between clients, "" for none; layer-wise needs the model's layers.
            hardware: The model that `completed` built. Left out, it is built here.
        """
        if hardware is None:
            with inside("hardware"):
                hardware = self.adjust.apply(self.hardware.build(base_dir))
        return build_clients(self, hardware, env, first_index, runs, events, every_step=every_step, base_dir=base_dir,
                             moves_kv=moves_kv, seed=seed)

    def describe(self, group: Sequence[LLMClient], base_dir: Path | None) -> list[Describe]:
        """Return for each of the group's clients a function that makes its record entry after the run."""
        resources = self.resources(group[0].hardware, base_dir)
        engines, parts = self.engine_names, self.parallel.dp * self.parallel.pp
        return [partial(client_info, client, self.kind, self.name, engines[i // parts] if parts > 1 else "", resources)
                for i, client in enumerate(group)]

    @property
    def connected(self) -> bool:
        """Whether KV leaves or enters the client's devices, through a connector of the engine."""
        return self.role != "both" or self.tiers is not None or self.memory.kv_offload is not None

    def moved_kv_bytes(self, info: HardwareInfo, base_dir: Path | None) -> float:
        """Return the KV bytes of one token of a sequence that leaves the client, or comes to it, with its drafter's."""
        own = self.memory.kv_bytes(self.memory_model(info, base_dir), info, base_dir)
        speculative = self.scheduler.options.speculative
        if speculative is None:
            return own
        from hermes.clients.drafting import drafter_kv_bytes

        return own + drafter_kv_bytes(speculative, self, info, base_dir)

    def memory_model(self, info: HardwareInfo, base_dir: Path | None) -> str:
        """Return the model whose weights and KV are in memory: the client's, or the hardware model's."""
        return self.model or described_model(info.model, base_dir)

    def engine_memory(self, hardware: HardwareModel, base_dir: Path | None) -> KvBudget:
        """Return the KV memory of one engine, all of its stages. Raises `InputError` if memory is missing."""
        info = hardware_info(hardware)
        model = self.memory_model(info, base_dir)
        return self.memory.budget(
            model, self.num_devices(info), info, self.device_of(info, base_dir), self.scheduler.options, base_dir,
            Around(self.connected, longest_request(self, model, base_dir)))

    def resources(self, hardware: HardwareModel, base_dir: Path | None) -> ClientResources:
        """Return memory, power and price of each of the group's clients. Raises `InputError` if memory is missing."""
        info = hardware_info(hardware)
        devices = self.devices_of(info)
        device = self.device_of(info, base_dir)
        model = self.memory_model(info, base_dir)
        budget = self.engine_memory(hardware, base_dir)
        if self.parallel.pp > 1:   # each of the batches in flight has a part of the engine's devices and blocks
            budget = replace(budget, num_blocks=max(budget.num_blocks // self.parallel.pp, 1), devices=max(devices, 1))
        dollars, whose = price(self.price_per_hour, device)
        power = power_model(self.power, info, device, model, devices, base_dir)
        return ClientResources(devices, "" if device is None else device.name, budget, power, dollars, whose,
                               longest_request(self, model, base_dir))

    def overhead(self, mode: Literal["serial", "overlapped"]) -> RequestOverhead | None:
        """Return the request overhead if it is of this mode."""
        given = self.request_overhead
        return given if given is not None and given.mode == mode else None

    def num_devices(self, info: HardwareInfo) -> int:
        """Return the devices of one client; with stages, of the whole engine."""
        return info.tp * info.pp if self.devices is None else self.devices

    def devices_of(self, info: HardwareInfo) -> int:
        """Return the devices of each of the group's clients: with stages, a part of the engine's."""
        return self.num_devices(info) // self.parallel.pp

    def device_of(self, info: HardwareInfo, base_dir: Path | None) -> DeviceDescription | None:
        """Return the description of the device, None if it has none. Raises `InputError`."""
        if not self.device:
            return info.device
        with inside("device"):
            return load_device(self.device, base_dir)
