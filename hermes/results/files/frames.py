"""Tables of a simulation as named columns, for DataFrames and Parquet.

Tables: `requests`, `stages`, `runs`, `transfers`, `clients`, `utilisation`, `steps`, and `token_steps` for stages whose
tokens do not come from consecutive steps. Times are seconds (float64, exact to the nanosecond below 52 days; NaN for
events that did not happen). Columns of few distinct strings (a client, a kind) are `Coded`: categorical in DataFrames,
a dictionary in Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.core.columns import kept, release_memory
from hermes.core.reasons import NAMES
from hermes.core.record import (
    ATTEMPT_FIELDS,
    ATTEMPT_OUTCOMES,
    HELD_FIELDS,
    HELD_OUTCOMES,
    MEMBER_STATES,
    RUN_COLUMNS,
    STAGE_FIELDS,
    TRANSFER_FIELDS,
    RunRecord,
)
from hermes.results.branches import BranchMetrics
from hermes.results.figures.breakdown import causes_of, critical_path
from hermes.results.figures.energy import Attribution, attribute
from hermes.results.figures.tenants import waited_ns
from hermes.results.figures.usage import ClientUsage, client_names, client_usage, window_ns
from hermes.results.figures.utilisation import KINDS, resource_uses
from hermes.results.metrics import RequestMetrics
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "STATUSES", "TABLES", "Coded", "Columns", "attempt_columns", "branch_columns", "held_columns", "membership_columns",
    "seconds", "step_decodes", "table_columns", "table_parts", "to_frame",
]

STATUSES = ["unfinished", "completed", "rejected"]
TABLES = ("requests", "stages", "runs", "transfers", "clients", "utilisation", "steps", "token_steps")


@dataclass(frozen=True)
class Coded:
    """A column of strings: `names[codes[i]]`; code -1 is missing."""

    codes: npt.NDArray[np.int32]
    names: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> Coded:
        return Coded(self.codes[rows], self.names)


Columns = dict[str, Any]  # name -> array, list of str | None, or Coded


def seconds(ns: IntArray, *, undefined: bool = False) -> FloatArray:
    """Convert nanoseconds to seconds; with `undefined`, negative values become NaN."""
    out = ns / NS_PER_S
    if undefined:
        out[ns < 0] = np.nan
    return kept((out,), len(out))[0]


def _coded(codes: npt.NDArray[Any], names: list[str]) -> Coded:
    return Coded(codes.astype(np.int32), names)


def _requests(record: RunRecord, metrics: RequestMetrics, usages: list[ClientUsage]) -> Columns:
    energy = _energy(record, usages)
    columns: Columns = {
        "request": np.arange(len(record.arrival_ns)),
        "arrival_s": seconds(record.arrival_ns, undefined=True),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "priority": record.priority,
        "session": record.session,
        "status": _coded(record.status, STATUSES),
        "finish_s": seconds(record.finish_ns, undefined=True),
        "first_token_s": seconds(metrics.first_token_ns, undefined=True),
        "last_token_s": seconds(metrics.last_token_ns, undefined=True),
        "ttft_s": seconds(metrics.ttft_ns, undefined=True),
        "tpot_s": metrics.tpot_s,
        "tpot_worst_s": metrics.tpot_worst_s,
        "e2e_s": seconds(metrics.e2e_ns, undefined=True),
        "queue_s": seconds(metrics.queue_ns, undefined=True),
        "compute_s": seconds(metrics.compute_ns, undefined=True),
        "communication_s": seconds(metrics.communication_ns),
        "emitted_tokens": metrics.emitted_tokens,
        "cached_tokens": metrics.cached_tokens,
        "preemptions": metrics.preemptions,
        "stages": metrics.stages,
        "branches": metrics.branches,
        "branch_spread_s": seconds(metrics.branch_spread_ns, undefined=True),
        "energy_j": energy.request_j,
    }
    if record.held:
        columns["gateway_s"] = seconds(waited_ns(record))
    path = critical_path(record)
    if (metrics.prefill_ttft_ns >= 0).any():
        columns["prefill_ttft_s"] = seconds(metrics.prefill_ttft_ns, undefined=True)
    columns |= {f"path_{cause}_s": seconds(path.per_request(record, cause)) for cause in causes_of(record)}
    columns |= {name: _coded(codes, names) for name, (codes, names) in record.labels.items()}
    columns |= {f"note_{name}": values for name, values in record.notes.items()}
    texts = sorted(set(record.reject_reasons.values()))
    place = {text: code for code, text in enumerate(texts)}
    codes = np.full(len(record.arrival_ns), -1, dtype=np.int32)
    for request, text in record.reject_reasons.items():
        codes[request] = place[text]
    columns["reject_reason"] = Coded(codes, texts)
    return columns


def _energy(record: RunRecord, usages: list[ClientUsage]) -> Attribution:
    """Return joules of stages and requests; NaN if no client has a power."""
    if any(info.prefill_w or info.decode_w for info in record.clients):
        return attribute(record, usages)
    none = np.broadcast_to(np.nan, len(record.stages["client"]))
    return Attribution(none, none, np.broadcast_to(np.nan, len(record.arrival_ns)), np.nan)


def _stages(record: RunRecord, usages: list[ClientUsage]) -> Columns:
    coded = {"kind": record.stage_kinds, "client": client_names(record)}
    columns = _of_fields(STAGE_FIELDS, record.stages, coded, undefined=("start_ns", "first_token_ns"))
    if len(record.background):
        columns["background"] = np.isin(np.arange(len(record.stages["client"])), record.background)
    if record.attempts:
        numbers, outcomes = (np.append(record.attempts[name], -1)[record.stage_attempts]
                             for name in ("number", "outcome"))
        columns |= {"attempt": numbers, "outcome": Coded(outcomes, _outcomes(record))}
    path = critical_path(record)
    return columns | {
        "communication_s": seconds(path.communication_ns), "on_path": path.on_path,
        "energy_j": _energy(record, usages).stage_j,
    }


def _of_fields(
    fields: tuple[str, ...], columns: dict[str, IntArray], coded: dict[str, list[str]], undefined: tuple[str, ...] = ()
) -> Columns:
    out: Columns = {}
    for name in fields:
        if name in coded:
            out[name] = _coded(columns[name], coded[name])
        elif name.endswith("_ns"):
            out[name.removesuffix("_ns") + "_s"] = seconds(columns[name], undefined=name in undefined)
        else:
            out[name] = columns[name].astype(np.int64)   # tables have one width
    return out


def _run_columns(record: RunRecord, runs: dict[str, IntArray]) -> Columns:
    return _of_fields(RUN_COLUMNS, runs, {"client": client_names(record), "stopped": list(NAMES.values())})


def _transfer_columns(record: RunRecord, sent: dict[str, IntArray]) -> Columns:
    return _of_fields(TRANSFER_FIELDS, sent, dict.fromkeys(("src", "dst"), client_names(record)))


def _clients(record: RunRecord, usages: list[ClientUsage]) -> Columns:
    window, rows = window_ns(record), []
    for index, name in enumerate(client_names(record)):
        info = asdict(record.clients[index]) | {"name": name}
        usage = client_usage(record, index, usages[index], window, watts=True)
        rows.append(info | {key: value for key, value in usage.items() if key not in info and key != "kv_blocks"})
    names = list(rows[0]) if rows else []
    return {name: _plain_column([row[name] for row in rows]) for name in names}


def _utilisation(record: RunRecord) -> Columns:
    uses = resource_uses(record)
    columns: Columns = {
        "kind": _coded(np.array([KINDS.index(use.kind) for use in uses], dtype=np.int32), list(KINDS)),
        "name": [use.name for use in uses],
    }
    texts = {"capacity_bytes_per_s": "capacity", "bytes": "num_bytes", "busy_s": "busy_s", "full_s": "full_s",
             "utilisation": "utilisation", "peak_utilisation": "peak"}
    return columns | {
        name: np.array([getattr(use, field) for use in uses], dtype=np.float64) for name, field in texts.items()
    }


def _plain_column(values: list[Any]) -> Any:
    if all(isinstance(v, str) for v in values):
        return values
    if all(isinstance(v, int) for v in values):
        return np.array(values, dtype=np.int64)
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _steps(record: RunRecord) -> Columns:
    counts = [len(ends) for ends in record.step_ends]
    client = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    step = [np.arange(count, dtype=np.int32) for count in counts]
    return {
        "client": Coded(client, client_names(record)),
        "step": np.concatenate(step) if step else np.empty(0, dtype=np.int32),
        "end_s": seconds(np.concatenate(record.step_ends) if step else np.empty(0, dtype=np.int64)),
        "decodes": np.concatenate([step_decodes(record, c) for c in range(len(counts))] or [np.empty(0, dtype=bool)]),
    }


def step_decodes(record: RunRecord, client: int) -> BoolArray:
    """Return which steps of a client advance all its decoding sequences, shape (steps,)."""
    ticks = record.decode_steps[client] if record.decode_steps else None
    out = np.full(len(record.step_ends[client]), ticks is None)
    if ticks is not None:
        out[ticks] = True
    return out


def _token_steps(record: RunRecord) -> Columns:
    rows = sorted(record.gaps)
    steps = [np.asarray(record.gaps[row], dtype=np.int64) for row in rows]
    return {
        "stage": np.repeat(np.array(rows, dtype=np.int64), [len(s) for s in steps]),
        "step": np.concatenate(steps) if steps else np.empty(0, dtype=np.int64),
    }


def branch_columns(record: RunRecord, found: BranchMetrics) -> Columns:
    """Return the branches of a run as columns."""
    return {
        "request": found.request, "fork": found.fork, "branch": found.branch,
        "client": _coded(found.client, client_names(record)), "output_tokens": found.tokens,
        "first_token_s": seconds(found.first_token_ns), "last_token_s": seconds(found.last_token_ns),
        "duration_s": seconds(found.last_token_ns - found.first_token_ns), "tpot_s": found.tpot_s,
        "preemptions": found.preemptions, "answer": found.answer,
    }


def attempt_columns(record: RunRecord) -> Columns:
    """Return the table of attempts; empty without a gateway."""
    table = record.attempts or dict.fromkeys(ATTEMPT_FIELDS, np.empty(0, dtype=np.int64))
    coded = {"client": client_names(record), "outcome": _outcomes(record)}
    return _of_fields(ATTEMPT_FIELDS, table, coded, undefined=("end_ns",))


def _outcomes(record: RunRecord) -> list[str]:
    """Return what may become of attempts, in order; without flow control none is revoked."""
    return list(ATTEMPT_OUTCOMES[:7 if record.migrations else 6 if record.held else 5])


def held_columns(record: RunRecord) -> Columns:
    """Return the table of calls that waited in a gateway; empty without flow control."""
    table = record.held or dict.fromkeys(HELD_FIELDS, np.empty(0, dtype=np.int64))
    return _of_fields(HELD_FIELDS, table, {"outcome": list(HELD_OUTCOMES)}, undefined=("left_ns",))


def membership_columns(record: RunRecord) -> Columns:
    """Return the changes of clients that come and go, one row each."""
    client, incarnation, time, state = record.membership.T
    texts = sorted(set(record.membership_reasons))
    reasons = np.array([texts.index(text) for text in record.membership_reasons], dtype=np.int64)
    return {"client": _coded(client, client_names(record)), "incarnation": incarnation, "time_s": seconds(time),
            "state": _coded(state, list(MEMBER_STATES)), "reason": _coded(reasons, texts)}


def table_columns(name: str, record: RunRecord, metrics: RequestMetrics, usages: list[ClientUsage]) -> Columns:
    """Return the columns of one of `TABLES`."""
    if name == "requests":
        return _requests(record, metrics, usages)
    if name == "stages":
        return _stages(record, usages)
    if name == "runs":
        return _run_columns(record, record.runs)
    if name == "transfers":
        return _transfer_columns(record, record.transfers)
    if name == "clients":
        return _clients(record, usages)
    if name == "utilisation":
        return _utilisation(record)
    if name == "steps":
        return _steps(record)
    if name == "token_steps":
        return _token_steps(record)
    raise KeyError(name)


def table_parts(name: str, record: RunRecord, whole: Callable[[], Columns], rows: int) -> Iterator[Columns]:
    """Yield one of `TABLES` in parts of so many rows. whole: Returns it at once, for tables that are made so."""
    table = {"runs": record.runs, "transfers": record.transfers}.get(name)
    if table is None:
        columns = whole()
        release_memory(len(record.runs["client"]))
        for low in range(0, max(map(len, columns.values())) or 1, rows):
            yield {column: values[low:low + rows] for column, values in columns.items()}
        return
    for low in range(0, max(len(table["start_ns"]), 1), rows):
        part = {column: values[low:low + rows] for column, values in table.items()}
        yield _run_columns(record, part) if name == "runs" else _transfer_columns(record, part)


def to_frame(columns: Columns) -> pd.DataFrame:
    """Return columns as a DataFrame."""
    import pandas as pd

    return pd.DataFrame({
        name: pd.Categorical.from_codes(column.codes, pd.Index(column.names)) if isinstance(column, Coded) else column
        for name, column in columns.items()
    }, copy=False)
