"""What the scripts of this folder share: reading the request, pricing batches, writing the answer. Standard library
only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["price_all", "serve"]


def price_all(
    functions: dict[str, Callable[..., float]], batches: dict[str, list[list[int]]]
) -> dict[str, list[float | None]]:
    """Return seconds per batch of each kind; None for a batch without an answer."""
    total, done = sum(len(part) for part in batches.values()), 0
    seconds: dict[str, list[float | None]] = {}
    for phase, function in functions.items():
        seconds[phase] = []
        for batch in batches[phase]:
            try:
                seconds[phase].append(float(function(*batch)))
            except Exception:  # packages raise their own exceptions: no data near, does not fit
                seconds[phase].append(None)
            done += 1
            if done % 10 == 0:
                print(f"@progress {done} {total}", file=sys.stderr, flush=True)
    return seconds


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read the request named on the command line; write the result of `answer`, or the reason for its failure."""
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    try:
        result = answer(request)
    except ImportError as error:
        result = {"missing": str(error)}
    except Exception as error:  # every exception of the package is an answer about the request
        result = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)
