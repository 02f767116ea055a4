"""`Results`: the results of a simulation as a summary, tables, text and token times.

Everything is computed at first use, and only once. `hermes.results.files.export` writes a `Results` to a folder;
`hermes.results.files.stored` reads it back as one whose tables come from that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import FloatArray, IntArray
from hermes.core.columns import kept_table, release_memory
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.errors import InputError, suggest
from hermes.results import metrics as _metrics
from hermes.results.branches import branch_metrics
from hermes.results.distribution import Distribution
from hermes.results.measure import MeasureConfig, measure
from hermes.results.slo import SloConfig, slo_given, slo_groups, within_slo
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Group

    from hermes.results.figures.usage import ClientUsage
    from hermes.results.files.frames import Columns

__all__ = ["Results"]


class Results:
    """The results of one simulation.

    Args:
        record: The kernel's record, or a function that reads it at first use.
        meta: `scenario` (the resolved scenario as plain data) or `scenario_text` (the same as YAML), `name`, `version`,
            `seed`, `interrupted`. Other entries (`wall_s`) are shown but never written, so that equal runs give equal
            files.
        slo: Service-level objectives.
        measure: Measured window of the run, for the summary.
    """

    def __init__(
        self, record: RunRecord | Callable[[], RunRecord], meta: dict[str, Any] | None = None,
        slo: SloConfig | None = None, measure: MeasureConfig | None = None,
    ) -> None:
        self._source = record
        self.meta = dict(meta or {})
        self.slo = slo or SloConfig()
        self.measure = measure
        self.find_sources: Callable[[Results], list[dict[str, Any]]] | None = None
        """Finds where step times come from, for `sources` of the summary."""
        self.find_assumed: Callable[[Results], list[dict[str, Any]]] | None = None
        """Finds the defaults that decide, with their effects, for `assumes` of the summary."""
        self._frames: dict[str, pd.DataFrame] = {}

    @cached_property
    def record(self) -> RunRecord:
        """Columns from which everything else is computed."""
        return self._source() if callable(self._source) else self._source

    @cached_property
    def answer(self) -> _metrics.Answer:
        """Stages that gave the tokens that a request's user reads."""
        return kept_table(_metrics.answer(self.record))

    @cached_property
    def metrics(self) -> _metrics.RequestMetrics:
        """Per-request numpy columns."""
        return kept_table(_metrics.request_metrics(self.record, self.answer))

    @cached_property
    def usages(self) -> list[ClientUsage]:
        """Sums of each client."""
        from hermes.results.figures.usage import client_usages

        return client_usages(self.record)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Nested dicts of plain numbers in a fixed order; None for what is undefined. After a simulation with
        `sources`: where step times come from (`hermes.scenario.step_sources`), and `assumes`: the defaults that the
        answer rests on (`hermes.results.assumes`)."""
        out = self.summary_of_run
        for name, find in (("sources", self.find_sources), ("assumes", self.find_assumed)):
            release_memory(len(self.record.runs["client"]))
            if find is not None:
                out = {**out, name: find(self)}
        return out

    @cached_property
    def summary_of_run(self) -> dict[str, Any]:
        """The summary without `sources` and `assumes`."""
        from hermes.results.figures.summary import summarise

        summary = summarise(self.record, self.answer, self.metrics, self.usages, self.slo, self.measure)
        if self.measure is not None:
            summary["measured"] = measure(self.record, self.measure)
        return summary

    def columns(self, table: str) -> Columns:
        """Return one of `hermes.results.files.frames.TABLES` as columns."""
        from hermes.results.files.frames import table_columns

        columns = table_columns(table, self.record, self.metrics, self.usages)
        if table == "requests" and slo_given(groups := slo_groups(self.slo, self.record)):
            columns["slo_ok"] = within_slo(groups, self.metrics, self.record.status == STATUS_COMPLETED)
        return columns

    def _frame(self, table: str, columns: Callable[[], Columns] | None = None) -> pd.DataFrame:
        from hermes.results.files.frames import to_frame

        if table not in self._frames:
            self._frames[table] = to_frame(self.columns(table) if columns is None else columns())
        return self._frames[table]

    @property
    def requests(self) -> pd.DataFrame:
        """One row per request, by id: lengths, status, TTFT, TPOT, E2E, time queued, computed and communicated; with an
        SLO `slo_ok`, whether it was completed within its limits."""
        return self._frame("requests")

    @property
    def stages(self) -> pd.DataFrame:
        """One row per completed stage, in order of completion."""
        return self._frame("stages")

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run of equal steps: batch statistics, sequences running and waiting, KV blocks."""
        return self._frame("runs")

    @property
    def transfers(self) -> pd.DataFrame:
        """One row per transfer between clients."""
        return self._frame("transfers")

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client: properties and usage."""
        return self._frame("clients")

    @property
    def branches(self) -> pd.DataFrame:
        """One row per branch of generations that have several, by generation: tokens, first and last, duration."""
        from hermes.results.files.frames import branch_columns

        return self._frame("branches", lambda: branch_columns(self.record, branch_metrics(self.record, self.answer)))

    @property
    def membership(self) -> pd.DataFrame:
        """One row per change of a client that comes and goes (`fleet`): time, state, reason."""
        from hermes.results.files.frames import membership_columns

        return self._frame("membership", lambda: membership_columns(self.record))

    @property
    def incidents(self) -> pd.DataFrame:
        """One row per incident: when it was noticed, when traffic left, when capacity and SLO were back; what it cost.
        """
        from hermes.results.figures.incidents import columns_of, incidents

        return self._frame("incidents", lambda: columns_of(
            incidents(self.record, self.metrics, slo_groups(self.slo, self.record))))

    @property
    def attempts(self) -> pd.DataFrame:
        """One row per attempt of a gateway: its request, call, client, times and outcome. Empty without one."""
        from hermes.results.files.frames import attempt_columns

        return self._frame("attempts", lambda: attempt_columns(self.record))

    @property
    def held(self) -> pd.DataFrame:
        """One row per call that waited unplaced in a gateway (`gateway.flow_control`): its request, the priority of its
        band, when it was queued and when it left, and how. Empty without flow control."""
        from hermes.results.files.frames import held_columns

        return self._frame("held", lambda: held_columns(self.record))

    @property
    def utilisation(self) -> pd.DataFrame:
        """One row per link, tier, machine and client: its utilisation, overall and at its peak."""
        return self._frame("utilisation")

    @property
    def links(self) -> pd.DataFrame:
        """Rows of `utilisation` for the links of the network."""
        rows = self.utilisation
        return rows[rows["kind"] == "link"].drop(columns="kind").reset_index(drop=True)

    def client_index(self, client: str | int) -> int:
        """Return a client's index from its name or index; `InputError` for an unknown one."""
        from hermes.results.figures.usage import client_names

        names = client_names(self.record)
        if isinstance(client, str) and client in names:
            return names.index(client)
        if not isinstance(client, str) and 0 <= client < len(names):
            return int(client)
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InputError(f"a client: one of {shown}", client, suggestion=suggest(client, names))

    def _request_index(self, request: int) -> int:
        if not 0 <= request < len(self.record.arrival_ns):
            raise InputError(f"a request id below {len(self.record.arrival_ns)}", request)
        return int(request)

    def client_timeseries(self, client: str | int, bins: int = 200, **window: float) -> pd.DataFrame:
        """Return bin means over time (see `hermes.results.figures.timeseries`); within `start_s` and `end_s`."""
        from hermes.results.figures.timeseries import client_timeseries
        from hermes.results.files.frames import to_frame

        return to_frame(dict(client_timeseries(self.record, self.client_index(client), bins, **window)))

    def step_ends_s(self, client: str | int) -> FloatArray:
        """Return the end times of a client's steps, shape (steps,)."""
        return self.record.step_ends[self.client_index(client)] / NS_PER_S

    @cached_property
    def _stages_by_request(self) -> tuple[IntArray, IntArray]:
        owner = self.record.stages["request"]
        order = np.argsort(owner, kind="stable")
        return order, np.searchsorted(owner[order], np.arange(len(self.record.arrival_ns) + 1))

    def token_times_s(self, request: int, *, all_stages: bool = False) -> FloatArray:
        """Return the times of the tokens of a request's answer, shape (tokens,), sorted; empty without an answer.

        all_stages: Tokens of every completed LLM stage. Tokens of clients that do not work in steps are left out.
        """
        order, bounds = self._stages_by_request
        index = self._request_index(request)
        rows = order[bounds[index]:bounds[index + 1]]
        rows = rows if all_stages else rows[self.answer.member[rows]]
        return _metrics.token_times_ns(self.record, rows) / NS_PER_S

    def itl_s(self, requests: Sequence[int] | npt.NDArray[Any] | None = None) -> Distribution:
        """Return pooled inter-token latencies of all requests, or of these (ids, or a boolean mask over all)."""
        if requests is None:
            return _metrics.itl(self.record, self.answer)
        select = np.zeros(len(self.record.arrival_ns), dtype=bool)
        chosen = np.asarray(requests)
        if chosen.dtype != bool:
            chosen = np.array([self._request_index(int(request)) for request in chosen], dtype=np.int64)
        select[chosen] = True
        return _metrics.itl(self.record, self.answer, select)

    def table(self, *, verbose: bool = False) -> Group:
        """Return the ten-line report for a terminal; with `verbose`, the whole summary as tables after it."""
        from hermes.results.brief import parts
        from hermes.results.layout import to_rich

        return to_rich(parts(self.summary, self.meta, verbose=verbose))

    def plot(self, kind: str = "latency", ax: Any = None) -> Figure:
        """Return a matplotlib figure: latency, itl, breakdown, utilisation, clients, queue, fleet or gateway.

        ax: Axes to draw into, one for each panel; None for a new figure. Raises `InputError` for another kind.
        """
        from hermes.results.plots import plot_runs

        return plot_runs({str(self.meta.get("name") or "run"): self}, kind, ax)

    def to_text(self, *, verbose: bool = False) -> str:
        """Return the same as plain text, at most 80 columns wide."""
        from hermes.results.brief import parts
        from hermes.results.layout import to_text

        return to_text(parts(self.summary, self.meta, verbose=verbose))

    def _repr_html_(self) -> str:
        from hermes.results.brief import html

        return html(self.summary, self.meta)

    def __repr__(self) -> str:
        from hermes.results.brief import headline

        return f"<Results {headline(self.summary, self.meta)}>"
