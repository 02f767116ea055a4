"""Importers that ask another interpreter: the protocol with packages made up here, and the real ones where they are.

HERMES_AICONFIGURATOR_PYTHON and HERMES_GENZ_PYTHON name interpreters that have them. tests/data/genz holds times that
genz-llm 0.0.16 (MIT) computes for Llama-3.1-8B on its H100_GPU in bf16 at an efficiency of 0.75.
"""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hermes.calibration.importers import Aiconfigurator, Genz, remote
from hermes.calibration.importers.base import no_progress
from hermes.calibration.importers.genz import batches_in
from hermes.calibration.importers.priced import ask, rows_of, step_grid
from hermes.calibration.steps import STATS, phase_of, tidy_rows
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed

REAL = {
    "aiconfigurator_core": os.environ.get("HERMES_AICONFIGURATOR_PYTHON"), "GenZ": os.environ.get("HERMES_GENZ_PYTHON"),
}
ENGINE = ("engine", "sampling")
GENZ_TIMES = Path(__file__).parents[1] / "data" / "genz" / "llama-3.1-8b-h100.csv"


def interpreter(package):
    python = REAL[package] or (sys.executable if importlib.util.find_spec(package) else None)
    if python is None:
        pytest.skip(f"no interpreter with {package} (see the variables at the top of this file)")
    return python


