"""Sweeps and searches on a Ray cluster of three nodes on this machine: `make test-ray`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes.errors import InputError
from hermes.explore import open_sweep, run_sweep
from hermes.explore.executors import make_executor
from hermes.explore.sweep.executor import Executor
from hermes.testing.executors import ExecutorContract

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray", reason="needs the package ray: pip install 'hermes-sim[ray]'")
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}

SWEEP: dict[str, Any] = {
    "name": "cluster", "seeds": 3,
    "scenario": {
        "workload": {"requests": 1500, "arrivals": {"kind": "poisson", "rate": 20},
                     "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": {"kind": "chunked"}}]},
    "grid": {"workload.arrivals.rate": [5, 10, 20, 30], "clients.0.count": [1, 2, 3]},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    for _ in range(2):
        made.add_node(**NODE)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


class TestOnRay(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Any) -> None:
        self.address = cluster.address

    def make(self) -> Executor:
        return make_executor("ray", 0, address=self.address)


def test_a_node_dies_midway(cluster: Any, tmp_path: Path) -> None:
    run_sweep(SWEEP, tmp_path / "here", workers=2)
    before = len(ray.nodes()) if ray.is_initialized() else 0
    died: list[int] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "run" and done == total // 3 and not died:
            died.append(done)
            victim = cluster.add_node(**NODE) if len(cluster.worker_nodes) < 2 else sorted(
                cluster.worker_nodes, key=str)[0]
            threading.Thread(target=cluster.remove_node, args=(victim, False), daemon=True).start()

    with closing(make_executor("ray", 0, address=cluster.address)) as executor:
        run_sweep(SWEEP, tmp_path / "there", executor=executor, progress=progress)
    assert died
    assert before >= 0
    same = [(tmp_path / place / "results.parquet").read_bytes() for place in ("here", "there")]
    assert same[0] == same[1]
    assert not open_sweep(tmp_path / "there").failed()
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()


def killed_once(call: list[str], folder: Path, after_s: float) -> None:
    """Start a command, kill it when its folder holds results, and repeat it to the end."""
    driver = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(folder.rglob("sweep.sqlite")) and time.monotonic() < until and driver.poll() is None:
        time.sleep(0.05)
    time.sleep(after_s)
    assert driver.poll() is None, "it ended before it was killed"
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    subprocess.run(call, check=True, timeout=300, capture_output=True)


def test_a_killed_sweep_goes_on(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    run_sweep(path, tmp_path / "here", workers=2)
    folder = tmp_path / "there"
    killed_once([sys.executable, "-m", "hermes", "sweep", str(path), "-o", str(folder), "-q", "--executor", "ray",
                 "--address", cluster.address], folder, 4.0)
    assert (folder / "results.parquet").read_bytes() == (tmp_path / "here" / "results.parquet").read_bytes()


def test_a_killed_search_goes_on(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump({
        "scenario": SWEEP["scenario"], "trials": 24, "batch": 6,
        "space": {"clients.0.count": {"min": 1, "max": 6, "integer": True},
                  "clients.0.scheduler.max_num_seqs": {"min": 8, "max": 256, "integer": True, "log": True}},
        "objectives": {"latency.ttft_s.p99": "minimize", "cost.dollars_per_hour": "minimize"}}))
    call = [sys.executable, "-m", "hermes", "optimize", str(path), "-o"]
    subprocess.run([*call, str(tmp_path / "here")], check=True, capture_output=True, timeout=300)
    folder = tmp_path / "there"
    killed_once([*call, str(folder), "--executor", "ray", "--address", cluster.address], folder, 5.0)
    for name in ("front.json", "simulations/results.parquet"):
        assert (folder / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name


def test_no_cluster_at_the_address() -> None:
    if ray.is_initialized():
        pytest.skip("this process is in a cluster already")
    with pytest.raises(InputError, match="address of a Ray cluster"):
        make_executor("ray", 0, address="nowhere")
