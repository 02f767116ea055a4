"""The requests of a simulation: pipelines, tables, and what is known of each request before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.arrays import IntArray
from hermes.core.columns import compact
from hermes.core.record import Labels
from hermes.core.request import Stream
from hermes.core.request_table import NamedColumn, RequestTable
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.gateway.flow_config import Requested
from hermes.pipelines.base import GENERATIONS
from hermes.pipelines.checks import check_past
from hermes.pipelines.graph import GraphPipeline
from hermes.pipelines.length_check import check_lengths
from hermes.pipelines.mixing import PipelineFinder, PipelineMix, WeightedPipeline, draw_pipelines
from hermes.scenario.schema import Scenario
from hermes.workload.pipelines import fields_of

__all__ = ["Requests", "build_pipelines", "build_requests", "labels_of", "requested_of"]

NO_NAME = [""]


class Requests(NamedTuple):
    """The workloads' requests.

    Attributes:
        streams: One of each workload.
        drawn: Per workload, the pipeline that each request takes.
        warnings: One line each.
    """

    streams: list[Stream]
    drawn: list[IntArray]
    warnings: list[str]


def build_pipelines(scenario: Scenario, base_dir: Path, clients: list[Any]) -> list[list[WeightedPipeline]]:
    """Return, per workload, the pipelines of its requests with the models they ask for."""
    finder = PipelineFinder(scenario.pipelines, scenario.seed, base_dir)
    found = []
    for i, config in enumerate(scenario.workload):
        entries = []
        for choice, field in zip(config.pipelines, fields_of(config.pipeline), strict=True):
            pipeline = finder.find(choice, f"workload.{i}.{field}")
            with inside(f"workload.{i}" if choice.model is None else f"workload.{i}.{field}"):
                model = _model_of(choice.model or config.model, clients)
            entries.append(WeightedPipeline(choice.name, pipeline, model, choice.weight))
        found.append(entries)
    return finder.labelled(found)


def _model_of(wanted: str | None, clients: list[Any]) -> str:
    """Return the model that a workload asks for; left open, the clients' model if they have only one."""
    engines = [c for c in clients if GENERATIONS & c.stages] or clients
    served = list(dict.fromkeys(c.model for c in engines if c.model))
    if wanted is None:
        if len(served) > 1:
            raise InputError(f"one of the models served: {', '.join(served)}", None, field="model")
        return served[0] if served else ""
    if wanted not in served and all(c.model for c in engines):
        raise InputError(f"a model that a client serves: {', '.join(served)}", wanted, field="model",
                         suggestion=suggest(wanted, served))
    return wanted


def build_requests(scenario: Scenario, base_dir: Path, pipelines: list[list[WeightedPipeline]],
                   clients: list[Any]) -> Requests:
    """Return the requests of all workloads."""
    found = Requests([], [], [])
    steady = scenario.gateway is None and all(client.value_of("fleet") is None for client in scenario.clients)
    first_id = first_number = 0
    for i, (config, entries) in enumerate(zip(scenario.workload, pipelines, strict=True)):
        with inside(f"workload.{i}"):
            table: RequestTable = config.draw(scenario.seed, base_dir)
            for column in (table.session, table.prefix_group):   # each workload numbers its own from zero
                if (column >= 0).any():   # otherwise read-only
                    column[column >= 0] += first_number
            first_number = max(first_number, 1 + int(table.session.max(initial=-1)),
                               1 + int(table.prefix_group.max(initial=-1)))
            if config.branches > 1 and any(isinstance(entry.pipeline, GraphPipeline) for entry in entries):
                raise InputError(Verbatim("a graph has `branches` at its `generate` node; move the option there"),
                                 field="branches")
            for entry in entries if table.population is None else ():
                if isinstance(entry.pipeline, GraphPipeline):
                    check_past(entry.pipeline)
            drawn = draw_pipelines([entry.weight for entry in entries], len(table), scenario.seed, config.name)
            found.warnings.extend(check_lengths(table, entries, drawn, clients, config.name))
            pipeline = entries[0].pipeline if len(entries) == 1 else PipelineMix(entries, drawn, first_id)
            stream = Stream(config.name, table, pipeline, entries[0].model, first_id)
            # an attempt given up, a branch, or an engine that learns late of a stop token may still write
            stream.awaited = steady and config.patience is None and config.retry is None and (
                table.branch_tokens is None and table.max_new_tokens is None)
            found.streams.append(stream)
            found.drawn.append(compact(drawn))
            first_id += len(table)
    if any(stream.table.hash_ids is not None for stream in found.streams):
        from hermes.core.joined_hashes import join_hashes  # most workloads have no hashes

        join_hashes([stream.table for stream in found.streams])
    return found


def requested_of(streams: list[Stream]) -> Requested:
    """Return tenants and classes of all requests."""
    tables = [stream.table for stream in streams]
    return Requested(*_joined([table.tenant for table in tables], [*map(len, tables)]),
                     *_joined([table.service_class for table in tables], [*map(len, tables)]))


def _joined(columns: list[NamedColumn | None], lengths: list[int]) -> tuple[list[int], list[str]]:
    """Return columns of names, one of each workload, as one: codes and names in alphabetical order. The requests of
    workloads without one have an empty name."""
    names = sorted({name for one in columns for name in (NO_NAME if one is None else one.names)})
    codes: list[int] = []
    for one, length in zip(columns, lengths, strict=True):
        places = [names.index(name) for name in (NO_NAME if one is None else one.names)]
        codes += [places[0]] * length if one is None else np.array(places, dtype=np.int64)[one.codes].tolist()
    return codes, names


def labels_of(scenario: Scenario, pipelines: list[list[WeightedPipeline]], drawn: list[IntArray],
              requested: Requested) -> Labels:
    """Return every request's workload, pipeline and model as codes with their names, and where there are some its
    tenant, class and band at the gateway."""
    owners = zip(scenario.workload, pipelines, strict=True)
    each = [(config.name, entry) for config, entries in owners for entry in entries]
    firsts = np.cumsum([0, *(len(entries) for entries in pipelines)])
    row = np.concatenate([first + own for first, own in zip(firsts, drawn, strict=False)])
    texts = {"workload": [name for name, _ in each], "pipeline": [entry.label for _, entry in each],
             "model": [entry.model for _, entry in each]}
    labels: Labels = {}
    for column, names in texts.items():
        distinct = list(dict.fromkeys(names))
        labels[column] = compact(np.array([distinct.index(name) for name in names], dtype=np.int64)[row]), distinct
    if any(requested.tenants):
        labels["tenant"] = np.array(requested.tenant, dtype=np.int64), requested.tenants
    if any(requested.kinds):
        labels["class"] = np.array(requested.kind, dtype=np.int64), requested.kinds
    config = scenario.gateway
    if config is not None and config.orders is not None and config.classes:
        bands = [config.band_of(name) for name in requested.kinds]
        priorities = sorted(set(bands), reverse=True)
        codes = np.array([priorities.index(band) for band in bands], dtype=np.int64)
        labels["band"] = codes[np.array(requested.kind, dtype=np.int64)], [*map(str, priorities)]
    return labels
