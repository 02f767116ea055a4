"""Pages of hardware: the example of a future card runs, and the table of KV tokens is what we compute."""

import re
from pathlib import Path

import pytest

from hermes import simulate
from hermes.clients.memory import MemoryConfig
from hermes.hardware import HARDWARE, StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.info import hardware_info
from hermes.scenario import load_scenario
from hermes.schedulers.config import SchedulerOptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "how-to" / "hardware.md").read_text(encoding="utf-8")
NEW_CARD = (DOCS / "how-to" / "new-card.md").read_text(encoding="utf-8")
CAPACITY = (DOCS / "background" / "capacity.md").read_text(encoding="utf-8")

def test_a_card_and_a_link_nobody_has(tmp_path):
    card, link, scenario = re.findall(r"```yaml\n(.*?)```", NEW_CARD, re.S)
    for name, text in (("next-card", card), ("my-link", link), ("next", scenario)):
        assert text.startswith(f"# {name}.yaml")
        (tmp_path / f"{name}.yaml").write_text(text)
    results = simulate(load_scenario(tmp_path / "next.yaml"))
    client = results.summary["clients"]["next"]
    assert results.summary["requests"]["completed"] == 200
    assert client["power_source"] == (
        "assumed: 1800 W and 20 TB/s, as A100, H100 and B200 draw, device next-card (guess, -25 to +25%)")
    assert results.summary["cost"]["dollars_per_hour"] == 18
    assert client["memory"]["memory_bytes"] == 288 * 2**30
    hardware = Composed(model="llama-3.1-70b", device=str(tmp_path / "next-card.yaml"), tp=2, dtype="fp8",
                        link=str(tmp_path / "my-link.yaml")).build()
    decode = StepStats(decode_seqs=1, decode_ctx=1000, decode_ctx_max=1000, sampled=1)
    prompt = StepStats(prefill_seqs=1, prefill_tokens=2048, prefill_attn=2048 * 2049 // 2, prefill_max=2048, sampled=1)
    assert hardware.terms_ns(decode)["all_reduce"] > 2 * 80 * 8_000
    for stats, floor_ns in ((decode, 1.8e6), (prompt, 18e6)):
        terms = hardware.terms_ns(stats)
        assert 1.1 * floor_ns < sum(terms[name] for name in ("qkv", "o_proj", "ffn", "lm_head")) < 2.2 * floor_ns


ROWS = re.findall(r"^\| Llama-3\.1-(8|70)B TP(\d) \| (.*) \|$", CAPACITY, re.M)


@pytest.mark.parametrize(("billions", "tp", "cells"), ROWS)
def test_kv_tokens_are_those_of_the_table(billions, tp, cells):
    ours = [int(cell.replace(",", "")) for cell in cells.split(" | ")[::2]]
    model, scheduler = f"llama-3.1-{billions}b", SchedulerOptions(max_num_batched_tokens=2048, max_num_seqs=256)
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
    kinds = re.findall(r"^\| `(\w+)` \| ", PAGE.split("\n## Client and hardware")[0], re.M)
    assert sorted(kinds) == sorted(HARDWARE.names())
    count = {"Three": 3, "Four": 4, "Five": 5, "Six": 6}[re.search(r"(\w+) kinds of `hardware:`", PAGE)[1]]
    assert count == len(kinds)
