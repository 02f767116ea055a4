"""Numbers that pipelines and routers note about requests."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.core.record import BELIEVED
from hermes.core.stage import Stage

__all__ = ["Notes"]


class Notes:
    """Numbers that are noted about requests, by name and request.

    Attributes:
        names: Of those that are positions: the names in their order.
    """

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = {}
        self.names: dict[str, list[str]] = {}

    def note(self, request: int, name: str, value: float, names: Sequence[str] = ()) -> None:
        """Record a number about a request, or with `names` one of them by its position."""
        self.values.setdefault(name, {})[request] = value
        if names and name not in self.names:
            self.names[name] = list(names)

    def believed(self, stage: Stage, tokens: int) -> None:
        """Add to the tokens of a request's prompts that a router believes to be cached."""
        noted = self.values.setdefault(BELIEVED, {})
        noted[stage.request.id] = noted.get(stage.request.id, 0.0) + tokens
