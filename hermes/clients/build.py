"""Construction of a group of LLM clients: memory, scheduler, and the parts that its options ask for.

`PARTS` lists the options that are a part of a client, each with the function that makes it. A new one is a part in a
file of its own, a row here, and its key in a configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from hermes.clients.base import platform_name
from hermes.clients.consistency import check_agreement, longest_request
from hermes.clients.llm import LLMClient
from hermes.clients.memory import describe_model
from hermes.clients.parts import ClientPart
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.engine.compatibility import Case, check
from hermes.errors import inside
from hermes.hardware.base import HardwareModel
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.memory import BlockPool
from hermes.schedulers import LLMScheduler

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig

__all__ = ["PARTS", "PartOption", "Place", "build_clients"]


class Place(NamedTuple):
    """The client that a part is made for, or the first of the clients that share it."""

    config: LLMClientConfig
    env: Clock
    number: int
    name: str
    platform: str
    scheduler: LLMScheduler
    hardware: HardwareModel
    info: HardwareInfo
    base_dir: Path | None


class PartOption(NamedTuple):
    """An option that is a part of the client.

    Attributes:
        given: Returns the option's value, None if a client lacks it.
        maker: "module:function": makes the part of the value and the `Place`. Imported when a client has the option.
        shared: The clients that have one part together: those of engines behind the same API servers, those of one
            engine, the ranks of one of its batches, the batches of one of its ranks; or each has its own.
    """

    given: Callable[[LLMClientConfig], object]
    maker: str
    shared: Literal["servers", "engine", "batch", "rank", "client"] = "client"

    def make(self, value: object, place: Place) -> ClientPart:
        module, _, function = self.maker.partition(":")
        part: ClientPart = vars(import_module(module))[function](value, place)
        return part


PARTS: tuple[PartOption, ...] = (
    # requests pass these in this order
    PartOption(lambda client: client.scheduler.options.queue_limits, "hermes.clients.queue_limits:limits_of", "engine"),
    PartOption(lambda client: client.api_servers, "hermes.clients.api_servers:servers_of", "servers"),
    PartOption(lambda client: client.tiers, "hermes.clients.tiers:tiers_of"),
    PartOption(lambda client: client.overhead("overlapped"), "hermes.clients.overhead:host_thread_of", "engine"),
    # about steps
    PartOption(lambda client: client.overhead("serial"), "hermes.clients.overhead:engine_thread_of", "rank"),
    PartOption(lambda client: client.adapter_bytes, "hermes.clients.adapter_loads:loads_of"),
    PartOption(lambda client: client.scheduler.options.speculative, "hermes.clients.drafting:drafter_at"),
    PartOption(lambda client: client.memory.kv_offload, "hermes.clients.host_offload:jobs_of"),
    PartOption(lambda client: client.parallel.stages, "hermes.clients.pipeline:stages_of", "engine"),
    PartOption(lambda client: client.parallel.ranks, "hermes.clients.lockstep:lockstep_of", "batch"),
)


class _Parts:
    """Makes the parts of a group's clients."""

    def __init__(self, config: LLMClientConfig) -> None:
        self._asked = [(option, value) for option in PARTS if (value := option.given(config)) is not None]
        self._ranks, self._stages = config.parallel.dp, config.parallel.pp
        self._behind = 1 if config.api_servers is None else config.api_servers.engines
        self._made: dict[tuple[int, tuple[int, ...]], ClientPart] = {}

    def of(self, number: int, place: Place) -> tuple[ClientPart, ...]:
        """Return the parts of client `number` of the group."""
        batch, rank = divmod(number, self._ranks)
        engine = batch // self._stages
        shares = {"servers": (engine // self._behind,), "engine": (engine,), "batch": (engine, batch),
                  "rank": (engine, -1, rank), "client": (number, -1, -1)}
        found = []
        for i, (option, value) in enumerate(self._asked):
            key = i, shares[option.shared]
            if key not in self._made:
                self._made[key] = option.make(value, place)
            found.append(self._made[key])
        return tuple(found)


class _Again:
    """The parts of the engines that take an engine's place, one after the other: all of its clients start together."""

    def __init__(self, config: LLMClientConfig) -> None:
        self._config, self._parts, self._have = config, _Parts(config), set[int]()

    def parts(self, number: int) -> _Parts:
        """Return what makes the parts of client `number` of the next engine."""
        if number in self._have:
            self._parts, self._have = _Parts(self._config), set()
        self._have.add(number)
        return self._parts


def build_clients(
    config: LLMClientConfig, hardware: HardwareModel, env: Clock, first_index: int, runs: RowLog, events: ClientEvents,
    *, every_step: bool, base_dir: Path | None, moves_kv: Literal["", "full", "layerwise"], seed: int,
) -> list[LLMClient]:
    """Build a group's clients; see `LLMClientConfig.build`."""
    info = hardware_info(hardware)
    check_agreement(config, info, base_dir)
    model = config.memory_model(info, base_dir)
    longest = longest_request(config, model, base_dir)
    memory = config.resources(hardware, base_dir).memory
    make_pool = config.memory.pool(
        config.memory.groups(model, base_dir), config.scheduler.options.max_num_batched_tokens or 0,
        every_step=every_step, unhashed_to_front=config.scheduler.unhashed_to_front)
    per_engine, parts, clients = config.parallel.dp * config.parallel.pp, _Parts(config), []
    again = _Again(config)

    def engine(i: int, name: str, made: _Parts) -> tuple[LLMScheduler, tuple[ClientPart, ...]]:
        """Return an empty engine for client `i`: its scheduler, and its parts."""
        pool = make_pool(memory.num_blocks, config.memory.tokens_per_block)
        scheduler = _scheduler(config, pool, model, info, base_dir, every_step=every_step)
        scheduler.seed(seed)
        for own in scheduler.parts:
            own.placed(config.parallel.dp, connected=config.connected)
        platform = platform_name(config.platform, i // per_engine)
        place = Place(config, env, first_index + i, name, platform, scheduler, hardware, info, base_dir)
        return scheduler, made.of(i, place)

    for i, name in enumerate(config.names):
        scheduler, own = engine(i, name, parts)
        if i == 0:   # the others are its equals
            check(Case(config, scheduler=scheduler))
        client = LLMClient(
            env, first_index + i, name, scheduler, hardware, runs, events, model=config.model, role=config.role,
            platform=platform_name(config.platform, i // per_engine), every_step=every_step, parts=own,
            frontend_ns=(0, 0.0, 0) if config.frontend is None else config.frontend.times_ns,
        )
        if config.fleet is not None:
            if not i % per_engine:
                again = _Again(config)
            client.another = lambda i=i, name=name, again=again: engine(i, name, again.parts(i))
        client.limits.unreserved_kv_tokens = memory.unreserved_tokens
        if longest is not None:
            client.limits.max_model_len = longest
        if moves_kv:
            client.kv_bytes_per_token = config.moved_kv_bytes(info, base_dir)
            if moves_kv == "layerwise":
                client.num_layers = describe_model(model, base_dir).num_layers
        clients.append(client)
    return clients


def _scheduler(config: LLMClientConfig, pool: BlockPool, model: str, info: HardwareInfo, base_dir: Path | None, *,
               every_step: bool) -> LLMScheduler:
    offload = config.memory.kv_offload
    if offload is None:
        built: LLMScheduler = config.scheduler.build(pool, every_step=every_step)
        return built
    from hermes.clients.host_offload import host_offload_of

    with inside("memory.kv_offload"):
        part = host_offload_of(offload, config.memory.kv_bytes(model, info, base_dir) * pool.block_size,
                               config.scheduler)
    with_part: LLMScheduler = config.scheduler.build_with(pool, (part,), every_step=every_step)
    return with_part
