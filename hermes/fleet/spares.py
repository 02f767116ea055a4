"""Spares: replicas that have started and are kept back, awake or asleep, until the autoscaler wants them.

Sleep levels are those of vLLM (`--enable-sleep-mode`): at level 1 the weights are in host memory, at level 2 they are
dropped and loaded again. The process, what was compiled and the captured graphs stay; KV goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.config.streams import stream as random_stream
from hermes.errors import InputError, Verbatim
from hermes.fleet.startup_times import Time, seconds
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.fleet.start_ups import FindsStart

__all__ = ["Spares", "Waker"]

TIMES = "vllm-0.10"   # of the weights that level 2 loads


class Spares(ConfigModel):
    """Replicas that have started and are kept back. They hold their devices and get no requests."""

    count: int = Field(ge=1, le=100_000)
    """How many. They exist at the start; one that is woken is replaced by a start in a free slot, and a replica that
    is not wanted any more becomes one if there are fewer."""
    sleep: Literal[0, 1, 2] = 0
    """0: awake, KV kept. 1: asleep, the weights in host memory. 2: asleep, without weights."""
    wake: Time | None = None
    """Time from the decision until a spare takes requests. Left out: none at level 0; at level 1 the bytes of the
    weights over the device's link to its host (87% of a PCIe slot's rate); at level 2 their loading from the page
    cache."""

    def waker(self, engine: FindsStart, seed: int) -> Waker:
        """Return what knows how long waking takes.

        Args:
            engine: See `hermes.fleet.start_ups.Place`.
            seed: Of the scenario.

        Raises `InputError` if that is not known.
        """
        if self.wake is not None or not self.sleep:
            return Waker(self, seed, 0.0)
        try:
            found = engine(TIMES)
        except InputError:
            raise InputError(Verbatim("missing: it follows from a model and a device with descriptions; give the time"),
                             field="wake") from None
        return Waker(self, seed, found.weight_bytes / found.host_rate if self.sleep == 1 else found.warm["weights"])


class Waker:
    """How long it takes to wake the spares of a group.

    Attributes:
        count: Spares that there should be.
        forgets: Whether a woken one has lost its KV.
    """

    def __init__(self, config: Spares, seed: int, derived_s: float) -> None:
        self.count, self.forgets = config.count, config.sleep > 0
        self._config, self._seed, self._derived_s = config, seed, derived_s

    def ns(self, name: str, number: int) -> int:
        """Return the time in ns of the waking number `number` of a client."""
        return s_to_ns(self.at(float(random_stream(self._seed, f"startup/{name}/wake/{number}").random())))

    def at(self, share: float) -> float:
        """Return the time in s at a quantile."""
        return self._derived_s if self._config.wake is None else seconds(self._config.wake, share)

