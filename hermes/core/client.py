"""Protocol of a client, as the coordinator, routers and pipelines use it. A *client* is one serving instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hermes.arrays import IntArray
from hermes.core.generation import Generation
from hermes.core.stage import Stage

if TYPE_CHECKING:
    from hermes.core.columns import StepLog
    from hermes.core.record import MachineInfo, SharingInfo, TierInfo

__all__ = [
    "LOADS", "Aborting", "Client", "ClientEvents", "ClientView", "Columns", "LoadLine", "SequenceDone", "StageDone",
    "Store", "Streaming", "TakingOver", "Track",
]

Columns = dict[str, IntArray]

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left", "requests")


class ClientView(NamedTuple):
    """State of a client that may serve a pipeline's stage (`request.view(kind)`), now, with any stepping.

    KV counts are tokens in whole blocks, and zero for clients without KV memory. At the end of a step the next step has
    not started. Sequences that end with the same step give up their blocks one by one, in order of admission: a
    pipeline sees the blocks of those before its own as free.

    Attributes:
        kv_capacity_tokens: Tokens in all blocks.
        free_kv_tokens: Tokens in free blocks.
        uncommitted_kv_tokens: Free tokens less those that the prompts of running and waiting sequences still need;
            negative if they need more than is free.
        running, waiting: Sequences in the batch and in the queue (for clients without an engine: tasks assigned).
        max_num_seqs, max_num_batched_tokens: Limits of a step.
        unreserved_kv_tokens: Tokens whose KV would fit into the device memory outside the engine's share
            (`memory.utilization`), which the device reports as free; None if that memory is unknown.
        max_model_len: Limit of prompt plus output tokens of a request; None if there is none.
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
    unreserved_kv_tokens: int | None = None
    max_model_len: int | None = None


class LoadLine(NamedTuple):
    """Change of a load with the steps of the run in flight.

    Attributes:
        base: Load before the run.
        per_step: Change with each step that has ended (KV tokens: that has started).
        start_ns: Start of the run.
        unit_ns: The run's shortest step, or its longest if the load rises.
        steps: Steps of the run; 0 if the load is constant.
    """

    base: int
    per_step: int = 0
    start_ns: int = 0
    unit_ns: int = 1
    steps: int = 0


class Track(Protocol):
    """Keeper of bounds on clients' loads (`hermes.routing.tracking`)."""

    def moved(self, position: int, client: Client) -> None:
        """The client at `position` of the tracker's list has changed its load."""
        ...


class Store(Protocol):
    """A store of KV outside the devices, as the record lists it."""

    def info(self, names: list[str]) -> TierInfo:
        """Return the record's entry of this store; `names` are those of all clients, by index."""
        ...


class Client(Protocol):
    """A serving instance: the coordinator calls `submit`; the client reports through its `ClientEvents`.

    Attributes:
        index: Position among all clients.
        name: Unique name.
        stages: Kinds of stage that it serves.
        model: Model that it serves, or "" for any.
        platform: Group of clients that count as local to each other.
        role: "both", "prefill" (gives the first token, then hands the KV over), "decode" (takes KV over) or "service".
        input_tokens, output_tokens, num_assigned: Of the stages assigned and not done; the coordinator counts them.
        emitted: Tokens emitted of those stages.
        tracks: Keepers of load bounds, each with this client's position in its list.
        after_ns: Delay between the end of a stage and its delivery to the user.
        late_log: What comes in addition in ns, by step; empty if nothing does.
        kv_bytes_per_token: Over all devices and layers.
        num_layers: Layers of its model.
        takes_over_kv: Whether its scheduler can continue a generation that another client began.
        num_steps: Steps completed.
        steps: End times of the steps.
        pauses: Steps in which no decoding sequence advances; None if all advance in every step.
        returns_together: Whether all answers of a batch come back together (static batches).
        moved_in_run: (row of the table of runs, blocks x ns) of blocks taken or freed from outside during a run.
        tiers: KV stores outside its devices.
        out_of_range_tasks: Tasks in batches outside the range on which their costs were measured.
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
    late_log: Sequence[int]
    kv_bytes_per_token: float
    num_layers: int
    num_steps: int
    steps: StepLog
    pauses: list[int] | None
    out_of_range_tasks: int

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
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
        """Whether nothing runs or is about to start at this instant, or only work that cannot progress."""
        ...

    # Any: an engine takes a `Generation`, every other client any `Stage`; the coordinator gives each what it takes

    def submit(self, stage: Any) -> None:
        """Take a stage. It may complete later, but never inside this call."""
        ...

    def refusal(self, stage: Any) -> str | None:
        """Return why this client cannot take the stage, now or ever, or None."""
        ...

    def load(self, kind: str) -> int:
        """Return the load of one kind of `LOADS`, as of now."""
        ...

    def load_line(self, kind: str) -> LoadLine:
        """Return how a load changes with the steps of the run in flight."""
        ...

    def view(self) -> ClientView:
        """Return the state that pipelines may see, as of now."""
        ...

    def reserve(self, stage: Generation) -> bool:
        """Take memory for KV that is about to arrive; return False if there is not enough."""
        ...

    def release(self, stage: Generation) -> None:
        """Free the KV that was kept for a transfer, possibly in the middle of a step."""
        ...

    def forget(self, stage: Generation) -> None:
        """Free the memory of a sequence that this client completed at this instant."""
        ...

    def decode_clock(self) -> int:
        """Return the number of decode steps so far: the end of a sequence's last segment."""
        ...

    def settle(self) -> None:
        """Bring all counts up to the present, at the end of a simulation, possibly in the middle of a step."""
        ...

    def out_of_range_steps(self, runs: Columns) -> int:
        """Return how many steps of its runs lie outside the range that its hardware was measured on."""
        ...

    def block_ns(self, runs: Columns, stages: Columns, rows: IntArray, gaps: dict[int, list[tuple[int, int, int]]],
                 decode: int, ticks: IntArray | None) -> IntArray:
        """Return KV blocks in use times ns for each of its runs (`hermes.clients.block_time.block_ns_of_client`)."""
        ...

    def sharing_info(self) -> SharingInfo | None:
        """Return what its sequences shared of its memory, or None if they shared nothing."""
        ...

    def machine_info(self) -> MachineInfo | None:
        """Return the use of its machine, or None if batches do not share one."""
        ...


