"""`hermes profile import csv`: a file with the documented header, and files that are not what they should be."""

import os
from pathlib import Path

import numpy as np
import pytest

from hermes.calibration.importers.csv_steps import CSV_COLUMNS
from hermes.calibration.steps import load_steps, phase_of
from hermes.cli import main

FIXTURE = Path(__file__).resolve().parents[1] / "data" / "measured-steps.csv"
HEADER = "prefill_seqs,prefill_tokens,prefill_past_tokens,prefill_attn_pairs,decode_seqs,decode_ctx_tokens," \
         "decode_ctx_max_tokens,sampled_seqs,time_s"
DECODE, PREFILL = "0,0,0,0,8,4000,900,8,0.0066", "1,512,0,131328,0,0,0,1,0.0121"
OPTIONS = ["--hardware", "NVIDIA H100", "--model", "llama-3.1-8b", "--dtype", "bf16", "--engine", "vllm"]


def imported(path, tmp_path, *more):
    return main(["profile", "import", "csv", str(path), *OPTIONS, *more, "-o", str(tmp_path / "steps.yaml")])


@pytest.mark.feature("Measuring and fitting", "`hermes profile import csv`")
def test_every_row_becomes_a_step(tmp_path, capsys):
    assert imported(FIXTURE, tmp_path, "--engine-version", "0.24.0", "--tp", "2") == 0
    assert "6 steps of llama-3.1-8b on NVIDIA H100, TP2; 1 row marked excluded" in capsys.readouterr().out
    steps = load_steps(tmp_path / "steps.yaml")
    assert (steps.header.engine, steps.header.engine_version, steps.header.tensor_parallel) == ("vllm", "0.24.0", 2)
    rows = steps.rows
    assert phase_of(rows).tolist() == ["prefill", "prefill", "prefill", "decode", "decode", "mixed"]
    assert rows["prefill_attn"].tolist() == [131328, 131328, 160150, 0, 0, 2080]
    assert rows["time_s"].tolist() == [0.0121, 0.0122, 0.0102, 0.0066, 0.0301, 0.0079]
    assert np.isnan(rows["power_w"][1])
    assert rows["excluded"][4] == "the machine was busy"
    assert len(steps.usable()) == 5


def test_without_configurations_equal_batches_belong_together(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("\n".join([HEADER, DECODE, PREFILL, DECODE.replace("0.0066", "0.0067")]) + "\n")
    assert imported(path, tmp_path) == 0
    rows = load_steps(tmp_path / "steps.yaml").rows
    assert rows["configuration"][0] == rows["configuration"][2] != rows["configuration"][1]


def test_its_columns_are_documented():
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "calibrate.md").read_text()
    assert all(f"`{name}`" in text for name in CSV_COLUMNS)


@pytest.mark.parametrize(("lines", "message"), [
    ([], "steps.csv:1: expected a header line"),
    ([HEADER], "expected at least one row"),
    ([HEADER.replace("time_s", "time_ms"), DECODE], "steps.csv:1: expected columns among"),
    ([HEADER.replace("time_s", "times_s"), DECODE], "did you mean 'time_s'"),
    ([HEADER.replace(",sampled_seqs", ""), "0,0,0,0,8,4000,900,0.0066"], "no sampled_seqs"),
    ([HEADER + ",time_s", DECODE + ",1"], "distinct column names"),
    ([HEADER, PREFILL, DECODE.replace("4000", "4000.5")],
     "steps.csv:3: decode_ctx_tokens: expected an integer from 0 to 2**53, found '4000.5'"),
    ([HEADER, DECODE.replace("4000", "4_000")], "steps.csv:2: decode_ctx_tokens"),
    ([HEADER, DECODE.replace("8,", "٨,")], "steps.csv:2: decode_seqs"),
    ([HEADER, DECODE.replace("8,4000", "-8,4000")], "steps.csv:2: decode_seqs"),
    ([HEADER, DECODE.replace("0.0066", "nan")], "steps.csv:2: time_s: expected a finite number, found 'nan'"),
    ([HEADER, DECODE.replace("0.0066", "inf")], "steps.csv:2: time_s"),
    ([HEADER, DECODE.replace("0.0066", "1e999")], "steps.csv:2: time_s"),
    ([HEADER, DECODE.replace("0.0066", "")], "steps.csv:2: time_s: expected a number"),
    ([HEADER, DECODE.replace("0.0066", "0")], "steps.csv:2: expected time_s above 0"),
    ([HEADER, DECODE + ",7"], "steps.csv:2"),
    ([HEADER, "0,0,0,0,0,0,0,0,0.1"], "at least one token"),
    ([HEADER, DECODE.replace("4000,900", "9000,900")], "decode_ctx_tokens (the sum)"),
    ([HEADER, PREFILL.replace("131328", "100")], "every token attends to itself"),
    ([HEADER, PREFILL.replace("1,512", "0,512")], "as many prefill_seqs"),
    ([HEADER, DECODE.replace("900,8", "900,9")], "at most one of sampled_seqs"),
    ([HEADER + ",configuration", DECODE + ","], "steps.csv:2: expected text in the column configuration"),
    ([HEADER + ",repetition", DECODE + ",0.5"], "steps.csv:2: repetition: expected an integer"),
])
def test_mistakes_name_the_line(lines, message, tmp_path, capsys):
    path = tmp_path / "steps.csv"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert imported(path, tmp_path) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "steps.yaml").exists()


def test_what_is_no_file_is_one_line(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "none.csv", "."):
        assert imported(tmp_path / name, tmp_path) == 2
        assert capsys.readouterr().err.count("\n") == 1
