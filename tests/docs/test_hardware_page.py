"""docs/how-to/hardware.md: its example of a future card runs, and its table of KV tokens is what we compute."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hermes import simulate
from hermes.clients.memory import MemoryConfig
from hermes.hardware import HARDWARE
from hermes.hardware.info import hardware_info
from hermes.scenario import load_scenario

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "how-to" / "hardware.md").read_text(encoding="utf-8")
CAPACITY = (DOCS / "background" / "capacity.md").read_text(encoding="utf-8")
WORKLOAD = (
    "workload: {requests: 20, arrivals: {kind: poisson, rate: 5 /s}, "
    "lengths: {kind: fixed, prompt: 500, output: 9}}\n"
)


def test_a_card_nobody_has(tmp_path):
    card, clients = re.findall(r"```yaml\n(.*?)```", PAGE.split("## A device of your own")[1], re.S)
    (tmp_path / "next-card.yaml").write_text(card)
    (tmp_path / "s.yaml").write_text(WORKLOAD + clients)
    summary = simulate(load_scenario(tmp_path / "s.yaml")).summary
    assert summary["requests"]["completed"] == 20
    assert summary["clients"]["next"]["power_source"] == "assumed: H100's shares of 1800 W, device next-card"
    assert summary["cost"]["dollars_per_hour"] == 9
    assert summary["clients"]["next"]["memory"]["memory_bytes"] == 288 * 2**30


ROWS = re.findall(r"^\| Llama-3\.1-(8|70)B TP(\d) \| (.*) \|$", CAPACITY, re.M)


@pytest.mark.parametrize(("billions", "tp", "cells"), ROWS)
def test_kv_tokens_are_those_of_the_table(billions, tp, cells):
    ours = [int(cell.replace(",", "")) for cell in cells.split(" | ")[::2]]
    model, scheduler = f"llama-3.1-{billions}b", SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=256)
    found = []
    for device in ("h100-sxm", "h200"):
        for dtype in ("bf16", "fp8"):
            options = {"kind": "roofline", "model": model, "device": device, "tp": int(tp), "dtype": dtype}
            info = hardware_info(HARDWARE.get("roofline").model_validate(options).build())
            found.append(MemoryConfig().budget(model, int(tp), info, info.device, scheduler, None).tokens)
    assert found == ours


def test_the_table_is_there():
    assert len(ROWS) == 4


def test_the_page_lists_every_kind_of_hardware_model_and_counts_them_right():
    kinds = re.findall(r"^\| `(\w+)` \| ", PAGE.split("\n## A model")[0], re.M)
    assert sorted(kinds) == sorted(HARDWARE.names())
    count = {"Three": 3, "Four": 4, "Five": 5, "Six": 6}[re.search(r"(\w+) kinds of `hardware:`", PAGE)[1]]
    assert count == len(kinds)
