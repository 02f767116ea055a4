"""Links: what a plan holds, what a fit finds in known times, and a small real measurement."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.calibration.journal import Journal
from hermes.calibration.link import fit_links, link_file, load_link, network_lines, save_link
from hermes.calibration.link_plan import link_plan
from hermes.calibration.measurements import MEASUREMENTS
from hermes.calibration.measurements.files import load_measurement
from hermes.calibration.plan import save_plan
from hermes.cli import main
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.network.components import Link

MIB = 2**20


def journal_of(plan, seconds):
    """Records as a collector would write them, `seconds(point)` long."""
    return [
        {"kind": "point", "point": p["name"], "rows": [{"repetition": n, "time_s": seconds(p)} for n in range(3)]}
        for p in plan.points
    ]


def pieces(point):
    return -(-point["bytes"] // point.get("block_bytes", point["bytes"]))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12))
def test_fit_finds_latency_and_bandwidth_of_exact_times(latency, bandwidth):
    plan = link_plan("cuda", Path(), largest=2**28, streams=(1, 4))
    links, unfit = fit_links(plan, journal_of(plan, lambda p: latency * pieces(p) + p["bytes"] / bandwidth))
    assert not unfit
    # device paths twice each, memory and disk with one and with four threads
    assert len(links) == 4 + 4 + 2
    for link in links:
        assert link.mape < 1e-6
        if link.streams == 1:  # one size's latency is otherwise lost in the rounding of the larger sizes' times
            assert link.bandwidth == pytest.approx(bandwidth, rel=1e-3)
            assert link.latency == pytest.approx(latency, rel=1e-3)


def test_errors_stand_beside_every_size():
    plan = link_plan("cpu", None, largest=16 * MIB)
    bent = 64 * 2**10
    seconds = lambda p: (1e-6 + p["bytes"] / 1e10) * (1.5 if p["bytes"] == bent else 1.0)  # noqa: E731
    links, _ = fit_links(plan, journal_of(plan, seconds))
    for link in links:
        errors = {size.bytes: size.error for size in link.sizes}
        assert min(errors, key=errors.get) == bent
        assert link.worst == pytest.approx(max(abs(e) for e in errors.values()))
        held_out = next(size.held_out for size in link.sizes if size.bytes == bent)
        assert held_out == pytest.approx(1 / 1.5 - 1, abs=0.01)  # the others are exact


def test_of_several_attempts_the_steadiest_counts():
    plan = link_plan("cpu", None, largest=4 * MIB)
    records = journal_of(plan, lambda p: 1e-6 + p["bytes"] / 1e10)
    noisy = [record | {"rows": [{"time_s": t} for t in (1e-3, 5e-3, 9e-3)]} for record in records]
    assert fit_links(plan, noisy + records) == fit_links(plan, records + noisy) == fit_links(plan, records)


def test_sizes_that_waited_for_a_core_are_shown_and_not_fitted():
    plan = link_plan("cpu", None, largest=64 * MIB)
    seconds = lambda p: 1e-6 + p["bytes"] / 1e10  # noqa: E731
    records = journal_of(plan, lambda p: seconds(p) * (5 if p["bytes"] >= 16 * MIB else 1))
    for record in records:
        if record["rows"][0]["time_s"] > 16 * MIB / 1e10:
            record["rows"] = [row | {"waited_s": 0.8 * row["time_s"]} for row in record["rows"]]
    for link in fit_links(plan, records)[0]:
        assert link.bandwidth == pytest.approx(1e10)
        assert link.mape < 1e-6
        assert [size.noise for size in link.sizes if size.bytes >= 16 * MIB] == ["contended"] * 2
        assert {round(size.error, 3) for size in link.sizes if size.bytes >= 16 * MIB} == {-0.8}


def test_a_path_that_tells_nothing_is_left_out_and_named():
    plan = link_plan("cpu", None, largest=4 * MIB)
    flat = journal_of(plan, lambda p: 1e-3 if p["path"] == "memory_copy" else 1e-6 + p["bytes"] / 1e10)
    links, unfit = fit_links(plan, flat)
    assert [link.path for link in links] == ["memory_read"]
    assert unfit[0].startswith("memory_copy")
    with pytest.raises(InputError, match="at least one path"):
        fit_links(plan, [])


def test_a_file_says_how_a_scenario_uses_it(tmp_path):
    plan = link_plan("cpu", None, largest=64 * MIB)
    path = tmp_path / "j.jsonl"
    with Journal(path, plan.model_dump(mode="json"), {"cpu": "a CPU"}) as journal:
        for record in journal_of(plan, lambda p: 2e-6 + p["bytes"] / 1.25e10):
            journal.point(record["point"], record["rows"])
    links = link_file(path, "mine", "hermes calibrate link")
    save_link(links, tmp_path / "mine.yaml")
    loaded = load_link(tmp_path / "mine.yaml")
    copy = loaded.find("memory_copy")
    assert copy.bandwidth == pytest.approx(1.25e10)
    assert "network:" in (tmp_path / "mine.yaml").read_text().split("format:")[0]
    with pytest.raises(InputError, match="memory_copy"):
        loaded.find("host_to_device", "pinned")

    text = "\n".join(network_lines(copy))
    network = validate(Link, parse_yaml(text).child("network"))
    built = network.build(None, ["a", "b"])
    for size in (4096, MIB, 2**30):
        assert built.estimate_ns("a", "b", size) / 1e9 == pytest.approx(copy.seconds(size), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"smallest": 1000}, "smallest"), ({"smallest": 8192, "largest": 4096}, "smallest"),
        ({"block_bytes": 100}, "block"), ({"repetitions": 1}, "repetitions"), ({"streams": (0,)}, "streams"),
        ({"memory": False}, "paths"),
    ],
)
def test_a_plan_that_cannot_be(options, field):
    with pytest.raises(InputError, match=field):
        link_plan("cpu", None, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "paths=[dsk]"], "paths.0: expected 'device', 'memory' or 'disk'"),
        (["--set", "device=tpu"], "--set device=tpu: device: expected text that matches"),
        (["--set", "paths=[device]"], "device: cuda"),
        (["--set", "largest=1 GiBs"], "largest"), (["--set", "larges=1 GiB"], "did you mean 'largest'"),
        (["--set", "disk_dir=/nowhere/at/all"], "an existing folder"),
        (["-o", "links.txt", "--set", "largest=8192"], ".yaml"), (["--set", "streams=[0]"], "streams.0"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text("measure: link\ndevice: cpu\n")
    assert main(["calibrate", "run", "plan.yaml", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "message"), [
    ("measure: link\ndevice: tpu\n", "plan.yaml:2:9: device: expected text that matches"),
    ("measure: link\nlargest: [1]\n", "plan.yaml:2:10: largest"), ("measure: lnk\n", "did you mean 'link'"),
    ("device: cpu\n", "plan.yaml:1:1: measure: expected one of ivf, link, llm"),
    ("- 3\n", "plan.yaml:1:1: expected a mapping"),
    ("measure: validation\n", "expected one of ivf, link, llm"), ("measure: [link\n", "valid YAML"),
])
def test_mistakes_in_a_plan_file_name_the_line(text, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(text)
    assert main(["calibrate", "run", "plan.yaml", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("what", list(MEASUREMENTS))
def test_a_plan_that_was_written_is_read_back(what, capsys, tmp_path):
    path = tmp_path / "p.yaml"
    named = what in ("llm", "terms")
    sets = ["--set", "model=llama-3.1-8b"] if named else ["--set", "seed=3"] if what != "link" else []
    assert main(["calibrate", "plan", what, "-o", str(path), *sets]) == 0
    assert "next: hermes" in capsys.readouterr().out
    found = load_measurement(path)
    assert found.measure == what
    docs = path.read_text().count("#")
    assert docs > 3    # it says what its keys mean
    if named:
        assert main(["calibrate", "plan", what, "-o", str(path)]) == 2
        assert "model: expected a value (required)" in capsys.readouterr().err
    else:
        assert found == load_measurement(path, sets[1::2])


def test_dry_run_measures_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "plan", "link"]) == 0
    capsys.readouterr()
    assert main(["calibrate", "run", "plan.yaml", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["host_memory_bytes"] == 2 * 2**30
    assert {point["bytes"] for point in said["points"]} >= {4096, 2**30}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


@pytest.mark.long
def test_measured_here(tmp_path, capsys):
    """Small sizes, really measured; started again it continues (there is nothing left), with the same result."""
    plan = tmp_path / "plan.yaml"
    assert main(["calibrate", "plan", "link", "-o", str(plan), "--set", "largest=1 MiB", "--set", "repetitions=3",
                 "--set", "disk_dir=."]) == 0
    command = ["calibrate", "run", str(plan), "-q"]
    assert main(command) == 0
    capsys.readouterr()
    first = (tmp_path / "links.yaml").read_text()
    found = load_link(tmp_path / "links.yaml")
    for link in found.links:
        assert 1e6 < link.bandwidth < 1e13
        assert 0 <= link.latency < 0.1
    assert found.find("disk_read").seconds(2**20) > found.find("memory_read").seconds(2**20)
    assert {path.name for path in tmp_path.iterdir()} <= {
        "plan.yaml", "links.yaml", "links.plan.json", "links.journal.jsonl", "links.journal.jsonl.lock"
    }
    assert main(command) == 0
    assert (tmp_path / "links.yaml").read_text() == first


def test_a_killed_collector_leaves_no_file_and_no_torn_journal(tmp_path):
    plan = link_plan("cpu", tmp_path, largest=16 * MIB, repetitions=50, memory=False)
    save_plan(plan, tmp_path / "plan.json")
    command = [
        sys.executable, "-m", "hermes.calibration.collect.link", str(tmp_path / "plan.json"), str(tmp_path / "j.jsonl")]
    process = subprocess.Popen(command)
    while not (tmp_path / "j.jsonl").exists() or (tmp_path / "j.jsonl").read_text().count('"point"') < 3:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("hermes-link-*"))
    with Journal(tmp_path / "j.jsonl", plan.model_dump(mode="json"), {}) as journal:
        assert 2 <= len(journal.done) < len(plan.points)


def test_collector_needs_numpy_alone():
    """Its machine has no pydantic, yaml, scipy or pandas."""
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('pydantic', 'yaml', 'scipy', 'pandas', 'simpy', 'sklearn', 'torch'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import hermes.calibration.collect.link"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
