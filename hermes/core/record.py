"""The record of a simulation: numpy columns from which `hermes.results` computes metrics, tables and files.

The kernel fills a `RunRecord`. No token is a Python object: a token's time is an element of its client's array of step
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.columns import RowLog
from hermes.core.network import LinkUse

if TYPE_CHECKING:
    from hermes.core.stage import Stage

__all__ = [
    "APART", "ATTEMPT_FIELDS", "ATTEMPT_OUTCOMES", "AWAY", "BELIEVED", "BURSTS", "CALL_FIELDS", "CIRCUIT_FIELDS", "CUT",
    "DOWN", "DRAINING", "FATES", "GATEWAY_WAIT", "GONE", "GROUPINGS", "HALT_FIELDS", "HALT_LIMITS", "HEARTBEAT",
    "HELD_FIELDS", "HELD_OUTCOMES", "INCIDENT_EVENTS", "INCIDENT_FIELDS", "LIVENESS", "MEMBER_STATES", "MENDED",
    "MIGRATION_FIELDS", "NOTICE", "PROBE", "QUEUED_FIELDS", "READY", "RECLAIMED", "RUN_COLUMNS", "RUN_FIELDS",
    "SPARE", "STAGE_FIELDS", "STARTING", "STATUS_COMPLETED", "STATUS_REJECTED",
    "STATUS_UNFINISHED", "STRUCK", "TRANSFER_FIELDS", "ClientInfo", "Describe", "Labels", "MachineInfo", "Notes",
    "Offered", "RunRecord", "SharingInfo", "TierInfo", "run_log",
]

GROUPINGS = ("band", "class", "tenant")   # labels of requests by which a gateway tells them apart
STATUS_UNFINISHED, STATUS_COMPLETED, STATUS_REJECTED = 0, 1, 2
BURSTS = "arrivals come in bursts"
"""Why the rate of arrivals changes that change by chance: a longer run has more of them."""
APART = "workloads begin or end at different times"
STARTING, READY, DRAINING, GONE, DOWN, SPARE = 0, 1, 2, 3, 4, 5
MEMBER_STATES = ("starting", "ready", "draining", "gone", "down", "spare")
CUT, RECLAIMED = "grace period over", "reclaimed"   # why a replica is gone that was cut while it drained
ATTEMPT_OUTCOMES = ("running", "completed", "failed", "timed out", "cancelled", "revoked", "migrated")
BELIEVED = "believed_cached_tokens"   # note: tokens of its prompts that routers believed to be cached
GATEWAY_WAIT = "gateway_wait_s"   # note: time that its calls waited for the capacity of gateways
# why a gateway answered a request with an error; the last two only with flow control or admission
FATES = ("failed", "timed out", "expired", "unavailable", "limited", "overloaded", "shed", "revoked")
HELD_OUTCOMES = ("waiting", "dispatched", "shed", "expired", "given up")

STAGE_FIELDS = (
    "request",          # request id = row of the request table
    "kind",             # index into RunRecord.stage_kinds ("generate", "prefill", "decode", ...)
    "client",           # index into RunRecord.clients
    "assigned_ns",      # assigned to the client
    "start_ns",         # first scheduled on the hardware; -1 if its request was given up before
    "first_token_ns",   # end of the step that gave the first token of this stage; -1 if it emits none
    "end_ns",           # completed
    "prompt_tokens",
    "output_tokens",    # tokens this stage emitted (a prefill stage of a disaggregated request emits 1)
    "first_step",       # index of the client's step that gave this stage's first token; -1 if none
    "last_step",        # ... its last token. last_step - first_step + 1 == output_tokens unless the stage is in `gaps`
    "preemptions",
    "cached_tokens",    # prompt tokens found in the prefix cache when first admitted
    "fork",             # number of the generation of which it is a branch; -1 for stages without branches
    "branch",           # which of its branches, from 0; -1
)
RUN_FIELDS = (
    "client", "start_ns", "end_ns", "first_step", "num_steps", "prefill_seqs", "prefill_tokens", "prefill_past",
    "prefill_attn", "decode_seqs", "decode_ctx", "decode_ctx_max", "sampled", "running", "waiting", "used_blocks",
    "preempted", "embed_tokens", "embedded", "overhead_ns", "stopped", "stopped_ns", "lora_tokens", "lora_adapters",
)  # one row per run of equal steps; statistics are those of its first step; used_blocks at the end of the run
# embed_tokens: the part of prefill_tokens that belongs to embeddings; embedded: embeddings that ended; overhead_ns:
# time at the start of the run in which the serving stack held up the hardware; stopped: the `Reason` for which the
# run's plan left sequences waiting, 0 if none waits; stopped_ns: the end part of the run for which that is so;
# lora_tokens: tokens of sequences with an adapter; lora_adapters: how many adapters these have
_RUN_NARROW = frozenset((
    "client", "first_step", "num_steps", "prefill_seqs", "decode_seqs", "sampled", "running", "waiting", "preempted",
    "embedded", "stopped", "lora_tokens", "lora_adapters",
))   # kept in 32 bits
_RUN_HEAD = (
    "client", "start_ns", "end_ns", "first_step", "num_steps", "decode_seqs", "decode_ctx", "decode_ctx_max", "sampled",
    "running", "waiting", "used_blocks", "stopped", "stopped_ns",
)   # all that most runs of pure decode steps have; and, in the second head, most steps with prefills
_RUN_HEADS = (_RUN_HEAD, (*_RUN_HEAD, "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn"))


def run_log() -> RowLog:
    """Return a log for runs of steps."""
    return RowLog(RUN_FIELDS, _RUN_NARROW, _RUN_HEADS)


RUN_COLUMNS = (*RUN_FIELDS, "kv_block_ns")   # blocks in use times ns, from the step log: `hermes.clients.block_time`
ATTEMPT_FIELDS = (
    "request",
    "call",             # number of the generation or embedding that is attempted, in order of their first attempts
    "number",           # of the attempt, from 1
    "client",           # at which it was last; -1 if no client was ready
    "start_ns",
    "end_ns",           # when it was over for its user; -1 while it runs. Its client may have gone on with it
    "outcome",          # index into ATTEMPT_OUTCOMES
    "computed",         # prompt tokens whose computation had begun where it was not completed
)
HELD_FIELDS = (   # calls that waited unplaced in a gateway, in the order in which they were queued
    "request",
    "call",             # its number in ATTEMPT_FIELDS; another attempt at it waits again
    "priority",         # of its band
    "asked_ns",         # queued
    "left_ns",          # left the queue; -1 while it waits
    "outcome",          # index into HELD_OUTCOMES
)
CALL_FIELDS = (   # the way of calls through a gateway, by the number of the call
    "request",
    "gateway",
    "asked_ns",         # when its pipeline asked for it
    "served_ns",        # when its wait for the gateway's capacity was over; -1 if the gateway turned it away
    "passed_ns",        # when it had passed the gateway; -1 likewise
    "offer",            # of its request by its client, from 1 on
)
QUEUED_FIELDS = (   # waits of calls for a ready client, where no flow control holds them
    "call", "asked_ns",
    "left_ns",          # -1 while it waits
)
MIGRATION_FIELDS = (   # calls that went on at another client after an attempt, in order of time
    "attempt",          # its number in ATTEMPT_FIELDS
    "to",               # that of the next attempt that a client began; -1 for none
    "sent",             # output tokens that the user had of it: the next prompt ends with them
    "late",             # 1 if it had given no token for too long, 0 if it had failed
    "recomputed",       # prompt tokens of the next attempt that an earlier one had computed and no cache held
)
HALT_FIELDS = (   # spans in which calls waited in the queue of flow control, by what kept them there
    "gateway",
    "client",           # the fullest of those whose saturation counted, or of an empty pool one that may serve
    "band",             # priority of the band that was halted
    "limit",            # index into HALT_LIMITS
    "begin_ns",
    "end_ns",           # -1 while it lasts
)
# one call leaves in a cycle; requests in flight over the detector's limit; what it sees of queues, or of KV use; its
# scrapes are old; no replica is ready; the ceiling of a band, below a full pool
HALT_LIMITS = ("cycle", "in flight", "queue depth", "KV use", "stale", "no replica", "ceiling")
INCIDENT_FIELDS = (   # what happened in incidents, in order of time
    "incident",         # its number; its kind is in RunRecord.incident_kinds
    "client",
    "time_ns",
    "event",            # index into INCIDENT_EVENTS
)
# a failure hits the client; readiness probes, the node's heartbeats, liveness probes or a spot node's notice have
# told of it; no router chooses the client any more; a hang or slow steps end
INCIDENT_EVENTS = ("struck", "probe", "heartbeat", "liveness", "notice", "away", "mended")
STRUCK, PROBE, HEARTBEAT, LIVENESS, NOTICE, AWAY, MENDED = range(7)
CIRCUIT_FIELDS = ("gateway", "client", "time_ns", "open")   # changes of circuit breakers; open: 1, or 0 for closed
TRANSFER_FIELDS = ("request", "src", "dst", "bytes", "start_ns", "end_ns")  # client indices; start: when requested


@dataclass
class ClientInfo:
    """Properties of a client that results need."""

    name: str
    kind: str
    role: str = "both"
    model: str = ""
    hardware: str = ""
    num_blocks: int = 0        # KV capacity in blocks; 0 where there is none
    block_size: int = 0
    num_devices: int = 1
    idle_w: float = 0.0        # whole client (all devices)
    prefill_w: float = 0.0     # mean over the run, where power depends on utilisation
    decode_w: float = 0.0
    device: str = ""
    power_source: str = ""     # source of the power figures, in words
    price_per_hour: float = 0.0   # dollars, whole client
    price_source: str = ""
    kv_bytes_per_token: float = 0.0   # whole client
    # Terms that give the number of KV blocks, bytes of one device each (0 if blocks were given), and their sources.
    memory_bytes: int = 0
    memory_utilization: float = 0.0
    weights_bytes: int = 0
    activation_bytes: int = 0
    engine_bytes: int = 0
    memory_source: str = ""
    kv_tokens_printed: int = 0        # as the engine's log counts them; 0 where it is as `num_blocks` says
    kv_concurrency: float = 0.0       # longest requests that fit at once; 0 without a longest
    kv_low_bytes: int = 0             # least and most KV, whole client; 0 where blocks were given
    kv_high_bytes: int = 0
    group: str = ""            # name of the entry under `clients` that made it with `count` equal ones
    replica: str = ""          # its engine, of whose ranks or batches it is one; "" for a whole engine
    prefix_caching: bool = False
    returns_together: bool = False   # static batches: no sequence joins or leaves a running batch
    max_num_seqs: int = 0      # limits of a step; 0 where there are none
    max_num_batched_tokens: int = 0
    engine: str = ""   # version (and commit) of the real engine whose own scheduler decided
    peak_blocks_inside: int = 0   # most blocks in use at the end of a step inside a run; 0 if a run's end has the peak


Describe = Callable[[dict[str, IntArray]], ClientInfo]
"""Return the record's entry of a client, given the client's rows of the table of runs in order of time."""
Labels = dict[str, tuple[IntArray, list[str]]]


@dataclass
class TierInfo:
    """State of a KV store outside the devices at the end of a run.

    Attributes:
        where: The client, platform or rack that shares it; "" for all.
        clients: Names of the clients that use it.
        busy_ns: Time with at least one read or write.
        hits, misses: Lookups of entries (contexts or blocks).
        hit_tokens: Tokens read, where the store counts them.
    """

    name: str
    where: str
    scope: str
    clients: tuple[str, ...]
    capacity_bytes: int
    bandwidth: float
    policy: str
    busy_ns: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    refused: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    link: LinkUse | None = None   # link over which it is read and written
    hit_tokens: int = 0


@dataclass
class MachineInfo:
    """Use of a machine without an LLM engine: its cores and memory bandwidth, each used in part.

    Attributes:
        client: Index of its client.
        core_ns, bandwidth_ns: Time that the work would have taken on all cores, and with all bandwidth.
    """

    client: int
    busy_ns: int = 0
    core_ns: float = 0.0
    bandwidth_ns: float = 0.0


@dataclass
class SharingInfo:
    """Blocks that sequences of a client shared.

    Attributes:
        client: Index of the client.
        peak_shared_blocks: Most blocks saved at one time (references beyond the first).
        used_at_peak: Blocks in use at that time.
        copied_blocks: Partial blocks that branches copied before writing.
    """

    client: int
    peak_shared_blocks: int
    used_at_peak: int
    copied_blocks: int


@dataclass
class Offered:
    """What a scenario says about its arrivals.

    Attributes:
        start_ns: When the first workload begins, if each has a `duration`; else -1.
        until_ns: When the last `duration` ends (or the run was cut); -1 without any.
        changes: Why the rate is not the same throughout; "" if it is, None where only the times tell.
        more: What makes more arrivals: a key of the scenario, or words.
    """

    start_ns: int = -1
    until_ns: int = -1
    changes: str | None = ""
    more: str = "workload.requests"


@dataclass
class RunRecord:
    """Columns of one simulation. Stage rows are in order of completion, requests by id.

    Attributes:
        step_ends: For each client the end times (ns) of its steps, numbered from 0. Within a run, a step starts where
            the one before ended; the first starts at the run's start_ns.
        gaps: For the few stages whose tokens do not come from consecutive steps (preempted, or skipped when the token
            budget ran out): stage row -> step indices of its tokens.
    """

    clients: list[ClientInfo]
    stage_kinds: list[str]
    arrival_ns: IntArray                     # -1 if the run ended before it arrived
    prompt_tokens: IntArray
    output_tokens: IntArray
    priority: IntArray
    session: IntArray
    status: npt.NDArray[np.int8]
    finish_ns: IntArray                      # -1 unless completed
    reject_reasons: dict[int, str]
    stages: dict[str, IntArray]              # STAGE_FIELDS
    runs: dict[str, IntArray]                # RUN_COLUMNS
    transfers: dict[str, IntArray]           # TRANSFER_FIELDS
    step_ends: list[IntArray]
    gaps: Mapping[int, npt.NDArray[np.integer]]
    out_of_range_steps: list[int]            # per client
    end_ns: int                              # clock at the end of the simulation
    # Per client: None where every step advances all decoding sequences; otherwise (continuous, static) the indices of
    # the steps that do. There, a stage's tokens after its first come from the last (output_tokens - 1) such steps up to
    # and including last_step, not from consecutive steps.
    decode_steps: list[IntArray | None] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)   # e.g. events, steps, runs
    # Per client: delay from a step's end until the user has its tokens (`frontend`); empty for none.
    after_ns: list[int] = field(default_factory=list)
    # Client -> what comes in addition by step, in ns, where API servers have a limit.
    late_ns: dict[int, IntArray] = field(default_factory=dict)
    # column -> (code per request, names) for "workload", "pipeline" and "model"
    labels: dict[str, tuple[IntArray, list[str]]] = field(default_factory=dict)
    # name -> value per request that pipelines kept with `request.note`, NaN where there is none
    notes: dict[str, FloatArray] = field(default_factory=dict)
    note_names: dict[str, list[str]] = field(default_factory=dict)   # of notes that are positions: what each stands for
    tiers: list[TierInfo] = field(default_factory=list)
    links: list[LinkUse] = field(default_factory=list)
    machines: list[MachineInfo] = field(default_factory=list)
    sharing: list[SharingInfo] = field(default_factory=list)   # of clients whose sequences shared blocks
    # Waits outside steps, shape (waits, 4): client, `Reason`, start and end in ns. An engine without a step to run, and
    # requests in the serving stack's thread behind others.
    stalls: IntArray = field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))
    # Group of clients -> times of steps with twice and with half their work, over their time; shape (reasons, 2), NaN
    # for a `Reason` without steps: `hermes.clients.step_growth`.
    step_growth: dict[str, FloatArray] = field(default_factory=dict)
    # Where clients come and go: client, incarnation, time in ns and state (`MEMBER_STATES`) of every change, shape
    # (changes, 4), in order of time, with the reason of each. Clients that are not in it serve throughout.
    membership: IntArray = field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))
    membership_reasons: list[str] = field(default_factory=list)
    # Where a gateway makes attempts: ATTEMPT_FIELDS, each row's attempt in `stages` (-1: of a stage without), and the
    # requests that it answered with an error: request and index into FATES, shape (requests, 2).
    attempts: dict[str, IntArray] = field(default_factory=dict)
    stage_attempts: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    fates: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    held: dict[str, IntArray] = field(default_factory=dict)   # HELD_FIELDS, with flow control
    calls: dict[str, IntArray] = field(default_factory=dict)    # CALL_FIELDS, with a gateway
    queued: dict[str, IntArray] = field(default_factory=dict)   # QUEUED_FIELDS, with a gateway whose queue was used
    halts: dict[str, IntArray] = field(default_factory=dict)    # HALT_FIELDS, with flow control
    migrations: dict[str, IntArray] = field(default_factory=dict)   # MIGRATION_FIELDS, where a gateway migrates
    # Of requests that their clients offered again: "request", and "offered_ns", when they last did.
    offers: dict[str, IntArray] = field(default_factory=dict)
    incidents: dict[str, IntArray] = field(default_factory=dict)   # INCIDENT_FIELDS, where failures struck
    incident_kinds: list[str] = field(default_factory=list)        # of each incident, as `fleet.failures` names it
    circuits: dict[str, IntArray] = field(default_factory=dict)    # CIRCUIT_FIELDS, where breakers opened
    weights: dict[str, float] = field(default_factory=dict)   # of tenants that have another one than 1
    out_of_requests_ns: int = -1   # when a user of a closed loop first found no request left
    offered: Offered = field(default_factory=Offered)
    # Rows of the stages that run in the background: their request completes without waiting for them.
    background: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def started(self) -> BoolArray:
        """Whether each stage was ever served, shape (stages,): a request may be given up while it waits."""
        return self.stages["start_ns"] >= 0

    @property
    def kept(self) -> BoolArray:
        """Whether each stage is no attempt that came to nothing: failed, timed out or cancelled. Shape (stages,)."""
        if not self.attempts:
            return np.ones(len(self.stages["client"]), dtype=bool)
        outcome = self.attempts["outcome"]
        done = (outcome <= ATTEMPT_OUTCOMES.index("completed")) | (outcome == ATTEMPT_OUTCOMES.index("migrated"))
        mine = self.stage_attempts
        return np.asarray((mine < 0) | np.append(done, True)[mine])

    @property
    def asked_for(self) -> IntArray:
        """A number for each stage that is equal for all attempts at the same call, the calls in its place in other
        offers of its request included; -1 for stages that are no attempts. Shape (stages,)."""
        if not self.attempts:
            return np.full(len(self.stages["client"]), -1, dtype=np.int64)
        request, offer = self.calls["request"], self.calls["offer"]
        order = np.lexsort((offer, request))   # stable: in order of their numbers within an offer
        begins = np.flatnonzero(np.diff(request[order], prepend=-1) | np.diff(offer[order], prepend=-1))
        place = np.empty(len(request), dtype=np.int64)
        place[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
        found = request * (place.max(initial=0) + 1) + place
        return np.asarray(np.append(np.append(found, -1)[self.attempts["call"]], -1)[self.stage_attempts])

    def sent_after(self, rows: IntArray | None = None, step: str = "first_step") -> IntArray:
        """Return how long after the engine the users of stages (None: all) have the token of a step, in ns, shape
        (rows,)."""
        client, steps = (one if rows is None else one[rows] for one in (self.stages["client"], self.stages[step]))
        sent = np.array(self.after_ns or [0] * len(self.clients), dtype=np.int64)[client]
        for number, late in self.late_ns.items():
            mine = (client == number) & (steps >= 0)
            sent[mine] += late[steps[mine]]
        return sent

    def user_ends(self, client: int) -> IntArray:
        """Return when users have the tokens of a client's steps, but for the same delay of all."""
        late = self.late_ns.get(client)
        return self.step_ends[client] if late is None else self.step_ends[client] + late

    def __post_init__(self) -> None:
        runs = self.runs
        if "kv_block_ns" not in runs:   # without a step log the blocks at a run's end count for the whole run
            runs["kv_block_ns"] = runs["used_blocks"] * (runs["end_ns"] - runs["start_ns"])


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
