"""Clients (serving instances of LLMs, retrieval, KV stores) and the extension point for clients of your own."""

from hermes.clients.base import CLIENTS
from hermes.clients.overhead import OverheadProfile, load_overhead
from hermes.clients.task import TaskClient, TaskClientConfig
from hermes.core.client import LOADS, Client, ClientEvents, ClientView
from hermes.core.clock import Clock
from hermes.core.stage import ServiceStage, Stage

__all__ = [
    "CLIENTS", "LOADS", "Client", "ClientEvents", "ClientView", "Clock", "OverheadProfile", "ServiceStage", "Stage",
    "TaskClient", "TaskClientConfig", "load_overhead",
]
