"""The collector of vLLM, as far as it can be tested without vLLM."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("vllm_llm",)

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("hermes", "numpy"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Blocker())
import importlib
for name in sys.argv[1:]:
    importlib.import_module("hermes.calibration.collect." + name)
"""


def test_only_numpy_is_needed():
    """vLLM's environment has nothing of ours; torch and vLLM themselves are imported when an engine starts."""
    subprocess.run([sys.executable, "-c", BLOCK, *MODULES], cwd=ROOT, check=True)


class Request:
    def __init__(self, computed, tokens):
        self.num_computed_tokens, self.num_tokens = computed, tokens


class Scheduler:
    requests = {
        "chunk": Request(600, 900), "last chunk": Request(900, 900), "decode": Request(51, 51),
        "longer decode": Request(400, 400), "one-token prompt": Request(1, 1),
    }


def test_statistics_of_a_batch():
    """The scheduler has counted the step's tokens as computed already."""
    from hermes.calibration.collect.vllm_llm import VllmEngine

    engine = VllmEngine.__new__(VllmEngine)
    engine.scheduler = Scheduler()
    row = engine._statistics({"chunk": 100, "last chunk": 200, "decode": 1, "longer decode": 1, "one-token prompt": 1})
    assert row == {
        "prefill_seqs": 3, "prefill_tokens": 301, "prefill_past": 500 + 700,
        "prefill_attn": 100 * 500 + 5050 + 200 * 700 + 20100 + 1,
        "decode_seqs": 2, "decode_ctx": 50 + 399, "decode_ctx_max": 399, "sampled": 4,
    }
    assert engine._statistics({}) == {}


def test_limits_cannot_grow():
    from hermes.calibration.collect.vllm_llm import VllmEngine

    engine = VllmEngine.__new__(VllmEngine)
    engine.scheduler, engine.config = Scheduler(), {"max_num_batched_tokens": 512, "max_num_seqs": 8}
    engine.limit(256, 4)
    assert engine.scheduler.max_num_scheduled_tokens == 256
    assert engine.scheduler.max_num_active_reqs == engine.scheduler.max_num_running_reqs == 4
    with pytest.raises(ValueError, match="limits beyond"):
        engine.limit(1024, 4)


@pytest.mark.parametrize(("device", "kv_gib", "space"), [("cpu", 2, "2"), ("cpu", 0, "1"), ("cuda", 2, None)])
def test_memory_of_the_kv_cache(monkeypatch, device, kv_gib, space):
    """A GPU's engine sizes its own."""
    from hermes.calibration.collect.vllm_llm import prepare_environment

    for name in ("VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING", "HF_HUB_OFFLINE",
                 "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_environment(device, 1, kv_gib)
    import os

    assert os.environ.get("VLLM_CPU_KVCACHE_SPACE") == space
    assert (os.environ.get("OMP_NUM_THREADS") == "1") == (device == "cpu")
