"""Choice of pipelines for a workload's requests: a name, one with parameters, or several by weight."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from hermes.config import ConfigModel, Name

__all__ = ["PipelineChoice", "Pipelines", "choices_of", "fields_of"]


class PipelineChoice(ConfigModel):
    """A pipeline for a part of the requests. Any other key is a parameter of it: `{name: rag, documents: 10}`."""

    # the pipeline checks its parameters itself when the simulation is built
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool | int | float | str | list[Any] | dict[str, Any]]

    name: Name
    """A graph of the scenario's `pipelines`, or a built-in pipeline (`hermes pipeline list`)."""
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Relative share of the requests that take it."""
    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Model that these requests ask for, if the pipeline leaves it open. Left out, the workload's."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters given to the pipeline."""
        return dict(self.model_extra or {})


def _form(value: Any) -> str:
    return "several" if isinstance(value, list) else "with parameters" if not isinstance(value, str) else "by name"


Pipelines = Annotated[
    Annotated[Name, Tag("by name")]
    | Annotated[PipelineChoice, Tag("with parameters")]
    | Annotated[list[PipelineChoice], Field(min_length=1, max_length=1000), Tag("several")],
    Discriminator(_form),
]


def choices_of(value: str | PipelineChoice | list[PipelineChoice]) -> list[PipelineChoice]:
    """Return the choices of any form as a list."""
    if isinstance(value, str):
        return [PipelineChoice.model_validate({"name": value})]
    return [value] if isinstance(value, PipelineChoice) else list(value)


def fields_of(value: str | PipelineChoice | list[PipelineChoice]) -> list[str]:
    """Return the field of each of `choices_of` within the workload."""
    return [f"pipeline.{i}" for i in range(len(value))] if isinstance(value, list) else ["pipeline"]
