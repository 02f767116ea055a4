"""Routers that know where a context or a platform is."""

import numpy as np
import pytest

import hermes
from hermes.routing.affinity import ContextConfig, PlatformConfig
from hermes.testing.routers import RouterContract


class TestContext(RouterContract):
    def make(self):
        return ContextConfig()


class TestPlatform(RouterContract):
    def make(self):
        return PlatformConfig()


class TestRack(RouterContract):
    def make(self):
        return PlatformConfig(by="rack", load="tokens_left")


@pytest.mark.feature("Routing and networks", "Routers `context`, `platform`, `mixed_pool`")
def test_a_request_stays_where_its_context_is():
    results = hermes.simulate({
        "workload": {
            "requests": 200, "arrivals": {"kind": "poisson", "rate": 20.0}, "pipeline": "p",
            "lengths": {"kind": "fixed", "prompt": 50, "output": 5},
            "contexts": {"population": "private", "keys": 30, "tokens": {"kind": "fixed", "tokens": 200}},
        },
        "pipelines": {"p": {"stages": {
            "fetch": {"kind": "fetch_kv", "tokens": "past"},
            "answer": {"kind": "generate", "after": "fetch", "prompt": "prompt + past", "kv": "fetch"},
            "keep": {"kind": "store_kv", "after": "answer", "tokens": "past", "background": True},
        }}},
        "routers": {"fetch_kv": {"kind": "context"}, "generate": {"kind": "platform", "by": "rack"},
                    "store_kv": {"kind": "platform"}},
        "clients": [
            {"name": "llm", "count": 8, "model": "llama-3.1-8b", "platform": "rack-{i//2}/node-{i}",
             "device": "h100-sxm", "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}},
            {"kind": "kv_retrieval", "name": "kv", "count": 4, "model": "llama-3.1-8b", "platform": "rack-{i}/node-{i}",
             "tiers": {"levels": [{"name": "t", "capacity": "1 TB", "bandwidth": "10 GB/s"}]}},
        ],
    })
    stages, kinds = results.record.stages, results.record.stage_kinds
    rows = {kind: np.flatnonzero(stages["kind"] == kinds.index(kind)) for kind in ("fetch_kv", "generate")}
    fetched = dict(zip(stages["request"][rows["fetch_kv"]], stages["client"][rows["fetch_kv"]] - 8, strict=True))
    served = dict(zip(stages["request"][rows["generate"]], stages["client"][rows["generate"]] // 2, strict=True))
    assert served == fetched
    assert set(served.values()) == {0, 1, 2, 3}
