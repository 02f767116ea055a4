"""Costs of retrieval, embedding and reranking against numbers worked out by hand, and that they grow with the work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.config.validation import validate
from hermes.core.stage import ServiceStage
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import load_device
from hermes.services import Encoder, MachineSpec, PerItem, Service
from hermes.services.hnsw import Hnsw
from hermes.services.ivf_flat import IvfFlat
from hermes.services.ivf_pq import IvfPq
from hermes.services.measured import Measured
from hermes.services.rerank import Rerank
from hermes.services.retrieval_profile import load_retrieval_profile

SPEC = MachineSpec(64, 14.2e12, 768e9, 10**12)
CORE = 14.2e12 / 64 * 0.6          # FLOP/s of a core at the share of the peak that is reached
ALL = 768e9 * 0.8                  # bytes/s of the machine


def machine(name: str = "cpu-large", cores: int = 64) -> MachineSpec:
    device = load_device(name)
    return MachineSpec(cores, device.peak("fp32"), device.memory_bandwidth, int(device.memory), device)


def query(items: int = 1, tokens: int = 0, **options: Any) -> ServiceStage:
    return ServiceStage("any", items=items, tokens=tokens, options=options)


def phases_of(service: Any, *tasks: ServiceStage) -> dict[str, Any]:
    return {phase.name: phase for phase in service.costs(tasks)}


@pytest.mark.feature("Pipelines and services", (
    "Services `encoder`, `rerank`, `ivf_pq`, `ivf_flat`, `hnsw`, `measured`, `hybrid`, `per_item`, "
    "`remote_model`; `hermes services`"))
def test_ivf_pq_by_hand():
    index = IvfPq(vectors=2 * 10**9, nlist=400_000, nprobe=50, code_bytes=96, dim=768).build(SPEC)
    one = phases_of(index, query())
    assert list(one) == ["coarse", "tables", "scan", "merge"]
    # all centroids pass the query's core: 1.2 GB at 18 GB/s take longer than 0.6 GFLOP on it
    assert one["coarse"].flops == 2 * 400_000 * 768
    assert one["coarse"].num_bytes == 400_000 * 768 * 4
    assert one["coarse"].seconds == pytest.approx(400_000 * 768 * 4 / 18e9)
    assert one["coarse"].bound == "core bandwidth"
    # 50 tables of 256 distances to the parts of 768 dimensions
    assert one["tables"].flops == 50 * 256 * 768 * 2
    assert one["tables"].num_bytes == 50 * 256 * 96 * 4
    assert one["tables"].seconds == pytest.approx(50 * 256 * 768 * 2 / CORE)
    # 50 lists of 5000 codes of 96 bytes at 18 GB/s
    assert one["scan"].num_bytes == 50 * 5000 * 96
    assert one["scan"].seconds == pytest.approx(50 * 5000 * 96 / 18e9)
    assert one["merge"].seconds == pytest.approx((50 * 5000 * 2 + 20 * math.log2(20)) / CORE)
    # 640 queries are ten rounds over 64 cores, 18.8 ms or more at 18 GB/s each; together they need 25 ms of memory
    many = phases_of(index, query(640))
    assert many["coarse"].num_bytes == one["coarse"].num_bytes    # once a batch
    assert many["coarse"].seconds == pytest.approx(max(10 * 2 * 400_000 * 768 / CORE, 400_000 * 768 * 4 / 18e9))
    assert many["scan"].seconds == pytest.approx(max(10 * 50 * 5000 * 96 / 18e9, 640 * 50 * 5000 * 96 / ALL))
    assert many["scan"].bound == "memory bandwidth"
    assert index.work([query(640)]).alone_s == pytest.approx(sum(phase.seconds for phase in many.values()))


def test_a_tree_of_centroids_by_hand():
    index = IvfPq(vectors=2 * 10**10, nlist=4_000_000, code_bytes=32, coarse="two_level").build(SPEC)
    compared = 2000 + 12.5 * 2000      # sqrt(4M) groups, and the members of a quarter of 50 of them
    coarse = phases_of(index, query())["coarse"]
    assert coarse.flops == 2 * compared * 768
    assert coarse.seconds == pytest.approx(compared * 768 * 4 / 18e9)
    given_tree = IvfPq(vectors=2 * 10**10, code_bytes=32, coarse="two_level", coarse_groups=4000, coarse_probes=10)
    assert phases_of(given_tree.build(SPEC), query())["coarse"].flops == 2 * (4000 + 10 * 1000) * 768


def test_threads_and_shards_by_hand():
    plain = IvfPq(vectors=2 * 10**9, nlist=400_000)
    scan = phases_of(plain.build(SPEC), query())["scan"].seconds
    threaded = plain.model_copy(update={"threads_per_query": 8}).build(SPEC)
    assert phases_of(threaded, query())["scan"].seconds == pytest.approx(scan / 8)
    # nine queries on eight groups of eight cores are two rounds, 0.33 ms; but 216 MB take 0.35 ms of memory
    assert phases_of(threaded, query(9))["scan"].seconds == pytest.approx(max(2 * scan / 8, 9 * 50 * 5000 * 96 / ALL))
    merges = [phases_of(threaded, query(n))["merge"].seconds for n in (1, 8, 9)]
    assert merges == pytest.approx([merges[0], merges[0], 2 * merges[0]])
    split = plain.model_copy(update={"shards": 4}).build(SPEC)
    assert phases_of(split, query())["scan"].seconds == pytest.approx(scan / 4)
    assert split.memory_bytes == 5 * 10**8 * 104 + 400_000 * 768 * 4


def test_one_table_for_a_query():
    index = IvfPq(vectors=2 * 10**9, nlist=400_000, tables="per_query").build(SPEC)
    assert phases_of(index, query())["tables"].flops == 256 * 768 * 2


def test_ivf_flat_by_hand():
    index = IvfFlat(vectors=10**8, nlist=10_000, nprobe=10, dim=128, value_bytes=2).build(SPEC)
    scan = phases_of(index, query())["scan"]
    assert (scan.flops, scan.num_bytes) == (10 * 10_000 * 128 * 2, 10 * 10_000 * 128 * 2)
    assert scan.seconds == pytest.approx(10 * 10_000 * 128 * 2 / 18e9)
    assert index.memory_bytes == 10**8 * (256 + 8) + 10_000 * 128 * 4


def test_hnsw_by_hand():
    index = Hnsw(vectors=16**5, dim=128, links=16, ef_search=100, new_share=0.5, access_latency=1e-7).build(SPEC)
    found = phases_of(index, query(top_k=10))
    steps = 5 / (1 - math.exp(-1 / math.log(16)))     # five levels above the bottom
    distances, width = (steps * 16, 100 * 32 * 0.5), (16, 32)
    for name, expanded, compared, links in zip(found, (steps, 100), distances, width, strict=True):
        assert found[name].flops == pytest.approx(2 * compared * 128)
        num_bytes = compared * 128 * 4 + expanded * links * 4
        assert found[name].num_bytes == pytest.approx(num_bytes)
        assert found[name].seconds == pytest.approx(num_bytes / 18e9 + (compared + expanded) * 1e-7)
        assert found[name].bound == "latency"
    assert index.memory_bytes == math.ceil(16**5 * (128 * 4 + 8 + (32 + 16 / 15) * 4))
    # without latencies, distances are bytes through the core
    quick = Hnsw(vectors=16**5, dim=128, access_latency=0.0).build(SPEC)
    assert {phase.bound for phase in phases_of(quick, query()).values()} == {"core bandwidth"}


def test_a_graph_is_walked_as_the_formula_says():
    """Candidates expanded by faiss on real vectors within a fifth; distances no more than the upper bound."""
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(100, 24))
    vectors = (centres[rng.integers(0, 100, 8000)] + 0.7 * rng.normal(size=(8000, 24))).astype(np.float32)
    index = faiss.IndexHNSWFlat(24, 16)
    index.hnsw.efConstruction = 40
    faiss.omp_set_num_threads(1)
    index.add(vectors)
    service = Hnsw(vectors=8000, dim=24, new_share=1.0).build(SPEC)
    for effort in (32, 128):
        index.hnsw.efSearch = effort
        faiss.cvar.hnsw_stats.reset()
        index.search(vectors[:100] + np.float32(0.1), 10)
        seen = faiss.cvar.hnsw_stats
        assert seen.nhops / 100 == pytest.approx(sum(service.steps(effort)), rel=0.2)
        assert seen.ndis / 100 < sum(service.distances(effort))


INDICES: list[Any] = [
    IvfPq(vectors=10**8, nlist=10_000), IvfPq(vectors=10**8, nlist=10_000, coarse="two_level"),
    IvfFlat(vectors=10**8, nlist=10_000), Hnsw(vectors=10**8), IvfPq(vectors=10**8, nlist=10_000, threads_per_query=7),
]


@quick_and_full(33, 100)
@given(config=st.sampled_from(INDICES), effort=st.integers(1, 500), queries=st.integers(1, 300))
def test_retrieval_grows_with_the_work(config, effort, queries):
    index: Service = config.build(SPEC)

    def seconds(effort: int, queries: int) -> float:
        return index.work([query(queries, nprobe=effort, ef_search=effort)]).alone_s

    alone = seconds(effort, queries)
    assert alone > 0
    assert seconds(effort + 1, queries) >= alone * (1 - 1e-12)
    assert seconds(effort, queries + 1) >= alone * (1 - 1e-12)
    assert alone <= queries * seconds(effort, 1) * (1 + 1e-9)    # a batch is no slower than one after the other


@quick_and_full(20, 60)
@given(
    vectors=st.integers(10**5, 10**9), dim=st.integers(8, 2048), code=st.integers(1, 128), shrink=st.floats(1, 8),
)
def test_a_smaller_index_or_a_faster_machine_takes_no_longer(vectors, dim, code, shrink):
    def seconds(vectors: int, spec: MachineSpec) -> float:
        return IvfPq(vectors=vectors, nlist=1000, dim=dim, code_bytes=code).build(spec).work([query(10)]).alone_s

    big = MachineSpec(64, 14.2e12, 768e9, 10**15)
    assert seconds(max(1000, int(vectors / shrink)), big) <= seconds(vectors, big)
    slow = big._replace(flops=big.flops / shrink, memory_bandwidth=big.memory_bandwidth / shrink)
    assert seconds(vectors, slow) >= seconds(vectors, big)


def test_what_does_not_fit_says_how_much_is_missing():
    with pytest.raises(InputError, match="an index of 2,092 GB does not fit in 1,000 GB: 1,092 GB are missing"):
        IvfPq(vectors=20 * 10**9, nlist=4_000_000, code_bytes=96).build(SPEC)
    IvfPq(vectors=20 * 10**9, nlist=4_000_000, code_bytes=96, shards=3).build(SPEC)
    with pytest.raises(InputError, match=r"vectors: an index of 3,\d+ GB does not fit in 1,000 GB"):
        Hnsw(vectors=10**9).build(SPEC)
    mistral = {"kind": "encoder", "hardware": {"kind": "roofline", "model": "llama-3.1-70b", "device": "a100-80gb"}}
    with pytest.raises(InputError, match="hardware: a model of 141 GB does not fit in 85 GB"):
        validate(Encoder, mistral).build(machine("a100-80gb"))
    with pytest.raises(InputError, match="is not the client's device"):
        validate(Encoder, mistral).build(machine())


@pytest.mark.parametrize(("model", "fields", "says"), [
    (IvfPq, {"vectors": 10, "nlist": 100}, "nlist: expected at most the 10 vectors"),
    (IvfPq, {"vectors": 10**8, "coarse_groups": 10}, "coarse_groups: has no effect with coarse: flat"),
    (Rerank, {}, "either `hardware` or `per_document`"),
    (IvfPq, {"vectors": 10**8, "bandwidth_share": 1.5}, "bandwidth_share"),
])
def test_bad_descriptions_are_one_line(model, fields, says):
    with pytest.raises(InputError, match=says):
        validate(model, {"kind": model.model_fields["kind"].default, **fields})


@pytest.mark.parametrize("value", [0, -3, 2.5, "many", True])
def test_options_that_are_none(value):
    with pytest.raises(InputError, match=r"options\.nprobe: expected an integer of at least 1"):
        IvfPq(vectors=10**8).build(SPEC).work([query(nprobe=value)])


# -- models that read ------------------------------------------------------------------------------------------------

PLAIN = {"kind": "roofline", "efficiency": "ideal", "dtype": "fp32", "device": "cpu-large"}


def test_an_embedding_is_a_prefill_by_hand():
    """e5-base on the large CPU at its peak: twelve layers of 7.1M weights, and attention in both directions."""
    service = validate(Encoder, {"kind": "encoder", "hardware": {**PLAIN, "model": "e5-base"}}).build(machine())
    flops = 2 * 12 * (4 * 768 * 768 + 2 * 768 * 3072) * 512 + 4 * 12 * 64 * 12 * 512 * 512
    phase = service.costs([query(tokens=512)])[0]
    assert phase.flops == pytest.approx(flops)
    work = service.work([query(tokens=512)])
    assert work.compute_s == pytest.approx(flops / 14.2e12)
    assert work.alone_s == pytest.approx(flops / 14.2e12, rel=0.15)    # and a little for norms and activations
    assert work.cores == 1.0
    assert work.bandwidth == pytest.approx(work.memory_s / work.alone_s)
    # weights lie in memory
    assert service.memory_bytes == pytest.approx(4 * 109e6, rel=0.01)


def test_a_measured_profile_says_what_lies_outside_and_what_the_weights_take():
    model = {"kind": "encoder", "max_tokens": 10**6, "hardware": {
        "kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}
    service = validate(Encoder, model).build(machine("h100-sxm"))
    assert service.memory_bytes == pytest.approx(16.06e9, rel=0.01)
    assert service.outside([query(tokens=1000)]) == []
    assert service.outside([query(tokens=10**6)]) == ["prefill"]
    # nothing is known of the cores and the bandwidth it leaves: none
    assert service.work([query(tokens=1000)])[1:3] == (1.0, 1.0)
    rerank = {"kind": "rerank", "hardware": model["hardware"], "max_tokens": 10**6, "document_tokens": 10**6 - 1}
    assert validate(Rerank, rerank).build(machine("h100-sxm")).outside([query(tokens=1)]) == ["prefill"]


def test_items_are_sequences_of_their_own():
    service = validate(Encoder, {"kind": "encoder", "hardware": {**PLAIN, "model": "e5-base"}}).build(machine())
    assert service.sequences([query(tokens=100)]) == [100]
    assert service.sequences([query(3, tokens=100)]) == [34, 33, 33]
    assert service.sequences([query(tokens=1100), query(tokens=512)]) == [512, 512, 76, 512]
    assert sorted(service.sequences([query(2, tokens=1025)])) == [1, 512, 512]
    assert service.sequences([query(4, tokens=0)]) == [1, 1, 1, 1]


@quick_and_full(20, 60)
@given(items=st.integers(1, 60), tokens=st.integers(0, 9000), most=st.integers(1, 600))
def test_sequences_have_all_tokens(items, tokens, most):
    service = validate(
        Encoder, {"kind": "encoder", "hardware": {**PLAIN, "model": "e5-base"}, "max_tokens": most},
    ).build(machine())
    lengths = service.sequences([query(items, tokens=tokens)])
    assert sum(lengths) == max(items, tokens)
    assert max(lengths) <= most
    assert len(lengths) >= items


def test_a_reranker_reads_the_query_with_each_document():
    model = {"kind": "rerank", "hardware": {**PLAIN, "model": "e5-base"}, "document_tokens": 200, "documents": 20,
             "max_tokens": 240}
    rerank = validate(Rerank, model).build(machine())
    encoder = validate(Encoder, {"kind": "encoder", "hardware": model["hardware"]}).build(machine())
    assert rerank.work([query(tokens=30)]) == encoder.prefill([230] * 20)
    assert rerank.work([query(5, tokens=30)]) == encoder.prefill([6] * 5)          # five pairs with 30 tokens
    assert rerank.work([query(5, tokens=5 * 230)]) == encoder.prefill([230] * 5)
    assert rerank.work([query(5, tokens=5 * 300)]) == encoder.prefill([240] * 5)     # cut off
    assert rerank.work([query(tokens=100)]) == encoder.prefill([240] * 20)
    assert rerank.memory_bytes == encoder.memory_bytes
    per_document = Rerank(per_document=0.002, documents=20).build(MachineSpec(8, 0, 0, 0))
    assert per_document.work([query(tokens=30)]).alone_s == pytest.approx(20 * 0.002 / 8)


def test_a_word_lookup_takes_so_much_for_each_generated_token():
    """`tokens: output` in a graph gives the stage the generated tokens; each task is on one core."""
    lookup = PerItem(per_token=1e-6, fixed=1e-4).build(MachineSpec(4, 0, 0, 0))
    assert lookup.work([query(tokens=300)]).alone_s == pytest.approx(1e-4 + 300e-6)
    assert lookup.work([query(tokens=300)] * 8).alone_s == pytest.approx(1e-4 + 2 * 300e-6)


# -- as measured -----------------------------------------------------------------------------------------------------

PQ = {"kind": "ivf-pq", "vectors": 100_000, "dim": 128, "nlist": 256, "pq_m": 16}


def test_measured_retrieval_is_what_the_profile_says():
    service = validate(Measured, {
        "kind": "measured", "profile": "amd-epyc-zen5", "index": PQ, "effort": 8, "threads": 2,
    }).build(machine())
    profile, index = load_retrieval_profile("amd-epyc-zen5"), service.config.index
    assert service.work([query(), query(3)]).alone_s == profile.seconds(index, 8, 4, 2)
    assert service.work([query(nprobe=64), query()]).alone_s == pytest.approx(
        profile.seconds(index, 64, 1, 2) + profile.seconds(index, 8, 1, 2)
    )
    assert service.work([query(4)]).cores == pytest.approx(2 / 64)
    assert service.outside([query()]) == ["threads"]                       # measured with one
    assert service.memory_bytes == 100_000 * 24 + 256 * 128 * 4


def test_what_leaves_the_measured_range_is_counted_or_refused():
    config = validate(Measured, {"kind": "measured", "profile": "amd-epyc-zen5", "index": {**PQ, "vectors": 10**9}})
    service = config.build(machine())
    assert service.outside([query()]) == ["scan_bytes"]
    assert service.outside([query(nprobe=1)]) == []
    service.work([query()])
    strict = config.model_copy(update={"outside": "refuse"}).build(machine())
    strict.work([query(nprobe=1)])
    with pytest.raises(InputError, match="a batch leaves the measured range of amd-epyc-zen5 in scan_bytes"):
        strict.work([query()])


def test_an_index_that_was_not_measured_is_refused():
    graph = {"kind": "hnsw", "vectors": 1000, "dim": 64, "hnsw_m": 16, "library": "faiss"}
    config = validate(Measured, {"kind": "measured", "profile": "amd-epyc-zen5", "index": graph})
    with pytest.raises(InputError, match=r"index\.library: expected a graph of hnswlib, which was measured, found"):
        config.build(machine())
    with pytest.raises(InputError, match="threads: expected at most the 1 cores"):
        config.model_copy(update={"threads": 2}).build(machine(cores=1))
