"""Systems in studies of LLM batching: the clients of a scenario, arranged by a strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.errors import InputError

__all__ = ["BUDGETS", "PREFILL_LOAD", "System", "arrange", "routers"]

BUDGETS = (256, 512, 1024, 2048)
"""Token budgets of a step that studies try for chunked batching. They take the best under their SLOs."""

_SPLIT = re.compile(r"(\d+)P/(\d+)D")
_CHUNKED = re.compile(r"chunked (\d+)")
PREFILL_LOAD = "input_tokens"
"""Load that prompts are balanced by, if prefill clients serve only prompts."""


@dataclass(frozen=True)
class System:
    """A number of clients, and the splits of them into prefill and decode clients."""

    name: str
    clients: int
    splits: tuple[str, ...]


def arrange(clients: Sequence[Mapping[str, Any]], strategy: str, count: int, **scheduler: Any) -> list[dict[str, Any]]:
    """Return a scenario's clients with its LLM clients arranged by `strategy`; those of other kinds are unchanged.

    Args:
        strategy: `continuous`, `chunked N` (N tokens a step), or `aP/bD` (a clients prefill, b decode; both batch
            continuously), a + b = count.
        scheduler: Further keys of the scheduler.

    Raises `InputError` for any other strategy or sum.
    """
    llm = [dict(client) for client in clients if client.get("kind", "llm") == "llm"]
    others = [dict(client) for client in clients if client.get("kind", "llm") != "llm"]
    if len(llm) != 1:
        raise InputError("one group of LLM clients", f"{len(llm)} groups", field="clients")
    base = llm[0]
    seqs = {"max_num_seqs": base.get("scheduler", {}).get("max_num_seqs", 256)}
    split, chunked = _SPLIT.fullmatch(strategy), _CHUNKED.fullmatch(strategy)
    if split is None:
        if chunked is None and strategy != "continuous":
            raise InputError("continuous, chunked N, or a split like 12P/20D", strategy, field="strategy")
        own = {"kind": "continuous", **seqs} if chunked is None else {
            **base.get("scheduler", {}), "kind": "chunked", "max_num_batched_tokens": int(chunked[1])}
        return [base | {"count": count, "scheduler": {**own, **scheduler}}, *others]
    prefill, decode = int(split[1]), int(split[2])
    if prefill + decode != count or not prefill or not decode:
        raise InputError(f"a split of {count} clients", strategy, field="strategy")
    kind = {"kind": "continuous", **seqs, **scheduler}
    return [
        base | {"name": "prefill", "role": "prefill", "count": prefill, "scheduler": kind},
        base | {"name": "decode", "role": "decode", "count": decode, "scheduler": kind}, *others,
    ]


def routers(strategy: str, router: Mapping[str, Any]) -> dict[str, Any]:
    """Return routers by kind of stage: a split balances prompts by their length, if it balances at all."""
    if _SPLIT.fullmatch(strategy) is None or router.get("kind") != "least_loaded":
        return {}
    return {"generate": {"kind": "least_loaded", "load": PREFILL_LOAD}}
