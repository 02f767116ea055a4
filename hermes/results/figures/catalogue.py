"""The figures of a summary by place: what each is called, its unit, and which way is better.

Every table, chart, page, sweep and comparison that names a figure takes its words and its direction from here.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIGURES", "LATENCIES", "Figure", "figure_at", "limit_name"]


class Figure(NamedTuple):
    """One figure of a summary.

    Attributes:
        path: Its keys, joined by dots; `*` stands for a name that the scenario gives (a group of clients).
        name: In tables.
        unit: Of the value; "" of a count, a share or a ratio.
        better: 1 if more is better, -1 if less is, 0 if neither.
        judged: Whether the verdict on two runs weighs it.
        short: In a sentence, where `name` reads badly.
        head: Above a narrow column.
    """

    path: str
    name: str
    unit: str = ""
    better: int = 0
    judged: bool = False
    short: str = ""
    head: str = ""

    @property
    def label(self) -> str:
        """The name with its unit, which some names begin or end with. Durations are written with theirs."""
        if self.unit in ("", "s") or self.name.startswith(self.unit) or self.name.endswith(self.unit):
            return self.name
        return f"{self.name}, {self.unit}"

    @property
    def words(self) -> str:
        """The name in a sentence."""
        return self.short or self.name

    def dollars(self, number: str, *, short: bool = False) -> str:
        """Return an amount in words: "$0.5 per million tokens of answers"; short: "$0.5/M answer tokens"."""
        return (self.words if short else self.name).replace("$", f"${number}", 1)


LATENCIES = {
    "ttft": "TTFT", "prefill_ttft": "prefill's own", "tpot": "TPOT", "tbt": "TBT", "itl": "ITL", "e2e": "E2E",
    "queue": "queueing", "compute": "compute", "communication": "communication", "waited": "waited",
}
"""Names of latencies by their key without its unit."""
_NOT_IN_LATENCY = ("tbt", "waited")   # of references, and of calls at a gateway
_TOKENS = {"answer_": ("tokens of answers", "answer tokens"), "output_": ("generated tokens", "generated"),
           "": ("tokens with prompts", "tokens")}
_ROWS = (
    *(Figure(f"latency.{key}_s.{stat}", f"{name} {stat}", "s", -1, stat == "p99" and key in ("ttft", "tpot", "e2e"))
      for key, name in LATENCIES.items() if key not in _NOT_IN_LATENCY
      for stat in ("mean", "p50", "p90", "p95", "p99", "max")),
    Figure("headline.offered_per_s", "offered", "requests/s", short="offered rate", head="offered/s"),
    Figure("headline.served_per_s", "served", "requests/s", 1, judged=True, short="served rate", head="served/s"),
    Figure("headline.goodput_per_s", "goodput within the SLO", "requests/s", 1, short="goodput", head="good/s"),
    Figure("headline.goodput_share", "share within the SLO", better=1),
    Figure("headline.output_tokens_per_s", "generated tokens/s", "tokens/s", 1),
    *(Figure(f"{table}.per_million_{key}tokens_dollars", f"$ per million {name}", "$", -1,
             short=f"$/M {short}", head="$/M" if key == "answer_" else "")
      for table in ("headline", "cost") for key, (name, short) in _TOKENS.items()),
    Figure("headline.per_output_token_j", "J per generated token", "J", -1),
    Figure("headline.output_tokens_per_j", "generated tokens per J", "tokens/J", 1, short="tokens/J", head="tok/J"),
    Figure("cost.dollars_per_hour", "$ per hour", "$", -1, judged=True, head="$/h"),
    Figure("cost.total_dollars", "$, whole run", "$"),
    Figure("cost.per_request_dollars", "$ per request", "$", -1),
    Figure("energy.total_j", "J, whole run", "J"),
    Figure("energy.per_request_j", "J per request", "J", -1),
    Figure("energy.per_output_token_j", "J per generated token", "J", -1),
    Figure("notes.f1.mean", "F1, mean of a request", better=1, judged=True, short="F1", head="F1"),
    Figure("notes.chunks.mean", "chunks read, mean of a request"),
    Figure("cache.hit_rate", "cached share of prompt tokens", better=1, head="hits"),
    Figure("believed.cached_tokens", "cached prompt tokens", "tokens", 1),
    Figure("believed.false_share", "false beliefs, share of requests", better=-1),
    Figure("believed.balance.*.max_over_mean", "most tokens of a client / mean", better=-1),
    Figure("believed.balance.*.jain", "Jain's index of tokens of clients", better=1),
    Figure("attempts.migrations.requests", "requests that migrated"),
    Figure("attempts.migrations.recomputed_tokens", "prompt tokens computed again", "tokens", -1),
    Figure("attempts.migrations.lost_tokens", "tokens lost at migrations", "tokens", -1),
    Figure("fleet.*.ready_mean", "replicas ready, mean"),
    Figure("fleet.*.held_device_hours", "device-hours held", better=-1),
    Figure("incidents.count", "incidents", better=-1),
    Figure("incidents.noticed_s", "longest until an incident was noticed", "s", -1),
    Figure("incidents.left_s", "longest until traffic left", "s", -1),
    Figure("incidents.back_s", "longest until capacity was back", "s", -1),
    Figure("incidents.recovered_s", "longest time to recover", "s", -1),
    Figure("incidents.requests_failed", "requests failed by incidents", better=-1),
    Figure("incidents.requests_refused", "requests refused in incidents", better=-1),
    Figure("incidents.retried", "requests retried in incidents"),
    Figure("incidents.cut", "attempts cut off by the end of a node", better=-1),
    Figure("incidents.wasted_tokens", "tokens wasted by incidents", "tokens", -1),
    Figure("incidents.lost_tokens", "tokens lost by incidents", "tokens", -1),
    Figure("fleet_slo.slo_minutes_out", "minutes out of the SLO", better=-1),
    Figure("devices", "devices", better=-1),
)
FIGURES = {row.path: row for row in _ROWS}
"""Every figure by its place."""
_NAMED = {tuple(path.split("*")): row for path, row in FIGURES.items() if "*" in path}


def figure_at(path: str) -> tuple[Figure, str]:
    """Return the figure of a place, and the name of the group that the place holds, which may have dots; "" for none.

    Raises `KeyError` for a place that is in no row.
    """
    for (before, after), row in _NAMED.items():
        if path.startswith(before) and path.endswith(after):
            return row, path[len(before):-len(after)]
    return FIGURES[path], ""


def limit_name(key: str, percentile: float | None) -> str:
    """Return the name of a limit of latency: `ttft` at 99 is "TTFT p99", `ttft_p50` (over a baseline) "TTFT p50"."""
    metric, _, own = key.partition("_")
    return f"{LATENCIES[metric]} {own or f'p{percentile:g}'}"
