"""Which pipelines a workload's requests take, as it says in YAML: a name, one with parameters, or several by weight."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag

from hermes.config import ConfigModel

__all__ = ["PipelineChoice", "Pipelines", "choices_of", "fields_of"]

Name = Annotated[str, Field(min_length=1, max_length=200)]


class PipelineChoice(ConfigModel):
    """A pipeline for some of the requests. Any other key is a parameter of it: `{name: rag, documents: 10}`."""

    # the pipeline checks its parameters itself, when the simulation is put together
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool | int | float | str]

    name: Name
    """A graph of the scenario's `pipelines`, or a pipeline that comes with hermes (`hermes pipeline list`)."""
    weight: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """How many of the requests take it, relative to the others."""
    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The model these requests ask for, where the pipeline leaves it open; the workload's where left out."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What is set of the pipeline's parameters."""
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
    """Whatever form it has, as a list."""
    if isinstance(value, str):
        return [PipelineChoice.model_validate({"name": value})]
    return [value] if isinstance(value, PipelineChoice) else list(value)


def fields_of(value: str | PipelineChoice | list[PipelineChoice]) -> list[str]:
    """Where in the workload each of `choices_of` stands."""
    return [f"pipeline.{i}" for i in range(len(value))] if isinstance(value, list) else ["pipeline"]
