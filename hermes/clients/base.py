"""Base of clients' configurations, the registry of clients, and the platform names that all clients share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from hermes.config import ConfigModel
from hermes.config.registry import Registry

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.hardware.base import HardwareModel

__all__ = ["CLIENTS", "ClientConfig", "PreparedClient", "platform_name"]


class ClientConfig(ConfigModel):
    """Configuration of a group of equal clients. A subclass has its `kind`, its options, and writes
    `names`, `build` and `describe` (see `TaskClientConfig`).

    The hooks are called when a scenario is read, once for each group, in the order in which they stand here. None of
    them may change this object: they return another one.
    """

    serves_llm: ClassVar[bool] = False
    """Whether its clients are engines that serve generations of a model."""

    def sampled(self, sorts: bool) -> Self:
        """Return this with what the workloads say of sampling: whether engines sort their vocabulary."""
        return self

    def completed(self, base_dir: Path | None) -> tuple[Self, HardwareModel | None]:
        """Return this with all defaults filled in, and the built hardware model, None without one."""
        return self, None


@runtime_checkable
class PreparedClient(Protocol):
    """A client that looks at the others before the run."""

    def prepare(self, clients: Sequence[Client], populations: Iterable[Any]) -> None:   # Any: of `hermes.workload`
        """Learn what it needs of the other clients, and of the populations of contexts. Called once."""
        ...


CLIENTS: Registry[ClientConfig] = Registry("clients", "a client", {
    "kv_retrieval": "hermes.clients.kv_retrieval:KvRetrievalClientConfig",
    "llm": "hermes.clients.config:LLMClientConfig",
    "processing": "hermes.clients.service:ProcessingClientConfig",
    "rag": "hermes.clients.service:RagClientConfig",
}, base=ClientConfig)


def platform_name(pattern: str | None, number: int) -> str:
    """Return the platform of a group's client: `{i}` is its number, `{i//4}` its number divided by 4, `{i%4}` the
    rest."""
    def value(found: re.Match[str]) -> str:
        by = int(found[2] or 1)
        return str(number % by if found[1] == "%" else number // by)

    return re.sub(r"\{i(?:(//|%)([1-9][0-9]*))?\}", value, pattern or "")
