"""The study `telerag`: its fits, and that a point agrees with what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.studies import load_studies
from hermes.studies.base import Context
from hermes.studies.telerag_points import BUDGET_GB, PROBED, Rates, simulate_point, tokens_in


def test_it_is_known():
    assert "telerag" in load_studies()


def test_windows_are_what_the_link_moves_meanwhile(tmp_path: Path):
    assert [tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")] == sorted(
        (tokens_in(p) for p in ("HyDE", "FLARE", "Self-RAG")), reverse=True)
    context = Context("telerag", tmp_path)
    rates = Rates(25e9, 25e9)
    cpu = simulate_point(context, "desktop", "Self-RAG", "offload", rates, requests=4)
    assert cpu.window_s == pytest.approx(BUDGET_GB["Self-RAG"] / 24, rel=0.2)      # a token's time at most too short
    assert cpu.window_s <= BUDGET_GB["Self-RAG"] / 24
    assert cpu.probed_bytes == pytest.approx(256 * PROBED, rel=0.08)
    assert cpu.e2e_s == pytest.approx(cpu.generate_s + cpu.scanned_bytes / 25e9, rel=0.03)
    ahead = simulate_point(context, "desktop", "Self-RAG", "lookahead", rates, requests=4)
    assert ahead.e2e_s < cpu.e2e_s
    assert ahead.peak_buffer <= BUDGET_GB["Self-RAG"] * 1e9
    assert ahead.overlap == pytest.approx(BUDGET_GB["Self-RAG"] * 1e9 / ahead.probed_bytes, abs=0.02)