FAKE_AIC = {
    "aiconfigurator_core/__init__.py": "",
    "aiconfigurator_core/sdk/__init__.py": "",
    "aiconfigurator_core/sdk/perf_database.py": (
        "def resolve_query_version(system, backend, version):\n"
        "    if system != 'card': raise ValueError('no such\\nsystem ' + system)\n"
        "    return '1.0' if version == 'current' else version\n"
    ),
    # a linear machine: ms = 5 + tokens / 10 + pairs / 1e5 + head; nothing known beyond 8192 new tokens
    "aiconfigurator_core/sdk/engine.py": """
class EngineHandle:
    @classmethod
    def compile(cls, model, system, backend, **kinds):
        assert kinds["moe_tp_size"] == kinds["tp_size"]
        print("noise on stdout")
        return cls()
    def attention(self, b, isl, prefix):
        new = isl - prefix
        return b * (new * prefix + new * (new + 1) / 2) / 1e5
    def predict_prefill_latency(self, b, isl, prefix):
        if isl - prefix > 8192: raise RuntimeError("no data")
        return 6 + b * (isl - prefix) / 10 + self.attention(b, isl, prefix)
    def decode_step_latency(self, b, isl, osl):
        return 5 + b / 10 + b + b * isl / 1e5
    def decode_step_per_op(self, b, isl, osl):
        return [("gemm", 5 + b / 10, 0, "silicon"), ("generation_logits_gemm", b, 0, "silicon"),
                ("generation_attention", b * isl / 1e5, 0, "empirical")]
    def mixed_step_breakdown_per_op(self, tokens, gen, isl, osl, prefix):
        assert tokens == isl
        rest = [("gemm", 5 + (tokens + gen) / 10, 0, "silicon"), ("context_logits_gemm", 1, 0, "silicon")]
        return rest, [("context_attention", 1, 0, "mixed")], [("generation_attention", 1, 0, "silicon")] * bool(gen)
    def run_static_per_op(self, batch_size, isl, osl, prefix, mode):
        assert mode == "static_ctx"
        new = batch_size * (isl - prefix)
        return [("gemm", 6 + new / 10, 0, "silicon"), ("context_ar_1", 1, 0, "silicon"),
                ("context_attention", self.attention(batch_size, isl, prefix), 0, "mixed")], []
""",
    "aiconfigurator_core/sdk/memory.py": """
class KVCacheEstimator:
    @classmethod
    def from_request(cls, *args, max_num_tokens, max_batch_size, **kinds):
        out = cls()
        out.breakdown = {
            "gpu_memory_capacity_bytes": 100.0, "weights_bytes": 40.0, "activations_bytes": 5.0,
            "runtime_overhead_bytes": 3.0, "comm_overhead_bytes": 2.0, "non_kv_bytes": 50.0,
            "kv_size_per_token_bytes": 2.0, "tokens_from_kv_bytes": lambda budget: budget // 2,
        }
        return out
def kv_cache_budget_bytes(capacity, non_kv, fraction, of_free):
    assert not of_free
    return capacity * fraction - non_kv
""",
    "aiconfigurator_core-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 9.9\n",
}
FAKE_GENZ = {
    "GenZ/__init__.py": (
        "def decode_moddeling(batch_size, input_tokens, output_tokens, Bb, **o):\n"
        "    assert Bb == 1 and o['parallelism_heirarchy'] == 'TP{2}_EP{1}_PP{1}'\n"
        "    return {'Latency': batch_size + input_tokens}\n"
    ),
    "GenZ/LLM_inference/__init__.py": "",
    "GenZ/LLM_inference/llm_chunked.py": (
        "def chunked_moddeling(prefill_kv_sizes, decode_kv_sizes, model, **o):\n"
        "    if len(decode_kv_sizes) > 100: raise ValueError('would not fit')\n"
        "    if model == 'none': raise ValueError('no such\\nmodel')\n"
        "    return {'Latency': sum(p + n for p, n in prefill_kv_sizes) + sum(decode_kv_sizes)}\n"
    ),
    "genz_llm-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: genz-llm\nVersion: 9.9\n",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write files of a made-up package where the asked interpreter finds them."""
    def install(files):
        for name, text in files.items():
            path = tmp_path / "site" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return install


def aic(**options):
    return Aiconfigurator(**({"model": "someone/some-model", "system": "card"} | options))


def by_configuration(rows, configuration):
    return rows[rows.configuration == configuration]


@pytest.mark.feature("Measuring and fitting", "`hermes profile import` of `aiconfigurator`, `genz`, `layerwise`")
def test_batches_reach_the_package_as_it_counts_them(packages):
    packages(FAKE_AIC)
    seen = []
    steps = aic(tp=2).steps(lambda done, total: seen.append((done, total)))
    rows, header = tidy_rows(steps.rows, "x"), steps.header
    pure = rows[rows.decode_seqs == 0]
    expected = (6 + pure.prefill_tokens / 10 + pure.prefill_attn / 1e5) / 1e3
    np.testing.assert_allclose(pure.time_s, expected, rtol=1e-12)
    decode = rows[rows.prefill_tokens == 0]
    def skewed(part):
        return part.decode_ctx + 0.058 * (part.decode_ctx_max * part.decode_seqs - part.decode_ctx)

    np.testing.assert_allclose(decode.time_s, (5 + decode.decode_seqs * 1.1 + skewed(decode) / 1e5) / 1e3)
    assert (decode.decode_ctx_max * decode.decode_seqs > decode.decode_ctx).mean() > 0.5
    mixed = rows[phase_of(rows) == "mixed"]
    tokens = mixed.prefill_tokens + mixed.decode_seqs
    # the head is priced for the decodes' rows, not for the prefill's one
    ms = 5 + tokens / 10 + mixed.prefill_attn / 1e5 + skewed(mixed) / 1e5 + mixed.decode_seqs
    np.testing.assert_allclose(mixed.time_s, ms / 1e3)
    assert header.engine_version == "1.0"
    assert header.environment == {"aiconfigurator-core": "9.9"}
    assert header.memory.activation_bytes == 10
    assert "20 KV tokens" in header.memory.source
    assert pure.prefill_tokens.max() <= 32768
    assert not ((pure.prefill_tokens > 8192) & (pure.prefill_seqs == 1)).any()
    assert "cannot price" in header.excluded[0]
    assert "all-reduce takes" in " ".join(header.notes)
    assert seen
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1]
    assert rows.equals(tidy_rows(aic(tp=2).steps().rows, "x"))
    equal = aic(tp=2, skew=0.0).steps()
    assert (equal.rows.decode_ctx_max * equal.rows.decode_seqs == equal.rows.decode_ctx).all()
    assert "equal contexts" in " ".join(equal.header.notes)


def test_models_whose_attention_is_not_priced_apart_get_no_mixed_steps(packages):
    engine = "aiconfigurator_core/sdk/engine.py"
    packages(FAKE_AIC | {engine: FAKE_AIC[engine].replace('[("context_attention", 1, 0, "mixed")]', "[]")})
    steps = aic().steps()
    assert set(phase_of(steps.rows)) == {"prefill", "decode"}
    assert "not imported" in " ".join(steps.header.notes)


def test_a_refusal_of_the_package_is_one_line(packages, tmp_path):
    packages(FAKE_AIC)
    with pytest.raises(InputError) as error:
        aic(system="card2").steps()
    assert str(error.value) == "expected something aiconfigurator can price, found ValueError: no such system card2"
    with pytest.raises(InputError, match="model: expected an existing config"):
        aic(model=str(tmp_path / "none.json")).steps()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="a file called config"):
        aic(model=str(tmp_path / "other.json")).steps()


def test_an_interpreter_without_the_package_names_the_extra():
    if importlib.util.find_spec("aiconfigurator_core") is None:
        with pytest.raises(InputError, match=r"pip install 'hermes-sim\[aiconfigurator\]', or --python"):
            aic().steps()
    with pytest.raises(InputError, match=r"python: expected an interpreter that runs \(No such file or directory\)"):
        aic(python="/nowhere/python").steps()


def test_an_interpreter_that_dies_is_one_line(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho Segmentation fault >&2; exit 139\n")
    script.chmod(0o755)
    with pytest.raises(InputError, match="an answer from aiconfigurator, found Segmentation fault"):
        aic(python=str(script)).steps()


def test_the_grid_has_no_batch_twice_and_statistics_that_hold_together():
    batches = step_grid(spread=(1, 2, 4))
    for part in batches:
        assert len({tuple(batch) for batch in part}) == len(part)
    seconds = {name: [1.0] * len(part) for name, part in batches._asdict().items()}
    rows, beyond, unknown = rows_of(batches, seconds, 2**18)
    assert unknown == 0
    assert len(rows) + beyond == sum(map(len, batches))
    assert (rows.prefill_past + rows.prefill_tokens + rows.decode_ctx).max() <= 2**18
    # n * past + n (n + 1) / 2 per sequence
    one = SimpleNamespace(**rows[(rows.prefill_seqs == 4) & (rows.prefill_past == 4096)].iloc[0].to_dict())
    new, past = one.prefill_tokens // 4, 1024
    assert one.prefill_attn == 4 * (new * past + new * (new + 1) // 2)


def test_aiconfigurator_figures():
    """The sanity figures of the package's Llama-3.1 tables: vLLM, H100, bf16."""
    python = interpreter("aiconfigurator_core")
    options = {"system": "h100_sxm", "python": python}
    steps = Aiconfigurator(model="meta-llama/Meta-Llama-3.1-8B", **options).steps()
    rows = steps.rows
    def ms(configuration, past=0):
        part = by_configuration(rows, configuration)
        return float(part[part.prefill_past == past].time_s.iloc[0]) * 1e3
    assert [ms(f"1 x {n}") for n in (512, 2048, 8192)] == pytest.approx([12.0, 43.5, 199.7], rel=0.01)
    decodes = [ms(f"{b} at 1024") for b in (1, 8, 32, 128)]
    assert decodes == pytest.approx([6.18, 6.60, 8.33, 12.8], rel=0.01)
    assert steps.header.model == "llama-3.1-8b"
    assert steps.header.memory.weights_bytes == pytest.approx(2 * 8.03e9, rel=0.02)
    # mixed steps never cheaper than their prefill or their decodes alone, as far as the tables are monotone
    mixed = rows[phase_of(rows) == "mixed"]
    assert len(mixed) > 350
    assert mixed.time_s.min() > rows.time_s.min()


def test_mixed_steps_are_the_package_s_own_where_it_can_say():
    """Its `mixed_step_latency` ties the decodes' context to the prompt's length; there, both must agree."""
    python = interpreter("aiconfigurator_core")
    code = """
import logging, sys; logging.disable(logging.CRITICAL)
from ask_aiconfigurator import Pricer
from aiconfigurator_core.sdk.engine import EngineHandle
handle = EngineHandle.compile("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "vllm", tp_size=4)
for new, decodes in ((256, 1), (512, 32), (1024, 64), (4096, 256)):
    ours = Pricer(handle).mixed(1, new, 0, decodes, new, new) * 1e3
    print(ours / handle.mixed_step_latency(new, decodes, new, 1, 0))
"""
    environment = os.environ | {"PYTHONPATH": str(Path(remote.__file__).parent)}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [float(line) for line in done.stdout.split()] == pytest.approx([1.0] * 4, abs=2e-4)


def test_genz_is_asked_for_batches_and_its_refusals_are_counted(packages):
    packages(FAKE_GENZ)
    steps = Genz(model="m", device="h100-sxm", tp=2).steps()
    rows = steps.rows
    assert set(phase_of(rows)) == {"prefill", "decode", "mixed"}
    decode = rows[rows.prefill_tokens == 0]
    np.testing.assert_allclose(decode.time_s * 1e3, decode.decode_seqs + decode.decode_ctx_max)
    chunk = rows[rows.prefill_tokens > 0]
    np.testing.assert_allclose(chunk.time_s * 1e3, chunk.prefill_tokens + chunk.prefill_past + chunk.decode_ctx)
    assert (rows.decode_seqs[rows.prefill_tokens > 0] <= 100).all()
    assert "GenZ refuses" in steps.header.excluded[0]
    assert steps.header.options["system"]["Flops"] == pytest.approx(989.4)
    assert steps.header.engine_version == "9.9"


def test_what_genz_refuses_is_one_line(packages):
    packages(FAKE_GENZ)
    with pytest.raises(InputError) as error:
        Genz(model="none", device="H100_GPU", tp=2).steps()
    assert str(error.value) == "expected something genz can price, found ValueError: no such model"
    if importlib.util.find_spec("GenZ") is None:
        packages({"GenZ/__init__.py": "raise ImportError('No module named GenZ')"})
        with pytest.raises(InputError, match=r"pip install 'hermes-sim\[genz\]', or --python"):
            Genz(model="m", device="H100_GPU").steps()


def test_recorded_times_of_genz_become_steps():
    steps = Genz(model="meta-llama/llama-3.1-8b", device="H100_GPU", times_file=str(GENZ_TIMES)).steps()
    assert [int((phase_of(steps.rows) == phase).sum()) for phase in ("prefill", "decode", "mixed")] == [6, 6, 3]
    row = by_configuration(steps.rows, "1 x 512 + 16 decodes").iloc[0]
    assert (row.prefill_past, row.prefill_attn) == (8192, 512 * 8192 + 512 * 513 // 2)
    assert (row.decode_ctx, row.decode_ctx_max, row.sampled) == (16 * 4096, 4096, 17)
    assert steps.header.model == "llama-3.1-8b"
    assert len(steps.header.source_sha256) == 64
    assert "--times llama-3.1-8b-h100.csv" in steps.header.collected_by


def test_genz_agrees_with_the_kernels_of_the_composed_model():
    """At an efficiency of 0.75, within a seventh; the composed model's engine and sampling are not in GenZ."""
    steps = Genz(model="meta-llama/llama-3.1-8b", device="H100_GPU", times_file=str(GENZ_TIMES)).steps()
    model = Composed(model="llama-3.1-8b", device="h100-sxm").build()
    ratios = []
    for row in steps.rows.to_dict("records"):
        longest = row["prefill_tokens"] // max(1, row["prefill_seqs"])
        terms = model.terms_ns(StepStats(**{name: row[name] for name in STATS}, prefill_max=longest))
        ratios.append(row["time_s"] * 1e9 / math.fsum(ns for name, ns in terms.items() if name not in ENGINE))
    assert min(ratios) > 0.85
    assert max(ratios) < 1.13
    assert np.median(ratios) == pytest.approx(0.97, abs=0.03)


@pytest.mark.parametrize(("row", "message"), [
    ("1,512,0,0,0,0", "time_s above 0"),
    ("0,0,0,0,0,1", "at least one sequence"),
    ("1,0,0,1,8,1", "prefill_new_tokens where"),
    ("0,0,16,1,8,1", "no prefill tokens where there are none"),
    ("1,16,0,2,0,1", "decode_ctx_tokens where"),
    ("1,1.5,0,0,0,1", "an integer from 0"),
])
def test_a_wrong_row_of_times_is_one_line(tmp_path, row, message):
    path = tmp_path / "times.csv"
    head = GENZ_TIMES.read_text().splitlines()[0]
    path.write_text(f"{head}\n{row}\n")
    with pytest.raises(InputError, match=message) as error:
        Genz(model="m", device="H100_GPU", times_file=str(path)).steps()
    assert f"{path}:2" in str(error.value) or f"{path}, line 2" in str(error.value)
    path.write_text(head.removesuffix(",time_s") + "\n")
    with pytest.raises(InputError, match="a column time_s"):
        Genz(model="m", device="H100_GPU", times_file=str(path)).steps()
    path.write_text(head + "\n")
    with pytest.raises(InputError, match="at least one row"):
        Genz(model="m", device="H100_GPU", times_file=str(path)).steps()


def test_the_recorded_times_are_genz_s():
    python = interpreter("GenZ")
    batches, seconds = batches_in(GENZ_TIMES)
    request = {"model": "meta-llama/llama-3.1-8b", "system_name": "H100_GPU", "system_eff": 0.75, "bits": "bf16",
               "tp": 1, "batches": batches._asdict()}
    found = ask("ask_genz.py", request, python, "genz", no_progress)["seconds"]
    for phase, times in seconds.items():
        assert found[phase] == pytest.approx(times, rel=1e-6)
