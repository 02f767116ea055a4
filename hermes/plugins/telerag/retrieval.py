"""One retrieval of a pipeline, in each of four modes: its stages and their order.

    offload    the CPU scans all probed clusters (`cpu_search`, the baseline's search)
    resident   the whole index is on the GPU, which scans them
    on_demand  probed clusters are copied once the query is known, then the GPU scans them
    lookahead  clusters near the original query are copied while it is rewritten; then the GPU scans the probed
               clusters that it holds, the CPU the others at the same time (`miss_search`), and the GPU merges

`cpu_search` and `miss_search` are two programs on the same CPU. The baseline's is Faiss, which splits a search over its
queries, so that one query is one thread (Faiss wiki, "Threads and asynchronous calls"); TeleRAG's search of the missed
clusters splits over the clusters.

An `ivf_index` client serves the stages `lookahead`, `probe` and `evict` (and fills in its results); a client at the GPU
serves `prefetch`, `gpu_search` and `merge`, and one at the host `cpu_search` or `miss_search`. A `prefetch` copies its
input: the bytes move from the index's client over the network.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal

from hermes.pipelines import AnyOf, ServiceStage
from hermes.units import NS_PER_S

__all__ = ["KINDS", "LookaheadStage", "Mode", "ProbeStage", "Retriever"]

Mode = Literal["offload", "resident", "on_demand", "lookahead"]
KINDS = {
    "offload": ("probe", "cpu_search", "evict"),
    "resident": ("probe", "gpu_search", "evict"),
    "on_demand": ("probe", "prefetch", "gpu_search", "evict"),
    "lookahead": ("lookahead", "probe", "prefetch", "gpu_search", "miss_search", "merge", "evict"),
}
DISTANCE_BYTES = 8   # bytes of a candidate: distance and id


class LookaheadStage(ServiceStage):
    """Asks for a prefetch. chunks: (bytes of the copy) one after the other, filled in by the index."""

    chunks: Sequence[int] = ()


class ProbeStage(ServiceStage):
    """Asks for the places of the probed clusters. The index fills in bytes on the GPU and off it, summed over the
    queries; bytes of the union of missing clusters; vectors among them."""

    hit_bytes = 0
    miss_bytes = 0
    union_miss_bytes = 0
    miss_vectors = 0


class Retriever:
    """Retrievals of one request.

    Args:
        mode: One of the modes above.
        late: Treatment of a copy that outlasts its window: `wait` for it, or `give_up` the rest.
        budget: Most bytes of a prefetch.
        chunk: Bytes of a copy that can be given up at once.
        keep: Whether clusters stay on the GPU from one retrieval to the next.
        embed_tokens: Tokens of a query; 0 for no embedding.
        batch: Queries of a request.

    Attributes:
        window_ns: Duration of the generation before the next retrieval; 0 before the first.
    """

    def __init__(
        self, request: Any, mode: Mode, *, late: str, budget: int, nprobe: int, chunk: int, keep: bool,
        embed_tokens: int, batch: int = 1,
    ) -> None:
        self.batch = batch
        self.request, self.mode, self.late, self.keep = request, mode, late, keep
        self.budget, self.nprobe, self.chunk, self.embed_tokens = budget, nprobe, chunk, embed_tokens
        self._plan: LookaheadStage | None = None
        self.window_ns = 0
        self._copies: list[ServiceStage] = []
        self._abandoned: list[ServiceStage] = []

    def _options(self, **more: Any) -> dict[str, Any]:
        return {"owner": self.request.id, "batch": self.batch, "nprobe": self.nprobe, **more}

    def window(self, generations: Sequence[Any], queries: Sequence[int]) -> Generator[Any, Any, None]:
        """Generate, and prefetch for these queries meanwhile. The clusters that have arrived serve the next
        `retrieve`."""
        yield from self._generate_beside(generations, queries)
        # the window ends now
        self.window_ns = round(self.request.now * NS_PER_S) - generations[0].assigned_ns

    def _generate_beside(self, generations: Sequence[Any], queries: Sequence[int]) -> Generator[Any, Any, None]:
        request = self.request
        if self.mode != "lookahead":
            yield tuple(generations)
            return
        for generation in generations:
            request.start(generation)
        yield from self._embed(len(queries))
        chunk = self.chunk if self.late == "give_up" else 0
        plan = LookaheadStage("lookahead", items=len(queries), options=self._options(
            queries=tuple(queries), budget=self.budget, chunk=chunk))
        self._plan = plan
        yield plan
        if self.late == "give_up":
            yield from self._copy_until_done(plan, generations)
        else:
            self._copies = [self._copy(plan, num_bytes) for num_bytes in plan.chunks]
            yield tuple(generations)

    def _embed(self, queries: int) -> Generator[Any, Any, None]:
        if self.embed_tokens:
            yield ServiceStage("embed", tokens=queries * self.embed_tokens, items=queries)

    def _copy(self, plan: ServiceStage, num_bytes: int) -> ServiceStage:
        copy: ServiceStage = self.request.start(ServiceStage("prefetch", inputs=((plan, num_bytes),)))
        return copy

    def _copy_until_done(self, plan: LookaheadStage, generations: Sequence[Any]) -> Generator[Any, Any, None]:
        """Copy chunk by chunk, until the generations are done or all chunks are copied."""
        self._copies = []
        while True:
            running = [generation for generation in generations if not generation.done]
            if not running:
                break
            if len(self._copies) < len(plan.chunks) and all(copy.done for copy in self._copies):
                self._copies.append(self._copy(plan, plan.chunks[len(self._copies)]))
            yield AnyOf(*running, *(copy for copy in self._copies if not copy.done))

    def retrieve(
        self, queries: Sequence[int], strength: float, fan_out: int = 1,
    ) -> Generator[Any, Any, None]:
        """Rewrite these queries by this strength (each into `fan_out` of them), and search for all in one batch."""
        yield from self._embed(len(queries) * fan_out)
        if self.late == "wait" and self._copies:
            yield tuple(self._copies)
        arrived = sum(copy.done for copy in self._copies)
        self._abandoned += [copy for copy in self._copies if not copy.done]
        probe = ProbeStage("probe", items=len(queries) * fan_out, options=self._options(
            queries=tuple(queries), strength=strength, fan_out=fan_out, arrived=arrived, planned=self._plan is not None,
            resident=self.mode == "resident", window_ns=self.window_ns))
        self._copies, self._plan, self.window_ns = [], None, 0
        yield probe
        if self.mode == "on_demand":
            yield ServiceStage("prefetch", inputs=((probe, probe.union_miss_bytes),))
            yield _scan("gpu_search", probe.miss_bytes, probe.items)
        elif self.mode == "resident":
            yield _scan("gpu_search", probe.hit_bytes, probe.items)
        elif self.mode == "offload":
            yield _scan("cpu_search", probe.miss_bytes, probe.items)
        else:
            yield from self._together(probe)
            if not self.keep:
                self._evict(everything=False)

    def _evict(self, *, everything: bool) -> None:
        self.request.start(ServiceStage("evict", options={"owner": self.request.id, "everything": everything}))

    def _together(self, probe: ProbeStage) -> Generator[Any, Any, None]:
        """Scan on GPU and CPU side by side; the GPU merges the distances of the clusters that it missed."""
        gpu = _scan("gpu_search", probe.hit_bytes, probe.items)
        cpu = _scan("miss_search", probe.miss_bytes, probe.items)
        yield gpu, cpu
        candidates = probe.miss_vectors
        yield ServiceStage("merge", items=probe.items, inputs=((cpu, candidates * DISTANCE_BYTES),))

    def finish(self) -> Generator[Any, Any, None]:
        """Free the buffer, after the end of given-up copies that are still in progress: they write into it."""
        for copy in (*self._abandoned, *self._copies):
            if not copy.done:
                yield copy
        self._evict(everything=True)


def _scan(kind: str, num_bytes: int, queries: int) -> ServiceStage:
    return ServiceStage(kind, items=queries, options={"scan_bytes": num_bytes})
