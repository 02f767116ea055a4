"""The least loaded of many clients whose loads move with every step: bounds may only ever be bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.routing.tracking import LoadTrack


class Running:
    """A client in a run of steps: its load changes by `per_step` with each step that has ended."""

    def __init__(self, base: int, per_step: int, start: int, durations: list[int]) -> None:
        self.base, self.per_step, self.start, self.durations = base, per_step, start, durations
        self.tracks: list[tuple[Any, int]] = []
        self.now = 0
        self.asked = 0

    def load(self, kind: str) -> int:
        self.asked += 1
        ended, time = 0, self.start
        for duration in self.durations:
            time += duration
            ended += time <= self.now
        return self.base + self.per_step * ended

    def load_line(self, kind: str) -> tuple[int, int, int, int, int]:
        unit = min(self.durations, default=1) if self.per_step < 0 else max(self.durations, default=1)
        return self.base, self.per_step, self.start, unit, len(self.durations)


clients = st.builds(
    Running, base=st.integers(20, 60), per_step=st.integers(-3, 3), start=st.integers(0, 10),
    durations=st.lists(st.integers(1, 9), max_size=6),
)


@quick_and_full(75, 300, derandomize=True)
@given(running=st.lists(clients, min_size=1, max_size=12), later=st.lists(st.integers(0, 15), min_size=1, max_size=5))
def test_the_least_loaded_is_found(running: list[Running], later: list[int]) -> None:
    track = LoadTrack(running, "tokens_left")   # type: ignore[arg-type]
    for client in running:
        for listener, position in client.tracks:
            listener.moved(position, client)
    now = 10
    for gap in later:
        now += gap
        for client in running:
            client.now = now
        loads = [client.load("tokens_left") for client in running]
        assert track.least(now) is running[loads.index(min(loads))]   # type: ignore[comparison-overlap]


def test_only_who_can_be_least_is_asked() -> None:
    running = [Running(100 + 10 * i, -1, 0, [5, 5]) for i in range(20)]
    track = LoadTrack(running, "tokens_left")   # type: ignore[arg-type]
    for position, client in enumerate(running):
        track.moved(position, client)
        client.now = 7
    assert track.least(7) is running[0]   # type: ignore[comparison-overlap]
    assert sum(client.asked for client in running) == 1
