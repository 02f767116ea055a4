"""The reader of InferenceX's closed loops, on a made-up row and on the recorded ones where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside import OUTSIDE

from hermes.calibration.accuracy.recorded import inferencex
from hermes.errors import InputError

DATA = OUTSIDE / "data"
HEAD = ("card,tp,ep,input_tokens,output_tokens,concurrency,image,median_ttft_s,p99_ttft_s,median_tpot_s,p99_tpot_s,"
        "median_e2e_s,output_tokens_per_s_per_gpu\n")


def write(folder: Path, rows: str) -> Path:
    (folder / "inferencex").mkdir()
    (folder / "inferencex" / "deepseek-r1-fp8-sglang.csv").write_text(HEAD + rows)
    return folder


def test_a_row_is_a_closed_loop_of_ten_prompts_a_user(tmp_path: Path) -> None:
    rows = list(inferencex(write(tmp_path, "h200,8,1,512,64,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20\n")))
    found = {(row.metric, row.stat): row for row in rows}
    assert set(found) == {("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p50"),
                          ("output tokens/s", "mean")}
    case = found["e2e", "p50"].case
    assert (case.engine, case.card, case.case) == ("sglang v0.5.12", "h200 tp8", "512 in, 64 out, 2 users")
    assert case.trust is not None
    assert case.trust.kind == "guess", "latent attention, and another engine's host times"
    assert found["output tokens/s", "mean"].measured == 160.0
    e2e = found["e2e", "p50"].predicted
    assert found["output tokens/s", "mean"].predicted == pytest.approx(2 * 0.9 * 64 / e2e, rel=0.15), "Little's law"


def test_watts_are_scored_in_rows_that_have_them(tmp_path: Path) -> None:
    folder = write(tmp_path, "h200,8,1,512,64,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20,\n"
                             "h200,8,1,512,96,2,v0.5.12-cu130,0.08,0.8,0.01,0.011,0.6,20,400\n")
    path = folder / "inferencex" / "deepseek-r1-fp8-sglang.csv"
    path.write_text(path.read_text().replace("_per_gpu\n", "_per_gpu,watts_per_gpu\n", 1))
    (found,) = [row for row in inferencex(folder) if row.metric == "watts"]
    assert (found.case.case, found.measured) == ("512 in, 96 out, 2 users", 3200.0)
    idle_w, limit_w = 8 * 75, 8 * 700
    assert idle_w < found.predicted < limit_w


def test_a_malformed_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"deepseek-r1-fp8-sglang.csv"):
        list(inferencex(write(tmp_path, "h200,8,1,many,64,2,v0.5.12,0.08,0.8,0.01,0.011,0.6,20\n")))


@pytest.mark.long
@pytest.mark.outside("data")
def test_every_recorded_row_is_scored() -> None:
    lines = (DATA / "inferencex" / "deepseek-r1-fp8-sglang.csv").read_text().splitlines()
    assert len({(row.case.card, row.case.case) for row in inferencex(DATA)}) == len(lines) - 1
