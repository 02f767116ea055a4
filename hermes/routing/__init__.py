"""Routers: the choice of a client for each stage, and the extension point for routers of your own."""

from hermes.core.client import Client
from hermes.core.router import LoadCell, Router, RouterContext
from hermes.core.stage import Stage
from hermes.routing.base import ROUTERS

__all__ = ["ROUTERS", "Client", "LoadCell", "Router", "RouterContext", "Stage"]
