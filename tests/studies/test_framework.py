"""The frame of all studies: found by name, given a context, written to a folder. And how stability is told."""

import numpy as np
import pandas as pd
import pytest

from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.results.stability import stability
from hermes.studies import STUDIES, Context, Report, Table, load_studies
from hermes.studies.figures import point_figures

BASE = {
    "workload": {"requests": 400, "arrivals": {"kind": "poisson", "rate": "4 /s"},
                 "lengths": {"kind": "fixed", "prompt": 256, "output": 64}},
    "clients": [{"name": "a", "model": "llama-3.1-8b", "device": "h100-sxm",
                 "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}],
}


@pytest.fixture
def tiny():
    @STUDIES.register("tiny-of-a-test")
    class Tiny:
        title = "what two and two is"

        def run(self, context: Context) -> Report:
            return Report(self.title, tables=[Table("sum", "Sum", pd.DataFrame({"a": [2.0, np.nan], "b": ["x", "y"]}))],
                          findings=[f"{2 + 2} ({'quick' if context.quick else 'full'})"])

    yield
    STUDIES.unregister("tiny-of-a-test")


def test_a_study_runs_from_the_command_line(tiny, tmp_path, capsys):
    assert main(["study", "tiny-of-a-test", "--quick", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "4 (quick)" in printed
    assert (tmp_path / "out" / "sum.csv").read_text() == "a,b\n2.0,x\n,y\n"
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| 2 | x |" in page
    assert "| - | y |" in page


def test_an_unknown_study_is_one_line(capsys):
    assert main(["study", "no-such-thing"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_every_study_has_a_title_and_a_page():
    studies = load_studies()
    from hermes.config.data_files import resource_dir
    pages = resource_dir("scenarios").parent / "docs" / "studies"
    for name in studies:
        if not name.startswith("tiny-of-a-test"):
            assert studies.get(name).title
            assert (pages / f"{name}.md").is_file(), f"docs/studies/{name}.md"


def test_reference_data_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="--data"):
        Context("x", tmp_path).need_data("splitwise")
    with pytest.raises(InputError, match="splitwise"):
        Context("x", tmp_path, data=tmp_path).need_data("splitwise")


@pytest.mark.parametrize(("rate", "seqs", "steady"), [
    ("4 /s", 256, True), ("40 /s", 4, False), ("4000 /s", 256, None),
])
def test_stability(rate, seqs, steady):
    """Four a second are served as they come; forty with four at a time pile up; 400 at once are too few to tell."""
    scenario = BASE | {"workload": BASE["workload"] | {"arrivals": {"kind": "poisson", "rate": rate}}}
    scenario["clients"] = [BASE["clients"][0] | {"scheduler": {"kind": "chunked", "max_num_seqs": seqs}}]
    figures = point_figures(simulate(scenario))
    assert figures["stable"] is steady
    assert figures["kv_capacity_tokens"] > 0
    assert 0 < figures["kv_peak_share"] <= 1
    assert figures["rejected"] == 0


def test_requests_in_the_system_by_hand():
    """Four requests a second apart, each there for half a second: half a request in the system, at any time."""
    results = simulate(BASE | {"workload": BASE["workload"] | {"requests": 9}})
    record = results.record
    record.arrival_ns[:] = np.arange(9) * 1_000_000_000
    record.finish_ns[:] = record.arrival_ns + 500_000_000
    found = stability(record, 5e8)
    assert (found.in_system_early, found.in_system_late) == (0.5, 0.5)
    assert found.stable is True
    assert found.window_s == 8.0
