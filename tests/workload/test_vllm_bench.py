"""Results of `vllm bench serve --save-detailed`: as a trace, and beside a run. Keys as vLLM 0.32.0 writes them."""

import json

import pytest

from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.results.compare.reference import guess_mapping, load_reference
from hermes.results.files.export import write_results
from hermes.workload.importers import import_trace

RESULT = {   # a clock with any origin; the third request failed
    "duration": 3.0, "completed": 2, "failed": 1, "input_lens": [100, 200, 300], "output_lens": [3, 2, 0],
    "ttfts": [0.2, 0.3, 0.0], "itls": [[0.05, 0.07], [0.04], []], "latencies": [0.32, 0.34, 0.0],
    "start_times": [5000.5, 5001.0, 5002.25], "errors": ["", "", "Traceback"], "generated_texts": ["a", "b", ""],
}


def written(folder, **changes):
    file = folder / "result.json"
    file.write_text(json.dumps({**RESULT, **changes}))
    return file


def test_a_trace(tmp_path):
    file = written(tmp_path)
    with pytest.raises(InputError, match=r"output_lens\[2\]"):
        import_trace("vllm-bench", file)
    trace = import_trace("vllm-bench", file, zero_tokens="drop")
    assert trace["arrival_s"].tolist() == [0.0, 0.5]
    assert trace["prompt_tokens"].tolist() == [100, 200]
    assert trace["output_tokens"].tolist() == [3, 2]
    out = ["-o", str(tmp_path / "t.parquet")]
    assert main(["trace", "import", "vllm-bench", str(file), "--set", "zero_tokens=drop", *out]) == 0


@pytest.mark.parametrize("changes", [{}, {"latencies": None}])   # versions before have no latencies
def test_a_reference(tmp_path, changes):
    file = written(tmp_path, **changes)
    found = load_reference(file, guess_mapping(file))
    assert found.columns["ttft"][:2].tolist() == [0.2, 0.3]
    assert found.columns["e2e"][:2] == pytest.approx([0.32, 0.34])
    assert found.columns["tpot"][:2] == pytest.approx([0.06, 0.04])
    assert found.columns["e2e"][2] != found.columns["e2e"][2]   # it failed: no value
    assert found.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_without_start_times_all_arrive_at_once(tmp_path, rate):
    """SGLang's bench_serving with --request-rate inf; its json writes Infinity."""
    trace = import_trace("vllm-bench", written(tmp_path, start_times=None, request_rate=rate), zero_tokens="drop")
    assert trace["arrival_s"].tolist() == [0.0, 0.0]
    assert trace["prompt_tokens"].tolist() == [100, 200]


def test_one_of_several_results(tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps({**RESULT, "input_lens": [n, n, n]}) + "\n" for n in (7, 9)))
    with pytest.raises(InputError, match="the file has 2 results; take one of them"):
        import_trace("vllm-bench", file, zero_tokens="drop")
    assert import_trace("vllm-bench", file, zero_tokens="drop", part=1)["prompt_tokens"].tolist() == [9, 9]
    with pytest.raises(InputError, match="a part from 0 to 1, found 2"):
        import_trace("vllm-bench", file, part=2)


def test_beside_a_run(tmp_path, capsys):
    file = written(tmp_path, errors=["", "", ""], output_lens=[3, 2, 4], ttfts=[0.2, 0.3, 0.1],
                   latencies=[0.32, 0.34, 0.4])
    assert main(["trace", "import", "vllm-bench", str(file), "-o", str(tmp_path / "t.parquet")]) == 0
    trace = {"kind": "trace", "path": str(tmp_path / "t.parquet")}
    run = simulate({"workload": {"arrivals": trace, "lengths": trace},
                    "clients": [{"model": "llama-3.1-8b", "device": "l40s"}]})
    write_results(run, tmp_path / "run")
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "run"), str(file)]) == 0
    said = capsys.readouterr().out
    assert "TTFT" in said
    assert "E2E" in said


@pytest.mark.parametrize(("change", "said"), [
    ({"input_lens": None}, "no input_lens: run vllm bench serve with --save-result --save-detailed, SGLang's bench"),
    ({"start_times": None}, "no start_times: the arrivals of an unknown number of requests a second"),
    ({"start_times": None, "request_rate": 4.0}, "the arrivals of 4.0 requests a second were drawn and not written"),
    ({"ttfts": [0.1]}, "lists of equal length"),
    ({"itls": [[10**400], [0.04], []], "latencies": None}, "list of numbers from 0 to 1e\\+24"),
    ({"itls": [[-0.1], [0.04], []], "latencies": None}, "list of numbers from 0 to 1e\\+24"),
])
def test_a_result_without_details_is_refused(tmp_path, change, said):
    with pytest.raises(InputError, match=said):
        import_trace("vllm-bench", written(tmp_path, **change))
