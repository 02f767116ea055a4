"""Compare the source of two installed engines, function by function, where the rules come from.

    python scripts/engine_sources.py OLD NEW [--lines]

OLD and NEW are folders of the package `vllm` (or interpreters that have it). For each function or class that a rule
cites (`CITED`) the command prints where the new one differs: `file:line`, lines taken away and added. Comments,
docstrings and blank lines do not count. `--lines` prints the lines as well.
"""

from __future__ import annotations

import ast
import difflib
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCHEDULER = "v1/core/sched/scheduler.py"
OFFLOADING = "distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"
CITED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("1 to 14, 22, 23: the loop", SCHEDULER, ("Scheduler.__init__", "Scheduler.schedule")),
    ("12, 13: preemption", SCHEDULER, ("Scheduler._preempt_request",)),
    ("15, 16: results", SCHEDULER, (
        "Scheduler._update_after_schedule", "Scheduler.update_from_output", "Scheduler._update_request_with_output",
        "Scheduler._free_request", "Scheduler._free_request_blocks")),
    ("24: requests given up", SCHEDULER, ("Scheduler.finish_requests",)),
    ("20: asynchronous scheduling", "v1/core/sched/async_scheduler.py", ("AsyncScheduler",)),
    ("20, 23: the engine's core", "v1/engine/core.py", (
        "EngineCore.step", "EngineCore.step_with_batch_queue", "DPEngineCoreProc._should_throttle_prefills",
        "DPEngineCoreProc.run_busy_loop")),
    ("21: queues", "v1/core/sched/request_queue.py", ("FCFSRequestQueue", "PriorityRequestQueue")),
    ("8, 9, 18: blocks", "v1/core/kv_cache_manager.py", (
        "KVCacheManager.allocate_slots", "KVCacheManager.free", "KVCacheManager.get_computed_blocks",
        "KVCacheManager.cache_blocks")),
    ("19: prefix cache", "v1/core/block_pool.py", (
        "BlockHashToBlockMap", "BlockPool.cache_full_blocks", "BlockPool.get_new_blocks", "BlockPool.touch",
        "BlockPool.free_blocks", "BlockPool._maybe_evict_cached_block")),
    ("19: prefix cache", "v1/core/kv_cache_utils.py", ("FreeKVCacheBlockQueue", "get_request_block_hasher")),
    ("19: prefix cache", "v1/core/single_type_kv_cache_manager.py", (
        "SingleTypeKVCacheManager.cache_blocks", "FullAttentionManager.find_longest_cache_hit")),
    ("S: speculation", "config/vllm.py", (
        "VllmConfig.num_lookahead_tokens", "VllmConfig.num_hash_lookahead_tokens", "VllmConfig.use_v2_model_runner",
        "VllmConfig._get_v2_model_runner_unsupported_features", "VllmConfig._set_max_num_scheduled_tokens")),
    ("S: speculation", "config/speculative.py", (
        "SpeculativeConfig.use_eagle", "SpeculativeConfig.use_eagle_block_drop",
        "SpeculativeConfig.max_num_new_slots_for_drafting")),
    ("S: speculation", SCHEDULER, ("Scheduler.update_draft_token_ids",)),
    ("KV offload", "v1/kv_offload/cpu/manager.py", ("CPUOffloadingManager",)),
    ("KV offload", "v1/kv_offload/cpu/policies/lru.py", ("LRUCachePolicy",)),
    ("KV offload", "v1/kv_offload/cpu/policies/arc.py", ("ARCCachePolicy",)),
    ("KV offload", OFFLOADING, ("OffloadingConnectorScheduler",)),
    ("defaults by device", "engine/arg_utils.py", ("EngineArgs.get_batch_defaults",)),
    ("defaults by device", "platforms/cpu.py", ("CpuPlatform.check_and_update_config",)),
    ("asynchronous by default", "config/vllm.py", ("VllmConfig.__post_init__",)),
    ("fields", "config/scheduler.py", ("SchedulerConfig",)),
    ("fields", "config/cache.py", ("CacheConfig",)),
    ("fields", "config/lora.py", ("LoRAConfig",)),
    ("all-reduces", "distributed/device_communicators/custom_all_reduce.py", ("CustomAllreduce",)),
)
"""Rules of docs/background/vllm.md (S: speculation.md), and the functions and classes of the engine they come from."""


@dataclass(frozen=True)
class Hunk:
    """Lines of a function that differ. line: Of the new file, or of the old one if nothing was added."""

    line: int
    removed: list[str]
    added: list[str]


def definitions(source: str) -> dict[str, tuple[int, int]]:
    """Return first and last line of every function and class, by its qualified name. Of overloads the last counts."""
    found: dict[str, tuple[int, int]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = prefix + child.name
                found[name] = child.lineno, child.end_lineno or child.lineno
                visit(child, name + ".")
            else:
                visit(child, prefix)

    visit(ast.parse(source), "")
    return found


def code_lines(source: str, first: int, last: int) -> list[tuple[int, str]]:
    """Return (number, text) of the lines that hold code, without comments and docstrings, between two lines."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) \
                    and isinstance(statement.value.value, str):
                skipped.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    comments = {token.start[0]: token.start[1] for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT}
    rows = source.splitlines()
    kept = ((number, rows[number - 1][:comments.get(number)].rstrip())
            for number in range(first, min(last, len(rows)) + 1) if number not in skipped)
    return [(number, text) for number, text in kept if text.strip()]


def hunks(old: str, new: str, name: str) -> list[Hunk] | None:
    """Return where a function or class differs between two sources; None if neither has it."""
    where = [definitions(source).get(name) for source in (old, new)]
    if where == [None, None]:
        return None
    rows = [code_lines(source, *place) if place else [] for source, place in zip((old, new), where, strict=True)]
    texts = [[text for _number, text in part] for part in rows]
    found = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        line = rows[1][c][0] if c < len(rows[1]) else rows[0][a][0]
        found.append(Hunk(line, texts[0][a:b], texts[1][c:d]))
    return found


def package(place: str) -> Path:
    """Return the folder of vLLM's package, given that folder or an interpreter that has it."""
    if Path(place).is_dir():
        return Path(place)
    command = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    return Path(subprocess.run([place, "-c", command], capture_output=True, text=True, check=True).stdout.strip())


def moved(old: Path, new: Path) -> Iterator[tuple[str, str, str, list[Hunk]]]:
    """Yield (rule, file, name, hunks) of what differs, and of what either package does not have (no hunks)."""
    for rule, file, names in CITED:
        sources = [(folder / file).read_text(encoding="utf-8") if (folder / file).is_file() else ""
                   for folder in (old, new)]
        for name in names:
            found = hunks(*sources, name)
            if found is None or found:
                yield rule, file, name, found or []


def report(old: Path, new: Path, *, lines: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    for rule, file, name, found in moved(old, new):
        yield f"{rule}: {name}"
        if not found:
            yield f"  {file}: there is no {name}; cite its successor in CITED"
        for hunk in found:
            yield f"  vllm/{file}:{hunk.line}  -{len(hunk.removed)} +{len(hunk.added)}"
            if lines:
                yield from (f"      {sign}{text}" for sign, part in (("-", hunk.removed), ("+", hunk.added))
                            for text in part)


def main(*args: str) -> int:
    old, new = (package(place) for place in args if place != "--lines")
    print("\n".join(report(old, new, lines="--lines" in args)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
