"""Requests that want a vector, not an answer."""

from __future__ import annotations

from typing import Any

from hermes.core.stage import ServiceStage
from hermes.pipelines.base import Pipeline

__all__ = ["embedding"]


def embedding(request: Any) -> Pipeline:
    """The prompt is embedded, nothing else; output tokens are not looked at."""
    yield ServiceStage("embed", tokens=request.prompt_tokens, priority=request.priority)


embedding.stages = ("embed",)  # type: ignore[attr-defined]
