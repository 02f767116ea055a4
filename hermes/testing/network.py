"""Contract suite for networks.

Inherit it in a test module, give `make()`, and pytest checks what the coordinator relies on:

    class TestMyNetwork(NetworkContract):
        def make(self):
            return MyNetwork(bandwidth=1e9)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import SkipTest

from simpy.core import Environment

from hermes.core.clock import START, STEP_END, TRANSFER, at
from hermes.core.network import Network, can_cancel
from hermes.errors import InputError
from hermes.network.base import NETWORKS
from hermes.testing.components import ComponentContract

__all__ = ["NetworkContract"]

_MEGABYTE = 1_000_000


class NetworkContract(ComponentContract):
    """Properties of every network. `nodes` are at least three client names that can all reach each other."""

    registry = NETWORKS
    nodes: tuple[str, ...] = ("a-0", "a-1", "b-0", "b-1")

    def build(self) -> tuple[Environment, Network]:
        env = Environment()
        return env, self.make().build(env, self.nodes)

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

    def _cancelling(self) -> tuple[Environment, Network]:
        """Return a network, or skip the test for one that cannot cancel."""
        env, network = self.build()
        if not can_cancel(network):
            raise SkipTest(f"{type(network).__name__} cannot cancel transfers (`cancels` is not True)")
        return env, network

    def _cancel_every_third(self) -> tuple[Network, list[tuple[int, int]], dict[int, int]]:
        """Run the schedule with every third transfer cancelled a millisecond after its start.

        Returns the network, the (number, time) of what completed, and the bytes of the cancelled that had left.
        """
        env, network = self._cancelling()
        log: list[tuple[int, int]] = []
        left: dict[int, int] = {}

        def start(index: int, src: str, dst: str, num_bytes: int, _: object) -> None:
            flow = network.transfer(src, dst, num_bytes, lambda: log.append((index, int(env.now))))
            if index % 3 == 0:
                at(env, int(env.now) + 1_000_000, START, partial(cancel, index, flow))

        def cancel(index: int, flow: object, _: object) -> None:
            before = network.bytes_cancelled
            sent = network.cancel(flow)
            num_bytes = self._schedule()[index][3]
            if any(number == index for number, _ in log):
                assert (sent, network.bytes_cancelled) == (0, before), "it had arrived"
                return
            assert 0 <= sent <= num_bytes
            assert network.bytes_cancelled == before + num_bytes
            assert network.cancel(flow) == 0, "cancelled twice"
            assert network.bytes_cancelled == before + num_bytes
            left[index] = sent

        for index, (time, src, dst, num_bytes) in enumerate(self._schedule()):
            at(env, time, START, partial(start, index, src, dst, num_bytes))
        env.run()
        return network, log, left

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

    def test_cancelled_transfers_never_arrive(self) -> None:
        network, log, left = self._cancel_every_third()
        schedule = self._schedule()
        assert sorted([*left, *(index for index, _ in log)]) == list(range(len(schedule)))
        assert network.bytes_cancelled == sum(schedule[index][3] for index in left)
        assert network.bytes_sent == network.bytes_received + network.bytes_cancelled
        for use in network.links():
            assert 0 <= use.num_bytes <= network.bytes_received + sum(left.values())
        assert self._cancel_every_third()[1:] == (log, left), "the same calls give the same times and bytes"

    def test_a_cancelled_transfer_leaves_the_network_as_if_idle(self) -> None:
        src, dst, num_bytes = self.nodes[0], self.nodes[-1], 1_000_000_007
        for parts in (0, 1, 2, 3):
            env, network = self._cancelling()
            times: list[int] = []
            flow = network.transfer(src, dst, num_bytes, partial(_never, "a cancelled transfer is done"))
            time = network.estimate_ns(src, dst, num_bytes) * parts // 4

            def replace(_: object, flow: object = flow, env: Environment = env, network: Network = network,
                        times: list[int] = times) -> None:
                network.cancel(flow)
                network.transfer(src, dst, num_bytes, partial(_note, times, env))

            at(env, time, STEP_END, replace)
            env.run()
            assert times == [time + network.estimate_ns(src, dst, num_bytes)]

    def test_what_has_left_grows_with_time(self) -> None:
        src, dst, num_bytes = self.nodes[0], self.nodes[-1], 1_000_000_007
        left: list[int] = []
        for parts in range(9):
            env, network = self._cancelling()
            flow = network.transfer(src, dst, num_bytes, partial(_never, "a cancelled transfer is done"))
            time = network.estimate_ns(src, dst, num_bytes) * parts // 8
            at(env, time, STEP_END, partial(_cancel, left, network, flow))
            env.run()
        assert left == sorted(left)
        assert left[-1] == num_bytes, "in the nanosecond of its arrival all bytes have left"

    def test_cancelled_streams_have_no_end(self) -> None:
        for over_ns in (1_000, 10_000_000_000):
            env, network = self._cancelling()
            flow = network.stream(self.nodes[0], self.nodes[-1], 50 * _MEGABYTE, over_ns,
                                  partial(_never, "a cancelled stream is out"))
            left: list[int] = []
            for priority in (START, START + 1):
                at(env, over_ns // 2, priority, partial(_cancel, left, network, flow))
            env.run()
            assert 0 <= left[0] <= 50 * _MEGABYTE
            assert left[1] == 0, "cancelled twice"
            assert network.bytes_sent == network.bytes_received + network.bytes_cancelled

    def test_link_use_is_what_was_sent(self) -> None:
        network, log = self._run()
        end_s = max(end for _, end in log) / 1e9
        for use in network.links():
            assert 0 <= use.num_bytes <= network.bytes_sent
            assert use.utilisation(end_s) <= 1 + 1e-6


def _never(message: str) -> None:
    raise AssertionError(message)


def _cancel(left: list[int], network: Network, flow: object, _: object) -> None:
    left.append(network.cancel(flow))


def _note(times: list[int], env: Environment) -> None:
    times.append(int(env.now))
