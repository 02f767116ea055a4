"""Usage of clients: busy time, batch sizes, KV blocks, energy.

The *window* of a simulation runs from the first arrival to the last completion, or to the end of the clock if requests
are unfinished. Work that goes on after the last completion (stages in the background, requests that were given up) is
in it. Rates, utilisation and idle energy refer to it, so that no client is busy for longer.

Busy = a run of steps was under way, whatever its batch size; for a client without runs (retrieval, pre-processing), it
served at least one stage. Energy is power times time per state: a step that computes prompt tokens draws `prefill_w`,
any other step `decode_w`, service without steps `prefill_w`, the rest of the time held `idle_w`. If power depends on
utilisation, `prefill_w` and `decode_w` are the means over the client's runs, weighted with their time. Dollars are the
price of the time held, busy or not. Devices are *held* from 0 (where clients come and go, from the start of a replica
until it is gone) to the end of the window, or of the workload's `duration` if that is later.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.columns import parts
from hermes.core.record import STATUS_UNFINISHED, RunRecord
from hermes.results.figures.membership import held_ns
from hermes.units import NS_PER_S

__all__ = ["ClientUsage", "client_names", "client_usage", "client_usages", "paid_ns", "ratio", "window_ns"]


def window_ns(record: RunRecord) -> tuple[int, int]:
    """Return start and end of the window (see the module's docstring); (0, 0) without arrivals."""
    arrived = record.arrival_ns[record.arrival_ns >= 0]  # an interrupted closed loop has requests that never arrive
    if len(arrived) == 0:
        return 0, 0
    start = int(arrived.min())
    if (record.status == STATUS_UNFINISHED).any():
        return start, max(record.end_ns, start)
    ends = (record.finish_ns, arrived, record.runs["end_ns"], record.stages["end_ns"])
    return start, max(int(column.max(initial=0)) for column in ends)


def paid_ns(record: RunRecord) -> tuple[int, int]:
    """Return the time in which devices are held, from 0 on (see the module's docstring)."""
    return 0, max(window_ns(record)[1], record.offered.until_ns)


def client_names(record: RunRecord) -> list[str]:
    """Return the clients' names, with a suffix for equal ones."""
    seen: dict[str, int] = {}
    names = []
    for client in record.clients:
        seen[client.name] = count = seen.get(client.name, 0) + 1
        names.append(client.name if count == 1 else f"{client.name}#{count}")
    return names


def covered_ns(start: IntArray, end: IntArray) -> int:
    """Return the total length of the union of intervals."""
    if len(start) == 0:
        return 0
    order = np.argsort(start, kind="stable")
    start, upto = start[order], np.maximum.accumulate(end[order])
    begin = np.maximum(start, np.concatenate(([start[0]], upto[:-1])))
    return int(np.maximum(upto - begin, 0).sum())


@dataclass
class ClientUsage:
    """Sums of one client; times in nanoseconds, energies in joules, block counts in blocks."""

    stages: int = 0
    busy_ns: int = 0
    held_ns: int = 0             # the time in which its devices were held, which is paid
    in_window_ns: int = 0        # the part of it in the window
    prefill_ns: int = 0          # busy with steps that compute prompt tokens, or with stages outside steps
    decode_ns: int = 0           # busy with other steps
    runs: int = 0
    steps: int = 0
    batch: int = 0               # sequences, summed over steps
    max_batch: int = 0
    waiting_ns: int = 0          # between assignment and start, or until a request was given up; summed over stages
    block_ns: int = 0            # used blocks times time, over the busy time
    peak_blocks: int = 0
    preemptions: int = 0
    out_of_range_steps: int = 0
    idle_j: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0

    @property
    def total_j(self) -> float:
        return self.idle_j + self.prefill_j + self.decode_j


def client_usages(record: RunRecord) -> list[ClientUsage]:
    """Return one `ClientUsage` per client."""
    n = len(record.clients)
    columns = defaultdict[str, IntArray](lambda: np.zeros(n, dtype=np.int64))
    for runs in parts(record.runs):
        client, span = runs["client"], runs["end_ns"] - runs["start_ns"]
        prefill = runs["prefill_seqs"] > 0
        batch = runs["prefill_seqs"] + runs["decode_seqs"]
        np.add.at(columns["prefill_ns"], client[prefill], span[prefill])
        np.add.at(columns["decode_ns"], client[~prefill], span[~prefill])
        np.add.at(columns["runs"], client, 1)
        np.add.at(columns["batch"], client, batch * runs["num_steps"])
        for name, column in (("steps", "num_steps"), ("block_ns", "kv_block_ns"), ("preemptions", "preempted")):
            np.add.at(columns[name], client, runs[column])
        np.maximum.at(columns["max_batch"], client, batch)
        np.maximum.at(columns["peak_blocks"], client, runs["used_blocks"])
    for stages in parts(record.stages):
        once, served = stages["branch"] <= 0, stages["start_ns"] >= 0   # the branches of a generation wait together
        until = np.where(served, stages["start_ns"], stages["end_ns"])   # or until the request was given up
        waiting = np.maximum(until - stages["assigned_ns"], 0)
        np.add.at(columns["waiting_ns"], stages["client"][once], waiting[once])
        np.add.at(columns["stages"], stages["client"][served], 1)
    for c, info in enumerate(record.clients):
        columns["peak_blocks"][c] = max(columns["peak_blocks"][c], info.peak_blocks_inside)
    columns["out_of_range_steps"] = np.asarray(record.out_of_range_steps, dtype=np.int64)
    usages = [ClientUsage(**{name: int(column[c]) for name, column in columns.items()}) for c in range(n)]
    _add_service_without_steps(record, usages)
    held, inside = (held_ns(record, *span(record)).tolist() for span in (paid_ns, window_ns))
    for usage, info, held_for, in_window in zip(usages, record.clients, held, inside, strict=True):
        usage.busy_ns, usage.held_ns = usage.prefill_ns + usage.decode_ns, held_for
        usage.in_window_ns = in_window
        usage.idle_j = info.idle_w * max(held_for - usage.busy_ns, 0) / NS_PER_S
        usage.prefill_j = info.prefill_w * usage.prefill_ns / NS_PER_S
        usage.decode_j = info.decode_w * usage.decode_ns / NS_PER_S
    return usages


def _add_service_without_steps(record: RunRecord, usages: list[ClientUsage]) -> None:
    stages = record.stages
    stepless = np.array([usage.runs == 0 for usage in usages], dtype=bool)
    rows = np.flatnonzero(stepless[stages["client"]] & record.started) if len(stepless) else np.empty(0, dtype=np.int64)
    rows = rows[np.argsort(stages["client"][rows], kind="stable")]
    bounds = np.searchsorted(stages["client"][rows], np.arange(len(usages) + 1))
    for c in np.flatnonzero(stepless):
        mine = rows[bounds[c]:bounds[c + 1]]
        usages[c].prefill_ns = covered_ns(stages["start_ns"][mine], stages["end_ns"][mine])


def ratio(part: float, whole: float) -> float | None:
    """Return `part` over `whole`; None of nothing."""
    return part / whole if whole else None


def client_usage(
    record: RunRecord, index: int, usage: ClientUsage, window: tuple[int, int], watts: bool
) -> dict[str, Any]:
    """Return the summary of one client; None for figures that do not apply. window: Start and end (ns) of the time to
    which utilisation refers. watts: Include energy."""
    info = record.clients[index]
    start, end = window
    out: dict[str, Any] = {
        "kind": info.kind, "role": info.role, "model": info.model, "hardware": info.hardware,
        "num_devices": info.num_devices,
        "stages": usage.stages,
        "stepping_s": usage.busy_ns / NS_PER_S,
        "utilisation": ratio(usage.busy_ns, usage.in_window_ns),
        **({"held_s": usage.held_ns / NS_PER_S} if len(record.membership) else {}),
        "runs": usage.runs, "steps": usage.steps,
        "mean_batch": ratio(usage.batch, usage.steps), "max_batch": usage.max_batch,
        "mean_waiting": ratio(usage.waiting_ns, end - start),
        "kv_blocks": info.num_blocks or None,
        "kv_mean_blocks": ratio(usage.block_ns, usage.busy_ns) if info.num_blocks else None,
        "kv_peak_blocks": usage.peak_blocks if info.num_blocks else None,
        "kv_mean_share": ratio(usage.block_ns, usage.busy_ns * info.num_blocks),
        "kv_peak_share": ratio(usage.peak_blocks, info.num_blocks),
        "preemptions": usage.preemptions,
        "out_of_range_steps": usage.out_of_range_steps,
        "out_of_range_share": ratio(usage.out_of_range_steps, usage.steps),
    }
    if watts:
        out |= {
            "idle_j": usage.idle_j, "prefill_j": usage.prefill_j, "decode_j": usage.decode_j,
            "energy_j": usage.total_j,
            "mean_w": ratio(usage.total_j, paid_ns(record)[1] / NS_PER_S),
        }
    out["dollars"] = info.price_per_hour * usage.held_ns / NS_PER_S / 3600 if info.price_per_hour else None
    return out
