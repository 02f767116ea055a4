"""Registry of clients, and the platform names that all clients share."""

from __future__ import annotations

import re
from typing import Any

from hermes.config.registry import Registry

__all__ = ["CLIENTS", "platform_name"]

# Any: configurations of plug-ins have nothing in common but pydantic
CLIENTS: Registry[Any] = Registry("clients", "a client", {
    "kv_retrieval": "hermes.clients.kv_retrieval:KvRetrievalClientConfig",
    "llm": "hermes.clients.config:LLMClientConfig",
    "processing": "hermes.clients.service:ProcessingClientConfig",
    "rag": "hermes.clients.service:RagClientConfig",
})


def platform_name(pattern: str | None, number: int) -> str:
    """Return the platform of a group's client: `{i}` is its number, `{i//4}` its number divided by 4."""
    return re.sub(r"\{i(?://([1-9][0-9]*))?\}", lambda found: str(number // int(found[1] or 1)), pattern or "")