StageDone = Callable[[Client, Stage], None]
SequenceDone = Callable[[Client, Generation], None]


class Aborting(Protocol):
    """A client that can cancel what it serves."""

    def abort(self, stage: Any) -> None:   # Any: as of `Client.submit`
        """Cancel a stage that it has; `ClientEvents.aborted` follows when it has left. A service that runs it goes on,
        and completes it."""
        ...

    def kill(self, stages: list[Any]) -> None:   # Any: as of `Client.submit`
        """Go down at this instant with these stages, all that it has; `ClientEvents.aborted` follows for each.
        The step in flight emits nothing. It gets no more until it starts again."""
        ...


class Streaming(Protocol):
    """A client whose users get tokens as they come."""

    def sent_tokens(self, stage: Generation) -> tuple[int, int]:
        """Return the tokens of a generation that its user has from this client, and since when it has the last one in
        ns (-1 without one)."""
        ...

    def seek_answers(self) -> None:
        """Let prompts find each block of an answer in the prefix cache as soon as it is full."""
        ...


class TakingOver(Protocol):
    """A client that can continue generations that another client began."""

    def unfit(self, stage: Generation) -> str | None:
        """Return why it can never serve a generation, or None; `refusal` also says why it does not take it now."""
        ...

    def expect(self, stage: Generation) -> None:
        """Note a generation that it will continue when its KV has come: its API server has the request."""
        ...


class ClientEvents:
    """Callbacks of the clients of one simulation. Clients get it at construction; listeners assign the callbacks.

    Attributes:
        done: A client without an engine has completed a stage at this instant.
        ended: A sequence has completed at this instant; its client keeps its blocks until `forget` or `release`.
        first_token: A prompt has ended, and its answer continues on the same client.
        prefill: A step that computes prompt tokens has started. Arguments: the client; pairs (sequence, tokens), with
            these tokens already counted as computed; the end of the step in ns.
        room: Blocks of a client may have become free, or its last step has ended.
        aborted: A sequence or a task that was given up has left its client.
        left: Called by clients: returns the number of requests that have not ended, arrived or not.
    """

    __slots__ = ("aborted", "done", "ended", "first_token", "left", "prefill", "room")

    def __init__(self) -> None:
        self.aborted: StageDone = _too_early
        self.done: StageDone = _too_early
        self.ended: SequenceDone = _too_early
        self.first_token: SequenceDone | None = None
        self.prefill: Callable[[Client, list[tuple[Generation, int]], int], None] | None = None
        self.room: Callable[[Client], None] | None = None
        self.left: Callable[[], int] = _none_yet


def _none_yet() -> int:
    return 0


def _too_early(client: Client, stage: Stage) -> None:
    raise AssertionError("a client was used before the coordinator listened to it")
