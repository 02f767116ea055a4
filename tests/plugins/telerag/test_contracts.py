"""The pipelines, the client and the service against the contracts of their kinds."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.pipelines import PIPELINES
from hermes.plugins.telerag import ClusterScan
from hermes.plugins.telerag.pipelines import Flare, Hyde, Iterative, IterRetGen, SelfRag, SubQuestion
from hermes.plugins.telerag.prefetch import NearestFirst, NoPrefetch
from hermes.plugins.telerag.testing import PrefetchContract
from hermes.testing.pipelines import PipelineContract
from hermes.testing.services import ServiceContract

INDEX = {"clusters": 32, "total": 32 * 10**6, "vector_bytes": 1000}


class _Contract(PipelineContract):
    examples = 5

    def parameters(self) -> dict[str, Any]:
        return {"nprobe": 4, "strength": 0.1, "budget": 10**7, "batch": 2, "window": 5}

    def clients(self) -> list[dict[str, Any]]:
        own = {"lookahead", "probe", "evict"}
        engine = super().clients()[0]
        others = [kind for kind in self.kinds if kind not in {*own, "generate"}]
        scan, moment = {"kind": "cluster_scan", "rate": 1e9}, {"kind": "per_item", "per_item": 0.001}
        serves = {kind: scan if kind.endswith("_search") else moment for kind in others}
        return [engine, {"kind": "ivf_index", "name": "index", "index": INDEX},
                {"kind": "processing", "name": "others", "serves": serves}]


class TestHyde(_Contract):
    def make(self) -> Any:
        return Hyde


class TestSubQuestion(_Contract):
    def make(self) -> Any:
        return SubQuestion


class TestIterative(_Contract):
    def make(self) -> Any:
        return Iterative


class TestIterRetGen(_Contract):
    def make(self) -> Any:
        return IterRetGen


class TestFlareGivingUp(_Contract):
    def make(self) -> Any:
        return Flare

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "late": "give_up", "chunk": 10**6}


class TestSelfRag(_Contract):
    def make(self) -> Any:
        return SelfRag


class TestClusterScan(ServiceContract):
    def make(self) -> Any:
        return ClusterScan(rate=1e9)


@pytest.mark.feature("Plug-ins of research", (
    "TeleRAG: prefetch policies `nearest`, `none` (`hermes.prefetch`); measured ranks and sizes "
    "(`ranks_file`, `sizes_file`)"))
class TestNearest(PrefetchContract):
    def make(self) -> Any:
        return NearestFirst()


class TestNothing(PrefetchContract):
    def make(self) -> Any:
        return NoPrefetch()


def test_the_names_are_registered():
    assert {name for name in PIPELINES if name.startswith("telerag-")} == {
        "telerag-hyde", "telerag-subquestion", "telerag-iterative", "telerag-iter-retgen", "telerag-flare",
        "telerag-self-rag"}
