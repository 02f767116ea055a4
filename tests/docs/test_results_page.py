"""docs/reference/results.md names every column of every table and every key of the summary, and nothing else."""

import re
from pathlib import Path

import pytest

from hermes.api import simulate
from hermes.results.files.frames import TABLES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([^`]+)`")
STATISTIC = {"count", "mean", "p50", "p90", "p95", "p99", "min", "max"}


def section(title: str) -> str:
    return re.split(r"\n##+ ", PAGE.split(f"\n{title}\n", 1)[1], maxsplit=1)[0]


def first_cells(text: str) -> list[str]:
    return [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| `")]


@pytest.fixture(scope="module")
def results():
    hardware = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}
    client = {"model": "llama-3.1-8b", "hardware": hardware, "memory": {"num_blocks": 100},
              "power": {"idle": 100, "prefill": 500, "decode": 300}}
    return simulate({
        "workload": {
            "requests": 20, "arrivals": {"kind": "at_once"},
            "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 10, "max": 2000},
                        "output": {"kind": "fixed", "tokens": 8}},
        },
        "clients": [{"name": "prefill", "role": "prefill", **client}, {"name": "decode", "role": "decode", **client}],
    })


@pytest.mark.feature("Results, sweeps, studies", "Every column and key is documented")
@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_described(results, table):
    described = [name for cell in first_cells(section(f"### {table}")) for name in NAME.findall(cell)]
    assert sorted(described) == sorted(results.columns(table))


def names_in(data):
    for key, value in data.items():
        yield key
        if isinstance(value, dict) and not value.keys() >= STATISTIC:
            yield from names_in(value)


def test_every_key_of_the_summary_is_described(results):
    text = section("## Summary")
    assert [NAME.findall(cell)[0] for cell in first_cells(text)] == list(results.summary)
    known = set(NAME.findall(text)) | set(NAME.findall(section("### clients"))) | {"ttft_p90", "ttft_p99", "tpot_p50",
                                                                                   "tpot_p90"}
    used = set()
    for key, value in results.summary.items():
        if key == "stages":
            used |= {name for statistics in value.values() for name in statistics}
        elif key == "clients":
            used |= {name for client in value.values() for name in client}
        elif key == "binds":
            used |= set(value) | {name for group in value["groups"].values() for name in group}
        elif isinstance(value, dict):
            value = value | ({"reject_reasons": {}} if key == "requests" else {})
            used |= set(names_in(value))
    assert results.summary["requests"]["rejected"]
    kinds = set(results.record.stage_kinds)
    assert used - known - kinds - {"ttft_s", "tpot_s", "e2e_s"} == set()
