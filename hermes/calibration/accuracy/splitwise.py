"""Reference set of splitwise-sim's answers (`reference/splitwise`, beside the data or in it).

The folder holds, for a scenario `scenarios/validation/splitwise-MODEL-WORKLOAD-RATE.yaml`, splitwise-sim's input trace
(rr_WORKLOAD_RATE_2min.csv) and its results, one request a row (mixed_pool_MODEL_WORKLOAD_RATErps.csv). The trace
replaces the scenario's own workload; nothing else is changed. `studies/splitwise` compares placement as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.api import simulate
from hermes.calibration.accuracy.served import Case, Row, compared
from hermes.config.data_files import resource_dir
from hermes.errors import InputError, suggest
from hermes.results import Results
from hermes.workload.importers import import_trace
from hermes.workload.traces import write_trace

__all__ = ["SplitwiseCase", "replayed", "scenarios", "splitwise", "splitwise_cases"]

METRICS = ("ttft", "tbt", "e2e")
NAMES = {"llama-2-70b": "llama2-70b"}   # splitwise-sim's, where they differ


@dataclass
class SplitwiseCase:
    """A scenario, and splitwise-sim's trace and results for it."""

    name: str
    scenario: Path
    trace: Path
    answers: Path
    model: str
    workload: str


def splitwise(root: Path) -> Iterator[Row]:
    """Statistics of each case."""
    for case in splitwise_cases(root / "reference" / "splitwise"):
        about = Case("splitwise-sim", case.name, "-", "h100-sxm tp8", case.model)
        yield from compared(about, replayed(case), case.answers, "splitwise", METRICS)


def scenarios() -> list[Path]:
    """Return the scenarios of the cases with results of splitwise-sim."""
    return sorted((resource_dir("scenarios") / "validation").glob("splitwise-*-*-*.yaml"))


def splitwise_cases(reference: Path, wanted: Sequence[str] = ()) -> list[SplitwiseCase]:
    """Return the cases with scenarios, in order of their names; raises `InputError` for an unknown one."""
    found = []
    for path in scenarios():
        model, workload, rate = path.stem.removeprefix("splitwise-").rsplit("-", 2)
        answers = f"mixed_pool_{NAMES.get(model, model)}_{workload}_{rate}rps.csv"
        trace = f"rr_{workload}_{rate}_2min.csv"
        found.append(SplitwiseCase(path.stem, path, reference / trace, reference / answers, model, workload))
    known = [case.name for case in found]
    for name in wanted:
        if name not in known:
            raise InputError(f"one of {', '.join(known)}", name, field="case", suggestion=suggest(name, known))
    chosen = [case for case in found if not wanted or case.name in wanted]
    for case in chosen:
        for path in (case.trace, case.answers):
            if not path.is_file():
                raise InputError("a file with splitwise-sim's trace or answers", str(path), field="--data")
    return chosen


def replayed(case: SplitwiseCase, stepping: str = "runs", extra: Sequence[str] = ()) -> Results:
    """Simulate a case on splitwise-sim's trace. extra: more changes to the scenario, as for --set."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.parquet"
        columns = {"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size"}
        write_trace(import_trace("csv", case.trace, **columns), trace, source=case.trace.name)
        replay = f"{{kind: trace, path: '{trace}'}}"
        overrides = ["workload.duration=null", f"workload.arrivals={replay}", f"workload.lengths={replay}", *extra]
        return simulate(case.scenario, overrides=overrides, stepping=stepping)
