"""Batches to price: their grid, the request to a program in another interpreter, and rows of measured steps.

Sizes are denser than powers of two and off them, since kernels work in tiles: a fit must see both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from hermes.calibration.importers.base import Progress
from hermes.errors import InputError, Verbatim

__all__ = ["Batches", "ask", "row_of", "rows_of", "step_grid"]


class Batches(NamedTuple):
    """Batches of equal sequences per kind of step."""

    prefill: list[list[int]]
    """[sequences, new tokens of each, tokens of each already cached]."""
    decode: list[list[int]]
    """[sequences, tokens of each already cached on average, tokens of the longest]."""
    mixed: list[list[int]]
    """A prefill batch, then a decode batch."""


NEW = (16, 32, 64, 100, 128, 200, 256, 384, 512, 700, 1024, 1300, 1536, 2048, 2600, 3072, 4096, 5000, 6144, 8192, 10000,
       12288, 16384, 24000, 32768)
PAST = (0, 256, 1024, 4096, 8192, 16384, 32768)
PREFILL_BATCHES, BATCH_NEW, BATCH_PAST = (2, 4, 8, 16, 32), (32, 100, 256, 512, 1024, 2048, 4096, 8192), (0, 1024, 4096)
MAX_PREFILL_TOKENS = 32768
DECODE_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
CONTEXTS = (128, 256, 512, 768, 1024, 1500, 2048, 3000, 4096, 6000, 8192, 12000, 16384, 24000, 32768, 65536)
# all tokens of the step: a full chunk and the decodes beside it fill a round budget; other chunks end anywhere
MIXED_TOKENS, MIXED_PAST = (48, 128, 200, 256, 400, 512, 800, 1024, 1400, 2048, 3000, 4096, 6000, 8192), (0, 2048, 8192)
MIXED_LEAST_NEW = 16
MIXED_DECODES, MIXED_CONTEXTS = (1, 4, 16, 48, 128, 256), (256, 1024, 4096, 16384)


def step_grid(spread: Sequence[int] = (1,)) -> Batches:
    """Return the grid.

    `spread` lists ratios of the longest context to the mean: every decode batch comes with each of them, mixed ones
    with one of them in turn.
    """
    prefill = [[1, new, past] for new in NEW for past in PAST]
    prefill += [
        [batch, new, past] for batch in PREFILL_BATCHES for new in BATCH_NEW for past in BATCH_PAST
        if batch * new <= MAX_PREFILL_TOKENS
    ]
    decode = [
        [batch, context, context * ratio] for batch in DECODE_BATCHES for context in CONTEXTS
        for ratio in spread if _can_spread(batch, context, ratio)
    ]
    shapes = [
        [1, tokens - decodes, past, decodes] for tokens in MIXED_TOKENS for past in MIXED_PAST
        for decodes in MIXED_DECODES if tokens - decodes >= MIXED_LEAST_NEW
    ]
    mixed: list[list[int]] = []
    for index, shape in enumerate(shapes):  # every other context, and one spread each, in turn
        for context in MIXED_CONTEXTS[index % 2 :: 2]:
            ratio = spread[len(mixed) % len(spread)]
            mixed.append([*shape, context, context * (ratio if _can_spread(shape[3], context, ratio) else 1)])
    return Batches(prefill, decode, mixed)


def _can_spread(batch: int, context: int, ratio: int) -> bool:
    """Whether one of `batch` sequences can have `ratio` times the mean context, within the longest requested one."""
    return ratio == 1 or (batch > ratio and context * ratio <= CONTEXTS[-1])


def row_of(phase: str, batch: Sequence[int]) -> dict[str, Any]:
    """Return statistics and configuration of one batch of a phase (`Batches`)."""
    seqs, new, past = batch[:3] if phase != "decode" else (0, 0, 0)
    decodes, context, longest = batch[-3:] if phase != "prefill" else (0, 0, 0)
    parts = [f"{seqs} x {new}"] if seqs else []
    if decodes:
        parts.append(f"{decodes} at {context}" if not seqs else f"{decodes} decodes")
    return {
        "prefill_seqs": seqs, "prefill_tokens": seqs * new, "prefill_past": seqs * past,
        "prefill_attn": seqs * (new * past + new * (new + 1) // 2), "decode_seqs": decodes,
        "decode_ctx": decodes * context, "decode_ctx_max": longest, "sampled": seqs + decodes,
        "configuration": " + ".join(parts),
    }


def rows_of(
    batches: Batches, seconds: Mapping[str, Sequence[float | None]], limit: int | None = None
) -> tuple[pd.DataFrame, int, int]:
    """Return rows of measured steps, the number of batches with more than `limit` KV tokens, and of those without a
    time (None).

    A configuration is one shape of chunk (all its pasts together), one decode batch and mean context (all longest ones
    together), or a chunk beside a number of decodes (all pasts and contexts together).
    """
    rows, beyond, unknown = [], 0, 0
    for phase, part in batches._asdict().items():
        for batch, time in zip(part, seconds[phase], strict=True):
            row = row_of(phase, batch)
            held = sum(int(row[name]) for name in ("prefill_tokens", "prefill_past", "decode_ctx"))
            if limit is not None and held > limit:
                beyond += 1
            elif time is None:
                unknown += 1
            else:
                rows.append(row | {"time_s": time})
    return pd.DataFrame(rows), beyond, unknown


def ask(script: str, request: dict[str, Any], python: str | None, package: str, progress: Progress) -> dict[str, Any]:
    """Return the answer of `script` (in `remote`) to `request`, run by the interpreter `python` (ours by default).

    The script writes `{"missing": ...}` if its interpreter lacks the package, and `{"error": ...}` if the package
    refuses the request. Both become an `InputError`, as does an interpreter that cannot be run.
    """
    command = [python or sys.executable, str(Path(__file__).parent / "remote" / script)]
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        try:
            last = _run([*command, str(question), str(answer)], progress)
        except OSError as error:
            raise InputError(f"an interpreter that runs ({error.strerror})", python, field="python") from None
        try:
            result = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"an answer from {package}", Verbatim(last or "none"), field="python") from None
    if "missing" in result:
        raise InputError(
            f"an interpreter with {package}: pip install 'hermes-sim[{package}]', or --python PATH of one that has it",
            Verbatim(result["missing"]),
        )
    if "error" in result:
        raise InputError(f"something {package} can price", Verbatim(result["error"]))
    return dict(result)


def _run(command: list[str], progress: Progress) -> str:
    """Run to the end; return the last line that is not progress."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr or ():
                if line.startswith("@progress "):
                    done, total = line.split()[1:3]
                    progress(int(done), int(total))
                elif line.strip():
                    last = line.strip()
        except BaseException:
            process.kill()
            raise
    return last
