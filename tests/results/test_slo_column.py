"""The column `slo_ok`, figures by name, and the energy of a measured window."""

import pandas as pd
import pytest

from hermes import open_run, simulate
from hermes.errors import InputError
from hermes.results.files.export import write_results

SCENARIO = {
    "workload": {"requests": 120, "arrivals": {"kind": "poisson", "rate": 12},
                 "lengths": {"kind": "independent", "prompt": 900, "output": 40}},
    "clients": [{"model": "llama-3.1-8b", "device": "l40s"}], "slo": {"ttft": "300 ms", "tpot": "60 ms"},
}


@pytest.fixture(scope="module")
def run():
    return simulate(SCENARIO)


@pytest.mark.feature("Results, sweeps, studies", "`slo_ok` of each request, `run.plot()`, energy of a measured window")
def test_each_request_says_whether_it_kept_the_slo(run, tmp_path):
    requests = run.requests
    expected = (requests["status"] == "completed") & (requests["ttft_s"] <= 0.3) & ~(requests["tpot_s"] > 0.06)
    pd.testing.assert_series_equal(requests["slo_ok"], expected, check_names=False)
    assert 0 < requests["slo_ok"].sum() < len(requests)
    assert requests["slo_ok"].mean() == pytest.approx(run.summary["goodput"]["share"])
    write_results(run, tmp_path / "run")
    pd.testing.assert_series_equal(open_run(tmp_path / "run").requests["slo_ok"], requests["slo_ok"])


def test_without_an_slo_there_is_no_such_column():
    assert "slo_ok" not in simulate(SCENARIO | {"slo": {}}).requests


def test_an_unknown_figure(run):
    with pytest.raises(InputError, match="one of latency"):
        run.plot("pie")


def test_energy_of_windows_adds_up():
    """Two windows next to each other hold the energy of both together."""
    def energy(start, until):
        measured = simulate(SCENARIO, overrides={"measure": {"start": start, "until": until}}).summary["measured"]
        assert measured["per_token_j"] == pytest.approx(
            measured["energy_j"] / (measured["tokens_per_s"] * (until - start)))
        return measured["energy_j"]

    assert energy(1, 3) + energy(3, 6) == pytest.approx(energy(1, 6))
