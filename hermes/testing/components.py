"""Base of the contract suites of components: what holds for everything that a scenario names by its `kind`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from hermes.config.registry import Registry
from hermes.config.validation import validate

__all__ = ["ComponentContract"]


class ComponentContract(ABC):
    """Properties of every component. A suite names its registry."""

    registry: ClassVar[Registry[Any]]

    @abstractmethod
    def make(self) -> Any:
        """Return the component as YAML would give it; equal at each call."""

    def test_is_registered_under_its_kind(self) -> None:
        component = self.make()
        assert self.registry.get(component.kind) is type(component)

    def test_a_written_component_is_read_back(self) -> None:
        """A scenario written out in full contains the defaults."""
        component = self.make()
        assert validate(type(component), component.model_dump()) == component, "it does not survive a scenario file"
