"""Each shipped model on each card (`every_load.py`): 40 of all pairs, drawn by the commit; all in `make nightly`."""

from __future__ import annotations

import every_load
import pytest

from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.files import names_in

PAIRS = [(model, card) for model in names_in("models") for card in every_load.CARDS]
PARTS = 40


@pytest.mark.drawn(one_of=8)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_part_of_all_loads(part: int) -> None:
    model, card = PAIRS[part * len(PAIRS) // PARTS]
    found = list(every_load.complaints(model, card))
    assert not found, "\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("model", names_in("models"))
def test_every_load(model: str) -> None:
    found = [line for card in every_load.CARDS for line in every_load.complaints(model, card)]
    assert not found, "\n".join(found)


def test_a_mixture_on_an_a100_takes_what_its_bytes_say() -> None:
    """Qwen3-30B-A3B alone: 9 to 11 ms a token, of which 3.3 GB of weights take 1.6."""
    hardware = Composed(model="qwen3-30b-a3b", device="a100-80gb").build()
    assert 5.0 < hardware.step_ns(every_load.decode(1)) / 1e6 < 11.5


def test_a_contradiction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_load, "SLOWER", 0.5)
    assert any("times bf16's" in line for line in every_load.complaints("llama-3.1-8b", "h100-sxm"))
    monkeypatch.setattr(every_load, "ROUNDING", 2.0)
    assert any("below" in line for line in every_load.complaints("llama-3.1-8b", "h100-sxm"))
