"""Who serves."""

from hermes.clients.base import CLIENTS, LOADS, Client
from hermes.clients.config import LLMClientConfig, MemoryConfig, PowerConfig
from hermes.clients.llm import LLMClient

__all__ = ["CLIENTS", "LOADS", "Client", "LLMClient", "LLMClientConfig", "MemoryConfig", "PowerConfig"]
