"""Built-in pipelines: graphs with parameters.

Each is a `GraphTemplate`: its fields are the parameters of a workload (`pipeline: {name: rag, documents: 10}`), and
`nodes()` returns the graph as YAML would state it under `pipelines: {NAME: {stages: ...}}`. `hermes pipeline show NAME`
prints it as a template for another graph.
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
    """Parameters of the passages found for a question."""

    documents: Count = 20
    """Passages in the prompt."""
    document_tokens: Count = 512
    """Tokens of a passage."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes per token of text, for transfers over the network."""
    nprobe: Count | None = None
    """Lists that a query scans; default: the index's own number."""
    dimension: Count = 768
    """Length of an embedding, 4 bytes each. It is sent if another client searches than embeds."""
    embed_model: Name = ""
    """Model of the embedding client; default: any."""

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
    """Embed the question, retrieve passages, and answer with them in the prompt. The passages' text moves to the
    LLM."""

    def nodes(self) -> Stages:
        answer = {"kind": "generate", "after": "retrieve", "prompt": self._prompt(),
                  "input_bytes": self._text(self.documents)}
        return {"embed": self._embed(), "retrieve": self._retrieve(self.documents), "answer": answer}


class RagDisaggregated(_Passages, GraphTemplate):
    """RAG with reranking: retrieve more passages than needed, send them to a reranker, and score each with the
    question."""

    candidates: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    """Passages retrieved, of which the best `documents` are kept; 0 skips the reranking."""
    rerank_model: Name = ""
    """Model of the reranking client; default: any."""

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
    """Fetch the KV of past context from a hierarchy of stores, answer without prefilling it, and write it back."""

    past: Annotated[int, Field(ge=0, le=2**40)] | None = None
    """Tokens of past context; default: those of the workload's `contexts`."""
    write_back: bool = True
    """Whether to store the context again after the answer; the request does not wait for it."""

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
    """RAG with a reasoning answer: a longer output, on one path or on several side by side."""

    scale: Annotated[float, Field(gt=0, le=10_000)] = 8.0
    """Length of each path's output, as a multiple of the workload's output."""
    branches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Paths side by side, each with its own output; they share the prompt's KV."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Spread of the paths' lengths around their mean: 0.3 is uniform from 0.7 to 1.3 of it."""

    def nodes(self) -> Stages:
        answer: dict[str, Any] = {
            "kind": "generate", "after": "retrieve", "prompt": self._prompt(), "output": f"output * {self.scale:g}",
            "input_bytes": self._text(self.documents),
        }
        if self.branches > 1 or self.branch_spread:
            answer |= {"branches": self.branches, "branch_spread": self.branch_spread}
        return {"embed": self._embed(), "retrieve": self._retrieve(self.documents), "answer": answer}


class Guarded(GraphTemplate):
    """Tokenize, answer, run a safety filter and a word lookup side by side, detokenize. The LLM writes a refused answer
    again, and both checks read it again."""

    filter_reads: Literal["output", "prompt + output"] = "output"
    """Text that the filter reads."""
    filter_model: Name = ""
    """Model of the filtering client; default: any."""
    refused: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability that the filter refuses an answer."""
    retries: Annotated[int, Field(ge=1, le=1000)] = 1
    """Most times that a refused answer is written again."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes per token of text, for transfers over the network."""

    def nodes(self) -> Stages:
        moved = f"output * {self.bytes_per_token:g}"
        read = moved if self.filter_reads == "output" else f"({self.filter_reads}) * {self.bytes_per_token:g}"
        check = _without_defaults(
            kind="filter", after="answer", tokens=self.filter_reads, model=self.filter_model, input_bytes=read,
        )
        lookup = {"kind": "word_lookup", "after": "answer", "tokens": "output", "input_bytes": moved}
        nodes: Stages = {"tokenize": {"kind": "tokenize", "tokens": "prompt"}}
        if self.refused:   # both checks read the LLM's answer of every attempt
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
    """Write several answers side by side; a reward model scores each as soon as it is complete. The request completes
    with the last score."""

    candidates: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of answers."""
    reward_model: Name = ""
    """Model of the scoring client; default: any."""
    bytes_per_token: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Bytes per token of text, for transfers over the network."""

    def nodes(self) -> Stages:
        nodes: Stages = {f"answer-{i}": {"kind": "generate"} for i in range(1, self.candidates + 1)}
        for i in range(1, self.candidates + 1):
            nodes[f"score-{i}"] = _without_defaults(
                kind="score", after=f"answer-{i}", tokens="prompt + output", model=self.reward_model,
                input_bytes=f"(prompt + output) * {self.bytes_per_token:g}",
            )
        return nodes
