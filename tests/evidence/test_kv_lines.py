"""KV lines of engines: the reader, and the bars of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside import outside

from evidence.accuracy.kv_lines import compared, summary
from evidence.accuracy.table import Bars, measure, missed
from hermes.config.validation import load
from hermes.errors import InputError

HEAD = ("id,engine,version,model,precision,kv_dtype,gpu,gpu_gib,tp,pp,dp,ep,utilization,max_model_len,batched_tokens,"
        "max_seqs,other_flags,weights_gib,available_kv_gib,kv_tokens,num_blocks,block_size,max_concurrency,confidence,"
        "note\n")
ROWS = """\
1,vllm,0.12,Qwen/Qwen3-0.6B,bf16,bf16,L40S,44.42,1,1,1,1,0.9,16000,,,,,37.42,350304,,16,21.89,complete,
2,vllm,0.12,nobody/unknown,bf16,bf16,L40S,44.42,1,1,1,1,0.9,16000,,,,,37.42,,,16,,complete,
3,vllm,0.12,Qwen/Qwen3-0.6B,bf16,bf16,?,,1,1,1,1,,16000,,,,,37.42,,,16,,partial,
"""


def test_rows_are_summed_or_say_why_not(tmp_path: Path) -> None:
    """0.9 of 44.42 less 1.11 of weights, 256 x 151,936 rows and words of 34 bytes, 248 MiB: 37.4."""
    file = tmp_path / "kv-lines.csv"
    file.write_text(HEAD + ROWS)
    found, unknown, partial = compared(file)
    by_hand = 0.9 * 44.42 - (596_049_920 * 2 + 256 * 151_936 * 34 + 2048 * 1024 * 2) / 2**30 - 248 / 1024
    assert found.ours == pytest.approx(by_hand, abs=0.03)
    assert found.close
    assert found.inside
    assert "no model is called" in unknown.why
    assert partial.why == "without card, utilisation"
    assert next(summary([found, unknown, partial])).startswith("complete: 1 rows, median error 0.")


def test_a_row_may_have_any_name_and_names_a_known_engine(tmp_path: Path) -> None:
    file = tmp_path / "kv-lines.csv"
    file.write_text(HEAD + ROWS.splitlines()[0].replace("1,vllm", "1b,vllm", 1) + "\n"
                    + ROWS.splitlines()[0].replace("1,vllm", "4,lmdeploy", 1) + "\n"
                    + ROWS.splitlines()[0].replace("1,vllm", "36,tensorrt-llm", 1) + "\n")
    named, unknown, other = compared(file)
    assert (named.fitted, other.fitted) == (False, True)
    assert "an engine: vllm, sglang, tensorrt-llm" in unknown.why
    assert list(summary([named]))[1].startswith("complete, not fitted: 1 rows")
    assert other.ours > 0


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kv-lines.csv"
    file.write_text("id,engine\n1,vllm\n")
    with pytest.raises(InputError, match="a column version"):
        list(compared(file))


def test_bars_of_the_logs() -> None:
    data = outside("data/kv-lines.csv").parent
    rows = measure(data, "kv-lines") or []
    bars = load(Bars, Path(__file__).parents[1] / "golden" / "accuracy-bars.yaml")
    mine = [bar for bar in bars.bars if bar.set.startswith("KV lines")]
    assert len(mine) == 6
    assert missed(Bars(bars=mine), rows) == []


def test_rows_that_nothing_was_found_on() -> None:
    """They are as close as those that terms were found on."""
    rows = [row for row in compared(outside("data/kv-lines.csv")) if not row.why and row.engine.startswith("vllm")
            and row.confidence == "complete" and not row.fitted]
    assert len(rows) >= 7
    assert sum(row.close for row in rows) >= 0.9 * len(rows)
