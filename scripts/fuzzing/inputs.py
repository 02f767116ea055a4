"""Valid scenarios and profiles as starting points of mutations; together they use most keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hermes.config.data_files import resource_dir
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.fitted.profile import load_profile
from hermes.hardware.fitted.table import load_table
from hermes.workload.profiles import load_workload_profile

__all__ = ["SCENARIOS", "SWEEP", "ProfileInput", "profile_inputs"]

SWEEP = b"""\
name: loads
description: two ways of batching
scenario: quickstart
cases:
  - {label: chunked}
  - {label: static, set: {clients.0.scheduler: {kind: static, max_num_seqs: 4}}}
zip: {clients.0.count: [1, 2], workload.arrivals.rate: [3, 6 /s]}
grid: {workload.requests: [20], workload.lengths: [{kind: fixed, prompt: 30, output: 3}]}
seeds: [3, 5]
columns: {clients.0.count: clients}
keep: summary
"""

SCENARIOS = [b"""\
name: plain
seed: 7
stepping: runs
horizon: 3 min
workload:
  requests: 20
  arrivals: {kind: poisson, rate: 4 /s}
  lengths: {kind: fixed, prompt: 200, output: 20}
clients:
  - count: 2
    hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8, scale: 1.5}
    memory: {num_blocks: 1000, block_size: 32, prefix_caching: true}
    scheduler: {kind: chunked, max_num_seqs: 32, max_num_batched_tokens: 512, policy: priority}
router: {kind: least_loaded, load: tokens_left}
slo: {ttft: 500 ms, tpot: 0.05}
""", b"""\
name: disaggregated
workload:
  - name: chat
    requests: 12
    start: 1 s
    arrivals: {kind: mmpp, rates: [1 /s, 10 /s], dwells: [20 s, 5 s]}
    lengths: {kind: empirical, profile: azure-conv-2023}
    max_total_tokens: 4096
    priorities: {values: [0, 1], weights: [3, 1]}
    prefixes: {groups: 3, tokens: 64, fraction: 0.5}
    sessions: {count: 5}
  - name: code
    requests: 9
    arrivals: {kind: gamma, rate: 2 /s, cv: 2.5}
    lengths:
      kind: independent
      prompt: {kind: lognormal, median: 800, sigma: 0.7, max: 4000}
      output: {kind: uniform, min: 5, max: 50}
clients:
  - name: prefill
    count: 2
    model: llama-3.1-8b
    role: prefill
    platform: rack0
    devices: 1
    hardware: {kind: roofline, model: llama-3.1-8b, device: h100-sxm, tp: 1, dtype: bf16, step_overhead: 200 us}
    memory: {capacity: 80 GB, utilization: 0.85, activations: 2 GiB}
    power: {idle: 100, prefill: 600, decode: 400.5}
  - name: decode
    model: llama-3.1-8b
    role: decode
    hardware: {kind: roofline, model: llama-3.1-8b, device: h100-sxm}
    memory: {capacity: 80 GB}
router: {kind: power_of_two, load: kv_tokens}
network: {kind: link, bandwidth: 32 GB/s, latency: 20 us}
kv_transfer: layerwise
slo:
  baseline_ttft: 250 ms
  ttft_slowdown: {p50: 2.0, p90: 3.0, p99: 6.0}
""", b"""\
name: closed
description: users who think
seed: 99
stepping: every_step
workload:
  requests: 15
  arrivals: {kind: closed_loop, users: 4, think: 2 s, think_distribution: exponential}
  lengths:
    kind: independent
    prompt: {kind: normal, mean: 300, std: 40.5, min: 10}
    output: {kind: fixed, tokens: 16}
clients:
  - {name: one, hardware: {kind: table, profile: splitwise-2023-llama-2-70b-h100-tp8, mixed_factor: 1.2},
     memory: {num_blocks: 4000}, scheduler: {kind: chunked, long_prefill_token_threshold: 256, watermark: 0.01}}
router: {kind: heavy_light, threshold: 250, heavy_share: 0.25}
network:
  kind: topology
  nodes: [switch]
  attach: {one: {to: switch, bandwidth: 400 Gbit/s, latency: 1 us, duplex: half}}
"""]

USER = """\
workload: {{requests: 3, arrivals: {{kind: at_once}}, lengths: {lengths}}}
clients:
  - {{hardware: {hardware}, memory: {{{memory}}}, model: {model}}}
"""
DEFAULTS = {
    "lengths": "{kind: fixed, prompt: 10, output: 2}", "memory": "num_blocks: 1000", "model": "''",
    "hardware": "{kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}",
}


@dataclass(frozen=True)
class ProfileInput:
    """A kind of file that scenarios refer to; uses: the parts of a scenario that refer to FILE."""

    name: str
    file: Path
    load: Callable[[Path], Any]
    uses: dict[str, str]

    @property
    def text(self) -> bytes:
        return self.file.read_bytes()

    def scenario(self, file_name: str) -> str:
        return USER.format_map(DEFAULTS | {key: value.replace("FILE", file_name) for key, value in self.uses.items()})


@cache
def profile_inputs() -> list[ProfileInput]:
    hardware, workloads = resource_dir("hw_profiles"), resource_dir("traces")
    return [
        ProfileInput("polynomial", hardware / "splitwise-2023-llama-2-70b-h100-tp8.yaml", load_profile,
                     {"hardware": "{kind: polynomial, profile: FILE}"}),
        ProfileInput("table", hardware / "tables" / "splitwise-2023-llama-2-70b-h100-tp8.yaml", load_table,
                     {"hardware": "{kind: table, profile: FILE}"}),
        ProfileInput("model", hardware / "models" / "llama-3.1-8b.yaml", load_model,
                     {"model": "FILE", "memory": "capacity: 800 GB"}),
        ProfileInput("device", hardware / "devices" / "h100-sxm.yaml", load_device,
                     {"hardware": "{kind: roofline, model: llama-3.1-8b, device: FILE}"}),
        ProfileInput("lengths", workloads / "azure-code-2023.yaml", load_workload_profile,
                     {"lengths": "{kind: empirical, profile: FILE}"}),
    ]
