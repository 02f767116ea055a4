"""Show why requests time out at llm-d's router in lmbench: counts by rate, and one assumption after the other.

    python scripts/lmbench_causes.py DATA_DIR

DATA_DIR holds llm-d-lmbench (see `hermes accuracy`). It prints:

1. KV blocks that unfinished requests hold on each server when the first request waits for more than 2 s for its first
   token, and the requests in flight then: from the recordings alone. Blocks that stay the same while the requests in
   flight differ show the size of the memory. Two servers are taken to hold the same.
2. The last request that is answered, by its launch: recorded, and with engines that abort what has timed out, or not.
3. How long first tokens of one idle server take, as a share of the time without a prefix cache, where the conversations
   that `conversations` finds have their prefix in the cache, and where not.
4. Requests that time out by rate, recorded and predicted.
5. The same with one assumption changed, from the servers as stated and from those that the recordings show.
6. Mean E2E and TTFT of the servers without a time-out, with the conversations and without.
7. How llm-d's router changes the median TTFT of the requests that both pairs have answered, recorded and by cause; and
   how much later short prompts get their first tokens behind its gateway.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evidence.accuracy.lmbench import (
    BLOCK_TOKENS,
    MANY_PER_S,
    NEVER_S,
    ONE,
    PAIR,
    ROUTED,
    SEEN,
    STATED,
    TIMEOUT_S,
    Servers,
    of_rates,
    send,
    sent_to_router,
    timed_out,
    users_of,
)
from evidence.accuracy.lmbench_router import RATES as QUIET
from evidence.accuracy.lmbench_router import effects, hops, intervals
from hermes.arrays import IntArray
from hermes.errors import HermesError, InputError

WAIT_S = 2.0           # a first token later than this waited for memory
SOME_TOKEN_S = 0.075   # of requests whose times are not recorded: about what the recorded ones take
FOUND = 0.1            # share of a prompt in the cache from which it counts as found
RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)


def _limits(tokens: int, sequences: int, *, hidden: bool = False) -> dict[str, Any]:
    return {"scheduler": {"kind": "chunked", "async_scheduling": hidden, "max_num_batched_tokens": tokens,
                          "max_num_seqs": sequences}}


LARGE = _limits(8192, 1024)
HOST = {"memory": {"num_blocks": SEEN.blocks, "block_size": BLOCK_TOKENS, "kv_offload": {
    "cpu_bytes_to_use": "40 GB", "blocks_per_chunk": 16}}, "engine": None}
RETRIES = {"timeout": None, "per_try": TIMEOUT_S, "retries": 2, "begun": "restart"}

FROM_STATED = {
    "as stated: 3,255 blocks, aborts": STATED,
    "8,192 tokens, 1,024 sequences (2,239 blocks)": STATED._replace(client=LARGE),
    "26 sequences": STATED._replace(client=_limits(2048, 26)),
    "1,250 blocks": STATED._replace(blocks=SEEN.blocks),
    "no aborts": STATED._replace(cancel_s=NEVER_S),
    "conversations": STATED._replace(conversations=True),
    "one server has all": STATED._replace(number=1, client=_limits(2048, 256)),
    "round_robin": STATED._replace(router="round_robin"),
    "random": STATED._replace(router="random"),
}
FROM_SEEN = {
    "as seen: 1,250 blocks, no aborts, conversations": SEEN,
    "3,255 blocks": SEEN._replace(blocks=None),
    "1,300 blocks": SEEN._replace(blocks=1300),
    "1,350 blocks": SEEN._replace(blocks=1350),
    "aborts at once": SEEN._replace(cancel_s=0.0),
    "aborts 10 s late": SEEN._replace(cancel_s=10.0),
    "no conversations": SEEN._replace(conversations=False),
    "8,192 tokens, 1,024 sequences": SEEN._replace(client=LARGE),
    "scheduling hidden behind the device": SEEN._replace(client=_limits(2048, 256, hidden=True)),
    "round_robin": SEEN._replace(router="round_robin"),
    "random": SEEN._replace(router="random"),
    "a conversation stays on a server": SEEN._replace(router="session"),
    "40 GB of host memory, as vLLM 0.33 does it": SEEN._replace(client=HOST),
    "the same, a conversation stays": SEEN._replace(client=HOST, router="session"),
    "30 s begin 15 ms before": SEEN._replace(gateway={"timeout": TIMEOUT_S - 0.015}),
    "aborts, and the client asks again twice": SEEN._replace(cancel_s=0.0, gateway=RETRIES),
}


def held_blocks(sent: pd.DataFrame, answered: pd.DataFrame, users: IntArray) -> tuple[float, int, int] | None:
    """Return when the first request waits long, how many are in flight then, and the KV blocks that they hold.

    Prompts of one conversation share blocks: only the longest that is in flight counts. None where nothing waits."""
    late = answered.index[answered["ttft_s"] > WAIT_S]
    if not len(late):
        return None
    now = float(sent["launch_s"][late[0]])
    held: dict[int, int] = {}
    flying = 0
    for place in sent.index[sent.index < late[0]]:
        first_s, token_s = float(sent["launch_s"][place]), SOME_TOKEN_S
        output = int(sent["generation_tokens"][place])
        if place in answered.index:
            first_s += float(answered["ttft_s"][place])
            token_s = float(answered["generation_s"][place]) / output
        done = max((now - first_s) / token_s, 0.0)
        if done < output:
            flying += 1
            blocks = -(-(int(sent["prompt_tokens"][place]) + int(done)) // BLOCK_TOKENS)
            held[users[place]] = max(held.get(users[place], 0), blocks)
    return now, flying, sum(held.values())


def _held(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    plain = dict(of_rates(folder / f"{PAIR}.csv", "sharegpt"))
    for file, servers in ((ROUTED, 2), (PAIR, 2), *((one, 1) for one in ONE)):
        for rate, answered in of_rates(folder / f"{file}.csv", "sharegpt"):
            sent = plain[rate] if file == ROUTED else answered
            found = held_blocks(sent, answered, users)
            if found is not None:
                yield [file, f"{rate:g}", f"{found[0]:.1f}", found[1], round(found[2] / servers)]


def _last(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    for rate, sent, answered in _chosen(folder):
        cells = [f"{answered['launch_s'].max():.1f}"]
        for cancel_s in (0.0, 10.0, NEVER_S):
            found = send(sent, SEEN._replace(cancel_s=cancel_s), users).requests
            cells.append(f"{found['arrival_s'][found['status'] == 'completed'].max():.1f}")
        yield [f"{rate:g}", *cells]


def _first_tokens(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    for file in ONE:
        _, sent = next(of_rates(folder / f"{file}.csv", "sharegpt"))   # the lowest
        without = send(sent, Servers(1, gateway=None)).requests["ttft_s"].to_numpy()
        found = send(sent, Servers(1, gateway=None, conversations=True), users).requests
        ratio = sent["ttft_s"].to_numpy() / without
        hit = (found["cached_tokens"] / found["prompt_tokens"]).to_numpy() > FOUND
        for name, of in (("found in the cache", ratio[hit]), ("not found", ratio[~hit])):
            quarter, half, most = pd.Series(of).quantile([0.25, 0.5, 0.75])
            yield [file, name, len(of), f"{half:.2f}", f"{quarter:.2f} to {most:.2f}"]


def _counts(rows: Sequence[tuple[float, pd.DataFrame, pd.DataFrame]], servers: Servers, users: IntArray) -> list[int]:
    return [timed_out(send(sent, servers, users)) if servers.gateway is not RETRIES
            else int((~(send(sent, servers, users).requests["e2e_s"] <= TIMEOUT_S)).sum()) for _, sent, _ in rows]


def _by_rate(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    rows = list(sent_to_router(folder))
    columns = [_counts(rows, servers._replace(router=router), users)
               for servers in (STATED, SEEN) for router in ("least_loaded", "round_robin", "random")]
    for at, (rate, sent, answered) in enumerate(rows):
        missing = len(sent) - len(answered)
        yield [f"{rate:g}", missing, *(f"{column[at]} ({column[at] / missing - 1:+.0%})" for column in columns)]


def _chosen(folder: Path) -> list[tuple[float, pd.DataFrame, pd.DataFrame]]:
    return [row for row in sent_to_router(folder) if row[0] in RATES]


def _causes(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    rows = _chosen(folder)
    missing = [len(sent) - len(answered) for _, sent, answered in rows]
    yield ["recorded", *missing, ""]
    for name, servers in (*FROM_STATED.items(), *FROM_SEEN.items()):
        counts = _counts(rows, servers, users)
        errors = [count / of - 1 for count, of, row in zip(counts, missing, rows, strict=True) if row[0] >= MANY_PER_S]
        yield [name, *counts, f"{max(errors, key=abs, default=0.0):+.0%}"]


def _without_time_out(folder: Path, users: IntArray) -> Iterator[list[Any]]:
    limits = {"2,048 and 256": _limits(2048, 256), "8,192 and 1,024": LARGE}
    for file, router in (*((one, "") for one in ONE), (PAIR, "random"), (PAIR, "round_robin")):
        rows = [row for row in of_rates(folder / f"{file}.csv", "sharegpt") if not router or row[0] in RATES]
        for name, client in limits.items():
            for shared in (False, True):
                servers = Servers(2 if router else 1, router, conversations=shared, client=client, gateway=None)
                about = [file, router, name, "conversations" if shared else "none"]
                yield [*about, "; ".join(_errors(rate, sent, servers, users) for rate, sent in rows)]


def _errors(rate: float, sent: pd.DataFrame, servers: Servers, users: IntArray) -> str:
    found = send(sent, servers, users).requests
    e2e = found["e2e_s"].mean() / (sent["ttft_s"] + sent["generation_s"]).mean() - 1
    return f"{rate:g}: {e2e:+.0%} {found['ttft_s'].mean() / sent['ttft_s'].mean() - 1:+.0%}"


def _print(title: str, head: Sequence[str], rows: Iterator[list[Any]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Why requests time out at llm-d's router in lmbench.")
    parser.add_argument("data", type=Path, help="folder of the reference sets")
    folder = parser.parse_args(arguments).data / "llm-d-lmbench"
    try:
        if not folder.is_dir():
            raise InputError("a folder with llm-d-lmbench", str(folder.parent), field="data")
        users = users_of(folder)
        rates = [f"{rate:g}/s" for rate, _, _ in _chosen(folder)]
        routers = ["least_loaded", "round_robin", "random"]
        print(f"{len(users)} prompts are of {len(set(users.tolist()))} conversations")
        _print("1. Blocks held when the first request waits", ["file", "rate", "at s", "in flight", "blocks a server"],
               _held(folder, users))
        _print("2. Launch of the last request that is answered, s",
               ["rate", "recorded", "aborts", "aborts 10 s late", "no aborts"], _last(folder, users))
        _print("3. First tokens at the lowest rate, as a share of those without a cache",
               ["file", "prefix", "prompts", "median", "middle half"], _first_tokens(folder, users))
        _print("4. Requests that time out", ["rate", "recorded", *(f"as stated, {name}" for name in routers),
                                             *(f"as seen, {name}" for name in routers)], _by_rate(folder, users))
        _print("5. One assumption changed", ["servers", *rates, "worst from 2/s"], _causes(folder, users))
        _print("6. Without a time-out: errors of mean E2E and TTFT",
               ["file", "router", "limits", "prefixes", "rate: E2E TTFT"], _without_time_out(folder, users))
        _print("7. Change of the median TTFT by llm-d's router, ms", ["servers", *(f"{rate:g}/s" for rate in QUIET)],
               ([name, *(f"{1e3 * change:+.0f}" for change in changes)] for name, changes in effects(folder)))
        _print("95% intervals of what was measured, ms", [f"{rate:g}/s" for rate in QUIET],
               iter([[f"{1e3 * low:+.0f} to {1e3 * high:+.0f}" for low, high in intervals(folder)]]))
        _print("First tokens of short prompts, later by ms", ["rate", "median"],
               ([f"{rate:g}", f"{1e3 * later:.1f}"] for rate, later in hops(folder)))
    except HermesError as error:
        print(f"lmbench_causes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
