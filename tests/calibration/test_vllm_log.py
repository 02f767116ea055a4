"""Phases from the log lines of vLLM's versions: lines as servers wrote them, without most settings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.calibration.collect.vllm_log import PHASES, StartLog


def read(text: str) -> StartLog:
    """Read lines that carry the time of day, as seconds since the first; lines without one come with the one before."""
    lines, now, first = [], 0.0, None
    for line in text.strip("\n").splitlines():
        if stamp := re.search(r"(\d\d):(\d\d):(\d\d(?:\.\d+)?)", line):
            hours, minutes, seconds = (float(part) for part in stamp.groups())
            now = 3600 * hours + 60 * minutes + seconds
            first = now if first is None else first
        lines.append((now - (first or 0.0), line))
    return StartLog(lines)


V0_7 = """
INFO 02-18 04:51:30 api_server.py:840] vLLM API server version 0.7.2
INFO 02-18 04:51:31 llm_engine.py:234] Initializing a V0 LLM engine (v0.7.2) with config: model='x', speculative=None
INFO 02-18 04:51:33 model_runner.py:1110] Starting to load model x...
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:01<00:00,  1.52s/it]
INFO 02-18 04:51:36 model_runner.py:1116] Loading model weights took 1.4123 GB
INFO 02-18 04:51:41 backends.py:577] Using cache directory: /root/.cache/vllm/torch_compile_cache/8
INFO 02-18 04:51:41 backends.py:585] Dynamo bytecode transform time: 5.63 s
INFO 02-18 04:51:45 backends.py:207] Directly lookup the graph for shape None from the cache
INFO 02-18 04:51:45 backends.py:321] Compiling a graph for general shape takes 0.34 s
INFO 02-18 04:51:47 monitor.py:31] torch.compile takes 5.96 s in total
INFO 02-18 04:51:48 worker.py:266] Memory profiling takes 11.94 seconds
INFO 02-18 04:51:48 executor_base.py:108] # CUDA blocks: 35064, # CPU blocks: 2730
Capturing CUDA graph shapes: 100%|####| 35/35 [00:09<00:00,  3.55it/s]
INFO 02-18 04:51:58 model_runner.py:1684] Graph capturing finished in 10 secs, took 0.13 GiB
INFO 02-18 04:51:58 llm_engine.py:428] init engine (profile, create kv cache, warmup model) took 22.81 seconds
"""

V0_9 = """
INFO 06-05 09:09:15 [api_server.py:1289] vLLM API server version 0.9.0.1
INFO 06-05 09:09:44 [core.py:65] Initializing a V1 LLM engine (v0.9.0.1) with config: compilation_config={"level": 3, \
"cudagraph_capture_sizes": [512, 504, 8, 4, 2, 1], "max_capture_size": 512}
INFO 06-05 09:09:46 [gpu_model_runner.py:1531] Starting to load model deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B...
INFO 06-05 09:09:48 [default_loader.py:280] Loading weights took 1.16 seconds
INFO 06-05 09:09:48 [gpu_model_runner.py:1549] Model loading took 3.3466 GiB and 1.677846 seconds
INFO 06-05 09:09:57 [backends.py:469] Dynamo bytecode transform time: 8.69 s
INFO 06-05 09:10:03 [backends.py:132] Directly load the compiled graph(s) for shape None from the cache, took 6.203 s
INFO 06-05 09:10:04 [monitor.py:33] torch.compile takes 8.69 s in total
INFO 06-05 09:10:05 [kv_cache_utils.py:637] GPU KV cache size: 1,131,008 tokens
INFO 06-05 09:10:36 [gpu_model_runner.py:1933] Graph capturing finished in 31 secs, took 0.45 GiB
INFO 06-05 09:10:36 [core.py:167] init engine (profile, create kv cache, warmup model) took 47.64 seconds
INFO 06-05 09:10:37 [api_server.py:1336] Starting vLLM API server on http://0.0.0.0:8000
INFO:     Application startup complete.
"""

V0_22 = """
(APIServer pid=1) INFO 06-07 08:55:20 [utils.py:299]   version 0.22.1
(EngineCore pid=111) INFO 06-07 08:55:57 [gpu_model_runner.py:5037] Starting to load model google/gemma-4-E4B-it...
(EngineCore pid=111) INFO 06-07 08:55:59 [default_loader.py:397] Loading weights took 1.65 seconds
(EngineCore pid=111) INFO 06-07 08:56:00 [gpu_model_runner.py:5132] Model loading took 15.18 GiB memory and 2.640207 s
(EngineCore pid=111) INFO 06-07 08:56:15 [backends.py:1148] Dynamo bytecode transform time: 5.91 s
(EngineCore pid=111) INFO 06-07 08:56:33 [backends.py:393] Compiling a graph for compile range (1, 2048) takes 16.97 s
(EngineCore pid=111) INFO 06-07 08:56:35 [decorators.py:708] saved AOT compiled function to /root/.cache/vllm/model
(EngineCore pid=111) INFO 06-07 08:56:35 [monitor.py:53] torch.compile took 25.93 s in total
(EngineCore pid=111) INFO 06-07 08:56:36 [monitor.py:81] Initial profiling/warmup run took 0.40 s
(EngineCore pid=111) INFO 06-07 08:56:40 [gpu_model_runner.py:6279] Profiling CUDA graph memory: PIECEWISE=51, FULL=35
(EngineCore pid=111) INFO 06-07 08:56:43 [gpu_worker.py:466] Available KV cache memory: 4.1 GiB
(EngineCore pid=111) INFO 06-07 08:56:43 [kv_cache_utils.py:1733] GPU KV cache size: 224,353 tokens
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 51/51 [00:02<00:00, 20.01it/s]
Capturing CUDA graphs (decode, FULL): 100%|####| 35/35 [00:03<00:00,  9.34it/s]
(EngineCore pid=111) INFO 06-07 08:56:50 [gpu_model_runner.py:6456] Graph capturing finished in 7 secs, took 0.71 GiB
(EngineCore pid=111) INFO 06-07 08:56:50 [core.py:302] init engine (profile, create kv cache, warmup model) took \
50.64 s (compilation: 25.93 s)
(APIServer pid=1) INFO 06-07 08:56:59 [api_server.py:596] Starting vLLM server on http://0.0.0.0:8020
"""

CPU_0_32 = """
(APIServer pid=12773) INFO 11-28 02:48:40.5 [api_utils.py:347]   █  version 0.32.0
(Worker pid=13014) INFO 11-28 02:48:57.087 [cpu_model_runner.py:68] Starting to load model /models/a...
(Worker pid=13014) INFO 11-28 02:48:57.534 [default_loader.py:501] Loading weights took 0.33 seconds
(Worker pid=13014) INFO 11-28 02:48:58.594 [cpu_model_runner.py:87] Warming up model for the compilation...
(Worker pid=13014) INFO 11-28 02:49:27.622 [decorators.py:743] [backbone] saved AOT compiled function to /cache/model
(Worker pid=13014) INFO 11-28 02:49:27.890 [monitor.py:91] [backbone] Initial profiling/warmup run took 0.27 s
(Worker pid=13014) INFO 11-28 02:49:29.103 [cpu_model_runner.py:91] Warming up done.
(EngineCore pid=12865) INFO 11-28 02:49:29.115 [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum
(EngineCore pid=12865) INFO 11-28 02:49:31.192 [core.py:402] init engine (profile, create kv cache, warmup model) \
took 32.60 s
INFO:     Application startup complete.
"""


@pytest.mark.feature("Measuring and fitting", (
    "`hermes calibrate run` of starts (`start-up`): vLLM measured by phase, cold and warm, and fitted for "
    "`fleet.start_up.times`"))
@pytest.mark.parametrize(("text", "version", "sizes", "compiled", "phases"), [
    (V0_7, "0.7.2", None, True, {   # loading is between two lines; the profiling includes the compiling
        "weights_s": 3.0, "compile_s": 5.97, "profiling_s": 6.03, "capture_s": 10.0}),
    (V0_9, "0.9.0.1", [1, 2, 4, 8, 504, 512], False, {   # the total of a warm start lacks the loading of the graph
        "weights_s": 1.16, "compile_s": 14.893, "profiling_s": 2.107, "capture_s": 31.0, "trace_s": 8.69}),
    (V0_22, "0.22.1", None, True, {   # the total has more than the sum of its parts
        "weights_s": 1.65, "compile_s": 25.93, "profiling_s": 17.07, "capture_s": 7.0, "graphs_s": 16.97}),
    (CPU_0_32, "0.32.0", None, True, {   # neither tracing nor compiling is stated, and there is no capture
        "weights_s": 0.33, "compile_s": 29.028, "profiling_s": 1.481, "capture_s": 0.0}),
])
def test_phases_of_versions(text, version, sizes, compiled, phases):
    log = read(text)
    assert (log.version, log.sizes, log.compiled, log.of_vllm) == (version, sizes, compiled, True)
    found = log.phases(120.0)
    assert {name: found[name] for name in phases} == pytest.approx(phases, abs=1e-3)
    assert sum(found[name] for name in PHASES) == pytest.approx(120.0)


def test_parts_of_the_process():
    found = read(V0_9).phases(90.0)
    assert (found["imports_s"], found["launch_s"], found["server_s"]) == (0.0, 31.0, 9.0)


def test_the_slowest_rank_counts_and_models_of_one_rank_add_up():
    log = StartLog((0.0, f"({who}) INFO 07-10 12:50:15 [default_loader.py:272] Loading weights took {took} seconds")
                   for who, took in (("VllmWorker rank=1 pid=839", 0.43), ("VllmWorker rank=2 pid=840", 0.5),
                                     ("VllmWorker rank=1 pid=839", 0.1)))
    assert log.phases(10.0)["weights_s"] == pytest.approx(0.53)


def test_a_wording_of_another_total():
    """0.17 says one total for compiling and the first run: its parts count."""
    log = StartLog((1.0, line) for line in (
        "(EngineCore_DP0 pid=94) INFO 03-09 12:57:29 [backends.py:973] Dynamo bytecode transform time: 2.08 s",
        "(EngineCore_DP0 pid=94) INFO 03-09 12:57:31 [backends.py:283] Directly load the compiled graph(s) for compile "
        "range (1, 4096) from the cache, took 0.961 s",
        "(EngineCore_DP0 pid=94) INFO 03-09 12:57:31 [monitor.py:35] torch.compile and initial profiling run took "
        "3.37 s in total"))
    assert log.phases(10.0)["compile_s"] == pytest.approx(3.041)
    assert not log.compiled


def test_a_log_of_another_program():
    log = StartLog([(0.0, "hello"), (1.0, "ValueError: no memory"), (2.0, "bye")])
    assert not log.of_vllm
    assert log.last == "ValueError: no memory"
    assert log.phases(3.0) == {"compile_s": 0.0, "profiling_s": 0.0, "capture_s": 0.0, "process_s": 3.0}


@given(st.lists(st.tuples(st.floats(0, 100), st.one_of(st.text(), st.sampled_from(
    [line for text in (V0_7, V0_9, V0_22, CPU_0_32) for line in text.splitlines()])))))
def test_any_lines_give_phases_of_no_less_than_nothing(lines):
    found = StartLog(lines).phases(50.0)
    assert all(seconds >= 0 for seconds in found.values())
