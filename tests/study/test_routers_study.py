"""The study `routers`: hits by counting, idle replicas behind a queue, its traces and its routers."""

import csv
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from hermes import simulate
from hermes.core.request_table import RequestTable
from hermes.errors import InputError
from hermes.study import Point, load_study
from hermes.study.points import scenario_of

STUDY = load_study("routers")
report, bounds, figures, settings = (STUDY.module(name) for name in ("report", "bounds", "figures", "settings"))
S = 10**9


def table(chains, tokens, unit=16):
    """Requests with these chained hashes of `unit` tokens."""
    return RequestTable(arrival_ns=np.arange(len(chains)), prompt_tokens=np.array(tokens),
                        output_tokens=np.ones(len(chains), dtype=np.int64), hash_ids=chains, hash_block_tokens=unit)


def test_hits_at_random_by_hand():
    """Three prompts of one block and four tokens: on one replica the second and the third find it. On two the second
    with 1/2, the third with 3/4."""
    prompts = table([(1,), (1,), (1,)], [20, 20, 20])
    assert bounds.found_at_random(prompts, 1, 3) == pytest.approx(32 / 60)
    assert bounds.found_at_random(prompts, 2, 3) == pytest.approx(float(16 * Fraction(5, 4) / 60))


def test_a_prompt_ends_within_its_last_piece():
    """A piece of 512 tokens of which the prompt has 40 is two whole blocks of 16."""
    assert bounds.found_at_random(table([(7,), (7,)], [40, 40], 512), 1, 2) == pytest.approx(32 / 80)


def test_a_pool_forgets_what_was_used_longest_ago():
    """Room for two blocks: the third prompt throws out the first one's, so that the fourth finds nothing."""
    prompts = table([(1,), (2,), (3,), (1,), (1,)], [16] * 5)
    assert bounds.found_in_pool(prompts, 32, 5) == pytest.approx(1 / 5)
    assert bounds.found_in_pool(prompts, 48, 5) == pytest.approx(2 / 5)


def test_a_replica_idles_while_another_queues_by_hand():
    """Both requests go to the first of two replicas, which serves one at a time. The second waits from 0 to 3 s, long
    from 1 s on: for 2 of the 10 s until the last arrival the other replica is idle."""
    stages = {"client": np.array([0, 0, 1]), "assigned_ns": np.array([0, 0, 10 * S]),
              "start_ns": np.array([0, 3 * S, 10 * S]), "end_ns": np.array([3 * S, 4 * S, 11 * S])}
    record = SimpleNamespace(stages=stages, clients=(None, None), arrival_ns=np.array([0, 0, 10 * S]))
    assert figures.idle_while_queued(record) == pytest.approx(2 / 20)


def test_every_router_is_valid(tmp_path):
    context = STUDY.context(tmp_path)
    traces, _ = report.traces_of(context)
    for name, known in (settings.ROUTERS | settings.KNOWN | settings.LOADS).items():
        point = Point(name, report.settings_of(context, traces[-1], known.router))
        assert scenario_of(context, point, "replicas.yaml").router.kind == known.router["kind"]


def test_without_mooncake_the_study_says_so_and_takes_ragpulse(tmp_path):
    traces, said = report.traces_of(STUDY.context(tmp_path))
    assert [trace.name for trace in traces] == ["RAGPulse"]
    assert "hermes trace get mooncake-conversation" in said[0]
    with pytest.raises(InputError, match=r"mooncake-conversation\.parquet"):
        report.traces_of(STUDY.context(tmp_path, data=tmp_path))


def test_recorded_arrivals_keep_the_rate(tmp_path):
    context = STUDY.context(tmp_path, changes=["arrivals=recorded", "load=0.5", "replicas=4"])
    (trace,), _ = report.traces_of(context)
    assert report.settings_of(context, trace, {})["workload.arrivals"] == {
        "kind": "trace", "path": str(trace.path), "rate": "5 /s"}


@pytest.mark.long
def test_a_hot_prefix_at_one_replica_and_round_robin_by_counting(tmp_path):
    """709 of RAGPulse's 937 prompts begin alike. The trie alone sends them to one replica, and its peers idle; with
    loads they are spread. Round robin finds what counting says of replicas at random."""
    context = STUDY.context(tmp_path)
    (trace,), _ = report.traces_of(context)

    def found(name):
        changes = report.settings_of(context, trace, settings.ROUTERS[name].router)
        results = simulate(str(context.file("replicas.yaml")),
                           overrides=[f"{key}={value}" for key, value in changes.items() if key != "router"]
                           + [f"router={changes['router']}"])
        return figures.router_figures(results)

    hot, round_robin, kv = found(report.HOT), found(report.ROUND), found(report.KV)
    assert hot["top_share"] == pytest.approx(709 / 937, abs=0.01)
    assert hot["idle_queued"] > 0.5
    assert kv["top_share"] < 0.2
    assert kv["idle_queued"] < 0.01
    assert round_robin["hits"] == pytest.approx(bounds.found_at_random(trace.table, 8, 937), rel=0.01)


def test_no_two_routers_share_a_name():
    assert not set(settings.KNOWN) & set(settings.LOADS)


def test_the_page_has_the_figures_of_the_whole_run():
    """Each number of the page's table under "here" is one of paper.csv, rounded."""
    with (STUDY.folder / "paper.csv").open(encoding="utf-8", newline="") as file:
        known = [float(number) for row in csv.DictReader(file) for column in ("here", "interval")
                 for number in re.findall(r"\d+(?:\.\d+)?", row[column])]
    page = (STUDY.folder / "page.md").read_text(encoding="utf-8").splitlines()
    here = [line.split("|")[2] for line in page if line.startswith("|")][2:]
    numbers = [number for cell in here for number in re.findall(r"\d+(?:\.\d+)?", cell.replace("every 10 s", ""))]
    assert len(numbers) > 25
    for number in numbers:
        digits = len(number.partition(".")[2])
        assert any(round(one, digits) == float(number) for one in known), number
