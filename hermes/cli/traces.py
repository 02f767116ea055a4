"""`hermes trace`: import and describe request traces."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import typer

from hermes.cli.output import Answer, Overrides, command_group

__all__ = ["trace"]

TraceFile = Annotated[Path, typer.Argument(help="The trace file.", show_default=False)]


def get(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The trace; left out, all are listed.",
                                        show_default=False)] = "",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.parquet", help="The Parquet file to write [NAME.parquet].")] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="Take it from here, such as a mirror.")] = "",
) -> Answer:
    """Download a public trace, check it, and convert it to HERMES's Parquet format."""
    from dataclasses import asdict

    from hermes.results.layout import Section
    from hermes.workload.public_traces import get_trace, public_traces

    if not name:
        known = public_traces()
        rows = [[name, trace.what, trace.licence] for name, trace in known.items()]
        return Answer([asdict(trace) for trace in known.values()], [Section("", ["name", "what", "licence"], rows)])
    path = output or Path(f"{name}.parquet")
    found = get_trace(name, path, url)
    return Answer(
        {"name": name, "file": str(path), "requests": found.requests, "sha256": found.sha256,
         "licence": found.trace.licence},
        [f"{path}: {found.requests:,} requests, licence {found.trace.licence}; next: hermes trace describe {path}"])


def import_(
    format_: Annotated[
        str, typer.Argument(metavar="FORMAT", help="aiperf, azure, bailian, blis, burstgpt, csv, guidellm, "
                                                   "inference-perf, mooncake, parquet, ragpulse, servegen, sharegpt, "
                                                   "tokens, vllm-bench, vllm-run, or a plug-in's.")
    ],
    file: TraceFile,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.parquet", help="The Parquet file to write.")],
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
) -> Answer:
    """Convert a trace to HERMES's Parquet format. --set gives options of the source FORMAT, e.g. --set arrival=ts."""
    from hermes.config.validation import validate
    from hermes.config.yaml_document import as_node
    from hermes.scenario.loading import apply_override
    from hermes.workload.importers import TRACE_IMPORTERS
    from hermes.workload.traces import describe_frame, write_trace

    importer: Any = TRACE_IMPORTERS.get(format_)
    options = as_node({})
    for override in overrides:
        options = apply_override(options, override)
    checked = validate(importer, options)
    frame = checked.read(file)
    write_trace(frame, output, source=f"{format_}: {file.name}", hash_block_tokens=checked.hash_block_tokens)
    dropped = {"rows_dropped": frame.attrs["rows_dropped"]} if "rows_dropped" in frame.attrs else {}
    return _answer({**describe_frame(frame), **dropped, "file": str(output)})


def describe(file: TraceFile) -> Answer:
    """Print a trace's request count, rate, burstiness, lengths and their correlation."""
    from hermes.workload.traces import describe as figures

    return _answer(figures(file))


def cache(
    file: TraceFile,
    capacities: Annotated[
        list[int], typer.Option("--capacity", metavar="BLOCKS", min=1, help="Capacity in blocks; repeatable.")
    ] = [],  # noqa: B006
    evictions: Annotated[
        list[str], typer.Option("--eviction", metavar="NAME", help="Eviction policy; repeatable [lru lfu fifo].")
    ] = [],  # noqa: B006
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", metavar="N", min=1, help="Tokens per block, for a trace with "
                                 "hash_tokens; the blocks of other traces are given [16].")
    ] = None,
) -> Answer:
    """Print the hit rate of a prefix cache on a trace: without limit, and for each of the given capacities."""
    from hermes.errors import InputError, Verbatim
    from hermes.memory.replay import replay
    from hermes.results.layout import Section
    from hermes.workload.traces import read_trace

    table = read_trace(file)
    if table.hash_ids is None:
        raise InputError("a trace with block hashes", "none", file=str(file), field="hash_ids")
    prompts: list[Sequence[Hashable]]
    if table.hash_tokens is not None:
        size = block_tokens or 16
        prompts = _blocks(table.hash_ids, table.hash_tokens, size)
    elif block_tokens is not None:
        problem = f"the trace's blocks have {table.hash_block_tokens} tokens; leave out --block-tokens"
        raise InputError(Verbatim(problem), file=str(file))
    else:
        size, prompts = table.hash_block_tokens, list(table.hash_ids)
    whole = replay(prompts)
    rows: list[dict[str, Any]] = [{"capacity_blocks": None, "eviction": "any", "hits": whole.hits,
                                   "hit_rate": whole.hit_rate, "evictions": 0}]
    for capacity in capacities:
        for eviction in evictions or ["lru", "lfu", "fifo"]:
            found = replay(prompts, capacity, eviction)
            rows.append({"capacity_blocks": capacity, "eviction": eviction, "hits": found.hits,
                         "hit_rate": found.hit_rate, "evictions": found.evictions})
    title = (f"{whole.blocks:,} blocks of {size} tokens in {len(table):,} prompts, "
             f"{whole.distinct:,} of them distinct")
    return Answer(
        {"requests": len(table), "blocks": whole.blocks, "distinct": whole.distinct, "block_tokens": size,
         "caches": rows},
        [Section(title, ["capacity (blocks)", "eviction", "hits", "hit rate", "evictions"], [
            ["no limit" if row["capacity_blocks"] is None else f"{row['capacity_blocks']:,}", row["eviction"],
             f"{row['hits']:,}", f"{row['hit_rate']:.4%}", f"{row['evictions']:,}"] for row in rows])])


def _blocks(ids: Sequence[tuple[int, ...]], tokens: Sequence[tuple[int, ...]], size: int) -> list[Sequence[Hashable]]:
    """Return the keys of the whole blocks of `size` tokens of prompts hashed in pieces."""
    from hermes.core.block_hashes import HashedPieces

    found: list[Sequence[Hashable]] = []
    for chain, lengths in zip(ids, tokens, strict=True):
        whole = sum(lengths)
        prompt = HashedPieces(chain, tuple(accumulate(lengths)), whole)
        found.append([prompt.block_key(i, size) for i in range(whole // size)])
    return found


def _answer(figures: dict[str, Any]) -> Answer:
    from hermes.results.layout import Section

    return Answer(figures, [Section("", ["figure", "value"], _flat(figures))])


def _flat(data: dict[str, Any], prefix: str = "") -> list[list[Any]]:
    rows: list[list[Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            rows.append([prefix + key, f"{text:.6g}" if isinstance(text, float) else text])
    return rows


trace = command_group("Import and describe request traces.",
                      {"import": import_, "get": get, "describe": describe, "cache": cache})
