"""Request overhead: time of the serving stack per request outside the steps (parsing, tokenizing, copies, Python).

One thread spends a fixed time per request, by kind of stage.

- `serial`: it is the engine's own thread, so the step in which a request first runs starts that much later. Pipeline
  stages have one scheduler process: while its thread handles a request of one batch, no other batch starts a step, but
  those under way go on. Data-parallel ranks are processes of their own (vLLM: one EngineCore each), and a step of all
  of them waits for the rank that is held up longest.
- `overlapped`: it is a separate thread, first come first served, that works while the accelerator runs; a request waits
  for it before the scheduler sees it. Ranks and batches of one engine share it, as they share its API server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from hermes.clients.parts import ClientPart, StepPart
from hermes.config import ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.core.clock import ARRIVAL, Tick
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.descriptions.files import find
from hermes.schedulers.plan import Plan
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["EngineThread", "HostThread", "OverheadProfile", "PerKind", "RequestOverhead", "engine_thread_of",
           "host_thread_of", "keep_until", "load_overhead"]

Mode = Literal["serial", "overlapped"]
_FRONT_END = int(Reason.FRONT_END)


class PerKind(ConfigModel):
    """Seconds per request, by kind of stage."""

    generate: Duration = 0.0
    embed: Duration = 0.0


class OverheadProfile(ConfigModel):
    """Fitted overheads, format `hermes-overhead/1`. Both modes explain the same measured rates."""

    format: Literal["hermes-overhead/1"]
    name: Name
    serial: PerKind
    overlapped: PerKind
    provenance: Annotated[list[str], Field(min_length=1)]


def load_overhead(name_or_path: str | Path, base_dir: Path | None = None) -> OverheadProfile:
    """Load a shipped profile by name, or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(OverheadProfile, find(name_or_path, base_dir, "overhead", "an overhead profile"))


class RequestOverhead(ConfigModel):
    """Time of the serving stack for each request."""

    mode: Mode = "serial"
    """Whether the time adds to the accelerator's (one thread for both) or overlaps with it. Batches of one engine share
    either's thread, ranks of one engine the latter's."""
    profile: Annotated[str, Field(max_length=4096)] = ""
    """Fitted overheads: a shipped name (`hw_profiles/overhead/NAME.yaml`) or a file. Excludes the figures below."""
    generate: Duration = 0.0
    """Time per generation."""
    embed: Duration = 0.0
    """Time per embedding."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.profile and (self.generate or self.embed):
            raise InputError(Verbatim("a profile and figures exclude each other; give one"), field="profile")
        return self

    def times_ns(self, base_dir: Path | None) -> dict[str, int]:
        """Return nanoseconds by kind of stage; kinds that cost nothing are left out. Raises `InputError`."""
        per_kind = PerKind(generate=self.generate, embed=self.embed)
        if self.profile:
            with inside("profile"):
                per_kind = getattr(load_overhead(self.profile, base_dir), self.mode)
        times = {"generate": s_to_ns(per_kind.generate), "embed": s_to_ns(per_kind.embed)}
        return {kind: ns for kind, ns in times.items() if ns}


class _Thread:
    """A thread that handles one request after the other.

    Args:
        times_ns: Time per request, by kind of stage.
    """

    def __init__(self, times_ns: dict[str, int]) -> None:
        self.times_ns = times_ns
        self._free_ns = 0   # when it is free again


class EngineThread(_Thread, StepPart):
    """The engine's own thread (`serial`): of a client, or of the batches of one engine with pipeline stages."""

    def attach(self, client: LLMClient) -> None:
        client.step_parts.holds += (self,)

    def held_up_ns(self, client: LLMClient, plan: Plan) -> int:
        now, times = client.env._now, self.times_ns
        own = sum(times.get(seq.kind, 0) for seq, _n in plan.prefills if seq.start_ns < 0 and not seq.transferred)
        self._free_ns = max(now, self._free_ns) + own
        return self._free_ns - now


class HostThread(_Thread, ClientPart):
    """A thread in parallel with the engine (`overlapped`), for all its clients."""

    def keeps(self, client: LLMClient, stage: Generation, go_on: Callable[[], None]) -> bool:
        if stage.transferred or not self.times_ns:
            return False
        free = self._free_ns
        self._free_ns = max(free, client.env._now) + self.times_ns.get(stage.kind, 0)
        keep_until(client, free, self._free_ns, go_on)
        return True


def keep_until(client: LLMClient, free_ns: int, end_ns: int, go_on: Callable[[], None]) -> None:
    """Call `go_on` at `end_ns` for a request in the front end, which waits there for others until `free_ns`."""
    def done(tick: Tick) -> None:
        client.stack.at_host -= 1
        go_on()

    now, stalls = client.env._now, client.stalls
    if free_ns > now:
        again = bool(stalls) and stalls[-1][0] == _FRONT_END and stalls[-1][2] >= now
        stalls.append((_FRONT_END, stalls.pop()[1] if again else now, free_ns))
    client.stack.at_host += 1
    client.env.tick_at(end_ns, ARRIVAL, done)


def engine_thread_of(overhead: RequestOverhead, place: Place) -> EngineThread:
    with inside("request_overhead"):
        return EngineThread(overhead.times_ns(place.base_dir))


def host_thread_of(overhead: RequestOverhead, place: Place) -> HostThread:
    with inside("request_overhead"):
        return HostThread(overhead.times_ns(place.base_dir))
