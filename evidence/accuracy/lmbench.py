"""The reference set of llm-d-benchmark (`data/llm-d-lmbench`): Llama-3.1-70B on two A100, one server and two of them,
and on two H100 each, two servers.

The servers ran vLLM of about 0.8.5, which no engine file describes: `vllm-0.15` stands in, without asynchronous
scheduling, which that version did not have. Their command names neither limit of a step. 8,192 tokens and 1,024
sequences, that version's defaults for cards of more than 70 GiB, left 2,239 blocks of KV; 2,048 tokens and 256
sequences, from which a later commit starts on an A100, leave 3,255. The single servers answer as with the former (2,000
to 2,200 blocks fit the first tokens at 1 to 1.34 requests/s, which 3,255 miss by half), the pair, started a week later,
as with the latter (E2E at 3/s within 4.4% and 3.0%; with 2,239 blocks 11.6% and 9.3% too long).

The plain pairs lie behind a Kubernetes service, which gives each connection to a server at random. Three ways are
shown:

    connections    the load generator keeps a pool of them, as OpenAI's client does (`connections_of`)
    random         each request has one of its own
    round_robin    the same for a service that takes its servers in turn

First tokens of sharegpt tell them apart, by how many prompts find their conversation in the prefix cache: on A100 as
many as in turn, on H100 as many as at random, in neither nearly as many as if a conversation kept its server
(docs/accuracy.md). Rows of A100 leave out prefixes that are in the cache, although `conversations` finds them: without
them two errors of opposite sign are close to each other (docs/accuracy.md).

The pair of H100 lost a server at 16 requests/s: that rate is left out, and from 20/s on one server is compared. Its
limits are taken to be 8,192 tokens and 1,024 sequences, that version's defaults for the card.

Of what llm-d's router served, only answers within 30 s are recorded. Those are joined to the plain pair's by their
place in the order of arrivals; what is missing has run out of time, and is sent with the output tokens of the plain
pair. Three kinds of rows:

    survivors   no time-out: all that was sent is served, and what was answered is compared
    30 s        a gateway with a time-out of 30 s before the servers that the recordings show (`SEEN`): how many
                requests time out, and the latencies of those that are answered here and there
    30 s, as stated    the same before the plain pair's servers, which abort what has timed out (`STATED`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evidence.accuracy.served import (
    Case,
    Figures,
    Row,
    latencies,
    replay,
    rows_of,
    statistics,
    trust_of_steps,
)
from hermes.arrays import IntArray
from hermes.hardware.trust import Trust
from hermes.results import Results

__all__ = [
    "BLOCK_TOKENS", "LOST_PER_S", "MANY_PER_S", "NEVER_S", "ONE", "PAIR", "PAIR_H100", "ROUTED", "SEED", "SEEN",
    "STATED", "TIMEOUT_S", "Servers", "connections_of", "conversations", "lmbench", "lmbench_h100", "of_rates", "send",
    "sent_to_router", "served", "timed_out", "users_of",
]

SEED = 1   # of the servers that connections go to
ONE = {"exp-0-vllm-70b": "", "exp-0-baseline-llm-d-70b": " (llm-d build)"}
PAIR, ROUTED = "exp-2-vllm-70b-2replicas", "exp-2-llm-d-70b-2replicas"
PAIR_H100, LOST_PER_S = "exp-3-vllm-70b-2replicas-h100", 16.0   # requests/s at which it lost a server
H100: Mapping[str, str | int] = MappingProxyType({"device": "h100-sxm", "max_model_len": 10000})
KEPT_S = 5.0              # that an idle connection stays open
MOST = {1: 1.0, 2: 3.0}   # requests/s that one server, and two, serve without a queue that grows
TIMEOUT_S = 30.0          # of a request, in the HTTPRoute before llm-d's pair
MANY_PER_S = 2.0          # from here on so many requests time out that a share of them means something
NEVER_S = 1e6             # until an engine learns that an answer is no longer wanted: after all are done
MAX_MODEL_LEN = 20000
BLOCK_TOKENS = 16
ENDS = 1.0                # cost of an end of a conversation in `conversations`; 1 to 6 find the same in lmbench
CHOICES = 1000            # partial assignments that it keeps
CLIENT: Mapping[str, Any] = MappingProxyType({
    "model": "llama-3.1-70b", "device": "a100-80gb", "engine": "vllm-0.15", "parallel": {"tp": 2},
    "max_model_len": MAX_MODEL_LEN,
})
LIMITS = {1: {"max_num_batched_tokens": 8192, "max_num_seqs": 1024},   # by the number of servers
          2: {"max_num_batched_tokens": 2048, "max_num_seqs": 256}}
BLOCKS = {("a100-80gb", 8192): 2239, ("a100-80gb", 2048): 3255, ("h100-sxm", 8192): 2087}
"""KV blocks by card and tokens of a step, as the recordings have them: given, for what samples in these builds, and so
their memory, is not known (`hermes.hardware.engine_memory` has 1,920 to 2,060, 3,240 and 1,900 to 2,000)."""


class Servers(NamedTuple):
    """What is assumed about the servers and what lies before them.

    number: Of servers.
    router: What chooses between them: a kind, or one with its options.
    blocks: KV blocks of each; None: those of `BLOCKS`.
    cancel_s: Seconds until an engine learns that a request has timed out.
    conversations: Whether prompts of one conversation share prefixes.
    connections: Whether requests share a pool of connections, which a service gives to servers at random; in place of
        `router`.
    limits: Tokens and sequences of a step; None: those of so many A100 servers.
    client: Options of the client that replace `CLIENT`'s.
    gateway: Options of the gateway besides `timeout` and `cancel_delay`; None: no gateway.
    """

    number: int = 2
    router: str | Mapping[str, Any] = "least_loaded"
    blocks: int | None = None
    cancel_s: float = 0.0
    conversations: bool = False
    connections: bool = False
    limits: Mapping[str, int] | None = None
    client: Mapping[str, Any] = MappingProxyType({})
    gateway: Mapping[str, Any] | None = MappingProxyType({})


STATED = Servers()
BEHIND_SERVICE: Mapping[str, Servers] = MappingProxyType({
    "connections": Servers(2, connections=True, gateway=None), "random": Servers(2, "random", gateway=None),
    "round_robin": Servers(2, "round_robin", gateway=None)})
"""The plain pair by how the service before it is taken to balance."""
SEEN = Servers(blocks=MAX_MODEL_LEN // BLOCK_TOKENS, cancel_s=NEVER_S, conversations=True)
"""llm-d's servers as the recordings show them: with the fewest blocks with which vLLM starts (one sequence of
`max_model_len` tokens), and going on with what has timed out. docs/accuracy.md says how that is seen."""


def lmbench(data: Path) -> Iterator[Row]:
    """Latencies by workload, number of servers, router and rate; requests that time out by router and rate."""
    folder = data / "llm-d-lmbench"
    for file, build in ONE.items():
        for rate, sent in of_rates(folder / f"{file}.csv", "sharegpt"):
            yield from _rate_rows("x1, sharegpt", f"{rate:g}/s{build}", rate, sent, sent, Servers(1, gateway=None))
    users = users_of(folder)   # of sharegpt
    for workload in ("short_input", "sharegpt"):
        for rate, sent in of_rates(folder / f"{PAIR}.csv", workload):
            for router, servers in BEHIND_SERVICE.items():
                yield from _rate_rows(f"x2, {workload}, {router}", f"{rate:g}/s", rate, sent, sent, servers)
    routed = list(sent_to_router(folder))
    for rate, sent, answered in routed:
        name = f"{rate:g}/s, {len(answered)} of {len(sent)}"
        yield from _rate_rows("x2, llm-d survivors", name, rate, sent, answered, Servers(gateway=None))
    for rate, sent, answered in routed:
        few = "" if rate >= MANY_PER_S else f", below {MANY_PER_S:g}/s"
        yield from _time_out_rows("30 s, as stated", rate, sent, answered, STATED, users)
        for router in ("least_loaded", "round_robin", "random"):
            yield from _time_out_rows(f"30 s, {router}{few}", rate, sent, answered, SEEN._replace(router=router), users)


def lmbench_h100(data: Path) -> Iterator[Row]:
    """Latencies of the pair of H100 by router and rate, and of the server that was left of it. They have no range: the
    KV memory, which decides the queue, is inferred."""
    folder = data / "llm-d-lmbench"
    users = users_of(folder)
    for rate, sent in of_rates(folder / f"{PAIR_H100}.csv", "sharegpt"):
        if rate == LOST_PER_S:
            continue
        ways = BEHIND_SERVICE if rate < LOST_PER_S else {"": Servers(1, gateway=None)}
        for router, servers in ways.items():
            what = f"H100 x2, sharegpt, {router}" if router else "H100 x1, sharegpt, overload"
            found, _ = served(sent, servers._replace(client=H100, limits=LIMITS[1], conversations=True), users)
            case = Case(f"lmbench {what}", f"{rate:g}/s", "not stated", "h100-sxm tp2", "llama-3.1-70b")
            yield from rows_of(case, _measured(sent), latencies(found))


def of_rates(path: Path, workload: str) -> Iterator[tuple[float, pd.DataFrame]]:
    """Yield (requests/s, rows by their place in the order of arrivals) of a file."""
    table = pd.read_csv(path)
    table = table[table["workload"] == workload]
    for rate, rows in table.groupby("rate"):
        per_s = float(str(rate))
        place = np.rint(rows["launch_s"] * per_s).astype(int) if workload == "sharegpt" else (
            rows["launch_s"].rank(method="first").astype(int))
        yield per_s, rows.assign(place=place).set_index("place").sort_index()


def sent_to_router(folder: Path) -> Iterator[tuple[float, pd.DataFrame, pd.DataFrame]]:
    """Yield (requests/s, what was sent, what was answered) of llm-d's pair, of all rates that the plain pair has too.

    What was sent is the plain pair's, with the output tokens of what was answered."""
    plain = dict(of_rates(folder / f"{PAIR}.csv", "sharegpt"))
    for rate, answered in of_rates(folder / f"{ROUTED}.csv", "sharegpt"):
        if rate in plain:
            sent = plain[rate]
            tokens = answered["generation_tokens"].reindex(sent.index).fillna(sent["generation_tokens"])
            yield rate, sent.assign(generation_tokens=tokens.astype(int)), answered


