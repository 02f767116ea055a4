"""A small scenario to vary, as data and as a file."""

import copy

import pytest

SMALL = """\
name: small
seed: 7
workload:
  requests: 20
  arrivals: {kind: poisson, rate: 4 /s}
  lengths: {kind: fixed, prompt: 200, output: 20}
clients:
  - count: 2
    hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}
    memory: {num_blocks: 1000}
router: {kind: least_loaded, load: tokens_left}
network: {kind: link, bandwidth: 32 GB/s, latency: 20 us}
slo: {ttft: 500 ms}
"""


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def small_data():
    from hermes.config.yaml_document import parse_yaml

    return copy.deepcopy(parse_yaml(SMALL).plain())
