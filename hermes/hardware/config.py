"""Base of hardware models' configurations, and what a hardware model may offer besides step times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from hermes.config import ConfigModel

if TYPE_CHECKING:
    from hermes.hardware.base import HardwareModel, WriteEnds
    from hermes.hardware.history import StepHistory

__all__ = ["ClientTerms", "HardwareConfig", "history_of", "name_of", "prices", "sources_of", "write_ends_of"]


class ClientTerms(NamedTuple):
    """What a client says, for what its hardware leaves out."""

    model: str
    device: str
    engine: str
    tp: int = 1
    asynchronous: bool = True
    dp: int = 1
    ep: int = 1
    pp: int = 1
    kernels: str = ""
    """Engine whose kernels' times count, where that is another than vLLM."""
    adapters: bool = False
    """Whether its requests may have LoRA adapters."""


class HardwareConfig(ConfigModel):
    """Configuration of a hardware model. A subclass has its `kind` and its options, and writes `build`.

    Hooks are called in the order in which they stand here, when a scenario is read, once for each group of clients;
    `build` at least once. None of them may change this object: they return another one.
    """

    of_terms: ClassVar[bool] = False
    """Whether it is composed of terms that the client's model, device and engine complete: then `completed` is called,
    and the client has its engine's front end unless it says otherwise."""

    kind: str

    @property
    def names(self) -> dict[str, str]:
        """The model and the device that it names, by key, for messages."""
        return {key: getattr(self, key) for key in ("model", "device") if key in type(self).model_fields}

    def sampled(self, sorts: bool) -> Self:
        """Return this with what the workloads say of sampling: whether the engine sorts its vocabulary.

        Raises `InputError` if it says otherwise.
        """
        return self

    def completed(self, client: ClientTerms) -> Self:
        """Return this with what the client says for what is left out. Raises `InputError` for what contradicts it."""
        return self

    def build(self, base_dir: Path | None = None) -> HardwareModel:
        """Return the model. Raises `InputError` for unknown or malformed files."""
        raise NotImplementedError


# A hardware model has `step_ns`, `run_ns` and `out_of_range` (`HardwareModel`). It may offer more; these are the only
# places that ask whether it does. Any: the models of plug-ins.

def name_of(model: Any) -> str:
    """Return a model's name, "" for none."""
    return str(getattr(model, "name", ""))


def history_of(model: Any) -> StepHistory | None:
    """Return a new history of a client's steps, for a model whose times depend on the steps before."""
    make = getattr(model, "history", None)
    found: StepHistory | None = None if make is None else make()
    return found


def write_ends_of(model: Any) -> WriteEnds | None:
    """Return the function that writes the ends of a short run of decode steps; None without one."""
    found: WriteEnds | None = getattr(model, "write_ends", None)
    return found


def prices(model: Any, what: str) -> bool:
    """Whether a model has a method: `lockstep_ns` (ranks), `stages_ns` (pipeline stages), `terms_ns` (named terms),
    `prices_drafts`, `step_ns`."""
    return hasattr(model, what)


def sources_of(model: Any) -> Mapping[str, str] | None:
    """Return the source of each of its terms; None for a model without named terms."""
    tell: Callable[[], Mapping[str, str]] | None = getattr(model, "sources_of", None)
    return None if tell is None else tell()
