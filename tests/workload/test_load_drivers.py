"""Files of load drivers: the same requests in four forms, with the clock and the units of each."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from hermes.api import simulate
from hermes.calibration.fit.requests import fit_requests
from hermes.cli import app, main
from hermes.config.load_drivers import driver_of, driver_table
from hermes.errors import InputError
from hermes.results.compare import compare
from hermes.results.compare.reference import guess_mapping, load_reference
from hermes.scenario import load_scenario
from hermes.workload import public_traces
from hermes.workload.importers import import_trace

DATA = Path(__file__).resolve().parents[1] / "data" / "load-drivers"
FILES = {"aiperf": "aiperf.jsonl", "guidellm": "guidellm.json", "inference-perf": "inference-perf.json",
         "blis": "blis.csv"}
ARRIVALS, PROMPTS, OUTPUTS = [0.0, 0.25, 0.5], [100, 50, 300], [20, 5, 10]
TTFT, E2E = [0.05, 0.03, 0.12], [0.25, 0.08, 0.22]


@pytest.mark.feature("Workloads", (
    "`hermes trace import` of `aiperf`, `guidellm`, `inference-perf`, `blis`, `servegen`, `sharegpt`, and "
    "`hermes compare` with what the first four write"))
@pytest.mark.parametrize("driver", FILES)
def test_clock_and_units(driver: str) -> None:
    assert driver_of(DATA / FILES[driver]) == driver
    found = driver_table(driver, DATA / FILES[driver]).columns
    assert (found["arrival_s"][:3] - found["arrival_s"][0]).tolist() == pytest.approx(ARRIVALS, abs=1e-5)
    assert found["prompt_tokens"].tolist() == [*PROMPTS, 70]
    assert found["output_tokens"].tolist() == [*OUTPUTS, 0]
    assert found["ttft_s"].tolist() == pytest.approx([*TTFT, math.nan], rel=1e-6, nan_ok=True)
    assert found["e2e_s"].tolist() == pytest.approx([*E2E, math.nan], rel=1e-6, nan_ok=True)
    assert [bool(error) for error in found["error"]] == [False, False, False, True]


@pytest.mark.parametrize("driver", FILES)
def test_as_a_trace(driver: str) -> None:
    with pytest.raises(InputError, match="request 3, output_tokens"):
        import_trace(driver, DATA / FILES[driver])
    trace = import_trace(driver, DATA / FILES[driver], zero_tokens="drop")
    assert trace["arrival_s"].tolist() == pytest.approx(ARRIVALS, abs=1e-5)
    assert trace["prompt_tokens"].tolist() == PROMPTS
    assert trace["output_tokens"].tolist() == OUTPUTS


def test_prefixes_and_sessions_of_blis() -> None:
    trace = import_trace("blis", DATA / FILES["blis"], zero_tokens="drop")
    assert trace["prefix_group"].tolist() == [0, 0, -1]
    assert trace["prefix_tokens"].tolist() == [40, 40, 0]
    assert trace["session"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("driver", FILES)
def test_a_run_is_compared_with_it(driver: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    assert main(["trace", "import", driver, str(DATA / FILES[driver]), "-o", str(trace), "--set",
                 "zero_tokens=one"]) == 0
    replay = {"kind": "trace", "path": str(trace)}
    run = simulate({"workload": {"arrivals": replay, "lengths": replay},
                    "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}]})
    table = compare(run, DATA / FILES[driver], allow_different_requests=True)   # the failed one got a token here
    ours = run.requests["ttft_s"][:3]
    assert table.error("ttft", "mean") == pytest.approx(run.requests["ttft_s"].mean() / (sum(TTFT) / 3) - 1, rel=0.2)
    reference = load_reference(DATA / FILES[driver], guess_mapping(DATA / FILES[driver]))
    assert reference.columns["ttft"][:3].tolist() == pytest.approx(TTFT)
    assert len(ours) == 3


def test_too_few_requests_for_a_fit() -> None:
    reference = load_reference(DATA / FILES["aiperf"], guess_mapping(DATA / FILES["aiperf"]))
    small = {"workload": {"requests": 4, "arrivals": {"kind": "at_once"},
                          "lengths": {"kind": "fixed", "prompt": 100, "output": 20}},
             "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}]}
    with pytest.raises(InputError, match="at least 20 requests"):
        fit_requests(load_scenario(small), reference)


def changed(tmp_path: Path, driver: str, old: str, new: str) -> Path:
    path = tmp_path / FILES[driver]
    text = (DATA / FILES[driver]).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(("driver", "old", "new", "says"), [
    ("aiperf", '"unit": "us"', '"unit": "weeks"', r"metrics.request_latency.unit"),
    ("aiperf", '"request_start_ns": 17', '"request_begin_ns": 17', "aiperf.jsonl:2.*metadata.request_start_ns"),
    ("guidellm", '"prompt_tokens": 300', '"prompt_tokens": "many"', r"successful.0.prompt_tokens"),
    ("guidellm", '"benchmarks": [', '"benchmarks": [{"requests": {}}, ', "2 benchmarks; import one"),
    ("inference-perf", '"end_time": 5000.25', '"ended": 5000.25', "end_time"),
    ("blis", "send_time_us", "sent", "a column send_time_us"),
    ("blis", "1050000", "soon", "blis.csv:2.*first_chunk_time_us"),
])
def test_mistakes_name_their_place(tmp_path: Path, driver: str, old: str, new: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        import_trace(driver, changed(tmp_path, driver, old, new))
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize(("driver", "old", "new", "says"), [
    ("aiperf", '"value": 300,', '"value": 300.5,', "input_sequence_length.value: expected an integer"),
    ("guidellm", '"output_tokens": 10,', '"output_tokens": 10.5,', "successful.0.output_tokens: expected an integer"),
    ("guidellm", '"output_tokens": 10,', '"output_tokens": -7,', "expected an integer from 0, found -7|from 0 to"),
    ("inference-perf", '"input_tokens": 300', '"input_tokens": 1000000000000000000000000000000', "expected an integer"),
    ("guidellm", '"request_latency": 0.22', '"request_latency": -1', "a number of at least 0, found -1"),
    ("blis", "true,60,20,", "true,60,20.5,", "output_tokens: expected an integer"),
])
def test_tokens_are_whole_and_times_not_negative(tmp_path: Path, driver: str, old: str, new: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        import_trace(driver, changed(tmp_path, driver, old, new), zero_tokens="one")


@pytest.mark.parametrize("kind", ["sharegpt", *FILES, "vllm-bench"])
def test_a_device_is_refused_before_it_is_read(kind: str) -> None:
    with pytest.raises(InputError, match="found a device"):
        import_trace(kind, "/dev/zero")


def test_one_of_several_benchmarks(tmp_path: Path) -> None:
    path = changed(tmp_path, "guidellm", '"benchmarks": [', '"benchmarks": [{"requests": {}}, ')
    assert len(import_trace("guidellm", path, benchmark=1, zero_tokens="drop")) == 3
    with pytest.raises(InputError, match="from 0 to 1"):
        import_trace("guidellm", path, benchmark=2)


def test_a_summary_of_inference_perf_has_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "summary_lifecycle_metrics.json"
    path.write_text('{"load_summary": {}, "successes": {}}')
    with pytest.raises(InputError, match="a summary has no requests"):
        import_trace("inference-perf", path)


def test_servegen(tmp_path: Path) -> None:
    trace = import_trace("servegen", DATA / "servegen.jsonl")
    assert trace["prompt_tokens"].tolist() == [61, 54]
    assert trace["output_tokens"].tolist() == [2370, 2031]
    hashed = tmp_path / "a.jsonl"
    hashed.write_text('{"request_id": 0, "type": "text", "input_length": 33, "hash_ids": [4, 5, 6]}\n')
    with pytest.raises(InputError, match="output_tokens=N"):
        import_trace("servegen", hashed)
    assert import_trace("servegen", hashed, output_tokens=7)["hash_ids"][0] == [4, 5, 6]


def test_sharegpt() -> None:
    first = import_trace("sharegpt", DATA / "sharegpt.json")
    assert first["prompt_tokens"].tolist() == [12, 6]   # 47 and 24 characters of four
    assert first["output_tokens"].tolist() == [16, 1]
    whole = import_trace("sharegpt", DATA / "sharegpt.json", turns="all", chars_per_token=2.0)
    assert whole["session"].tolist() == [0, 0, 2]
    assert whole["prompt_tokens"][1] == whole["prompt_tokens"][0] + whole["output_tokens"][0] + 6
    assert whole["prefix_tokens"].tolist() == whole["prompt_tokens"].tolist()


AZURE = ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.95,396,109\n"
         "2023-11-16 18:15:51.22,879,55\n")


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "conv.csv").write_text(AZURE)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()


@pytest.mark.feature("Workloads", "`hermes trace get`: public traces")
def test_get_a_public_trace(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = public_traces.PublicTrace(f"{mirror}/conv.csv", "azure", "three requests", "CC-BY 4.0", 3)
    monkeypatch.setitem(public_traces._TRACES, "three", known)
    path = tmp_path / "out" / "three.parquet"
    done = CliRunner().invoke(app(), ["trace", "get", "three", "-o", str(path), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["requests"] == 3
    assert pd.read_parquet(path)["prompt_tokens"].tolist() == [374, 396, 879]
    listed = CliRunner().invoke(app(), ["trace", "get"])
    assert "mooncake-conversation" in listed.output


def test_what_is_not_the_trace_is_not_written(mirror: str, tmp_path: Path) -> None:
    path = tmp_path / "conv.parquet"
    for name, url, says in (
        ("azure-conv-2023", f"{mirror}/conv.csv", "19,366 requests"), ("azure-conv-2023", f"{mirror}/none.csv", "404"),
        ("azure-conv-2023", "file:///etc/passwd", "http://"), ("azure-conf-2023", "", "azure-conv-2023"),
        ("mooncake-conversation", f"{mirror}/conv.csv", "conv.csv"),
    ):
        with pytest.raises(InputError) as caught:
            public_traces.get_trace(name, path, url)
        assert says in str(caught.value)
        assert not path.exists()


def test_the_readme_of_the_fixtures_names_them() -> None:
    text = (DATA / "README.md").read_text()
    assert all(name in text for name in ("aiperf", "GuideLLM", "inference-perf", "BLIS", "ServeGen", "ShareGPT"))
    assert yaml.safe_load((DATA / "servegen.jsonl").read_text().splitlines()[0])["input_length"] == 61
