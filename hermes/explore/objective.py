"""What a simulation must keep to count as good: its SLO, and a queue that does not grow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hermes.errors import InputError, Verbatim, inside
from hermes.results.figures.catalogue import LATENCIES, limit_name
from hermes.results.layout import format_s
from hermes.results.slo import METRICS, SloConfig, own_limits_missed
from hermes.scenario import Scenario
from hermes.units import parse_rate

__all__ = [
    "Row", "binds_text", "grows", "is_ended", "limits_text", "missed", "nearest_to_limit", "need_fixed_clients",
    "need_slo", "own_missed", "rate_option", "settled", "slo_overrides",
]

Row = Mapping[str, Any]

_LIMIT = re.compile(r"(ttft|tpot|e2e)(?:_p(\d+(?:\.\d+)?))?$")
_USUAL = 99.0


def slo_overrides(text: str) -> list[str]:
    """Return the settings of a scenario for limits such as `ttft_p99=1s,tpot_p99=50ms`.

    A name without a percentile means the 99th. All limits of a run hold at one percentile. Raises `InputError`.
    """
    settings: dict[str, str] = {}
    percentiles: dict[float, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        found = _LIMIT.match(name)
        if found is None or not equals or not value:
            raise InputError("limits such as ttft_p99=1s,tpot_p99=50ms (ttft, tpot or e2e)", part, field="--slo")
        if found[1] in settings:
            raise InputError(Verbatim(f"two limits of {found[1]}; give one"), field="--slo")
        settings[found[1]] = value
        percentiles.setdefault(float(found[2] or _USUAL), name)
    if not settings:
        raise InputError("limits such as ttft_p99=1s,tpot_p99=50ms (ttft, tpot or e2e)", text, field="--slo")
    if len(percentiles) > 1:
        names = " and ".join(percentiles.values())
        raise InputError(Verbatim(f"{names} differ in their percentile; give all limits at one"), field="--slo")
    return [*(f"slo.{name}={value}" for name, value in settings.items()), f"slo.percentile={next(iter(percentiles)):g}"]


def rate_option(text: str) -> float:
    """Return the value of `--rate`, per second. Raises `InputError` if it is none above 0."""
    with inside("--rate"):
        value = parse_rate(text)
        if not 0 < value <= 1e9:
            raise InputError("a rate above 0, such as 50/s", text)
    return float(value)


def need_slo(scenario: Scenario) -> None:
    """Raise `InputError` for a scenario without any limit."""
    slo = scenario.slo
    if not slo.given and not slo.pipelines and not slo.workloads:
        raise InputError(Verbatim("missing: what the clients must keep; give limits (--slo ttft_p99=1s,tpot_p99=50ms)"),
                         field="slo")


def need_fixed_clients(fleets: Iterable[object]) -> None:
    """Raise `InputError` if the number of clients changes in a run. fleets: Value of `fleet` of each group."""
    for number, fleet in enumerate(fleets):
        if fleet is not None:
            raise InputError(Verbatim("its replicas come and go, and this command looks for what a fixed number "
                                      "serves; leave it out, or take `hermes size SCENARIO --scale --minutes 10`"),
                             field=f"clients.{number}.fleet")


def is_ended(row: Row) -> bool:
    """Whether a simulation was ended as it certainly missed its SLO (`hermes.explore.certain_miss`): its verdict is
    that of the whole run, its figures are those of a part."""
    return row.get("stopped.at_s") is not None


def grows(row: Row) -> bool:
    """Whether the queue grows in a simulation in which nothing changes: a longer one would only have more of it."""
    return row.get("headline.stable") is False and not row.get("headline.changes")


def settled(row: Row) -> bool:
    """Whether a simulation is long enough for a verdict: it settled, or misses its SLO however long it is."""
    return row.get("settling.settled") is not False or bool(row.get("settling.late_misses")) or grows(row)


def missed(row: Row) -> str | None:
    """Return what a simulation misses, in a few words, or None if it meets its SLO. row: Its flat figures.

    A simulation that has not settled (`hermes.results.figures.settling`) never meets its SLO.
    """
    if is_ended(row):
        at, limit_s, at_s = limit_name(row["stopped.metric"], row["stopped.percentile"]), *(
            format_s(row[f"stopped.{name}_s"]) for name in ("limit", "at"))
        return f"{at} beyond {limit_s}, {row['stopped.late']:,} of {row['stopped.of']:,} late after {at_s}"
    if row.get("requests.unfinished"):
        return f"{row['requests.unfinished']:,} requests unfinished at the horizon"
    if grows(row):
        return "the queue grows"
    verdict = row.get("slo.pass")
    if verdict is None:
        return "no request was completed"
    if verdict and row.get("settling.settled") is False:
        return f"did not settle: {row['settling.why']}"
    if verdict and row.get("settling.late_misses"):
        return "the SLO in the steady state, after the warm-up"
    if verdict:
        return None
    return "; ".join([*filter(None, [", ".join(_limits_missed(row))]), *own_missed(row)])


def own_missed(row: Row) -> list[str]:
    """Return what pipelines and workloads with limits of their own miss, and by how much."""
    tables: dict[str, dict[str, Any]] = {}
    for key in row:
        if key.startswith("slo_of.") and key.endswith(".limit_s"):   # a name of a workload may hold dots
            path = key.removesuffix(".limit_s")
            group, _, name = path.removeprefix("slo_of.").rpartition(".")
            tables.setdefault(group, {})[name] = {
                field: row.get(f"{path}.{field}") for field in ("limit_s", "value_s", "percentile", "pass")}
    return own_limits_missed(tables)


def _limits_missed(row: Row) -> list[str]:
    out = []
    for key, value in row.items():
        name = key.removeprefix("slo.").removesuffix(".pass")
        if value is False and key == f"slo.{name}.pass":
            seconds = row.get(f"slo.{name}.value_s")
            at = limit_name(name, row.get(f"slo.{name}.percentile", _USUAL))
            out.append(f"{at} {'rejected' if seconds is None else format_s(seconds)}")
    return out


def limits_text(slo: SloConfig) -> str:
    """Return the limits of a scenario in words."""
    own = [f"pipeline {name}: {_own_text(slo.of(name, ''))}" for name in slo.pipelines]
    own += [f"workload {name}: {_own_text(slo.of('', name))}" for name in slo.workloads]
    return "; ".join(filter(None, [_own_text(slo), *own]))


def _own_text(slo: SloConfig) -> str:
    parts = [f"{limit_name(name, slo.percentile)} <= {format_s(limit)}"
             for name in METRICS if (limit := getattr(slo, name)) is not None]
    parts += [f"{LATENCIES[name]} {percentile} <= {format_s(limit)}"
              for name in ("ttft", "tpot") for percentile, limit in slo.slowdowns(name).items()]
    return ", ".join(parts)


def binds_text(row: Row) -> str:
    """Return what binds in a simulation, in words."""
    what, where = row.get("binds.what"), row.get("binds.where")
    return f"{what} of {where}" if where else str(what)


def nearest_to_limit(row: Row) -> tuple[str, float] | None:
    """Return the latency nearest to its limit, and its share of the limit; None without limits of latency."""
    shares = [(row[key] / row[key.replace("value_s", "limit_s")], key.split(".")[1]) for key in row
              if key.startswith("slo.") and key.endswith(".value_s") and row[key] is not None]
    if not shares:
        return None
    share, name = max(shares)
    metric, _, percentile = name.partition("_")
    return f"{LATENCIES[metric]} {percentile}".strip(), share
