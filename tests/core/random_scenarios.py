"""Random scenarios: every scheduler, router, network and arrival process, tight and roomy memory."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Data = dict[str, Any]

LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")
POLICIES = ("fcfs", "priority", "shortest_job_first", "least_work_left")
MAX_PROMPT, MAX_OUTPUT = 40, 24
SCHEDULERS = ("chunked", "continuous", "static", "mixed")
FAMILIES = (*SCHEDULERS, "any", "many", "disaggregated", "elastic")

budgets = st.sampled_from([1, 3, 8, 20, 64, 2048])
slots = st.sampled_from([1, 2, 3, 5, 256])


@st.composite
def chunked(draw: st.DrawFn) -> Data:
    data: Data = {
        "kind": "chunked", "max_num_batched_tokens": draw(budgets), "max_num_seqs": draw(slots),
        "policy": draw(st.sampled_from(POLICIES)), "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 2, 7])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.15])),
        "async_scheduling": draw(st.booleans()),
        "adaptive_long_prefill_threshold": draw(st.booleans()),
        "reserve_full_isl": draw(st.sampled_from([True, True, False])),
    }
    if draw(st.integers(0, 4)) == 0:
        data |= {"enable_chunked_prefill": False, "max_num_batched_tokens": draw(st.sampled_from([30, 80]))}
    return data


@st.composite
def batching(draw: st.DrawFn, kind: str) -> Data:
    data: Data = {
        "kind": kind, "max_num_batched_tokens": draw(budgets), "max_num_seqs": draw(slots),
        "policy": draw(st.sampled_from(POLICIES)),
    }
    if kind == "mixed":
        data["reservation"] = draw(st.sampled_from(["on_demand", "up_front"]))
        data["max_passed_over"] = draw(st.sampled_from([None, None, 1, 3]))
    return data


def schedulers(kind: str) -> st.SearchStrategy[Data]:
    return chunked() if kind == "chunked" else batching(kind)


@st.composite
def memories(draw: st.DrawFn) -> Data:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    # Tight: about as much as the longest request can take, so that some are refused and most are preempted.
    tokens = draw(st.sampled_from([30, 50, 66, 80, 120, 100_000]))
    return {
        "block_size": block_size, "num_blocks": max(1, tokens // block_size), "prefix_caching": draw(st.booleans()),
        "kv_bytes_per_token": 1.0,
    }


hardware = st.one_of(
    st.fixed_dictionaries({
        "kind": st.just("test_ticks"), "base": st.sampled_from([1, 1, 2]), "per_token": st.sampled_from([3, 8, 1000]),
        "per_ctx": st.sampled_from([20, 200, 10**6]),
    }),
    st.just({"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}),
)


@st.composite
def groups(draw: st.DrawFn, name: str, kinds: tuple[str, ...], role: str = "both", most: int = 3) -> Data:
    group: Data = {
        "name": name, "count": draw(st.integers(1, most)), "role": role, "hardware": draw(hardware),
        "scheduler": draw(st.sampled_from(kinds).flatmap(schedulers)), "memory": draw(memories()),
    }
    if group["scheduler"]["kind"] == "chunked":
        group["engine"] = draw(st.sampled_from(["vllm-0.33", "vllm-0.32", "vllm-0.19"]))
    return group


@st.composite
def routers(draw: st.DrawFn) -> Data:
    kind = draw(st.sampled_from(("round_robin", "least_loaded", "heavy_light", "power_of_two", "session", "locality")))
    data: Data = {"kind": kind}
    if kind != "round_robin":
        data["load"] = draw(st.sampled_from(LOADS))
    if kind == "heavy_light":
        data |= {"threshold": draw(st.integers(0, 40)), "heavy_share": draw(st.sampled_from([0.2, 0.5, 0.8]))}
    return {"kind": "test_probe", "router": data}


@st.composite
def networks(draw: st.DrawFn, names: tuple[str, ...]) -> Data:
    kind = draw(st.sampled_from(("ideal", "link", "shared", "topology", "kv_link")))
    if kind == "ideal":
        return {"kind": "ideal"}
    # A byte a token: transfers of whole or half microseconds at these bandwidths.
    bandwidth, latency = draw(st.sampled_from([1e6, 2e6, 1e7, 1e4])), draw(st.sampled_from([0.0, 1e-6, 2e-5]))
    if kind == "kv_link":
        return {"kind": "kv_link", "bandwidth": bandwidth, "latency": latency}
    if kind != "topology":
        return {"kind": "link", "bandwidth": bandwidth, "latency": latency, "shared": kind == "shared"}
    return {
        "kind": "topology", "nodes": ["left", "right"],
        "links": [{"a": "left", "b": "right", "bandwidth": bandwidth, "latency": latency,
                   "duplex": draw(st.sampled_from(["full", "half"]))}],
        "attach": {name: {"to": ["left", "right"][i % 2], "bandwidth": 2 * bandwidth} for i, name in enumerate(names)},
    }


@st.composite
def requests(draw: st.DrawFn, most: int) -> list[list[int]]:
    """[gap, prompt, output, priority, session, prefix group, prefix tokens], gaps in units."""
    rows = draw(st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 2, 5, 30]), st.integers(1, MAX_PROMPT), st.integers(1, MAX_OUTPUT),
            st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 1), st.integers(0, MAX_PROMPT),
        ),
        min_size=1, max_size=most,
    ))
    return [[gap, prompt, output, priority, session, group, min(shared, prompt) if group >= 0 else 0]
            for gap, prompt, output, priority, session, group, shared in rows]


@st.composite
def conversations(draw: st.DrawFn) -> Data:
    """Short ones, whose turns fall on the same instants as everything else."""
    counts = st.one_of(st.integers(1, 6), st.just({"kind": "uniform", "min": 1, "max": 12}))
    return {
        "kind": "conversations", "turns": draw(st.one_of(st.integers(1, 5), st.just({"kind": "geometric", "mean": 3}))),
        "message": draw(counts), "output": draw(counts), "system_tokens": draw(st.sampled_from([0, 3, 8, 20])),
        "longest": draw(st.sampled_from([30, 60])), "think_time": draw(st.sampled_from([0.0, 1e-6, 2e-5])),
    }


@st.composite
def workloads(draw: st.DrawFn, name: str, most: int) -> Data:
    rows = draw(requests(most))
    kind = draw(st.sampled_from(("listed", "listed", "at_once", "closed_loop", "poisson")))
    arrivals: Data
    if kind == "listed":
        units, now = [], 0
        for row in rows:
            now += row[0]
            units.append(now)
        arrivals = {"kind": "test_listed", "units": units}
    elif kind == "at_once":
        arrivals = {"kind": "at_once", "at": draw(st.sampled_from([0.0, 3e-6]))}
    elif kind == "closed_loop":
        think = draw(st.sampled_from([0.0, 1e-6, 7e-6]))
        arrivals = {"kind": "closed_loop", "users": draw(st.integers(1, 4)), "think": think}
    else:
        arrivals = {"kind": "poisson", "rate": draw(st.sampled_from([50.0, 2e5]))}
    if kind != "closed_loop" and draw(st.integers(0, 3)) == 0:
        arrivals["max_in_flight"] = draw(st.sampled_from([1, 2, 5]))
    lengths: Data = {"kind": "test_listed", "rows": [row[1:] for row in rows]}
    if draw(st.integers(0, 3)) == 0:
        lengths = draw(conversations())
    elif draw(st.integers(0, 3)) == 0:
        lengths["hash_unit"] = draw(st.sampled_from([4, 16]))
    ends = draw(st.sampled_from(["max_new_tokens", "stop_token", "some", "asked"]))
    if ends == "some" and "rows" in lengths:
        lengths["asked"] = [row[2] + draw(st.sampled_from([0, 1, 9])) for row in rows]
    data: Data = {
        "name": name, "requests": len(rows), "arrivals": arrivals, "lengths": lengths,
        "pipeline": draw(st.sampled_from(("plain", "plain", "plain", "test_draft", "test_branches"))),
        **({} if ends == "some" else {"max_new_tokens": draw(st.integers(1, 20))} if ends == "asked" else
           {"ends": ends}),
    }
    if data["pipeline"] == "plain" and draw(st.integers(0, 2)) == 0:
        data |= {"branches": draw(st.sampled_from([2, 3, 5])), "branch_spread": draw(st.sampled_from([0.0, 0.5, 1.0]))}
    return data


@st.composite
def scenarios(draw: st.DrawFn, family: str, most: int = 24) -> Data:
    """A scenario as a dict.

    family: a scheduler's name, "any" (clients of several kinds), "many" (more of them than routers ask one by one) or
    "disaggregated" or "elastic" (two pools that lend each other clients).
    """
    names: tuple[str, ...]
    if family == "disaggregated":
        kinds = ("chunked", "continuous", "mixed")
        clients = [draw(groups("p", kinds, "prefill", 2)), draw(groups("d", kinds, "decode", 2))]
        if draw(st.integers(0, 3)) == 0:
            clients.append(draw(groups("b", kinds, "both", 1)))
        # Of one pace: a prefill client that can admit, but not finish, a prompt until a decode client has freed memory
        # tries with every step, and a step of one kind of hardware is ten thousand of the other.
        clients = [{**one, "hardware": clients[0]["hardware"]} for one in clients]
    elif family == "elastic":
        kinds = ("chunked", "continuous", "mixed")
        clients = [draw(groups("p", kinds, "both", 2)), draw(groups("t", kinds, "both", 2))]
    else:
        kinds = (family,) if family in SCHEDULERS else SCHEDULERS
        clients = [draw(groups(name, kinds)) for name in ("a", "b")[: draw(st.integers(1, 2))]]
        if family == "many":
            clients[0]["count"] = draw(st.integers(9, 20))
    names = tuple(client["name"] for client in clients)
    moves_kv = family in ("disaggregated", "elastic")
    transfer = draw(st.sampled_from(["full", "full", "layerwise"])) if moves_kv else "full"
    if transfer == "layerwise":   # it asks the model how many layers it has
        clients = [{**client, "model": "llama-3.1-8b", "allow_mismatch": True} for client in clients]
    in_milliseconds = any(client["hardware"]["kind"] == "polynomial" for client in clients)
    workload = [draw(workloads("w", most))]
    if draw(st.integers(0, 2)) == 0:
        workload.append(draw(workloads("v", max(1, most // 2))))
    router, scope = draw(routers()), "global"
    if family == "elastic" or (family == "disaggregated" and draw(st.integers(0, 2)) == 0):
        pools = {"kind": "mixed_pool", "max_pending_tokens": draw(st.sampled_from([20, 80, 10_000]))}
        if family == "elastic":
            pools |= {"prompt": ["p"], "token": ["t"]}
        router = {"kind": "test_probe", "router": pools}
    elif family == "disaggregated" and draw(st.integers(0, 2)) == 0:   # KV stays on its platform
        scope = "local"
        clients = [{**one, "name": one["name"] + side, "platform": side} for one in clients for side in "xy"]
        names = tuple(client["name"] for client in clients)
    return {
        "seed": draw(st.integers(0, 3)), "clients": clients, "workload": workload, "router": router,
        "network": draw(networks(names)), "kv_transfer": transfer, "kv_transfer_scope": scope,
        "first_token": draw(st.sampled_from(["decode", "prefill"])),
        "kv_transfer_retry": draw(st.sampled_from([None, None, 3e-3 if in_milliseconds else 3e-6])),
    }
