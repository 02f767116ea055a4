"""Flow events (starts and ends) per second of the network with many concurrent transfers.

    python benchmarks/network.py [concurrent flows]

The network is four racks of 32 clients with 50 GB/s each, behind a rack switch with 400 GB/s to a spine (4:1
oversubscribed). Three kinds of traffic: `any` (any client to any other, the hardest: rates of all flows hang
together), `prefill-decode` (77 prefill clients to 51 decode clients), `in rack` (four components). Each twice: every
end starts the next flow (`closed`: one settlement for both), or some time later (`open`: one for each).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from simpy.core import Environment

from hermes.core.clock import ARRIVAL, at
from hermes.network.topology import Attachment, Topology, TopologyLink, TopologyNetwork

RACKS, PER_RACK = 4, 32
CLIENTS = [f"client-{i}" for i in range(RACKS * PER_RACK)]
Pick = Callable[[random.Random], tuple[int, int]]


def racks() -> Topology:
    """Four racks and a spine."""
    switches = [f"rack{r}" for r in range(RACKS)]
    return Topology(
        nodes=["spine", *switches],
        links=[TopologyLink(a=rack, b="spine", bandwidth=400e9, latency=1e-6) for rack in switches],
        attach={"client": Attachment(to=switches, bandwidth=50e9, latency=2e-6)},
    )


def _any(rng: random.Random) -> tuple[int, int]:
    src, dst = rng.sample(range(len(CLIENTS)), 2)
    return src, dst


def _in_rack(rng: random.Random) -> tuple[int, int]:
    rack = PER_RACK * rng.randrange(RACKS)
    src, dst = rng.sample(range(rack, rack + PER_RACK), 2)
    return src, dst


TRAFFIC: dict[str, Pick] = {
    "any": _any,
    "prefill-decode": lambda rng: (rng.randrange(77), rng.randrange(77, 128)),
    "in rack": _in_rack,
}


def flow_events_per_s(concurrent: int, pick: Pick, closed: bool, num_flows: int = 4_000, seed: int = 0) -> float:
    """Return flow events per second of processor time with `concurrent` flows in progress."""
    rng = random.Random(seed)
    env = Environment()
    network = racks().build(env, CLIENTS)
    assert isinstance(network, TopologyNetwork)
    num_ended = 0

    def start(_: object = None) -> None:
        src, dst = pick(rng)
        network.transfer(CLIENTS[src], CLIENTS[dst], rng.randrange(10**8, 10**9), end)

    def end() -> None:
        nonlocal num_ended
        num_ended += 1
        if closed:
            start()
        else:
            at(env, int(env.now) + rng.randrange(1, 10_000), ARRIVAL, start)

    for _ in range(concurrent):
        start()
    while num_ended < concurrent:     # until flows of all ages are in progress
        env.step()
    before, target = network.engine.num_events, num_ended + num_flows
    begin = time.process_time()
    while num_ended < target:
        env.step()
    return (network.engine.num_events - before) / (time.process_time() - begin)


def main() -> None:
    concurrent = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{concurrent} concurrent flows, {len(CLIENTS)} clients in {RACKS} racks")
    for name, pick in TRAFFIC.items():
        rates = [flow_events_per_s(concurrent, pick, closed) for closed in (True, False)]
        print(f"  {name:<16} closed {rates[0]:>8,.0f} flow events/s   open {rates[1]:>8,.0f} flow events/s")


if __name__ == "__main__":
    main()
