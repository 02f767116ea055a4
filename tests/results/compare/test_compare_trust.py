"""Comparing runs whose step times come from different sources."""

from typing import Any, NamedTuple

import pytest

from hermes.api import simulate
from hermes.results import Results
from hermes.results.compare import compare
from hermes.results.compare.trust import cannot_rank


class Row(NamedTuple):
    metric: str
    stat: str
    ours_s: float | None
    reference_s: float | None


def summary(kind: str, low: float, high: float, *sources: str) -> dict[str, Any]:
    parts = [{"source": source, "share": 1 / len(sources)} for source in sources]
    return {"sources": [{"group": "llm", "class": kind, "low": low, "high": high, "parts": parts}]}


ROWS = [Row("tpot", "p50", 1.0, 1.0), Row("tpot", "p99", 0.020, 0.030), Row("e2e", "p99", 1.0, 4.0),
        Row("ttft", "p99", None, 1.0)]
NAMES = ("a", "b")


@pytest.mark.feature("Scenarios and commands", (
    "`hermes compare` of runs whose step times come from different sources: cannot be ranked"))
def test_overlapping_ranges_of_different_sources_by_hand() -> None:
    """TPOT: 12 to 32 ms against 28.2 to 31.8. E2E: 0.6 to 1.6 s against 3.76 to 4.24."""
    guess, table = summary("guess", 0.6, 1.6, "roofline"), summary("measured", 0.94, 1.06, "tables")
    said = cannot_rank(ROWS, guess, table, NAMES)
    assert said.startswith("cannot be ranked on TPOT p99: step times come from different sources")
    assert said.endswith("(a guess, -40 to +60%; b measured, -6 to +6%)")
    assert "E2E" not in said
    narrow = summary("guess", 0.6, 1.4, "roofline")   # 28 ms at most
    assert cannot_rank(ROWS, narrow, table, NAMES) == ""


@pytest.mark.parametrize(("one", "other"), [
    (summary("guess", 0.6, 1.6, "roofline"), summary("guess", 0.6, 1.6, "roofline")),        # off alike
    (summary("near", 0.6, 1.6, "roofline"), summary("measured", 0.94, 1.06, "tables")),      # no guess
    (summary("guess", 0.6, 1.6, "roofline"), {}),                                            # stored without sources
])
def test_what_ranks_nevertheless(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert cannot_rank(ROWS, one, other, NAMES) == ""


def layout(parallel: dict[str, int], rate: float = 1.0) -> Results:
    return simulate({
        "seed": 1, "clients": [{"name": "llm", "model": "deepseek-v3", "device": "h200", "parallel": parallel}],
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 1000, "output": 100}}})


def test_tensor_parallelism_against_data_parallel_ranks() -> None:
    table = compare(layout({"tp": 8}), layout({"dp": 8, "ep": 8}))
    assert table.unranked.startswith("cannot be ranked on")
    assert table.unranked in table.sections()[0].note
    assert table.to_dict()["unranked"] == table.unranked
    assert compare(layout({"tp": 8}), layout({"tp": 8}, rate=2.0), allow_different_requests=True).unranked == ""
