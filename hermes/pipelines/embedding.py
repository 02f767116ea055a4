"""Pipeline of embedding requests."""

from __future__ import annotations

from typing import Any

from hermes.core.stage import ServiceStage
from hermes.pipelines.base import Pipeline

__all__ = ["embedding"]


def embedding(request: Any) -> Pipeline:
    """Embed the prompt; output tokens are ignored."""
    yield ServiceStage("embed", tokens=request.prompt_tokens, priority=request.priority)


embedding.stages = ("embed",)  # type: ignore[attr-defined]
