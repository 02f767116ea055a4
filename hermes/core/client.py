"""Clients as the coordinator, routers and pipelines know them. A *client* is a serving instance that takes stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hermes.core.stage import Stage

if TYPE_CHECKING:
    from hermes.core.columns import StepLog
    from hermes.core.record import MachineInfo, SharingInfo, TierInfo

__all__ = ["LOADS", "Client", "ClientEvents", "ClientView", "Columns", "LoadLine", "StageDone", "Store", "Track"]

IntArray = npt.NDArray[np.int64]
Columns = dict[str, IntArray]

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests")


class ClientView(NamedTuple):
    """What a pipeline sees of a client that may serve it (`request.view(kind)`), as of now, whatever the stepping.

    Counts of KV are tokens in whole blocks, zero for clients without KV memory. At a step's end the next step has not
    started; of the sequences that end with a step, those before the one whose pipeline looks have given up their
    blocks, in order of admission.

    Attributes:
        kv_capacity_tokens: Of all blocks.
        free_kv_tokens: Of blocks that nothing holds.
        uncommitted_kv_tokens: Of these, what the prompts of running and waiting sequences will not take; negative where
            they ask for more than there is.
        running, waiting: Sequences in the batch and before it (tasks assigned, for clients that are no engines).
        max_num_seqs, max_num_batched_tokens: Limits of a step.
    """

    name: str
    model: str
    kv_capacity_tokens: int = 0
    free_kv_tokens: int = 0
    uncommitted_kv_tokens: int = 0
    block_tokens: int = 0
    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0


class LoadLine(NamedTuple):
    """How a load that changes with steps moves.

    Attributes:
        base: Its value before the run in flight.
        per_step: The change with each step that has ended (for KV tokens, that has started).
        start_ns: Start of the run.
        unit_ns: Its shortest step; its longest, if the load rises.
        steps: How many steps the run has; 0 when the load is constant.
    """

    base: int
    per_step: int = 0
    start_ns: int = 0
    unit_ns: int = 1
    steps: int = 0


class Track(Protocol):
    """Something that keeps bounds of clients' loads (`hermes.routing.tracking`)."""

    def moved(self, position: int, client: Client) -> None:
        """Something happened to the client at `position` of its list."""
        ...


class Store(Protocol):
    """A store of KV outside the devices, for the record."""

    def info(self, names: list[str]) -> TierInfo:
        """What the record says of it; `names` of all clients, by index."""
        ...


class Client(Protocol):
    """A serving instance: the coordinator calls `submit`; the client reports through its `ClientEvents`.

    Attributes:
        index: Position among all clients. name: Unique.
        stages: Kinds of stage that it serves.
        model: The model that it serves, or "" for any.
        platform: Group of clients that count as local to each other.
        role: "both", "prefill" (gives the first token, then the KV moves on), "decode" (takes over KV) or "service".
        input_tokens, output_tokens, num_assigned: Of the stages assigned and not done; the coordinator counts them.
        emitted: Tokens emitted of those.
        tracks: What keeps bounds of its load, and its position there.
        after_ns: From the end of a stage until its user hears of it.
        kv_bytes_per_token: Of all its devices and layers. num_layers: Of its model.
        takes_over_kv: Whether its scheduler can continue a generation that another client began.
        num_steps: Steps completed. steps: When each ended.
        ticks: The steps in which all decoding sequences advance; None where that is every step.
        returns_together: A batch's answers come back together (static batches).
        moved_in_run: (row of the table of runs, blocks x ns) that blocks from outside change in the middle of a run.
        tiers: Stores of KV outside its devices.
        out_of_range_tasks: Tasks in batches outside the range that their costs were measured on.
    """

    index: int
    name: str
    stages: frozenset[str]
    model: str
    platform: str
    role: str
    input_tokens: int
    output_tokens: int
    num_assigned: int
    emitted: int
    tracks: list[tuple[Track, int]]
    after_ns: int
    kv_bytes_per_token: float
    num_layers: int
    num_steps: int
    steps: StepLog
    ticks: list[int] | None
    out_of_range_tasks: int

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place in it."""
        ...

    @property
    def takes_over_kv(self) -> bool: ...

    @property
    def returns_together(self) -> bool: ...

    @property
    def moved_in_run(self) -> Iterable[tuple[int, int]]: ...

    @property
    def tiers(self) -> Iterable[Store]: ...

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing is about to start at this instant; or what runs leads nowhere."""
        ...

    def submit(self, stage: Stage) -> None:
        """A stage arrives. May complete later only, never inside this call."""
        ...

    def refusal(self, stage: Stage) -> str | None:
        """Why this stage can never be served here, or None."""
        ...

    def load(self, kind: str) -> int:
        """Load of one of `LOADS`, as of now."""
        ...

    def load_line(self, kind: str) -> LoadLine:
        """How a load that changes with steps moves."""
        ...

    def view(self) -> ClientView:
        """What pipelines may know of it, as of now."""
        ...

    def reserve(self, stage: Stage) -> bool:
        """Take memory for KV that is about to arrive; False if it is not there."""
        ...

    def release(self, stage: Stage) -> None:
        """KV that was kept for a transfer can go, in the middle of a step maybe."""
        ...

    def forget(self, stage: Stage) -> None:
        """A stage that it has completed at this instant needs its memory no more."""
        ...

    def decode_clock(self) -> int:
        """Decode steps so far: the end of a sequence's last segment."""
        ...

    def settle(self) -> None:
        """The simulation ends now, in the middle of a step maybe."""
        ...

    def out_of_range_steps(self, runs: Columns) -> int:
        """Steps of its runs outside the range that its hardware was measured on."""
        ...

    def block_ns(self, runs: Columns, stages: Columns, rows: IntArray, gaps: dict[int, list[tuple[int, int, int]]],
                 decode: int, ticks: IntArray | None) -> IntArray:
        """KV blocks in use times ns, of each of its runs (`hermes.clients.block_time.block_ns_of_client`)."""
        ...

    def sharing_info(self) -> SharingInfo | None:
        """What its sequences shared of their memory, if they did."""
        ...

    def machine_info(self) -> MachineInfo | None:
        """How its machine was used, if batches share it."""
        ...


StageDone = Callable[[Client, Stage], None]


class ClientEvents:
    """What the clients of one simulation report. They get it when they are made; others set what they want to hear.

    Attributes:
        done: A stage has completed at this instant.
        first_token: A prompt has ended, and its answer goes on at the same client.
        prefill: A step that ends at some time computes prompt tokens: (sequence, how many), those it adds counted as
            computed already.
        room: Blocks of a client may have become free, or its last step has ended.
    """

    __slots__ = ("done", "first_token", "prefill", "room")

    def __init__(self) -> None:
        self.done: StageDone = _too_early
        self.first_token: StageDone | None = None
        self.prefill: Callable[[Client, list[tuple[Stage, int]], int], None] | None = None
        self.room: Callable[[Client], None] | None = None


def _too_early(client: Client, stage: Stage) -> None:
    raise AssertionError("a client was used before the coordinator listened to it")
