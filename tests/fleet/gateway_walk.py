"""The time of a request at a gateway, walked event by event from the tables of a record: slow, and without any of the
code that results use."""

from __future__ import annotations

from hermes.core.record import STATUS_COMPLETED, RunRecord


def walked(record: RunRecord, call: int, upto_ns: int, attempt: int, *before: int) -> dict[str, int]:
    """Return what a call did from when it was asked for until its attempt `attempt` begins, or until `upto_ns`, without
    the attempts `before` with whose tokens that one goes on."""
    calls, tries = record.calls, record.attempts
    spent = dict.fromkeys(("gateway", "held", "lost"), 0)
    waits = [(int(table["asked_ns"][row]), int(table["left_ns"][row])) for table in (record.held, record.queued)
             if table for row in range(len(table["call"])) if table["call"][row] == call and table["left_ns"][row] >= 0]
    mine = [(int(tries["start_ns"][row]), int(tries["end_ns"][row]), row) for row in range(len(tries["call"]))
            if tries["call"][row] == call]
    kept = {(start, end) for start, end, row in mine if row in before}
    begin = next(start for start, _end, row in mine if row == attempt)
    upto = min(upto_ns, begin)

    def cut(low: int, high: int) -> int:
        return max(min(high, upto) - low, 0)

    asked, passed = int(calls["asked_ns"][call]), int(calls["passed_ns"][call])
    spent["gateway"] = cut(asked, passed)
    spent["held"] = sum(cut(*wait) for wait in waits)
    now = passed   # what is neither: an attempt, or the wait for the next thing that happens to the call
    happens = sorted([(low, high, False) for low, high in waits] + [(low, high, True) for low, high, row in mine
                                                                    if row < attempt])
    for low, high, is_attempt in happens:
        if low > upto:
            break
        spent["lost"] += cut(now, low)   # back-off
        if is_attempt and (low, high) not in kept:
            spent["lost"] += cut(low, high)
        now = max(now, high)
    spent["lost"] += cut(now, begin)
    return spent


def completed(record: RunRecord) -> list[int]:
    return [row for row, status in enumerate(record.status.tolist()) if status == STATUS_COMPLETED]
