"""Contract suite for networks.

Inherit it in a test module, give `component()`, and pytest checks what the coordinator relies on:

    class TestMyNetwork(NetworkContract):
        def component(self):
            return MyNetwork(bandwidth=1e9)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from simpy.core import Environment

from hermes.core.clock import START, STEP_END, TRANSFER, at
from hermes.core.network import Network
from hermes.errors import InputError
from hermes.network.base import NETWORKS, NetworkComponent

__all__ = ["NetworkContract"]

_MEGABYTE = 1_000_000


class NetworkContract:
    """Properties of every network. `nodes` are at least three client names that can all reach each other."""

    nodes: tuple[str, ...] = ("a-0", "a-1", "b-0", "b-1")

    def component(self) -> NetworkComponent:
        """Return the component to test, as YAML would give it."""
        raise NotImplementedError

    def build(self) -> tuple[Environment, Network]:
        env = Environment()
        return env, self.component().build(env, self.nodes)

    def _schedule(self) -> list[tuple[int, str, str, int]]:
        """Return (start in ns, from, to, bytes) of transfers that overlap, some of them of equal size and start."""
        pairs = [(src, dst) for src in self.nodes for dst in self.nodes if src != dst]
        return [
            (1_000_000 * (i // 3), *pairs[i % len(pairs)], (i * 7 % 5) * 40 * _MEGABYTE + i)
            for i in range(3 * len(pairs))
        ]

    def _run(self) -> tuple[Network, list[tuple[int, int]]]:
        """Return the schedule's (number of transfer, time of completion), in order of completion."""
        env, network = self.build()
        log: list[tuple[int, int]] = []

        def start(index: int, src: str, dst: str, num_bytes: int, _: object) -> None:
            network.transfer(src, dst, num_bytes, lambda: log.append((index, int(env.now))))

        for index, (time, src, dst, num_bytes) in enumerate(self._schedule()):
            at(env, time, START, partial(start, index, src, dst, num_bytes))
        env.run()
        return network, log

    def _alone(self, src: str, dst: str, num_bytes: int) -> tuple[Network, list[Any]]:
        """Return the completion time of a transfer that has the network to itself from time 0."""
        env, network = self.build()
        times: list[Any] = []
        network.transfer(src, dst, num_bytes, lambda: times.append(env.now))
        assert not times, "done was called before transfer returned"
        env.run()
        return network, times

    def test_is_registered_under_its_kind(self) -> None:
        component = self.component()
        assert NETWORKS.get(component.kind) is type(component)

    def test_everything_arrives_once(self) -> None:
        network, log = self._run()
        schedule = self._schedule()
        assert sorted(index for index, _ in log) == list(range(len(schedule)))
        assert network.bytes_sent == network.bytes_received == sum(num_bytes for *_, num_bytes in schedule)

    def test_same_calls_same_times_and_order(self) -> None:
        assert self._run()[1] == self._run()[1]

    def test_alone_takes_the_estimate(self) -> None:
        for src in self.nodes:
            for dst in self.nodes:
                for num_bytes in (0, 1, 12_345_678_901):
                    network, times = self._alone(src, dst, num_bytes)
                    assert times == [network.estimate_ns(src, dst, num_bytes)]
                    assert isinstance(times[0], int)
                    assert isinstance(network.estimate_ns(src, dst, num_bytes), int)

    def test_never_faster_than_alone(self) -> None:
        network, log = self._run()
        schedule = self._schedule()
        for index, end in log:
            start, src, dst, num_bytes = schedule[index]
            assert end - start >= network.estimate_ns(src, dst, num_bytes) - 1   # ends are rounded to the nearest ns

    def test_estimates_grow_with_bytes(self) -> None:
        _, network = self.build()
        estimates = [network.estimate_ns(self.nodes[0], self.nodes[-1], n) for n in (0, 1, _MEGABYTE, 10**9, 10**12)]
        assert estimates == sorted(estimates)
        assert estimates[0] >= 0

    def test_within_a_node_nothing_moves(self) -> None:
        for num_bytes in (0, 10**12):
            network, times = self._alone(self.nodes[0], self.nodes[0], num_bytes)
            assert times == [0]
            assert network.bytes_received == num_bytes
            assert network.hops(self.nodes[0], self.nodes[0]) == 0

    def test_completion_has_transfer_priority(self) -> None:
        env, network = self.build()
        log: list[str] = []
        end = network.estimate_ns(self.nodes[0], self.nodes[1], _MEGABYTE)
        at(env, end, TRANSFER + 1, lambda _: log.append("after"))
        network.transfer(self.nodes[0], self.nodes[1], _MEGABYTE, lambda: log.append("done"))
        if end:
            at(env, end, STEP_END, lambda _: log.append("before"))
        env.run()
        assert log == (["before"] if end else []) + ["done", "after"]

    def test_done_may_start_the_next(self) -> None:
        env, network = self.build()
        log: list[int] = []

        def done() -> None:
            log.append(int(env.now))
            if len(log) < 5:
                network.transfer(self.nodes[0], self.nodes[1], 1_000_000_007, done)

        network.transfer(self.nodes[0], self.nodes[1], 1_000_000_007, done)
        env.run()
        alone = network.estimate_ns(self.nodes[0], self.nodes[1], 1_000_000_007)
        assert log == [alone * (i + 1) for i in range(5)]

    def test_unknown_nodes_are_refused(self) -> None:
        _, network = self.build()
        calls: list[Callable[[], object]] = [
            lambda: network.transfer("nobody", self.nodes[0], 1, lambda: None),
            lambda: network.transfer(self.nodes[0], "nobody", 1, lambda: None),
            lambda: network.estimate_ns(self.nodes[0], "nobody", 1),
            lambda: network.hops("nobody", self.nodes[0]),
            lambda: network.check([self.nodes[0], "nobody"]),
        ]
        for call in calls:
            message = ""
            try:
                call()
            except InputError as error:
                message = str(error)
            assert "nobody" in message, "a node that does not exist was accepted, or is not named"
        assert network.bytes_sent == 0

    def test_check_accepts_its_own_nodes(self) -> None:
        _, network = self.build()
        network.check(self.nodes)
        network.check([])

    def test_streams_leave_as_they_come(self) -> None:
        for src in self.nodes:
            for over_ns in (0, 1_000, 10_000_000_000):
                env, network = self.build()
                times: list[int] = []
                network.stream(src, self.nodes[-1], 50 * _MEGABYTE, over_ns, partial(_note, times, env))
                assert not times, "out was called before stream returned"
                env.run()
                alone = network.estimate_ns(src, self.nodes[-1], 50 * _MEGABYTE)
                assert len(times) == 1
                assert over_ns <= times[0] <= max(over_ns, alone) + 1
                assert network.bytes_sent == network.bytes_received == 50 * _MEGABYTE

    def test_link_use_is_what_was_sent(self) -> None:
        network, log = self._run()
        end_s = max(end for _, end in log) / 1e9
        for use in network.links():
            assert 0 <= use.num_bytes <= network.bytes_sent
            assert use.utilisation(end_s) <= 1 + 1e-6


def _note(times: list[int], env: Environment) -> None:
    times.append(int(env.now))
