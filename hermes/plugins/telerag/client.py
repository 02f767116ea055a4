"""Client of an inverted file at the host: its near clusters, those to prefetch, and those on the GPU.

It answers at once (or after `coarse`); it moves and scans no data. For every request it keeps the state of its queries
(`hermes.plugins.telerag.overlap`) and its clusters on the GPU; all requests share the buffer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import IntArray
from hermes.clients import CLIENTS, ClientEvents, Clock, TaskClient, TaskClientConfig
from hermes.config import Bytes, Component, ConfigModel, Duration, stream
from hermes.errors import InputError, inside
from hermes.plugins.telerag.overlap import FAMILIES, Family, fit_bias, lognormal_sizes, make_family
from hermes.plugins.telerag.overlap.curves import standardised
from hermes.plugins.telerag.overlap.families import Floats
from hermes.plugins.telerag.overlap.files import Ranks, read_sizes
from hermes.plugins.telerag.prefetch import PREFETCH, NearestFirst, PrefetchState, checked_order

__all__ = ["ClusterModel", "IvfIndexClient", "IvfIndexConfig", "Lookup"]


class Lookup(NamedTuple):
    """Record of one retrieval.

    Attributes:
        overlap: Share of the probed clusters that were on the GPU, mean over its queries.
        planned: Whether a prefetch was planned.
        prefetched_bytes: Bytes copied for it beforehand.
        window_ns: Duration of the generation before it (0: none).
        union_miss_bytes: Bytes of the missing clusters, each counted once.
    """

    request: int
    planned: bool
    queries: int
    overlap: float
    hit_bytes: int
    miss_bytes: int
    prefetched_bytes: int
    window_ns: int
    union_miss_bytes: int


class ClusterModel(ConfigModel):
    """Sizes of the clusters, and how queries rank them."""

    clusters: Annotated[int, Field(ge=2, le=2**20)] = 4096
    """Clusters of the index."""
    total: Bytes = 61 * 10**9
    """Bytes of their vectors."""
    vector_bytes: Annotated[int, Field(ge=1, le=2**20)] = 768 * 4
    """Bytes of a vector."""
    size_sigma: Annotated[float, Field(ge=0, le=3)] = 0.512
    """Log-normal sigma of the sizes; default: that of a measured index (`hermes calibrate plan ivf`,
    `hw_profiles/overlap/generated-2m.yaml`)."""
    probed_mean: Bytes | None = None
    """Mean bytes of a probed cluster, which determines the bias to large clusters; default: the average cluster."""
    probed_at: Annotated[int, Field(ge=1, le=2**20)] = 256
    """The nprobe that `probed_mean` is for."""
    size_bias: Annotated[float, Field(ge=-10, le=10)] | None = None
    """The bias itself, in place of `probed_mean`: added to the score of a cluster one sigma larger than the median."""
    family: str = "gaussian"
    """Family of the rewrites' perturbation: `gaussian`, `noise`, `redraw` or `moved`
    (`hermes.plugins.telerag.overlap.families`)."""
    spread: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Log-normal sigma of the strength from query to query."""
    dimensions: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Dimensions of family `moved`; default: its own."""
    sizes_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Measured bytes of the clusters, in place of `total` and `size_sigma`: column `bytes` of a CSV file, a line for
    each cluster. Relative to the scenario."""
    ranks_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Measured ranks of queries and their rewrites, in place of a family: JSON lines or Parquet with `query`, `rewrite`
    (0: the query itself, 1: its first rewrite, ...) and `clusters`, the nearest first. The n-th query of the simulation
    is the n-th of the file, from the front again after the last. A strength of 0 is no rewrite; other strengths have no
    meaning. Relative to the scenario."""

    @model_validator(mode="after")
    def _known(self) -> ClusterModel:
        FAMILIES.get(self.family)
        if self.ranks_file is not None:
            for name in ("family", "spread", "dimensions", "size_bias", "probed_mean"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise InputError(f"no {name} with ranks_file, which has the ranks", getattr(self, name), field=name)
        if not self.total:
            raise InputError("at least a byte", self.total, field="total")
        if self.probed_mean is not None and self.size_bias is not None:
            raise InputError("either probed_mean or size_bias", "both", field="size_bias")
        if self.probed_mean is not None and self.probed_at > self.clusters:
            raise InputError(f"at most the {self.clusters} clusters", self.probed_at, field="probed_at")
        with inside("dimensions"):
            self.perturbation()
        return self

    def perturbation(self) -> Family:
        """Return the family with its shape. Raises `InputError` for dimensions of a family without them."""
        shape = {} if self.dimensions is None else {"dimensions": self.dimensions}
        return make_family(self.family, spread=self.spread, **shape)

    def opened(self, base_dir: Path | None) -> Family:
        """Return the measured ranks, or else the family. Raises `InputError`."""
        if self.ranks_file is not None:
            return Ranks((base_dir or Path()) / self.ranks_file, self.clusters)
        return self.perturbation()

    def sizes(self, seed: int, name: str, base_dir: Path | None = None) -> IntArray:
        """Return the bytes of each cluster of the index called `name`."""
        if self.sizes_file is not None:
            return read_sizes((base_dir or Path()) / self.sizes_file, self.clusters)
        return lognormal_sizes(self.clusters, self.total, self.size_sigma, stream(seed, f"ivf sizes/{name}"))

    def bias(self, sizes: IntArray) -> float:
        """Return the bias to large clusters (see `fit_bias`)."""
        if self.size_bias is not None:
            return self.size_bias
        if self.probed_mean is None or self.size_sigma == 0:
            return 0.0
        return fit_bias(self.perturbation(), sizes, float(self.probed_mean), self.probed_at)


@CLIENTS.register("ivf_index")
class IvfIndexConfig(TaskClientConfig):
    """An inverted file in host memory whose clusters can be copied to a GPU; serves `lookahead`, `probe`, `evict`."""

    kind: Literal["ivf_index"] = "ivf_index"
    index: ClusterModel = ClusterModel()
    """The clusters."""
    buffer: Bytes = 10 * 10**9
    """GPU memory for prefetched clusters, shared by all requests. It is separate from the KV memory: exclude it with
    the LLM client's `memory.reserved`."""
    coarse: Duration = 0.0
    """Time of each comparison of queries with the centroids."""
    prefetch: Annotated[Any, Component(PREFETCH)] = NearestFirst()
    """Prefetch policy: the clusters to copy while a query is rewritten, and their order. `nearest` is TeleRAG's, `none`
    copies nothing; or a registered one. Pipelines ask for a prefetch with `retrieval: lookahead`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_a_second_seed(cls, data: Any) -> Any:
        if isinstance(data, dict) and "seed" in data:
            raise InputError("no seed here: sizes and queries follow the scenario's `seed` (leave this one out)",
                             data["seed"], field="seed")
        return data

    def build(
        self, env: Clock, first_index: int, runs: Any, events: ClientEvents, *, seed: int = 0,
        base_dir: Path | None = None, **ignored: Any,
    ) -> list[IvfIndexClient]:
        """Return one client: an index has one buffer."""
        if self.count != 1:
            raise InputError("1: name each index of its own", self.count, field="count")
        return [IvfIndexClient(env, first_index, events, self, seed, base_dir)]


class _Owner:
    """A request's queries, and its clusters on the GPU."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.states: dict[int, Floats] = {}
        self.held = np.zeros(0, dtype=np.int64)      # clusters on the GPU
        self.held_bytes = 0
        self.chunks: list[IntArray] = []                 # of the copy in progress
        self.probed = self.hits = 0                  # clusters, over all its retrievals
        self.hit_bytes = self.missed_bytes = self.prefetched_bytes = 0


