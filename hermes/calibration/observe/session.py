"""Sessions of `hermes observe`: a folder with a journal of the requests that ended, and a table of all of them.

Repetitions are attempts. The first is `observed.parquet` in the folder, further ones `observed-2.parquet`, ...; rules
reject a disturbed one, which stays. The rules are fixed beforehand and look at the driver and its machine, never at a
request's latency.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.collect.counters import LIMIT
from hermes.calibration.journal import Journal, JournalError, read_journal
from hermes.calibration.observe.driver import WINDOW_S, Vocabulary, check_streams, drive
from hermes.calibration.observe.server import Server
from hermes.config.writing import replacing
from hermes.core.noise import spread
from hermes.core.request import Request, Stream
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.models import load_model
from hermes.results.compare.observed import ObservedAttempt, ObservedReport, write_report
from hermes.results.distribution import Distribution
from hermes.scenario import Scenario
from hermes.scenario.build import build
from hermes.scenario.document import resolved_yaml

__all__ = ["RULES", "Outcome", "Target", "judged", "noise_between", "observe", "observe_repeatedly", "observed_table"]

COLUMNS = ("request", "workload", "scheduled_s", "arrival_s", "first_token_s", "finish_s", "ttft_s", "tpot_s", "e2e_s",
           "prompt_tokens", "output_tokens", "cached_tokens", "chunks", "chunk_s", "part", "miscounted", "error")

BUSY_SHARE = 0.90          # of a core: a driver that needs more notes chunks late
CONTENDED_WINDOWS = 0.10
LATE_S = 0.020
DRIFT_S = 0.010
RULES = (
    f"rejected when in more than {CONTENDED_WINDOWS:.0%} of the windows of {WINDOW_S:g} s the driver waited for a core "
    f"for more than {LIMIT:.0%} of the time, or used more than {BUSY_SHARE:.0%} of one",
    f"rejected when the driver took up its requests late: p99 above {LATE_S * 1e3:g} ms, or the median of the last "
    f"quarter {DRIFT_S * 1e3:g} ms above that of the first",
)
STATS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True)
class Target:
    """The server and how to ask it.

    Attributes:
        vocab_size: Token ids are below it; 0 for that of the scenario's model.
        warmup: Requests sent before the first, one after the other, and not recorded.
    """

    url: str
    model: str = ""
    vocab_size: int = 0
    warmup: int = 2
    timeout_s: float = 600.0
    max_in_flight: int = 1000
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a session gave. late_s: p99 of how late requests were sent; miscounted: answers whose server counts other
    tokens than were asked for."""

    requests: int
    failed: int
    parts: int
    late_s: float
    miscounted: int
    first_error: str
    file: Path


def observe(
    scenario: Scenario, target: Target, folder: Path, progress: Callable[[int, int], None] | None = None, *,
    attempt: int = 1,
) -> Outcome:
    """Drive the server with the scenario's requests and write `folder`/observed.parquet.

    Every request that ended is in `folder`/observed.jsonl at once: a repeated call sends only the others, as a further
    part, and raises `InputError` for another workload or server.

    Args:
        progress: Called with requests done and in total.
        attempt: Number of the repetition; from 2 on it is part of the file names (`observed-2.parquet`).
    """
    simulation = build(scenario)
    check_streams(simulation.streams)
    total = sum(len(stream.table) for stream in simulation.streams)
    words = Vocabulary(target.vocab_size or _vocab_size(scenario, simulation.streams), scenario.seed,
                       attempt)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("observed.jsonl" if attempt == 1 else f"observed-{attempt}.jsonl")
    asked = scenario.model_dump_json(include={"seed", "workload"})   # how clients are simulated does not matter here
    plan = {"workload": hashlib.sha256(asked.encode()).hexdigest(), "url": target.url, "requests": total}
    try:
        journal = Journal(path, plan, {})
    except JournalError:
        said = Verbatim("begun with another workload or server; choose another folder")
        raise InputError(said, file=str(path)) from None
    (folder / "scenario.yaml").write_text(resolved_yaml(scenario), encoding="utf-8", newline="\n")
    done = {int(name) for name in journal.done}
    part = 1 + sum(1 for record in read_journal(path)[1] if record["kind"] == "note")
    written = _Writer(journal)
    try:
        if len(done) < total:
            count = len(done)

            def ended(row: dict[str, Any]) -> None:
                nonlocal count
                count += 1
                written.put({"kind": "point", "point": str(row["request"]), "rows": [row | {"part": part}]})
                if progress is not None:
                    progress(count, total)

            def loaded(load: dict[str, float]) -> None:
                written.put({"kind": "load", "part": part, **load})

            asyncio.run(_drive(simulation.streams, target, words, done, ended, loaded))
    finally:
        written.close()   # also after Ctrl-C: what ended is kept
    frame, file = observed_table(path), path.with_suffix(".parquet")
    with replacing(file) as temporary:
        frame.to_parquet(temporary, index=False)
    return _outcome(frame, file)


