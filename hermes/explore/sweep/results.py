"""Results of a sweep's folder: one table of all points, and each point's scenario and kept results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.files import parquet_frame
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.explore.sweep.columns import columns_of, tables_of
from hermes.explore.sweep.store import Folder
from hermes.explore.sweep.table import COLUMNS, SOMETIMES, point_table
from hermes.results import Results
from hermes.results.files.stored import open_run
from hermes.scenario import Scenario, scenario_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.figure import Figure

__all__ = ["SweepResults", "merged", "open_sweep"]

PART = 100   # points in memory at a time

def merged(folder: Folder, manifest: dict[str, Any]) -> Iterator[pa.Table]:
    """Yield one row per point with an outcome, some of them at a time: number, settings, seed, hash, status, reason,
    figures."""
    points = manifest["points"]

    def parts() -> Iterator[list[dict[str, Any]]]:
        for start in range(0, len(points), PART):
            part = list(enumerate(points[start : start + PART], start))
            outcomes = folder.outcomes([point["hash"] for _, point in part])
            yield [{"point": number, **point["settings"], "seed": point["seed"], **outcomes[point["hash"]]}
                   for number, point in part if point["hash"] in outcomes]

    settings = columns_of(point["settings"] for point in points)
    return tables_of(parts, ["point", *settings, "seed", "hash", "status", "reason"])


class SweepResults:
    """Results of a sweep, finished or running: finished points can be read at any time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Folder(Path(path))
        self.manifest = self.folder.manifest()

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def complete(self) -> bool:
        """Whether every point has an outcome."""
        return {point["hash"] for point in self.manifest["points"]} <= self.folder.reasons().keys()

    def __len__(self) -> int:
        return len(self.manifest["points"])

    def arrow(self) -> pa.Table:
        """Return `frame()` as an Arrow table."""
        import pyarrow as pa

        return self.folder.results() or pa.concat_tables(merged(self.folder, self.manifest)).combine_chunks()

    def frame(self) -> pd.DataFrame:
        """Return one row per finished point, in the sweep's order.

        Columns: point, the sweep's settings, seed, hash, status ("ok" or "failed"), reason, then the figures of the
        summary with their keys joined by dots (`latency.ttft_s.p50`, `goodput.requests_per_s`, `kv.peak_share`), then
        the sweep's extracted figures. Undefined values are missing (NaN or None).
        """
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def table(self) -> pd.DataFrame:
        """Return the figures that decide between points: one row per finished point, its settings and its seed, then
        rates, latencies (s), goodput, devices, and dollars per million output tokens."""
        frame = self.frame()
        several = frame["seed"].nunique() > 1
        settings = columns_of(point["settings"] for point in self.manifest["points"])
        shown = [name for name in (*settings, *(["seed"] if several else []), "status") if name in frame]
        figures = [column for _, _, column, _ in (*COLUMNS, *SOMETIMES) if column in frame]
        return frame[[*shown, *figures]]

    def plot(self) -> Figure:
        """Return a matplotlib figure: latency and goodput over the grid, with the answer marked and named."""
        from hermes.explore.sweep.plots import sweep_chart
        from hermes.results.plots import draw

        return draw(sweep_chart(self))

    def outcome(self, number: int) -> dict[str, Any] | None:
        """Return the row of a point: status, reason and figures; None before it has an outcome."""
        return self.folder.outcome(self._point(number)["hash"])

    def to_text(self) -> str:
        """Return the points as a table of at most 80 columns: rates, latencies, goodput, devices, dollars."""
        return point_table(self)

    def failed(self) -> dict[int, str]:
        """Return the reasons of failed points, by number of the point."""
        reasons = self.folder.reasons()
        found = ((i, reasons.get(point["hash"])) for i, point in enumerate(self.manifest["points"]))
        return {i: reason for i, reason in found if reason is not None}

    def _point(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise InputError(f"a point: a number from 0 to {len(self) - 1}", number)
        return self.manifest["points"][number]  # type: ignore[no-any-return]

    def point(self, number: int) -> Scenario:
        """Return the scenario of a point: `simulate(opened.point(i))` reproduces its figures."""
        text = self.folder.scenario_text(self._point(number)["hash"])
        return scenario_of(parse_yaml(text), self.path)

    def settings(self, number: int) -> dict[str, Any]:
        """Return the settings that distinguish a point, by column."""
        return dict(self._point(number)["settings"])

    def requests(self, number: int) -> pd.DataFrame:
        """Return the table of requests of a point, for a sweep with `keep: requests` or `all`."""
        path = self._kept(number) / "requests.parquet"
        if not path.exists():
            raise InputError("a sweep with keep: requests (or all)", file=str(self.path))
        return parquet_frame(path)

    def results(self, number: int) -> Results:
        """Return the full results of a point, for a sweep with `keep: all`."""
        folder = self._kept(number)
        if not (folder / "summary.json").exists():
            raise InputError("a sweep with keep: all", file=str(self.path))
        return open_run(folder)

    def _kept(self, number: int) -> Path:
        return self.path / "kept" / str(self._point(number)["hash"])

    def journal(self) -> pd.DataFrame:
        """Return one row per run of a point: hash, status, wall_s, cpu_s, traceback. Differs between equal sweeps."""
        import pandas as pd

        names = ["hash", "status", "wall_s", "cpu_s", "traceback"]
        return pd.DataFrame(self.folder.journal(), columns=names)

    def __repr__(self) -> str:
        return f"<SweepResults {self.name}: {len(self)} points in {self.path}>"


def open_sweep(path: str | os.PathLike[str]) -> SweepResults:
    """Open the sweep in a folder. Raises `InputError` for a folder without one."""
    return SweepResults(path)
