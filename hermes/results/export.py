"""Write results to a folder (`hermes.results.stored` reads them back).

    summary.json             the summary, and under `run` the run's name, seed and version
    requests.parquet, stages.parquet, runs.parquet, transfers.parquet, clients.parquet, utilisation.parquet
    steps.parquet            end times of the steps of each client: the time of every token
    token_steps.parquet      steps of the stages whose tokens do not come from consecutive ones
    resources.json           use of links, tiers, machines and shared memory
    scenario.resolved.yaml   the scenario with every default filled in
    trace.json.gz            a Chrome trace, where one is asked for (open it in https://ui.perfetto.dev)

Every file is written under a temporary name and renamed. `summary.json` is removed first and written last: a folder
that has one is complete. Equal results give equal bytes (with one version of pyarrow).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.config.writing import locked, remove_strays, replacing, write_text
from hermes.config.yaml_writer import to_yaml
from hermes.core.record import RunRecord
from hermes.errors import HermesError, InputError
from hermes.results.frames import TABLES, Coded, Columns, step_decodes
from hermes.results.resource_file import RESOURCES, resources_json
from hermes.results.results import Results
from hermes.results.stored import KEPT_META
from hermes.results.stored_summary import FORMAT
from hermes.results.trace import write_trace
from hermes.results.usage import client_names
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TRACE", "write_results", "written_files"]

TRACE = "trace.json.gz"
_ROWS = 1 << 20


def written_files() -> list[str]:
    """Return the names of the files that a run writes; `summary.json` first."""
    return ["summary.json", *(f"{name}.parquet" for name in TABLES), RESOURCES, "scenario.resolved.yaml", TRACE]


def _arrow(columns: Columns) -> pa.Table:
    import pyarrow as pa

    def array(column: Any) -> pa.Array:
        if isinstance(column, Coded):
            return pa.DictionaryArray.from_arrays(_numbers(column.codes, column.codes < 0), _texts(column.names))
        return _numbers(column) if isinstance(column, np.ndarray) else _texts(column)

    return pa.table({name: array(column) for name, column in columns.items()})


def _numbers(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Build an Arrow array from its buffers: `pa.array` imports pandas (0.35 s), which a run does not need."""
    import pyarrow as pa

    valid = None if missing is None or not missing.any() else _bits(~missing)
    content = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, content])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Build a string array; None is missing."""
    import pyarrow as pa

    encoded = [b"" if text is None else text.encode() for text in values]
    ends = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    wide = bool(ends[-1] > np.iinfo(np.int32).max)
    missing = np.array([text is None for text in values], dtype=np.bool_)
    return pa.Array.from_buffers(pa.large_string() if wide else pa.string(), len(encoded), [
        _bits(~missing) if missing.any() else None, pa.py_buffer(ends if wide else ends.astype(np.int32)),
        pa.py_buffer(b"".join(encoded)),
    ])


def _coded_names(schema: pa.Schema) -> list[str]:
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)]


def _write_table(path: Path, columns: Columns) -> None:
    import pyarrow.parquet as pq

    table = _arrow(columns)
    pq.write_table(table, path, compression="zstd", row_group_size=_ROWS, use_dictionary=_coded_names(table.schema))


def _write_steps(record: RunRecord, path: Path) -> None:
    """Write steps client by client, so that memory never holds the steps of all clients twice."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = client_names(record)
    schema = pa.schema(
        [("client", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64()), ("end_s", pa.float64()),
         ("decodes", pa.bool_())]
    )
    packing = {"step": "DELTA_BINARY_PACKED", "end_s": "BYTE_STREAM_SPLIT"}
    with pq.ParquetWriter(
        path, schema, compression="zstd", use_dictionary=["client"], column_encoding=packing
    ) as writer:
        for client, ends in enumerate(record.step_ends):
            decodes = step_decodes(record, client)
            for low in range(0, len(ends), _ROWS):
                part = ends[low:low + _ROWS]
                columns = {
                    "client": Coded(np.full(len(part), client, dtype=np.int32), names),
                    "step": np.arange(low, low + len(part)), "end_s": part / NS_PER_S,
                    "decodes": decodes[low:low + _ROWS],
                }
                writer.write_table(_arrow(columns))


def _summary_json(results: Results) -> str:
    run: dict[str, Any] = {"format": FORMAT}
    run |= {key: results.meta[key] for key in KEPT_META if key in results.meta}
    run |= {"end_s": results.record.end_ns / NS_PER_S, "slo": results.slo.model_dump(mode="json")}
    if results.record.out_of_requests_ns >= 0:
        run["out_of_requests_s"] = results.record.out_of_requests_ns / NS_PER_S
    return json.dumps({"run": run, **results.summary}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _scenario_yaml(results: Results) -> str | None:
    if "scenario_text" in results.meta:
        return str(results.meta["scenario_text"])
    if "scenario" in results.meta:
        return to_yaml(results.meta["scenario"])
    return None


def _write_trace(results: Results, path: Path, max_events: int) -> None:
    cut = write_trace(results.record, results.metrics, path, max_events)
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
    files: dict[str, Callable[[Path], None] | None] = {
        f"{name}.parquet": (lambda path, name=name: _write_table(path, results.columns(name)))  # type: ignore[misc]
        for name in TABLES if name != "steps"
    }
    files["steps.parquet"] = lambda path: _write_steps(record, path)
    files[RESOURCES] = lambda path: write_text(path, resources_json(record))
    files["scenario.resolved.yaml"] = None if scenario is None else lambda path: write_text(path, scenario)
    results.meta.pop("trace_cut", None)
    files[TRACE] = (lambda path: _write_trace(results, path, trace_events)) if trace_events else None
    summary = _summary_json(results)
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
            write_text(folder / "summary.json", summary)
    except OSError as error:
        raise HermesError(f"cannot write results to {folder}: {error}") from error
    return folder