async def _drive(streams: Sequence[Stream], target: Target, words: Vocabulary, done: set[int],
                 ended: Callable[[dict[str, Any]], None], loaded: Callable[[dict[str, float]], None]) -> None:
    try:
        import aiohttp
    except ImportError:
        raise InputError("the package aiohttp (pip install 'hermes-sim[observe]')", None) from None
    connector = aiohttp.TCPConnector(limit=0)
    # nothing is unpacked: a short answer may unpack to a long one
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False,
                                     headers={"Accept-Encoding": "identity"}) as session:
        server = Server(session, target.url, target.model, target.timeout_s, dict(target.headers))
        await server.find_model()
        for number in range(target.warmup):
            request = Request(streams[0], -1 - number, 0, 64, 8, 0, -1, None)
            answer = await server.complete(words.prompt(request), request.output_tokens)
            if answer.error:
                raise InputError(Verbatim(f"the server does not take token ids on /v1/completions: {answer.error}"),
                                 field=target.url)
        await drive(streams, server, words, done, ended, target.max_in_flight, loaded)


class _Writer:
    """Writes the journal in a thread: a sync takes milliseconds, which would be late in the times of other requests."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._rows = journal, SimpleQueue[dict[str, Any] | None]()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, record: dict[str, Any]) -> None:
        self._rows.put(record)

    def close(self) -> None:
        self._rows.put(None)
        self._thread.join()
        self._journal.__exit__()

    def _write(self) -> None:
        while (record := self._rows.get()) is not None:
            self._journal.write(record)


def observed_table(path: Path) -> pd.DataFrame:
    """Return the requests of a session's journal in order of their numbers, with `COLUMNS`; times in seconds.

    Failed requests have NaN and no output tokens. Raises `InputError` for a malformed journal.
    """
    try:
        rows = [record["rows"][0] for record in read_journal(path)[1] if record["kind"] == "point"]
        found = [_timed(row) for row in sorted(rows, key=lambda row: int(row["request"]))]
    except (JournalError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError("a journal of hermes observe", Verbatim(f"{error}"[:200]), file=str(path)) from None
    return pd.DataFrame(found, columns=list(COLUMNS))


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table of what the journal has of a request."""
    times, output, good = row["chunk_s"], row["output_tokens"], not row["error"]
    sent, first, last = row["arrival_s"], times[0] if good else np.nan, times[-1] if good else np.nan
    asked = (row["prompt_tokens"], output)
    return {
        **row, "first_token_s": first, "finish_s": last, "ttft_s": first - sent, "e2e_s": last - sent,
        "tpot_s": (last - first) / (output - 1) if output > 1 else np.nan, "chunks": len(times),
        "miscounted": good and any(n not in (-1, m) for n, m in zip(row["counted"], asked, strict=True)),
    }


def _outcome(frame: pd.DataFrame, file: Path) -> Outcome:
    errors = [text for text in frame["error"] if text]
    late = (frame["arrival_s"] - frame["scheduled_s"]).to_numpy()
    return Outcome(len(frame), len(errors), int(frame["part"].nunique()),
                   float(np.quantile(late, 0.99)) if len(late) else 0.0, int(frame["miscounted"].sum()),
                   errors[0] if errors else "", file)


