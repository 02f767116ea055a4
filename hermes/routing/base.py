"""The registry of routers."""

from __future__ import annotations

from typing import Any

from hermes.config.registry import Registry

__all__ = ["ROUTERS"]

ROUTERS: Registry[Any] = Registry("routers", "a router")
