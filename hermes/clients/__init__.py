"""Who serves."""

import hermes.rag  # noqa: F401  (registers its services)
from hermes.clients.base import CLIENTS, LOADS, Client
from hermes.clients.config import LLMClientConfig, MemoryConfig, PowerConfig
from hermes.clients.llm import LLMClient
from hermes.clients.service import ProcessingClientConfig, RagClientConfig, ServiceClient

__all__ = ["CLIENTS", "LOADS", "Client", "LLMClient", "LLMClientConfig", "MemoryConfig",
           "PowerConfig", "ProcessingClientConfig", "RagClientConfig", "ServiceClient"]