def _vocab_size(scenario: Scenario, streams: Sequence[Stream]) -> int:
    model = streams[0].model
    try:
        return load_model(model, scenario.source.base_dir).vocab_size
    except InputError:
        raise InputError(Verbatim(f"missing: nothing says how many tokens the vocabulary of {model!r} has; give "
                                  "--vocab-size"), field="clients.model") from None


def observe_repeatedly(
    scenario: Scenario, target: Target, folder: Path, repetitions: int = 1, most: int | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> tuple[ObservedReport, list[Outcome]]:
    """Observe until `repetitions` attempts are accepted, and write `folder`/observed.json after each.

    A repeated call continues, and adds to what is there. Raises `InputError`.

    Args:
        most: Most attempts; by default twice the repetitions, and one for one repetition.
        progress: Called with (attempt, requests done, requests in total).
    """
    most = most or (2 * repetitions if repetitions > 1 else 1)
    attempts: list[ObservedAttempt] = []
    outcomes: list[Outcome] = []
    while len(attempts) < most and sum(one.accepted for one in attempts) < repetitions:
        number = len(attempts) + 1
        say = None if progress is None else partial(progress, number)
        outcomes.append(observe(scenario, target, folder, say, attempt=number))
        attempts.append(judged(number, outcomes[-1]))
        report = ObservedReport(rules=list(RULES), repetitions=repetitions, attempts=attempts)
        tables = [pd.read_parquet(folder / one.file) for one in report.counted()]
        report = report.model_copy(update={"noise": noise_between(tables)})
        write_report(report, folder)
    return report, outcomes


def judged(number: int, outcome: Outcome) -> ObservedAttempt:
    """Apply the rules to an attempt that has ended."""
    _, records = read_journal(outcome.file.with_suffix(".jsonl"))
    windows = [record for record in records if record["kind"] == "load"]
    contended = sum(one["waited_s"] > LIMIT * one["wall_s"] or one["cpu_s"] > BUSY_SHARE * one["wall_s"]
                    for one in windows)
    rows = [record["rows"][0] for record in records if record["kind"] == "point"]
    rows.sort(key=lambda row: row["scheduled_s"])
    late = np.array([row.get("taken_s", row["arrival_s"]) - row["scheduled_s"] for row in rows])
    p99 = float(np.quantile(late, 0.99))
    quarter = max(1, len(late) // 4)
    drift = float(np.median(late[-quarter:]) - np.median(late[:quarter]))
    reasons = []
    if contended > CONTENDED_WINDOWS * len(windows):
        reasons.append(f"{contended} of {len(windows)} windows contended")
    if p99 > LATE_S:
        reasons.append(f"requests taken up late, p99 {p99 * 1e3:.1f} ms")
    if drift > DRIFT_S:
        reasons.append(f"requests taken up later and later, by {drift * 1e3:.1f} ms")
    return ObservedAttempt(
        number=number, file=outcome.file.name, reasons=reasons, requests=outcome.requests, failed=outcome.failed,
        parts=outcome.parts, late_s=round(p99, 6), windows=len(windows), contended_windows=contended)


def noise_between(tables: list[pd.DataFrame]) -> dict[str, dict[str, Any]]:
    """Return the spread of every statistic of TTFT, TPOT and E2E over repetitions; empty for fewer than two."""
    out: dict[str, dict[str, Any]] = {}
    if len(tables) < 2:
        return out
    for metric in ("ttft", "tpot", "e2e"):
        stats = [Distribution(table[f"{metric}_s"].to_numpy(dtype=np.float64)).stats() for table in tables]
        for stat in STATS:
            values = [one[stat] for one in stats if one[stat] is not None]
            if len(values) == len(tables) and sum(values) > 0:
                out.setdefault(metric, {})[stat] = spread(values).as_dict()
    return out
