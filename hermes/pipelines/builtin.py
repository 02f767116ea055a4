"""Pipelines that come with hermes: graphs with parameters.

Each is a `GraphTemplate`: its fields are the parameters a workload may set (`pipeline: {name: rag, documents: 10}`),
`nodes()` gives the graph, as it would stand in YAML under `pipelines: {NAME: {stages: ...}}`. `hermes pipeline show
NAME` prints it, as a start for a graph of one's own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.pipelines.template import GraphTemplate, Stages

__all__ = ["Guarded", "KvRetrieval", "Rag", "RagDisaggregated", "RagReasoning", "RewardRanked"]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Name = Annotated[str, Field(max_length=4096)]


class _Passages(ConfigModel):
    """What is found for a question."""

    documents: Count = 20
    """Passages that go into the prompt."""
    document_tokens: Count = 512
    """Tokens of a passage."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes of a token of text, for what moves over the network."""
    nprobe: Count | None = None
    """Lists a query scans; the index's own where left out."""
    dimension: Count = 768
    """Length of an embedding, 4 bytes each: what moves where another client searches than embeds."""
    embed_model: Name = ""
    """Model of the client that embeds; any where left out."""

    def _prompt(self) -> str:
        return f"prompt + {self.documents} * {self.document_tokens}"

    def _text(self, documents: int) -> str:
        return f"{documents} * {self.document_tokens} * {self.bytes_per_token:g}"

    def _embed(self) -> dict[str, Any]:
        return _without_defaults(kind="embed", tokens="prompt", model=self.embed_model)

    def _retrieve(self, top_k: int) -> dict[str, Any]:
        options = {"top_k": top_k} | ({} if self.nprobe is None else {"nprobe": self.nprobe})
        return {"kind": "retrieve", "after": "embed", "options": options, "input_bytes": f"{self.dimension} * 4"}


def _without_defaults(**node: Any) -> dict[str, Any]:
    return {key: value for key, value in node.items() if value not in ("", None)}


class Rag(_Passages, GraphTemplate):
    """Embed the question, find passages, answer with them in the prompt. The passages' text moves to the answer."""

    def nodes(self) -> Stages:
        answer = {"kind": "generate", "after": "retrieve", "prompt": self._prompt(),
                  "input_bytes": self._text(self.documents)}
        return {"embed": self._embed(), "retrieve": self._retrieve(self.documents), "answer": answer}


class RagDisaggregated(_Passages, GraphTemplate):
    """The same with reranking: more passages than are kept are found, move to a reranker, and are read in pairs with
    the question."""

    candidates: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    """Passages found, of which the best `documents` are kept; 0 leaves the reranking out."""
    rerank_model: Name = ""
    """Model of the client that reranks; any where left out."""

    def nodes(self) -> Stages:
        reranks = self.candidates > 0
        found = max(self.candidates, self.documents) if reranks else self.documents
        nodes: Stages = {
            "embed": self._embed(),
            "retrieve": self._retrieve(found),
        }
        if reranks:
            nodes["rerank"] = _without_defaults(
                kind="rerank", after="retrieve", items=found, tokens=f"{found} * (prompt + {self.document_tokens})",
                model=self.rerank_model, input_bytes=self._text(found),
            )
        nodes["answer"] = {
            "kind": "generate", "after": "rerank" if reranks else "retrieve", "prompt": self._prompt(),
            "input_bytes": self._text(self.documents),
        }
        return nodes


class KvRetrieval(GraphTemplate):
    """Past context comes from a hierarchy of stores; what is found needs no prefill. Written back afterwards."""

    past: Annotated[int, Field(ge=0, le=2**40)] | None = None
    """Tokens of past context; those of the workload's `contexts` where left out."""
    write_back: bool = True
    """Whether the context is stored again once the answer is there; the request does not wait for it."""

    def nodes(self) -> Stages:
        past = "past" if self.past is None else self.past
        nodes: Stages = {
            "fetch": {"kind": "fetch_kv", "tokens": past},
            "answer": {"kind": "generate", "after": "fetch", "prompt": f"prompt + {past}", "kv": "fetch"},
        }
        if self.write_back:
            nodes["keep"] = {"kind": "store_kv", "after": "answer", "tokens": past, "background": True}
        return nodes


class RagReasoning(_Passages, GraphTemplate):
    """RAG whose answer is long thought about: a longer output, on one path or on several side by side."""

    scale: Annotated[float, Field(gt=0, le=10_000)] = 8.0
    """How many times longer than the workload's the output of each path is."""
    branches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Paths side by side, each with an output of its own; they share the prompt's KV."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How far the lengths of the paths lie from their mean: 0.3 is uniform from 0.7 to 1.3 of it."""

    def nodes(self) -> Stages:
        answer: dict[str, Any] = {
            "kind": "generate", "after": "retrieve", "prompt": self._prompt(), "output": f"output * {self.scale:g}",
            "input_bytes": self._text(self.documents),
        }
        if self.branches > 1 or self.branch_spread:
            answer |= {"branches": self.branches, "branch_spread": self.branch_spread}
        return {"embed": self._embed(), "retrieve": self._retrieve(self.documents), "answer": answer}


class Guarded(GraphTemplate):
    """Tokenize, answer, then a safety filter and a word lookup side by side, detokenize. An answer that the filter
    refuses is written again, and read again by both."""

    filter_reads: Literal["output", "prompt + output"] = "output"
    """What the filter reads."""
    filter_model: Name = ""
    """Model of the client that filters; any where left out."""
    refused: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the answers that the filter refuses."""
    retries: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often a refused answer is written again at most."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes of a token of text, for what moves over the network."""

    def nodes(self) -> Stages:
        moved = f"output * {self.bytes_per_token:g}"
        read = moved if self.filter_reads == "output" else f"({self.filter_reads}) * {self.bytes_per_token:g}"
        check = _without_defaults(
            kind="filter", after="answer", tokens=self.filter_reads, model=self.filter_model, input_bytes=read,
        )
        lookup = {"kind": "word_lookup", "after": "answer", "tokens": "output", "input_bytes": moved}
        nodes: Stages = {"tokenize": {"kind": "tokenize", "tokens": "prompt"}}
        if self.refused:   # both read the answer as it comes from the LLM, whichever attempt it is
            nodes["attempt"] = {
                "kind": "loop", "after": "tokenize", "again": self.refused, "max_times": 1 + self.retries,
                "stages": {"answer": {"kind": "generate"}, "filter": check, "lookup": lookup},
            }
        else:
            nodes |= {"answer": {"kind": "generate", "after": "tokenize"}, "filter": check, "lookup": lookup}
        done = "attempt" if self.refused else ["filter", "lookup"]
        nodes["detokenize"] = {"kind": "detokenize", "after": done, "tokens": "output"}
        return nodes


class RewardRanked(GraphTemplate):
    """Several answers side by side; a reward model scores each as soon as it is there. With the last score the best is
    known, and the request complete."""

    candidates: Annotated[int, Field(ge=1, le=256)] = 4
    """Answers."""
    reward_model: Name = ""
    """Model of the client that scores; any where left out."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes of a token of text, for what moves over the network."""

    def nodes(self) -> Stages:
        nodes: Stages = {f"answer-{i}": {"kind": "generate"} for i in range(1, self.candidates + 1)}
        for i in range(1, self.candidates + 1):
            nodes[f"score-{i}"] = _without_defaults(
                kind="score", after=f"answer-{i}", tokens="prompt + output", model=self.reward_model,
                input_bytes=f"(prompt + output) * {self.bytes_per_token:g}",
            )
        return nodes
