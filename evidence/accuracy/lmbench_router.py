"""What llm-d's router does to first tokens in lmbench, against the plain pair: request by request, and by cause.

Both pairs get the same prompts in the same order (`of_rates`), so that a request of one is that of the other at its
place. What is compared is the median of TTFT over the requests that both have answered: llm-d's less the plain pair's.
Between the two recordings the router, the engine's build, its KV offload and a time-out of 30 s change together.

The gateway takes `HOP_S`: the median difference of the first tokens of short_input at 0.5 requests/s, where nothing
waits and no prefix is found. The rates from 1/s on are the test: 4 to 19 ms there, 11 in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from evidence.accuracy.lmbench import (
    BLOCK_TOKENS,
    MAX_MODEL_LEN,
    NEVER_S,
    PAIR,
    ROUTED,
    TIMEOUT_S,
    Servers,
    of_rates,
    send,
    users_of,
)
from evidence.accuracy.served import Case, Row
from hermes.arrays import IntArray
from hermes.config.streams import stream

__all__ = ["ALL", "CAUSES", "HOP_S", "PLAIN", "RATES", "effects", "hops", "intervals", "lmbench_router", "paired"]

HOP_S = 0.015        # of llm-d's gateway in May 2025
RATES = (0.5, 1.0, 1.5)   # requests/s at which queues hardly matter
ROUTER: Mapping[str, Any] = MappingProxyType({"kind": "llm_d", "scorers": {"queue": 1, "kv": 0, "prefix": 2}})
"""A score of 2 for KV and of 1 for the load, as the recording names them; prefixes are what the router has sent."""
HOP: Mapping[str, Any] = MappingProxyType({"timeout": None, "delay": HOP_S})
LIMIT: Mapping[str, Any] = MappingProxyType({"timeout": TIMEOUT_S})
FEW = MAX_MODEL_LEN // BLOCK_TOKENS   # blocks of llm-d's servers: see `lmbench.SEEN`
HOST = {"cpu_bytes_to_use": "40 GB", "blocks_per_chunk": 16}   # by vLLM 0.33, since LMCache is not modelled
PLAIN = Servers(2, "round_robin", conversations=True, gateway=None)
ALL = "all of them"


def _offload(blocks: int | None) -> Mapping[str, Any]:
    memory = {"utilization": 0.95} if blocks is None else {"num_blocks": blocks}
    return {"engine": None, "memory": {**memory, "block_size": BLOCK_TOKENS, "kv_offload": dict(HOST)}}


CAUSES: Mapping[str, Servers] = MappingProxyType({
    "router": PLAIN._replace(router=ROUTER),
    "gateway's hop": PLAIN._replace(gateway=HOP),
    "30 s limit, engines that go on": PLAIN._replace(gateway=LIMIT, cancel_s=NEVER_S),
    "build: 1,250 blocks": PLAIN._replace(blocks=FEW),
    "offload of 40 GB": PLAIN._replace(client=_offload(None)),
    "router and hop": PLAIN._replace(router=ROUTER, gateway=HOP),
    **{f"router, hop and {blocks:,} blocks": PLAIN._replace(router=ROUTER, gateway=HOP, blocks=blocks)
       for blocks in (1250, 1600, 1800, 2048, 2239)},
    "all but the offload": PLAIN._replace(router=ROUTER, gateway={**HOP, **LIMIT}, cancel_s=NEVER_S, blocks=FEW),
    ALL: PLAIN._replace(router=ROUTER, gateway={**HOP, **LIMIT}, cancel_s=NEVER_S, client=_offload(FEW)),
})
"""Servers that differ from the plain pair's in one cause, then in several."""


def lmbench_router(data: Path) -> Iterator[Row]:
    """Yield the router's effect on the median TTFT by rate: that of the router and its hop, and that of all causes; and
    first tokens of short_input behind the router."""
    folder = data / "llm-d-lmbench"
    users = users_of(folder)
    for rate, sent, answered in paired(folder, "sharegpt"):
        if rate not in RATES:
            continue
        measured = _median(answered) - _median(sent.loc[answered.index])
        without = _simulated(sent, answered, PLAIN, users)
        for name in ("router and hop", ALL):
            yield Row(_case(f"effect of llm-d, {name}", rate), "ttft change", "p50", measured,
                      _simulated(sent, answered, CAUSES[name], users) - without)
    for rate, sent, answered in paired(folder, "short_input"):
        if rate > RATES[0]:   # that the hop was taken from
            results = send(sent, PLAIN._replace(router=ROUTER, gateway=HOP, conversations=False))
            yield Row(_case("short_input, llm-d", rate), "ttft", "p50", _median(answered), _median(results.requests))


def _case(what: str, rate: float) -> Case:
    """Return a case without a range: its steps are scored with the plain pair's."""
    return Case(f"lmbench x2, {what}", f"{rate:g}/s", "not stated", "a100-80gb tp2", "llama-3.1-70b")


def paired(folder: Path, workload: str) -> Iterator[tuple[float, pd.DataFrame, pd.DataFrame]]:
    """Yield (requests/s, rows of the plain pair, rows of llm-d's pair that the plain one has too)."""
    plain = dict(of_rates(folder / f"{PAIR}.csv", workload))
    for rate, answered in of_rates(folder / f"{ROUTED}.csv", workload):
        if rate in plain:
            yield rate, plain[rate], answered.loc[answered.index.intersection(plain[rate].index)]


def hops(folder: Path) -> Iterator[tuple[float, float]]:
    """Yield (requests/s, median of how much later short_input's first tokens are behind the router, s)."""
    for rate, sent, answered in paired(folder, "short_input"):
        yield rate, float((answered["ttft_s"] - sent.loc[answered.index, "ttft_s"]).median())


def effects(folder: Path, causes: Mapping[str, Servers] = CAUSES) -> Iterator[tuple[str, list[float]]]:
    """Yield (cause, change of the median TTFT at each of `RATES`), the measured one first."""
    users = users_of(folder)
    rows = [row for row in paired(folder, "sharegpt") if row[0] in RATES]
    yield "measured", [_median(answered) - _median(sent.loc[answered.index]) for _, sent, answered in rows]
    without = [_simulated(sent, answered, PLAIN, users) for _, sent, answered in rows]
    for name, servers in causes.items():
        yield name, [_simulated(sent, answered, servers, users) - base
                     for (_, sent, answered), base in zip(rows, without, strict=True)]


def intervals(folder: Path, draws: int = 4000) -> Iterator[tuple[float, float]]:
    """Yield the 95% interval of the measured change at each of `RATES`, by drawing requests again. Requests of one
    conversation, and those that queue together, are not independent: it is too narrow."""
    for rate, sent, answered in paired(folder, "sharegpt"):
        if rate in RATES:
            here, there = (rows["ttft_s"].to_numpy(dtype=np.float64)
                           for rows in (answered, sent.loc[answered.index]))
            drawn = stream(0, f"lmbench/{rate:g}").integers(0, len(here), (draws, len(here)))
            low, high = np.percentile(np.median(here[drawn], axis=1) - np.median(there[drawn], axis=1), (2.5, 97.5))
            yield float(low), float(high)


def _simulated(sent: pd.DataFrame, answered: pd.DataFrame, servers: Servers, users: IntArray) -> float:
    """Return the simulated median TTFT of the requests that were answered."""
    found = send(sent, servers, users).requests.set_index(sent.index)
    return _median(found.loc[answered.index])


def _median(rows: pd.DataFrame) -> float:
    return float(np.nanmedian(rows["ttft_s"].to_numpy(dtype=np.float64)))
