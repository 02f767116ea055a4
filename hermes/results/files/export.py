"""Write results to a folder (`hermes.results.files.stored` reads them back).

    record.parquet           the `RunRecord`; results are read back from it (`hermes.results.files.record_file`)
    summary.json             the summary, and under `run` the run's name, seed, version and environment
    requests.parquet, stages.parquet, runs.parquet, transfers.parquet, clients.parquet, utilisation.parquet
    steps.parquet            end times of the steps of each client: the time of every token
    token_steps.parquet      steps of the stages whose tokens do not come from consecutive ones
    scenario.resolved.yaml   the scenario with every default filled in
    trace.json.gz            a Chrome trace, where one is asked for (open it in https://ui.perfetto.dev)

Every file is written under a temporary name and renamed. `summary.json` is removed first and written last: a folder
that has one is complete. `record.parquet` is the first that is written: a folder with it and without a summary is one
of a run that was killed. Equal results give equal bytes (with one version of pyarrow), but for `run.environment` in
`summary.json`: the build (pure or compiled), Python and NumPy that simulated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.config.files import file_digest
from hermes.config.writing import locked, remove_strays, replacing, write_text
from hermes.config.yaml_writer import to_yaml
from hermes.core.columns import release_memory
from hermes.core.record import RunRecord
from hermes.errors import HermesError, InputError
from hermes.results.figures.usage import client_names
from hermes.results.files.arrow import arrow_table
from hermes.results.files.frames import TABLES, Coded, Columns, step_decodes, table_parts
from hermes.results.files.record_file import MOST_BYTES, RECORD, write_record
from hermes.results.files.stored import FORMAT, KEPT_META, SCENARIO, StoredResults, digest_of, scenario_digest
from hermes.results.files.trace import write_trace
from hermes.results.results import Results
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TRACE", "of_killed_run", "write_results", "write_table", "written_files"]


TRACE = "trace.json.gz"
_ROWS = 1 << 20


def written_files() -> list[str]:
    """Return the names of the files that a run writes; `summary.json` first."""
    return ["summary.json", RECORD, *(f"{name}.parquet" for name in TABLES), SCENARIO, TRACE]


def of_killed_run(folder: Path) -> bool:
    """Whether a folder holds files of a run that was killed while it wrote them."""
    return (folder / RECORD).exists() and not (folder / "summary.json").exists()


def write_table(path: Path, columns: Columns | Iterator[Columns]) -> None:
    """Write a table, or its parts of `_ROWS` rows: integers as differences, floats by bytes, which halves the file."""
    import pyarrow.parquet as pq

    parts = map(arrow_table, iter((columns,)) if isinstance(columns, dict) else columns)
    part = next(parts, None)
    assert part is not None
    with pq.ParquetWriter(path, part.schema, compression="zstd", **_packing(part.schema)) as writer:
        while part is not None:
            writer.write_table(part, row_group_size=_ROWS)
            rows, part = len(part), None   # before the next one is made
            release_memory(rows)
            part = next(parts, None)


def _packing(schema: pa.Schema) -> dict[str, Any]:
    """Return how to encode each column: strings with a dictionary, integers as differences, floats by bytes."""
    import pyarrow as pa

    kinds = {field.name: field.type for field in schema}
    texts = [name for name, kind in kinds.items() if pa.types.is_dictionary(kind) or pa.types.is_string(kind)]
    return {"use_dictionary": texts, "column_encoding": {
        name: "BYTE_STREAM_SPLIT" if pa.types.is_floating(kind) else "DELTA_BINARY_PACKED"
        for name, kind in kinds.items() if pa.types.is_floating(kind) or pa.types.is_integer(kind)}}


def _write_steps(record: RunRecord, path: Path) -> None:
    """Write steps client by client, so that memory never holds the steps of all clients twice."""
    import pyarrow.parquet as pq

    names = client_names(record)
    schema = arrow_table(_steps_of(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_), 0, 0, names)).schema
    with pq.ParquetWriter(path, schema, compression="zstd", **_packing(schema)) as writer:
        for client, ends in enumerate(record.step_ends):
            decodes = step_decodes(record, client)
            for low in range(0, len(ends), _ROWS):
                rows = slice(low, low + _ROWS)
                writer.write_table(arrow_table(_steps_of(ends[rows], decodes[rows], low, client, names)))
                release_memory(low)


def _steps_of(ends: IntArray, decodes: BoolArray, first: int, client: int, names: list[str]) -> Columns:
    return {"client": Coded(np.full(len(ends), client, dtype=np.int32), names),
            "step": np.arange(first, first + len(ends)), "end_s": ends / NS_PER_S, "decodes": decodes}


def _summary_json(results: Results, record_digest: str, scenario: str | None) -> str:
    run: dict[str, Any] = {"format": FORMAT}
    run |= {key: results.meta[key] for key in KEPT_META if key in results.meta}
    run |= {"end_s": results.record.end_ns / NS_PER_S, "slo": results.slo.model_dump(mode="json"),
            "measure": None if results.measure is None else results.measure.model_dump(mode="json"),
            "record": record_digest}
    run |= {} if scenario is None else {"scenario": scenario_digest(scenario)}
    run["digest"] = digest_of({"run": run, **results.summary})
    return json.dumps({"run": run, **results.summary}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _scenario_yaml(results: Results) -> str | None:
    if "scenario_text" in results.meta:
        return str(results.meta["scenario_text"])
    if "scenario" in results.meta:
        return to_yaml(results.meta["scenario"])
    return results.scenario_text if isinstance(results, StoredResults) else None


def _write_trace(results: Results, path: Path, max_events: int) -> None:
    cut = write_trace(results.record, results.metrics, path, max_events, slo=results.slo)
    if cut is not None:
        results.meta["trace_cut"] = cut


def write_results(
    results: Results, out_dir: str | os.PathLike[str], *, trace_events: int | None = None, held: bool = False,
) -> Path:
    """Write all files into `out_dir` (created if necessary; files of an earlier run are replaced) and return it.

    trace_events: Write a Chrome trace, too, of at most this many events. A longer one is cut;
        `results.meta["trace_cut"]` then says where. A trace takes longer to write than all tables.
    held: Whether the caller holds the folder's lock (`hermes.config.writing.locked`).

    Raises `InputError` if `out_dir` is not a folder, or another process is writing into it; `HermesError` if it cannot
    be written.
    """
    folder = Path(out_dir)
    if folder.exists() and not folder.is_dir():
        raise InputError("a folder for the results", str(folder))
    record = results.record
    scenario = _scenario_yaml(results)
    files: dict[str, Callable[[Path], None] | None] = {RECORD: lambda path: write_record(record, path)}
    files |= {
        f"{name}.parquet": (lambda path, name=name: write_table(path, table_parts(   # type: ignore[misc]
            name, record, lambda: results.columns(name), _ROWS))) for name in TABLES if name != "steps"
    }
    files["steps.parquet"] = lambda path: _write_steps(record, path)
    files[SCENARIO] = None if scenario is None else lambda path: write_text(path, scenario)
    results.meta.pop("trace_cut", None)
    files[TRACE] = (lambda path: _write_trace(results, path, trace_events)) if trace_events else None
    _ = results.summary   # before anything is written: it may fail
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with nullcontext() if held else locked(folder):
            remove_strays(folder)
            (folder / "summary.json").unlink(missing_ok=True)
            for name, write in files.items():
                if write is None:
                    (folder / name).unlink(missing_ok=True)
                    continue
                with replacing(folder / name) as path:
                    write(path)
            digest = file_digest(folder / RECORD, MOST_BYTES)
            write_text(folder / "summary.json", _summary_json(results, digest, scenario))
    except OSError as error:
        raise HermesError(f"cannot write results to {folder}: {error}") from error
    return folder
