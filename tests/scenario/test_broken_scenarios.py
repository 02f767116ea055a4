"""Mistakes that people make in scenarios: one line with place and field, what is wrong and what to do; exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.cli import main

GOOD = """clients:
  - kind: llm
    model: llama-3.1-8b
    hardware: {kind: composed, device: h100-sxm}
workload:
  arrivals: {kind: poisson, rate: 1 /s}
  lengths: {kind: fixed, prompt: 500, output: 100}
  requests: 100
slo: {ttft: 1 s}
"""


@pytest.mark.parametrize(("old", "new", "place", "said"), [
    ("slo:", "patience: {total: 3 s}\nslo:", "9:1: patience", "(did you mean 'workload.patience'?)"),
    ("kind: fixed, ", "", "7:12: workload.lengths.kind",
     "missing; with these keys it is fixed or independent (all kinds: conversations, empirical, "),
    ("h100-sxm}", "h100-sxm, step: {hots: 1 ms}}", "4:57: clients.0.hardware.step.hots", "(did you mean 'host'?)"),
    ("h100-sxm}", "h100-sxm, step: 3 ms}", "4:56: clients.0.hardware.step",
     "expected a mapping with keys of exposed, exposed_per_seq, uncaptured, host, "),
    ("    hardware", "    step: {host: 1 ms}\n    hardware", "4:5: clients.0.step",
     "(did you mean 'clients.0.hardware.step'?)"),
    ("    hardware", "    max_num_seqs: 8\n    hardware", "4:5: clients.0.max_num_seqs",
     "(did you mean 'clients.0.scheduler.max_num_seqs'?)"),
    ("    hardware", "    tp: 2\n    hardware", "4:5: clients.0.tp", "(did you mean 'clients.0.parallel.tp'?)"),
    ("    hardware", "    parallel: 4\n    hardware", "4:15: clients.0.parallel",
     "expected a mapping with keys of tp, pp, dp, ep, found 4"),
    ("    hardware", "    scheduler: chunked\n    hardware", "4:16: clients.0.scheduler",
     "(did you mean '{kind: chunked}'?)"),
    ("    hardware", "    count: 2P\n    hardware", "4:12: clients.0.count",
     "expected a number of clients, or of those that prefill and decode, such as 2P4D, found '2P'"),
    ("    hardware", "    memory: {capacity: 16.5 GB}\n    hardware", "4:24: clients.0.memory.capacity",
     "the weights (16.1 GB) do not fit in 15.2 GB (gpu_memory_utilization 0.92 of 16.5 GB): 880.5 MB are missing; "),
    ("poisson, rate: 1 /s}", "poisson}\n  rate: 3 /s", "7:3: workload.rate",
     "(did you mean 'workload.arrivals.rate'?)"),
    ("poisson, rate: 1 /s", "closed_loop, clients: 8", "6:33: workload.arrivals.clients",     # the scenario has clients
     "expected one of the keys users, kind, think, think_distribution, found 'clients'\n"),
    ("{kind: poisson, rate: 1 /s}", "poisson", "6:13: workload.arrivals", "(did you mean '{kind: poisson}'?)"),
    ("{kind: fixed, prompt: 500, output: 100}", "{kind: trace, path: no.csv}", "7:32: workload.lengths.path",
     "no such file: "),
    ("    model: llama-3.1-8b\n", "", "2:5: clients.0.model", "missing: name a `model`"),
    ("hardware: {kind: composed, device: h100-sxm}",
     "hardware: {kind: roofline, device: h100-sxm, efficiency: {experts: {compute: x}}}",
     "4:82: clients.0.hardware.efficiency.experts.compute", "expected a number, found 'x'"),   # a name, or a mapping
    ("h100-sxm}\nworkload:", "h100-sxm}\n    role: prefill\n  - {name: b, model: qwen3-14b, device: h100-sxm}\n"
     "workload:\n  model: llama-3.1-8b", "2:3: clients",
     "expected a client that serves stage 'decode' of model 'llama-3.1-8b'"),
    ("slo:", "router: round-robin\nslo:", "9:9: router", "(did you mean '{kind: round_robin}'?)"),
])
def test_a_mistake_is_one_line(old: str, new: str, place: str, said: str, tmp_path: Path,
                               capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1))
    assert main(["validate", str(file)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith(f"hermes: {file}:{place}: ")
    assert said in line
