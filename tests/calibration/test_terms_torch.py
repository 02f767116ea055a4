"""The terms collector with torch: what it needs, its attention, its timing.

What needs torch runs in the interpreter that the environment variable HERMES_TORCH_PYTHON names.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.calibration.measurements.model import config_of
from hermes.calibration.session import interpreter_environment
from hermes.hardware.descriptions.models import load_model

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("HERMES_TORCH_PYTHON", "")
needs_torch = pytest.mark.skipif(not PYTHON, reason="HERMES_TORCH_PYTHON names no interpreter with torch")


def test_shipped_descriptions_become_configs():
    for name, kind in (("llama-3.1-8b", "llama"), ("qwen2-7b", "qwen2"), ("qwen3-32b", "qwen3")):
        config = config_of(load_model(name))
        assert config["model_type"] == kind
        assert config["num_key_value_heads"] == load_model(name).num_kv_heads


# -- what the collector needs ------------------------------------------------------------------------------------------


def closure(module: str, seen: dict[str, set[str]]) -> dict[str, set[str]]:
    """Modules of hermes that importing one imports, with the foreign modules each imports with it."""
    path = ROOT / (module.replace(".", "/") + ".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    seen[module] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        later = isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        if later:
            for child in ast.walk(node):
                child.skip = True  # type: ignore[attr-defined]
        if getattr(node, "skip", False) or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        for name in names:
            if name.split(".")[0] != "hermes":
                seen[module].add(name.split(".")[0])
            else:
                parents = [".".join(name.split(".")[:i]) for i in range(1, name.count(".") + 2)]
                candidates = [name] if isinstance(node, ast.Import) else [
                    *parents, *(f"{name}.{alias.name}" for alias in node.names
                                if (ROOT / name.replace(".", "/") / f"{alias.name}.py").exists())]
                for found in candidates:
                    if found not in seen and found != "hermes":
                        closure(found, seen)
    return seen


def test_the_collector_needs_numpy_and_torch_alone():
    found = closure("hermes.calibration.collect.terms_torch", {})
    foreign = {name for names in found.values() for name in names} - set(sys.stdlib_module_names)
    assert foreign <= {"numpy", "torch"}
    assert not any(name.startswith(("hermes.hardware", "hermes.config")) for name in found)


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not for collectors")
BLOCKED = {"pydantic", "simpy", "pandas", "pyarrow", "yaml", "rich", "typer", "sklearn", "scipy", "matplotlib",
           "transformers", "vllm", "pynvml"}
sys.meta_path.insert(0, Blocker())
import hermes.calibration.collect.terms, hermes.calibration.collect.terms_torch
print(sorted(name for name in sys.modules if name.startswith("hermes.")))
"""


@needs_torch
def test_collectors_import_on_a_bare_machine():
    with interpreter_environment() as environment:
        done = subprocess.run([PYTHON, "-c", BLOCKED], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "hermes.config" not in done.stdout


# -- attention and timing ----------------------------------------------------------------------------------------------


CHECKS = ("attention_is_right", "a_wrong_kernel_is_refused", "one_launch_serves_prompt_and_decodes",
          "every_operator_runs", "timing_reads_every_copy")


@pytest.fixture(scope="module")
def check():
    """What `torch_checks` found, by name; all in one process, which imports torch once."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([PYTHON, "-m", "tests.calibration.torch_checks", *CHECKS], env=environment, cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout).__getitem__


@needs_torch
def test_attention_against_attention_written_out(check):
    for name, difference in check("attention_is_right").items():
        assert difference < (1e-5 if "float32" in name else 0.03), name
    assert check("a_wrong_kernel_is_refused").startswith("attention of vLLM 0: wrong by ")


@needs_torch
def test_every_operator_runs(check):
    """A prompt beside decodes is one launch; the sum of the residual is in the norm's kernel."""
    assert check("one_launch_serves_prompt_and_decodes") == {"notes": {"launch": "one"}, "size": [43, 8, 16]}
    found = check("every_operator_runs")
    assert found.pop("residual").startswith("part of the norm's kernel")
    assert found == {"norm": None, "activation": None, "qk_norm": [5, 32], "rotary": [5, 32], "embedding": [5, 32],
                     "sampling": [5], "qkv": [5, 6]}


@needs_torch
def test_timing_walks_through_all_copies(check):
    """Of five copies none is read twice before the others, and a repetition is as long as asked."""
    found = check("timing_reads_every_copy")
    assert max(found["counts"]) - min(found["counts"]) <= 1
    assert min(found["counts"]) >= 5
    assert all(1.5e-4 < seconds < 2e-3 for seconds in found["times"])
    assert found["how"].startswith("CUDA events around a graph of")
