"""Find requests that every client will reject for their length, before the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.request_table import RequestTable
from hermes.errors import InputError, Verbatim
from hermes.pipelines.base import plain
from hermes.pipelines.expressions import Amount
from hermes.pipelines.graph import GraphPipeline
from hermes.pipelines.mixing import WeightedPipeline
from hermes.pipelines.nodes import GenerateNode

__all__ = ["check_lengths"]


def check_lengths(
    table: RequestTable, entries: list[WeightedPipeline], drawn: IntArray, clients: list[Any], name: str,
) -> list[str]:
    """Return warnings about requests of the workload `name` that every client will reject for their length: none or
    one.

    A request is too long if prompt and output of one of its generations exceed the `max_model_len` of every client that
    could finish it.

    Args:
        table: The workload's requests.
        entries: The workload's pipelines.
        drawn: Index in `entries` of each request's pipeline.
        clients: All clients.
        name: Name of the workload.

    Raises `InputError` if all requests are too long.
    """
    longest = {entry.model: _longest(clients, entry.model) for entry in entries}
    too_long = np.zeros(len(table), dtype=bool)
    tokens = np.zeros(len(table), dtype=np.int64)
    limit = None
    for number, entry in enumerate(entries):
        rows = np.flatnonzero(drawn == number)
        for model, totals in _generations(entry, table, rows) if len(rows) else ():
            client = longest.setdefault(model, _longest(clients, model))
            if client is None or not (beyond := totals > client.max_model_len).any():
                continue
            limit = client
            too_long[rows[beyond]] = True
            tokens[rows[beyond]] = totals[beyond]
    count = int(too_long.sum())
    if limit is None or not count:
        return []
    what = f"{limit.max_model_len:,} tokens, the max_model_len of {limit.name!r}"
    if count == len(table):
        shortest = int(tokens.min())
        raise InputError(
            f"requests of at most {what} (write shorter ones, a model of a longer context, or `allow_mismatch: true` "
            "in the client)", Verbatim(f"{shortest:,} tokens of prompt and output in the shortest of {count:,}"),
            field="lengths",
        )
    return [f"{count:,} of {len(table):,} requests of workload {name!r} ({count / len(table):.2%}) have more than "
            f"{what}, and will be rejected (`max_total_tokens` of the workload cuts them; `allow_mismatch: true` of "
            "the client serves them all the same)"]


def _longest(clients: list[Any], model: str) -> Any:
    """Return the client with the largest `max_model_len` among those that can finish a generation of a model, or
    None."""
    able = [client for client in clients
            if client.role in ("both", "decode") and (client.model in ("", model) or not model)
            and hasattr(client, "max_model_len")]
    return max(able, key=lambda client: client.max_model_len) if able else None


def _generations(entry: WeightedPipeline, table: RequestTable, rows: IntArray) -> Iterator[tuple[str, IntArray]]:
    """Yield (model, prompt plus output tokens of each request in `rows`) for each generation that all requests make."""
    outputs = table.output_tokens if table.branch_tokens is None else table.branch_tokens.max(axis=1)
    values = {"prompt": table.prompt_tokens[rows], "output": outputs[rows], "past": _past(table)[rows]}
    if entry.pipeline is plain:
        yield entry.model, values["prompt"] + values["output"]
        return
    if not isinstance(entry.pipeline, GraphPipeline):
        return
    for node in entry.pipeline.graph.nodes.values():
        if isinstance(node, GenerateNode) and node.probability == 1 and not node.choice:
            model, amounts = node.model or entry.model, node.amounts
            yield model, _each(amounts["prompt"], values) + _each(amounts["output"], values)


def _past(table: RequestTable) -> IntArray:
    if table.population is None:
        return np.zeros(len(table), dtype=np.int64)
    return np.where(table.context >= 0, table.population.tokens[table.context], 0)


def _each(amount: Amount, values: dict[str, IntArray]) -> IntArray:
    """Evaluate an amount for many requests, once for each distinct set of values."""
    columns = [values[name] for name in sorted(amount.names)]
    if amount.text in values:
        return values[amount.text]
    if not columns:
        return np.full(len(values["prompt"]), amount({}), dtype=np.int64)
    distinct, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    names = sorted(amount.names)
    found = [amount(dict(zip(names, row, strict=True))) for row in distinct.tolist()]
    return np.array(found, dtype=np.int64)[which.reshape(-1)]
