"""Failures of replicas: the kinds that `fleet.failures` lists, and what each does to the slot that it strikes.

A kind is one class: `strikes` says what happens, by the methods of `Struck` (`hermes.fleet.struck`). `Every`
(`hermes.config.streams`) says when they happen at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import Field, model_validator

from hermes.config import ConfigModel, Duration, Name
from hermes.config.streams import Every
from hermes.errors import InputError, Verbatim

__all__ = ["ELSEWHERE", "WITHIN_ENGINES", "Engines", "Failure", "FailureConfig", "Struck", "ZoneFails"]


class Engines(Protocol):
    """What can go wrong within an engine (`hermes.clients.faults`)."""

    def hang(self, client: Any) -> None:   # Any: an LLM client, as below
        """Let no step start any more; the one in flight ends."""

    def go_on(self, client: Any) -> None:
        """Let steps start again."""

    def slow(self, client: Any, factor: float) -> None:
        """Let the steps that start from now on take `factor` times as long, 1 for as long as they take."""


class Struck(Protocol):
    """A slot that a failure strikes. Nothing happens where it has no replica."""

    def crash(self) -> None:
        """End the process; it starts again on its node."""

    def hang(self, lasts_s: float | None, *, answers_probes: bool) -> None:
        """Let the engine hang; None until it is killed."""

    def slow(self, factor: float, lasts_s: float | None) -> None:
        """Let steps take longer; None until the process ends."""

    def reclaim(self, notice_s: float) -> None:
        """Take the node away after a notice; another replica is wanted at once."""

    def lose_device(self, repair_s: float) -> None:
        """Let a device go down with the whole replica."""

    def lose_node(self, repair_s: float, notice_s: float, evict_s: float | None) -> None:
        """Let the node go down with all replicas on it."""

    def lose_zone(self, repair_s: float, notice_s: float, evict_s: float | None) -> None:
        """Let all nodes of the slot's zone go down."""


class Failure(ConfigModel):
    """Base of failures: when they happen."""

    if TYPE_CHECKING:
        kind: str
    at: Duration | None = Field(default=None, ge=0)
    """Simulated time. Left out, `every` is given."""
    every: Every | None = None
    """Random times. Left out, `at` is given."""

    @model_validator(mode="after")
    def _has_a_time(self) -> Self:
        if (self.at is None) == (self.every is None):
            raise InputError(Verbatim("give one of `at` and `every`"), field="at")
        return self

    def strikes(self, slot: Struck) -> None:
        """Strike a slot now. Called each time that it happens."""
        raise NotImplementedError


class ReplicaFailure(Failure):
    """Base of failures of replicas."""

    replica: int | None = Field(default=None, ge=0, le=100_000)
    """Number of the slot in the group, from 0. Left out, slot 0, and with `every` each slot."""

    def slots(self, count: int) -> range:
        """Return the numbers of the slots that it may strike, of so many."""
        if self.replica is not None:
            return range(self.replica, self.replica + 1)
        return range(1) if self.every is None else range(count)


class Crashes(ReplicaFailure):
    """The engine's process ends, its device and node stay: it starts again in its slot, without the node's phases."""

    kind: Literal["crash"] = "crash"

    def strikes(self, slot: Struck) -> None:
        slot.crash()


class Hangs(ReplicaFailure):
    """No step starts any more. Requests are taken and get no answer: time-outs end them, or the liveness probe ends the
    replica. A replica that starts does not hang."""

    kind: Literal["hang"] = "hang"

    lasts: Duration | None = Field(default=None, gt=0)
    """Time after which it goes on. Left out, it hangs until `fleet.liveness` has it killed."""
    answers_probes: bool = False
    """Whether the server in front of the engine still answers probes: then nothing notices it."""

    def strikes(self, slot: Struck) -> None:
        slot.hang(self.lasts, answers_probes=self.answers_probes)


class Straggles(ReplicaFailure):
    """Steps take longer: a GPU that is too hot, a slow link within the replica."""

    kind: Literal["straggler"] = "straggler"

    factor: float = Field(ge=1, le=1000)
    """Time of a step on the device, as a multiple of its usual time. The step in flight takes its usual time."""
    lasts: Duration | None = Field(default=None, gt=0)
    """Time after which steps take as long as before. Left out, until the replica's process ends."""

    def strikes(self, slot: Struck) -> None:
        slot.slow(self.factor, self.lasts)


class Reclaimed(ReplicaFailure):
    """A spot node is taken back: its replica drains until the notice is over, at most for `drain.grace`, and another
    one starts on another node at once, in a free slot or when there is one."""

    kind: Literal["reclaim"] = "reclaim"

    notice: Duration = Field(default=120.0, ge=0)
    """Time from the notice until the node is gone: 2 minutes at AWS, 30 s at Google Cloud and Azure."""

    def strikes(self, slot: Struck) -> None:
        slot.reclaim(self.notice)


class DeviceFails(ReplicaFailure):
    """A device goes down, and the replica with it: all devices share its layers or experts. Where a restart makes the
    group anew (`restarts.group_policy`), it does so in a free slot; otherwise it waits for the device."""

    kind: Literal["device"] = "device"

    repair: Duration = Field(gt=0)
    """Time until the device is back, or another one in its place."""

    def strikes(self, slot: Struck) -> None:
        slot.lose_device(self.repair)


class Outage(ConfigModel):
    """What failures of nodes have. No probe runs without a node: routers know when the control plane misses its
    heartbeats."""

    repair: Duration = Field(gt=0)
    """Time until the node is back: its replicas start again, or its slots are free."""
    notice: Duration = Field(default=40.0, ge=0)
    """Time until routers know (Kubernetes: `node-monitor-grace-period`; 50 s from 1.32 on)."""
    evict: Duration | None = Field(default=300.0, ge=0)
    """Time after which a replica is replaced in a slot of another node, if the node is not back (Kubernetes'
    toleration). `null`: it waits for its node."""


class NodeFails(Outage, ReplicaFailure):
    """A node goes down with all replicas that have devices on it: those with the same `platform`, or one alone."""

    kind: Literal["node"] = "node"

    def strikes(self, slot: Struck) -> None:
        slot.lose_node(self.repair, self.notice, self.evict)


class ZoneFails(Outage, Failure):
    """All nodes of a zone (`nodes.zone`) go down, those of other groups, too. Random times are hours of the zone."""

    kind: Literal["zone"] = "zone"

    zone: Name | None = None
    """Its name. Left out, each zone of the group, at random times."""

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if self.zone is None and self.every is None:
            raise InputError(Verbatim("missing: which zone goes down"), field="zone")
        return self

    def strikes(self, slot: Struck) -> None:
        slot.lose_zone(self.repair, self.notice, self.evict)


FailureConfig = Annotated[Crashes | Hangs | Straggles | Reclaimed | DeviceFails | NodeFails | ZoneFails,
                          Field(discriminator="kind")]
WITHIN_ENGINES = ("hang", "straggler")
"""Kinds that only LLM clients know."""
ELSEWHERE = ("reclaim", "device", "node", "zone")
"""Kinds after which another replica may start in a free slot."""