def users_of(folder: Path) -> IntArray:
    """Return the conversation of each prompt of sharegpt, by its place in the order of arrivals."""
    rates = [sent for _, sent in of_rates(folder / f"{PAIR}.csv", "sharegpt")]
    longest = np.max([sent["generation_tokens"].to_numpy() for sent in rates], axis=0)   # outputs may end early
    return conversations(rates[0]["prompt_tokens"].to_numpy(), longest)


def conversations(prompts: Sequence[int] | IntArray, answers: Sequence[int] | IntArray) -> IntArray:
    """Return the user of each prompt, where users ask in turn and each prompt repeats what its user's conversation had.

    A prompt then has at least one token more than the one before it in its conversation and that one's answer. A user
    whose conversation has ended is left out of all later rounds. The first round has the fewest users with which each
    later prompt continues a conversation, the second round those of all users. Of the assignments that keep the order
    of the users, the one with the shortest messages is taken: the smallest sum of the logarithms of their tokens, and
    of `ENDS` for each conversation that has ended. Prompts that continue nothing are a user each.

    Args:
        prompts: Tokens of each prompt, in the order of arrivals.
        answers: Tokens of the answer in the conversation that later prompts repeat.
    """
    prompts = np.asarray(prompts)
    after = prompts + np.asarray(answers)
    user = np.arange(len(prompts))
    for users in range(1, len(prompts) // 2 + 1):
        if (prompts[users:2 * users] > after[:users]).all():
            before = _continued(prompts, after, users)
            if before is not None:
                for place, last in enumerate(before):
                    user[place] = user[last]
                break
    return user


def _continued(prompts: IntArray, after: IntArray, users: int) -> tuple[int, ...] | None:
    """Return the prompt that each one continues, itself in the first round; None if some continue nothing.

    after: tokens of each prompt and of its answer."""
    # of each partial assignment: its cost, the latest prompts of the users by their turn, what each prompt continues
    kept: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [(0.0, tuple(range(users)), tuple(range(users)))]
    for place in range(users, len(prompts)):
        found: dict[tuple[int, ...], tuple[float, tuple[int, ...], tuple[int, ...]]] = {}
        for cost, turns, before in kept:
            for ended, last in enumerate(turns):
                message = int(prompts[place] - after[last])
                if message >= 1:
                    one = (cost + ENDS * ended + math.log(message), (*turns[ended + 1:], place), (*before, last))
                    found[one[1]] = min(one, found.get(one[1], one))
        kept = sorted(found.values())[:CHOICES]
    return kept[0][2] if kept else None


def served(sent: pd.DataFrame, servers: Servers, users: IntArray | None = None) -> tuple[pd.DataFrame, Trust | None]:
    """Return the requests of the simulated servers, in the order of `sent`, and how far to trust their times.

    With connections the server of each is drawn, and each server simulated with its own requests.
    """
    if not servers.connections:
        results = send(sent, servers, users)
        return results.requests.set_index(sent.index), trust_of_steps(results)
    homes, parts = connections_of(sent, servers.number), []
    for home in np.unique(homes):
        own = sent[homes == home]
        results = send(own, servers._replace(number=1, limits=servers.limits or LIMITS[servers.number]),
                       None if users is None else users[homes == home])
        parts.append(results.requests.set_index(own.index).assign(server=home))
    return pd.concat(parts).loc[sent.index], trust_of_steps(results)


def connections_of(sent: pd.DataFrame, servers: int) -> IntArray:
    """Return the server of each request, where a connection is given to a server at random when it is opened.

    A request takes the first connection of the pool that is idle, in the order in which they were opened, or opens one;
    one that is idle for `KEPT_S` is closed (httpcore 1.0.9 and the limits of openai and httpx 0.28; read, not run).
    How long each was busy is taken from the recording.
    """
    random, pool, found = np.random.default_rng(SEED), list[list[float]](), []   # of each: when it is idle, its server
    for launch_s, done_s in zip(sent["launch_s"], sent["launch_s"] + sent["ttft_s"] + sent["generation_s"],
                                strict=True):
        pool = [one for one in pool if one[0] > launch_s - KEPT_S]
        idle = next((one for one in pool if one[0] <= launch_s), None)
        if idle is None:
            idle = [done_s, int(random.integers(servers))]
            pool.append(idle)
        idle[0] = done_s
        found.append(idle[1])
    return np.array(found, dtype=np.int64)


def send(sent: pd.DataFrame, servers: Servers, users: IntArray | None = None) -> Results:
    """Simulate servers that get all requests that were sent. users: as `users_of` returns them."""
    requests = pd.DataFrame({
        "arrival_s": sent["launch_s"] - sent["launch_s"].min(), "prompt_tokens": sent["prompt_tokens"],
        "output_tokens": sent["generation_tokens"].clip(lower=1)})
    if servers.conversations:
        assert users is not None, "conversations of which users"
        requests = requests.assign(session=users, prefix_group=users, prefix_tokens=sent["prompt_tokens"])
    tokens = (servers.limits or LIMITS[servers.number])["max_num_batched_tokens"]
    blocks = servers.blocks or BLOCKS[servers.client.get("device", CLIENT["device"]), tokens]
    memory = {"num_blocks": blocks, "block_size": BLOCK_TOKENS}
    client = {**CLIENT, "memory": memory, "count": servers.number, "scheduler": {
        "kind": "chunked", "async_scheduling": False, **(servers.limits or LIMITS[servers.number])},
        **servers.client}
    gateway = None if servers.gateway is None else {
        "timeout": TIMEOUT_S, "cancel_delay": servers.cancel_s, **servers.gateway}
    router = {"kind": servers.router} if isinstance(servers.router, str) else dict(servers.router)
    return replay(client, requests, router=router if servers.number > 1 else None, gateway=gateway)


def timed_out(results: Results) -> int:
    """Return how many requests the gateway answered with a time-out."""
    return int(results.summary_of_run["attempts"]["requests"]["timed_out"])


def _time_out_rows(what: str, rate: float, sent: pd.DataFrame, answered: pd.DataFrame, servers: Servers,
                   users: IntArray) -> Iterator[Row]:
    results = send(sent, servers, users)
    found = results.requests.set_index(sent.index)
    both = answered.index[found.loc[answered.index, "status"] == "completed"]
    case = Case(f"lmbench x2, llm-d {what}", f"{rate:g}/s", "not stated", "a100-80gb tp2", "llama-3.1-70b")
    counts = {("timed out", "count"): float(len(sent) - len(answered))}
    yield from rows_of(case, {**counts, **_measured(answered.loc[both])},
                       {("timed out", "count"): float(timed_out(results)), **latencies(found.loc[both])})


def _rate_rows(what: str, name: str, rate: float, sent: pd.DataFrame, answered: pd.DataFrame,
               servers: Servers, users: IntArray | None = None) -> Iterator[Row]:
    """Rows of one rate: all that was `sent` is replayed, what was `answered` is compared."""
    found, trust = served(sent, servers, users)
    found = found.loc[answered.index]
    of = "lmbench " + what + ("" if rate <= MOST[servers.number] or "short_input" in what else ", overload")
    case = Case(of, name, "not stated", "a100-80gb tp2", "llama-3.1-70b", trust)
    yield from rows_of(case, _measured(answered), latencies(found))


def _measured(answered: pd.DataFrame) -> Figures:
    """Return the measured statistics of what was answered."""
    tokens = answered["generation_tokens"]
    return statistics({"ttft": answered["ttft_s"], "tpot": answered["generation_s"] / (tokens - 1).where(tokens > 1),
                       "e2e": answered["ttft_s"] + answered["generation_s"]})
