"""What a simulation leaves behind: plain numpy columns, before any metric is computed from them.

The kernel fills a `RunRecord`; `hermes.results` turns it into metrics, DataFrames and files. Nothing per token is a
Python object: a token's time is an element of its client's step-end array.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hermes.core.network import LinkUse

__all__ = ["RUN_COLUMNS", "RUN_FIELDS", "STAGE_FIELDS", "STATUS_COMPLETED", "STATUS_REJECTED", "STATUS_UNFINISHED",
           "TRANSFER_FIELDS", "ClientInfo", "MachineInfo", "RunRecord", "SharingInfo", "TierInfo"]

IntArray = npt.NDArray[np.int64]

STATUS_UNFINISHED, STATUS_COMPLETED, STATUS_REJECTED = 0, 1, 2

STAGE_FIELDS = (
    "request",          # request id = row of the request table
    "kind",             # index into RunRecord.stage_kinds ("generate", "prefill", "decode", ...)
    "client",           # index into RunRecord.clients
    "assigned_ns",      # handed to the client
    "start_ns",         # first scheduled on the hardware
    "first_token_ns",   # end of the step that gave the first token of this stage; -1 if it gives none
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
    "preempted", "embed_tokens", "embedded", "overhead_ns", "left_waiting",
)  # one row per run of equal steps; statistics are those of its first step; used_blocks at the end of the run
# embed_tokens: of prefill_tokens, those of embeddings; embedded: embeddings that ended; overhead_ns: time at the start
# of the run in which the serving stack held up the hardware; left_waiting: sequences that waited and found no place in
# the batch when the run was planned
RUN_COLUMNS = (*RUN_FIELDS, "kv_block_ns")   # blocks in use times ns, from the step log: `hermes.clients.block_time`
TRANSFER_FIELDS = ("request", "src", "dst", "bytes", "start_ns", "end_ns")  # client indices; start when asked for


@dataclass
class ClientInfo:
    """A client as results see it."""

    name: str
    kind: str
    role: str = "both"
    model: str = ""
    hardware: str = ""
    num_blocks: int = 0        # KV capacity in blocks; 0 where there is none
    block_size: int = 0
    num_devices: int = 1
    idle_w: float = 0.0        # whole client (all devices)
    prefill_w: float = 0.0     # means over the run, where watts depend on utilisation
    decode_w: float = 0.0
    device: str = ""
    power_source: str = ""     # where the watts come from, in words
    price_per_hour: float = 0.0   # dollars, whole client
    price_source: str = ""
    kv_bytes_per_token: float = 0.0   # whole client
    # The sum that gives the KV blocks, bytes of one device each (0 where blocks were given), and where they come from.
    memory_bytes: int = 0
    memory_utilization: float = 0.0
    weights_bytes: int = 0
    activation_bytes: int = 0
    engine_bytes: int = 0
    memory_source: str = ""
    group: str = ""            # the clients that were written as one: a group of `count` alike
    prefix_caching: bool = False
    returns_together: bool = False   # static batches: none joins or leaves a batch that runs
    max_num_seqs: int = 0      # limits of a step; 0 where there are none
    max_num_batched_tokens: int = 0
    peak_blocks_inside: int = 0   # most blocks in use at the end of a step, where that is inside a run; else 0


@dataclass
class TierInfo:
    """A store of KV outside the devices, at the end of a run.

    where: what shares it: a client, platform or rack, "" for all; clients: names of those that use it
    busy_ns: time in which something was read or written; hits, misses: entries (contexts or blocks) looked for here
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
    link: LinkUse | None = None   # what it is read and written over


@dataclass
class MachineInfo:
    """A machine without an LLM engine at the end of a run: its cores and its memory bandwidth, each used in part.

    client: index of its client; core_ns, bandwidth_ns: time that all of its cores, all of its bandwidth would have
    needed for what was done
    """

    client: int
    busy_ns: int = 0
    core_ns: float = 0.0
    bandwidth_ns: float = 0.0


@dataclass
class SharingInfo:
    """What sequences of a client shared: the most blocks that were saved at one time (references beyond the first), the
    blocks in use then, and partial blocks that branches copied to write into."""

    client: int
    peak_shared_blocks: int
    used_at_peak: int
    copied_blocks: int


@dataclass
class RunRecord:
    """Columns of one simulation. Stage rows are in order of completion; requests by id.

    step_ends: per client the end times (ns) of all its steps, in order. Steps of a client are numbered from 0. Within a
    run, a step starts where the one before ended; the first starts at the run's start_ns.
    gaps: for the few stages whose tokens do not come from consecutive steps (preempted, or skipped when the budget ran
    out): stage row -> array of the step indices of its tokens.
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
    gaps: dict[int, IntArray]
    out_of_range_steps: list[int]            # per client
    end_ns: int                              # clock when the simulation ended
    # Per client: None where every step advances all decoding sequences; else (continuous, static) the indices of the
    # steps that do. There, a stage's tokens after its first come from the last (output_tokens - 1) such steps up to and
    # including last_step, not from consecutive steps.
    decode_steps: list[IntArray | None] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)   # e.g. events, steps, runs
    # Per client: how much later than their step a user has its tokens (`frontend`); empty for nothing.
    after_ns: list[int] = field(default_factory=list)
    # column -> (code per request, names): which "workload" it is of, its "pipeline" and the "model" it asks for
    labels: dict[str, tuple[IntArray, list[str]]] = field(default_factory=dict)
    # name -> value per request, NaN where there is none: what pipelines kept with `request.note`
    notes: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    tiers: list[TierInfo] = field(default_factory=list)
    links: list[LinkUse] = field(default_factory=list)
    machines: list[MachineInfo] = field(default_factory=list)
    sharing: list[SharingInfo] = field(default_factory=list)   # of clients whose sequences shared blocks
    out_of_requests_ns: int = -1   # when a user of a closed loop first found no request left

    def __post_init__(self) -> None:
        runs = self.runs
        if "kv_block_ns" not in runs:   # who has no step log counts the blocks at a run's end for all of it
            runs["kv_block_ns"] = runs["used_blocks"] * (runs["end_ns"] - runs["start_ns"])
