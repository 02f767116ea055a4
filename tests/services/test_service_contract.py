"""The contract suite on every service of the product."""

from hermes.config.validation import validate
from hermes.services import Encoder, PerItem
from hermes.services.hnsw import Hnsw
from hermes.services.hybrid import Hybrid
from hermes.services.ivf_flat import IvfFlat
from hermes.services.ivf_pq import IvfPq
from hermes.services.measured import Measured
from hermes.services.rerank import Rerank
from hermes.testing.services import ServiceContract

E5 = {"kind": "roofline", "model": "e5-base", "device": "cpu-large", "dtype": "fp32"}


class TestIvfPq(ServiceContract):
    def make(self):
        return IvfPq(vectors=10**10, code_bytes=48)

    def options(self, rng):
        return {"nprobe": int(rng.integers(1, 500)), "top_k": int(rng.integers(1, 200))}


class TestIvfPqTree(TestIvfPq):
    def make(self):
        return IvfPq(vectors=2 * 10**10, code_bytes=96, shards=3, coarse="two_level", threads_per_query=4)


class TestIvfFlat(TestIvfPq):
    def make(self):
        return IvfFlat(vectors=10**8, nlist=10_000)


class TestHnsw(ServiceContract):
    def make(self):
        return Hnsw(vectors=10**8)

    def options(self, rng):
        return {"ef_search": int(rng.integers(1, 500))}


class TestMeasured(ServiceContract):
    def make(self):
        index = {"kind": "ivf-pq", "vectors": 100_000, "dim": 128, "nlist": 256, "pq_m": 16}
        return validate(Measured, {"kind": "measured", "profile": "amd-epyc-zen5", "index": index, "threads": 2})


class TestRerankModel(ServiceContract):
    def make(self):
        return validate(Rerank, {"kind": "rerank", "hardware": E5, "document_tokens": 100})


class TestRerankPerDocument(ServiceContract):
    def make(self):
        return Rerank(per_document=0.003, documents=50)


class TestEncoder(ServiceContract):
    def make(self):
        return validate(Encoder, {"kind": "encoder", "hardware": E5})


class TestPerItem(ServiceContract):
    def make(self):
        return PerItem(per_item=0.001, per_token=1e-5)


class TestHybrid(ServiceContract):
    def make(self):
        index = {"kind": "bm25", "vectors": 100_000}
        sparse = {"kind": "measured", "profile": "amd-epyc-zen5", "index": index, "effort": 8}
        return validate(Hybrid, {"kind": "hybrid", "dense": {"kind": "hnsw", "vectors": 10**7}, "sparse": sparse,
                                 "fusion": "50 us"})


class TestHybridInTurn(TestHybrid):
    def make(self):
        return super().make().model_copy(update={"searches": "sequential"})