class IvfIndexClient(TaskClient):
    """Client described in the module's docstring.

    Notes of each request, over all its retrievals: `overlap` (share of the probed clusters that were on the GPU),
    `hit_bytes` and `missed_bytes` (probed clusters on the GPU and off it, summed over queries) and `prefetched_bytes`.

    Attributes:
        lookups: Record of each retrieval.
        used_bytes, peak_bytes: Use of the buffer.
        copied_bytes: Bytes planned to be copied ahead, without abandoned ones.
    """

    stages = frozenset({"lookahead", "probe", "evict"})

    def __init__(self, env: Clock, index: int, events: ClientEvents, config: IvfIndexConfig, seed: int = 0,
                 base_dir: Path | None = None) -> None:
        super().__init__(env, index, config.names[0], events, model=config.model, platform=config.platforms[0])
        self.config = config
        model = config.index
        with inside("index.ranks_file"):
            self.family = model.opened(base_dir)
        self.seed = seed
        with inside("index.sizes_file"):
            self.sizes = model.sizes(seed, self.name, base_dir)
        with inside("index.probed_mean"):
            self._added = model.bias(self.sizes) * standardised(self.sizes)
        self._reach = self.family.reach or model.clusters   # clusters that a ranking has
        self._times_probed = np.zeros(model.clusters, dtype=np.int64)
        self._place = self.family.place(model.clusters, stream(seed, f"ivf places/{self.name}"))
        self._owners: dict[int, _Owner] = {}
        self.lookups: list[Lookup] = []
        self.used_bytes = self.peak_bytes = self.copied_bytes = 0

    def refusal(self, stage: Any) -> str | None:
        nprobe = stage.options.get("nprobe", 1)
        ranked = "ranked clusters" if self.family.reach else "clusters"
        return None if 1 <= nprobe <= self._reach else f"nprobe {nprobe} of an index of {self._reach} {ranked}"

    def submit(self, stage: Any) -> None:
        {"lookahead": self._lookahead, "probe": self._probe, "evict": self._evict}[stage.kind](stage)
        self.serve(stage, 0.0 if stage.kind == "evict" else self.config.coarse)

    def _owner(self, number: int) -> _Owner:
        if number not in self._owners:
            self._owners[number] = _Owner(stream(self.seed, f"ivf queries/{self.name}/{number}"))
        return self._owners[number]

    def _state(self, owner: _Owner, options: Any, query: int) -> Floats:
        if query not in owner.states:
            number = options["owner"] * options["batch"] + query
            owner.states[query] = self.family.first(number, self.config.index.clusters, owner.rng)
        return owner.states[query]

    def _ranked(self, states: list[Floats], count: int) -> IntArray:
        """Return the nearest clusters, shape (queries, count)."""
        scores = self.family.scores(np.concatenate(states), self._added, self._place)
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]

    def _lookahead(self, stage: Any) -> None:
        """Plan a copy: the clusters of the prefetch policy in its order, within budget and buffer."""
        owner, options = self._owner(stage.options["owner"]), stage.options
        self._drop_chunks(owner)
        ranked = self._ranked([self._state(owner, options, q) for q in options["queries"]], self._reach)
        room = min(int(options["budget"]), self.config.buffer - self.used_bytes)
        ranked, sizes, held, probed = (_read_only(a) for a in (ranked, self.sizes, owner.held, self._times_probed))
        order = checked_order(self.config.prefetch, PrefetchState(ranked, sizes, held, probed, room, options["nprobe"]))
        order = order[~np.isin(order, owner.held)]
        taken = order[np.cumsum(self.sizes[order]) <= room]
        owner.chunks = _split(taken, self.sizes, options["chunk"])
        stage.chunks = [int(self.sizes[chunk].sum()) for chunk in owner.chunks]
        planned = sum(stage.chunks)
        self.used_bytes += planned
        self.copied_bytes += planned
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _drop_chunks(self, owner: _Owner) -> None:
        """Drop the clusters that were planned and never requested again."""
        gone = sum(int(self.sizes[chunk].sum()) for chunk in owner.chunks)
        self.used_bytes -= gone
        self.copied_bytes -= gone
        owner.chunks = []

    def _arrive(self, owner: _Owner, arrived: int) -> int:
        """Record that the first chunks of the plan are on the GPU and the rest was given up. Returns the bytes
        copied."""
        there, owner.chunks = owner.chunks[:arrived], owner.chunks[arrived:]
        self._drop_chunks(owner)
        came = sum(int(self.sizes[chunk].sum()) for chunk in there)
        owner.held = np.concatenate([owner.held, *there])
        owner.held_bytes += came
        return came

    def _probe(self, stage: Any) -> None:
        """Rewrite the queries and locate their clusters."""
        options = stage.options
        owner = self._owner(options["owner"])
        came = self._arrive(owner, options["arrived"])
        states = []
        for query in options["queries"]:
            state, count = self._state(owner, options, query), options["fan_out"]
            found = (self.family.rewrites(state, options["strength"], count, owner.rng) if options["strength"] > 0
                     else [state] * count)
            owner.states[query] = found[0]
            states += found
        probed = self._ranked(states, options["nprobe"])
        hit = np.ones(probed.shape, bool) if options["resident"] else np.isin(probed, owner.held)
        sizes = self.sizes[probed]
        stage.hit_bytes, stage.miss_bytes = int(sizes[hit].sum()), int(sizes[~hit].sum())
        stage.union_miss_bytes = int(self.sizes[np.unique(probed[~hit])].sum())
        stage.miss_vectors = stage.miss_bytes // self.config.index.vector_bytes
        self.lookups.append(Lookup(
            options["owner"], options["planned"], len(states), float(hit.mean()), stage.hit_bytes, stage.miss_bytes,
            came, options["window_ns"], stage.union_miss_bytes,
        ))
        self._times_probed += np.bincount(probed.ravel(), minlength=len(self.sizes))
        owner.probed += probed.size
        owner.hits += int(hit.sum())
        owner.hit_bytes += stage.hit_bytes
        owner.missed_bytes += stage.miss_bytes
        owner.prefetched_bytes += came
        note = stage.request.note
        note("overlap", owner.hits / owner.probed)
        note("hit_bytes", owner.hit_bytes)
        note("missed_bytes", owner.missed_bytes)
        note("prefetched_bytes", owner.prefetched_bytes)

    def _release(self, owner: _Owner) -> None:
        self.used_bytes -= owner.held_bytes
        owner.held, owner.held_bytes = np.zeros(0, dtype=np.int64), 0

    def _evict(self, stage: Any) -> None:
        """Release the clusters of a request; once it is done, all its state."""
        owner = self._owner(stage.options["owner"])
        self._release(owner)
        if stage.options["everything"]:
            self._drop_chunks(owner)
            del self._owners[stage.options["owner"]]


def _split(clusters: IntArray, sizes: IntArray, chunk_bytes: int) -> list[IntArray]:
    """Split whole clusters into copies of at least `chunk_bytes` each, except the last; 0: one copy."""
    if not len(clusters):
        return []
    if not chunk_bytes:
        return [clusters]
    ends = np.cumsum(sizes[clusters])
    numbers = (ends - sizes[clusters]) // chunk_bytes
    return np.split(clusters, np.flatnonzero(np.diff(numbers)) + 1)


def _read_only(array: IntArray) -> IntArray:
    """Return a view that a policy cannot write to."""
    view = array.view()
    view.flags.writeable = False
    return view
