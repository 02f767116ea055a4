"""Docstrings name what is there: no names that the code does not have, and no document that readers do not have."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import hermes

pytestmark = pytest.mark.long   # reads every module

PACKAGE = Path(hermes.__file__).parent
# names of other software, of scripts, and of keys that are put together
FOREIGN = {
    "build_azure_workloads", "build_lookahead", "build_sharegpt_workload", "check_enough_kv_cache_memory",
    "cos_sin_cache", "create_weights", "cum_seq_k", "determine_available_memory",
    "determine_chunked_prefill_workspace_size", "fpm_sample_bucket_size", "fused_experts", "gpu_memory_utilization",
    "handle_gpu_memory_settings", "kalman_q_level", "kalman_q_trend", "kalman_r", "load_min_observations",
    "load_scaling_down_sensitivity", "max_memory_usage_bytes", "max_num_fpm_samples", "mixed_step_breakdown",
    "optimization_target", "prefill_moddeling", "process_weights_after_loading", "profile_cudagraph_memory",
    "profile_run", "select_worker_for_model", "ttft_p50", "use_v2_model_runner",
}


@cache   # not when the module is imported, which every test process does
def trees():
    """The nodes of each file, the module first: walking through them takes longer than parsing."""
    files = [path for folder in ("hermes", "studies", "evidence")
             for path in sorted((PACKAGE.parent / folder).rglob("*.py"))]
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in files}


def docstrings(nodes):
    """Strings that stand as statements: docstrings of modules, classes, functions and attributes."""
    return [node.value for node in nodes if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]


def names(nodes, but=()):
    """Every word of the nodes' names and strings, those of the nodes in `but` left out."""
    left_out, texts = {id(node) for node in but}, set()
    for node in nodes:
        if isinstance(node, ast.Constant):
            texts.add(node.value if isinstance(node.value, str) and id(node) not in left_out else None)
        else:
            have = vars(node)
            texts.update(have[field] for field in ("id", "attr", "arg", "name", "module")
                         if isinstance(have.get(field), str))
    return set(re.findall(r"\w+", "\n".join(text for text in texts if text is not None)))


def test_names_in_docstrings_exist():
    known = FOREIGN | {part for path in trees() for part in path.with_suffix("").parts}
    said = []
    for path, nodes in trees().items():
        strings = docstrings(nodes)
        known |= names(nodes, but=strings)
        said += [(path, node.lineno, word) for node in strings for quoted in re.findall(r"`([^`\n]+)`", node.value)
                 for word in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", quoted)]
    wrong = [f"{path}:{line}: {word}" for path, line, word in said if word not in known]
    assert not wrong


def documented(kinds):
    """(file, node, docstring) of functions or classes."""
    return ((path, node, text) for path, nodes in trees().items() for node in nodes
            if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)))


def test_parameters_in_docstrings_exist():
    """A line `name: what it is` is about a parameter, or a field of what is returned."""
    wrong = []
    for path, node, text in documented(ast.FunctionDef | ast.ClassDef):
        lines = re.findall(r"\n\s*([a-z]\w*(?:, [a-z]\w*)*): \S", text)
        said = [name for line in lines for name in line.split(", ") if "_" in name]
        nodes = list(ast.walk(node)) if said else []
        have = names(nodes, but=docstrings(nodes))
        wrong += [f"{path}:{node.lineno}: {name}" for name in said if name not in have]
    assert not wrong


def test_what_a_docstring_says_is_set_is_set():
    wrong = []
    for path, node, text in documented(ast.FunctionDef):
        if said := re.findall(r"\b[Ss]ets `(\w+)`", text):
            targets = [getattr(part, "targets", None) or [part.target] for part in ast.walk(node)
                       if isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign)]
            assigned = {name for group in targets for target in group for name in names(ast.walk(target))}
            wrong += [f"{path}:{node.lineno}: {name}" for name in said if name not in assigned]
    assert not wrong


def test_no_document_that_readers_do_not_have():
    wrong = [f"{path}:{node.lineno}" for path, nodes in trees().items() for node in docstrings(nodes)
             if re.search(r"\b[Ss]pec section|\bthe spec\b", node.value)]
    assert not wrong


def test_every_docstring_can_be_encoded():
    """Python 3.13 removes the indent of docstrings as UTF-8 when it compiles them: half a character ends the import."""
    broken = [f"{path.name}: {node.value!r}" for path, nodes in trees().items() for node in docstrings(nodes)
              if re.search("[\ud800-\udfff]", node.value)]
    assert not broken
