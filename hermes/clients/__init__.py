"""Clients: serving instances of LLMs, retrieval, KV stores and other services."""

import hermes.services  # noqa: F401  (registers its services)
from hermes.clients.base import CLIENTS
from hermes.clients.config import LLMClientConfig
from hermes.clients.kv_retrieval import KvRetrievalClient, KvRetrievalClientConfig
from hermes.clients.llm import LLMClient
from hermes.clients.memory import MemoryConfig
from hermes.clients.resources import PowerConfig
from hermes.clients.service import ProcessingClientConfig, RagClientConfig, ServiceClient
from hermes.clients.task import TaskClient, TaskClientConfig
from hermes.core.client import LOADS, Client

__all__ = [
    "CLIENTS", "LOADS", "Client", "KvRetrievalClient", "KvRetrievalClientConfig", "LLMClient", "LLMClientConfig",
    "MemoryConfig", "PowerConfig", "ProcessingClientConfig", "RagClientConfig", "ServiceClient",
    "TaskClient", "TaskClientConfig",
]
