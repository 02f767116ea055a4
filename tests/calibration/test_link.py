"""Links: what a plan holds, what a fit finds in known times, and a small real measurement."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.calibration.journal import Journal
from hermes.calibration.link import LinkFile, link_file, load_link, network_lines, of_tool, save_link
from hermes.calibration.measurements import MEASUREMENTS
from hermes.calibration.measurements.files import load_measurement
from hermes.calibration.measurements.link import Links
from hermes.calibration.plan import save_plan
from hermes.cli import main
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import Rates
from hermes.hardware.descriptions.links import load_interconnect
from hermes.network.components import Link

MIB = 2**20


def link_plan(tmp_path, **options):
    return Links(**options).plan(tmp_path)


def fitted(tmp_path, plan, seconds, **more):
    """The links of a journal as a collector would write it, `seconds(point)` long."""
    path = tmp_path / "j.jsonl"
    path.unlink(missing_ok=True)
    with Journal(path, plan.model_dump(mode="json"), {"cpu": "a CPU"}) as journal:
        for point in plan.points:
            rows = [{"repetition": n, "time_s": seconds(point)} for n in range(3)]
            journal.point(point["name"], [row | more.get(point["name"], {}) for row in rows])
    return link_file(path, "mine", "hermes calibrate run")


@pytest.mark.feature("Measuring and fitting", (
    "`hermes calibrate run` of links (`link`), searches (`retrieval`) and an index (`ivf`)"))
@settings(max_examples=10, deadline=None)
@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12))
def test_fit_finds_latency_and_bandwidth_of_exact_times(latency, bandwidth):
    with tempfile.TemporaryDirectory() as folder:
        plan = link_plan(Path(), device="cuda", largest=2**28)
        links = fitted(Path(folder), plan, lambda p: latency + p["bytes"] / bandwidth).links
    assert [(link.path, link.memory) for link in links] == [
        ("host_to_device", "pinned"), ("host_to_device", "pageable"), ("device_to_host", "pinned"),
        ("device_to_host", "pageable"), ("memory_copy", ""), ("disk_read", "")]
    for link in links:
        assert link.mape < 1e-6
        assert link.held_out_mape < 1e-6
        assert link.bandwidth == pytest.approx(bandwidth, rel=1e-3)
        assert link.latency == pytest.approx(latency, rel=1e-3)


def test_errors_stand_beside_every_size(tmp_path):
    plan, bent = link_plan(tmp_path, largest=16 * MIB), 64 * 2**10
    for link in fitted(tmp_path, plan, lambda p: (1e-6 + p["bytes"] / 1e10) * (1.5 if p["bytes"] == bent else 1)).links:
        errors = {size.bytes: size.error for size in link.sizes}
        assert min(errors, key=errors.get) == bent
        assert link.worst == pytest.approx(max(abs(e) for e in errors.values()))
        assert link.held_out_mape > link.mape


def test_of_several_attempts_the_steadiest_counts(tmp_path):
    plan = link_plan(tmp_path, largest=4 * MIB)
    once = fitted(tmp_path, plan, lambda p: 1e-6 + p["bytes"] / 1e10)
    with Journal(tmp_path / "j.jsonl", plan.model_dump(mode="json"), {"cpu": "a CPU"}) as journal:
        for point in plan.points:
            journal.point(point["name"], [{"time_s": t} for t in (1e-3, 5e-3, 9e-3)])
    assert link_file(tmp_path / "j.jsonl", "mine").links == once.links


def test_sizes_that_waited_for_a_core_are_shown_and_not_fitted(tmp_path):
    plan = link_plan(tmp_path, largest=64 * MIB)
    large = {p["name"]: {"waited_s": 1.0} for p in plan.points if p["bytes"] >= 16 * MIB}
    for link in fitted(tmp_path, plan, lambda p: (1e-6 + p["bytes"] / 1e10) * (5 if p["name"] in large else 1),
                       **large).links:
        assert link.bandwidth == pytest.approx(1e10)
        assert link.mape < 1e-6
        assert [size.noise for size in link.sizes if size.bytes >= 16 * MIB] == ["contended"] * 2
        assert {round(size.error, 3) for size in link.sizes if size.bytes >= 16 * MIB} == {-0.8}


def test_a_path_that_tells_nothing_is_left_out_and_named(tmp_path):
    plan = link_plan(tmp_path, largest=4 * MIB)
    found = fitted(tmp_path, plan, lambda p: 1e-3 if p["path"] == "memory_copy" else 1e-6 + p["bytes"] / 1e10)
    assert [link.path for link in found.links] == ["disk_read"]
    assert found.provenance.notes[0].startswith("memory_copy")
    with pytest.raises(InputError, match="at least one path"):
        fitted(tmp_path, plan, lambda p: 1e-3)


def test_a_file_says_how_a_scenario_uses_it(tmp_path):
    save_link(fitted(tmp_path, link_plan(tmp_path, largest=64 * MIB), lambda p: 2e-6 + p["bytes"] / 1.25e10),
              tmp_path / "mine.yaml")
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
    [({"smallest": 1000}, "smallest"), ({"smallest": 8192, "largest": 4096}, "smallest"),
     ({"repetitions": 1}, "repetitions"), ({"paths": ["device"]}, "device")],
)
def test_a_plan_that_cannot_be(options, field, tmp_path):
    with pytest.raises((InputError, ValueError), match=field):
        link_plan(tmp_path, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "paths=[dsk]"], "paths.0: expected 'device', 'memory' or 'disk'"),
        (["--set", "device=tpu"], "--set device=tpu: device: expected text that matches"),
        (["--set", "paths=[device]"], "device: cuda"),
        (["--set", "largest=1 GiBs"], "largest"), (["--set", "larges=1 GiB"], "did you mean 'largest'"),
        (["--set", "disk_dir=/nowhere/at/all"], "an existing folder"),
        (["-o", "links.txt", "--set", "largest=8192"], ".yaml"), (["--set", "streams=[1]"], "streams"),
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
    other = {"link": [], "start-up": ["--set", "models=[small.json]"]}
    sets = ["--set", "model=llama-3.1-8b"] if named else other.get(what, ["--set", "seed=3"])
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
    assert said["host_memory_bytes"] == 2 * 2**30 + 64 * MIB
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
    assert found.find("disk_read").seconds(2**20) > found.find("memory_copy").seconds(2**20)
    assert {path.name for path in tmp_path.iterdir()} <= {
        "plan.yaml", "links.yaml", "links.plan.json", "links.journal.jsonl", "links.journal.jsonl.lock"
    }
    assert main(command) == 0
    assert (tmp_path / "links.yaml").read_text() == first


def test_a_killed_collector_leaves_no_file_and_no_torn_journal(tmp_path):
    plan = link_plan(tmp_path, largest=16 * MIB, repetitions=50, paths=["disk"], disk_dir=".")
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


# -- other tools, in the formats of nvbandwidth 0.8, fio 3.36 and nccl-tests 2.13 --------------------------------------

NVBANDWIDTH = {"nvbandwidth": {
    "CUDA Runtime Version": 12080, "Driver Version": "570.86.15", "GPU Device list": ["0: NVIDIA H100 80GB HBM3 (a)"],
    "git_version": "v0.8", "version": "v0.8", "testcases": [
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "sum": 110.6,
         "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
         "bandwidth_matrix": [["55.1", "55.5"]]},
        {"name": "device_to_host_memcpy_ce", "status": "Passed", "sum": 53.0,
         "bandwidth_description": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
         "bandwidth_matrix": [["N/A", "53"]]},
        {"name": "device_to_device_memcpy_read_ce", "status": "Waived"}]}}


def fio_job(size, seconds, **options):
    return {"jobname": f"read{size}", "error": 0, "job options": {"rw": "randread", "bs": str(size), **options},
            "read": {"io_bytes": 1000 * size, "total_ios": 1000, "bw_bytes": int(size / seconds),
                     "lat_ns": {"min": 1, "max": 2, "mean": seconds * 1e9, "stddev": seconds * 1e8, "N": 1000}},
            "write": {"io_bytes": 0, "total_ios": 0}}


def fio(*jobs):
    return {"fio version": "fio-3.36", "timestamp": 1, "global options": {"direct": "1", "iodepth": "1"},
            "jobs": list(jobs)}


def nccl(ranks, *rows):
    head = ["# Collective test starting: all_reduce_perf",
            f"# nThread 1 nGpus {ranks} minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 graph: 0",
            "#", "# Using devices",
            *(f"#  Rank  {n} Group  0 Pid 1 on host device  {n} [0000:00:00] NVIDIA H100" for n in range(ranks)), "#",
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw"
            "   busbw #wrong",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"]
    body = []
    for size, us in rows:
        rate, bus = size / us / 1e3, size / us / 1e3 * 2 * (ranks - 1) / ranks
        body.append(f"{size:12} {size // 4:13} float sum -1 {us:8.2f} {rate:7.2f} {bus:7.2f} 0 {us:8.2f} {rate:7.2f}"
                    f" {bus:7.2f} 0")
    return "\n".join([*head, *body, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#", ""])


def packed(tmp_path, content, capsys):
    path = tmp_path / "out.txt"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    code = main(["calibrate", "pack", str(path), "-o", str(tmp_path / "links.yaml")])
    return code, *capsys.readouterr()


def test_nvbandwidth_gives_bandwidths_and_no_latency(tmp_path, capsys):
    code, out, _ = packed(tmp_path, NVBANDWIDTH, capsys)
    assert code == 0
    assert "no latency" in out
    found = load_link(tmp_path / "links.yaml")
    assert [(link.path, link.memory, link.latency, link.bandwidth) for link in found.links] == [
        ("host_to_device", "pinned", None, 55.3e9), ("device_to_host", "pinned", None, 53e9)]
    assert "H100" in found.provenance.device
    assert "latency: 0 s   # not measured" in (tmp_path / "links.yaml").read_text()


def test_fio_gives_latency_and_bandwidth_of_reads(tmp_path, capsys):
    sizes = (4096, 65536, 2**20)
    assert packed(tmp_path, fio(*(fio_job(size, 8e-5 + size / 2e9) for size in sizes)), capsys)[0] == 0
    link = load_link(tmp_path / "links.yaml").find("disk_read")
    assert (link.latency, link.bandwidth) == (pytest.approx(8e-5), pytest.approx(2e9))
    assert [(size.bytes, size.cv) for size in link.sizes] == [(size, pytest.approx(0.1)) for size in sizes]


def test_nccl_tests_give_a_link_between_devices(tmp_path, capsys):
    rows = [(size, 10 + size / 1e5) for size in (1024, 2**20, 2**27)]
    assert packed(tmp_path, nccl(2, *rows) + nccl(4, *rows), capsys)[0] == 0
    link = load_interconnect(tmp_path / "links.yaml")
    assert [(times.ranks, times.bytes) for times in link.measured] == [(2, [1024, 2**20, 2**27]),
                                                                       (4, [1024, 2**20, 2**27])]
    sizes, ns = link.all_reduce(4, Rates())
    assert ns[sizes == 2**20] == pytest.approx((10 + 2**20 / 1e5) * 1e3, rel=1e-3)
    assert isinstance(of_tool(tmp_path / "out.txt", "x", ""), type(link))
    assert not isinstance(link, LinkFile)


@pytest.mark.parametrize(("content", "message"), [
    (fio(fio_job(4096, 1e-4, iodepth="32"), fio_job(8192, 2e-4)), "jobs.0.job options.iodepth: expected iodepth of 1"),
    (fio(fio_job(4096, 1e-4)), "two block sizes"), ({"fio version": "fio-3.36"}, "jobs: expected a value"),
    (fio({"jobname": "x", "read": {"total_ios": 3, "io_bytes": "x"}}), "jobs.0.read.io_bytes: expected a number"),
    ({"nvbandwidth": {"testcases": [{"name": "x", "status": "Passed"}]}}, "a test that passed"),
    ({"nvbandwidth": {"testcases": [NVBANDWIDTH["nvbandwidth"]["testcases"][0] | {"bandwidth_matrix": [["-1"]]}]}},
     "bandwidth_matrix.0.0: expected a number above 0"),
    ({"nvbandwidth": []}, "nvbandwidth.testcases"), ({"nvbandwidth": {"testcases": 3}}, "testcases"),
    (nccl(1, (1024, 10), (2**20, 20)), "two devices or more"), (nccl(2, (1024, 10.0)), "at least two sizes"),
    (nccl(2, (2**20, 9.0), (2**21, 10)).replace("sum -1", "sum 0"), "an all-reduce"),
    (nccl(4, (2**20, 9.0), (2**21, 10)).replace("nThread", "").replace("Rank  3", "3"), "an all-reduce"),
    (nccl(2, (2**20, 9.0), (2**21, 10)).replace(" 0 ", " 7 "), "#wrong"),
    ("nothing known\n", "valid JSON"),
])
def test_output_of_tools_that_cannot_be_used(content, message, tmp_path, capsys):
    code, out, err = packed(tmp_path, content, capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert "out.txt" in err or "--link" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "links.yaml").exists()
