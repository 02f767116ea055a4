"""Layer-wise KV transfer: move a KV cache layer by layer while the prefill is still computing.

Layer i moves while layer i+1 computes, as in Splitwise (arXiv 2311.18677). `LayerStream` simulates it on the clock,
together with all other traffic on the network. `exposed_bytes` is the closed form for a constant bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from simpy.core import Environment

from hermes.core.clock import TRANSFER, at
from hermes.core.network import Network, nothing

__all__ = ["LayerStream", "exposed_bytes"]


class LayerStream:
    """Transfer of one prefill's KV from `src` to `dst`, first byte first.

    A step of duration T adds V bytes in L layers. The first layer is ready after T / L. From then on V (L-1) / L bytes
    become ready evenly until the step ends, and leave as they become ready, as fast as the network allows. The last
    layer is ready at the end of the step, and leaves when the next step begins or with the rest that `finish` sends.
    Bytes keep their order: later ones wait behind those that wait for the network.
    """

    def __init__(self, env: Environment, network: Network, src: str, dst: str, layers: int) -> None:
        self.env, self.network, self.src, self.dst, self.layers = env, network, src, dst, layers
        self.sent_bytes = 0
        self._flowing = False
        self._waiting: tuple[int, int] | None = None    # (total bytes that may leave, time at which they are ready)
        self._finish: Callable[[], None] | None = None
        self._flows: list[tuple[object, int]] = []    # (what the network returned, bytes) of all flows

    def step(self, before_bytes: int, after_bytes: int, start_ns: int, end_ns: int) -> None:
        """A step of the prefill from `start_ns` to `end_ns` extends the KV from `before_bytes` to `after_bytes`."""
        self._offer(before_bytes, start_ns)
        duration, new = end_ns - start_ns, after_bytes - before_bytes
        leaving = after_bytes - -(-new // self.layers)
        first = start_ns + -(-duration // self.layers)
        if leaving > self.sent_bytes and first < end_ns:
            at(self.env, max(first, int(self.env.now)), TRANSFER, lambda _: self._offer(leaving, end_ns))

    def finish(self, total_bytes: int, done: Callable[[], None]) -> None:
        """End the prefill: send the rest of `total_bytes` and call `done()` when all bytes have arrived.

        Does nothing after `give_up` or `cancel`.
        """
        if self._finish is not None:
            return

        def rest() -> None:
            left = total_bytes - self.sent_bytes
            self.sent_bytes = total_bytes
            self._flows += [(self.network.transfer(self.src, self.dst, left, done), left)]

        self._waiting, self._finish = None, rest
        if not self._flowing:
            rest()

    def give_up(self) -> None:
        """Stop sending. Bytes already on the network still arrive."""
        self._waiting, self._finish = None, nothing

    def cancel(self) -> int:
        """Stop sending, and cancel what is on the network, where it has not arrived; `done` is not called any more.

        Returns the bytes that have left, all of them if they have arrived. Needs a network that `can_cancel`.
        """
        self.give_up()
        network = self.network
        for flow, num_bytes in self._flows:
            before = network.bytes_cancelled
            left = network.cancel(flow)
            if network.bytes_cancelled != before:
                self.sent_bytes -= num_bytes - left
        self._flows = []
        return self.sent_bytes

    def _offer(self, leaving: int, there_ns: int) -> None:
        if self._finish is None and leaving > self.sent_bytes:
            self._waiting = leaving, there_ns
            if not self._flowing:
                self._next()

    def _next(self) -> None:
        if self._waiting is None:
            return
        leaving, there_ns = self._waiting
        self._waiting, self._flowing = None, True
        num_bytes = leaving - self.sent_bytes
        self.sent_bytes = leaving
        over_ns = max(there_ns - int(self.env.now), 0)
        self._flows += [(self.network.stream(self.src, self.dst, num_bytes, over_ns, self._out), num_bytes)]

    def _out(self) -> None:
        self._flowing = False
        if self._finish is not None:
            self._finish()
        else:
            self._next()


def exposed_bytes(num_bytes: int, layers: int, compute_s: float, bandwidth: float) -> int:
    """Return the bytes of a KV cache that are still to be moved when the prefill ends, rounded up.

    Layer i moves while layer i+1 computes, as in Splitwise (arXiv 2311.18677). The first layer is ready after T/L, so
    T * (L-1)/L is left to move the others. The last layer is ready only at the end, so at least V/L bytes are left:

        max(V / L, V - bandwidth * T * (L-1) / L)

    Args:
        num_bytes: V, the whole cache, in equal parts per layer.
        layers: L, at least 1.
        compute_s: T, the duration of the prefill, in equal parts per layer.
        bandwidth: bytes/s while the prefill runs, without other transfers.

    Raises `ValueError` for values outside these ranges.
    """
    if num_bytes < 0 or layers < 1 or compute_s < 0 or not bandwidth > 0:
        raise ValueError(f"not a transfer: {num_bytes} bytes, {layers} layers, {compute_s} s, {bandwidth} bytes/s")
    last_layer = -(-num_bytes // layers)
    hidden = bandwidth * compute_s * (layers - 1) / layers
    return max(last_layer, num_bytes - math.floor(hidden)) if hidden < num_bytes else last_layer
