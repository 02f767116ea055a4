"""Starts replicas in phases: each start is a SimPy process for each node, written as it happens there.

The nodes of one replica wait for the last of them twice: when they have their weights, since the engine then runs on
all of them together, and when they have captured their graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from hermes.config.streams import stream as random_stream
from hermes.core.clock import MEMBERSHIP, Acting, Clock, Tick, happen
from hermes.fleet.start_ups import EngineStart, Place, Starter, Starting
from hermes.fleet.startup_link import Flow, StarterLink
from hermes.fleet.startup_phases import PHASES, Phases, Pull, Storage
from hermes.fleet.startup_pool import Node, Wanting, pool_of
from hermes.fleet.startup_times import seconds
from hermes.units import s_to_ns

__all__ = ["PhaseStarter"]

Acts = Generator[Tick, Any, str | None]
"""A phase: it waits, and returns the name of what it leaves on the node."""


class _Meeting:
    """Where the nodes of a start wait for the last one."""

    def __init__(self, nodes: int) -> None:
        self._lacks, self._waiting = nodes, list[Tick]()

    def come(self, env: Clock) -> Generator[Tick, Any, None]:
        """Wait until all have come."""
        self._lacks -= 1
        if self._lacks:
            mine = env.pending()
            self._waiting.append(mine)
            yield mine
            return
        for one in self._waiting:
            happen(one)


class _Start:
    """A start that goes on, on one node.

    Attributes:
        node: Number of the node among those of the replica.
        meetings: Of all its nodes: with weights, and at the end.
        share: Phase -> the number drawn for it.
        compiles: Whether the engine compiles, for want of what was compiled before.
        given_up: Whether it is given up: then it does nothing any more.
        flow: Its bytes on a link that would have to be cancelled.
    """

    __slots__ = ("compiles", "flow", "given_up", "meetings", "node", "one", "share", "wanting")

    def __init__(self, one: Starting, seed: int, node: int, meetings: tuple[_Meeting, _Meeting]) -> None:
        self.one, self.compiles, self.given_up = one, False, False
        self.node, self.meetings = node, meetings
        whose = f"startup/{one.client.name}/{one.number}" + (f"/{node}" if node else "")
        drawn = random_stream(seed, whose).random(len(PHASES))
        self.share = dict(zip(PHASES, drawn.tolist(), strict=True))
        self.flow: tuple[StarterLink, Flow] | None = None
        self.wanting: Wanting | None = None

    def phase(self, name: str) -> None:
        """Note that a phase begins; that of a replica is its first node's."""
        if not self.node:
            self.one.phase(name)


class PhaseStarter(Starter):
    """Starts the replicas of one group by phases."""

    def __init__(self, config: Phases, place: Place, engine: EngineStart | None) -> None:
        self._config, self._place, self._engine, self._env = config, place, engine, place.env
        self._shares = place.shares
        whose = place.clients[0].model or place.clients[0].name
        names = (whose,) * 3 if engine is None else (engine.image, engine.weights, engine.compiled)
        self._names = {cache: f"{cache} {name}" for cache, name in zip(("image", "weights", "compile"), names,
                                                                       strict=True)}
        prepared = {self._names[cache] for cache in config.prepared}
        self._pool = None if config.pool is None else pool_of(self._env, config.pool, prepared)
        self.pooled = self._pool is not None

    def is_ready(self, client: Any) -> None:
        """See `Starter`. Its start has filled the caches of its node."""
        for number in range(len(self._shares)):
            node = self._node(client, number) if self._pool is None else self._pool.put(client)
            node.has |= {self._names[cache] for cache in self._config.keeps}

    def start(self, one: Starting) -> Callable[[], None]:
        """See `Starter`. Devices are held from the first node on."""
        held: list[bool] = []

        def hold() -> None:
            if not held:
                held.append(True)
                one.held()

        meetings = _Meeting(len(self._shares)), _Meeting(len(self._shares))
        starts = [_Start(one._replace(held=hold), self._place.seed, node, meetings)
                  for node in range(len(self._shares))]
        for start in starts:
            Acting(self._env, self._acts(start))

        def give_up() -> None:
            for start in starts:
                self._give_up(start)

        return give_up

    def gone(self, client: Any) -> None:
        """See `Starter`."""
        if self._pool is not None:
            self._pool.gone(client)

    def lost(self, client: Any) -> None:
        """See `Starter`."""
        if self._pool is not None:
            self._pool.lost(client)

    def _give_up(self, start: _Start) -> None:
        start.given_up = True
        if start.flow is not None:
            link, flow = start.flow
            link.cancel(flow)
        if start.wanting is not None and self._pool is not None:
            self._pool.forget(start.wanting)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _new(self) -> Node:
        return Node(self._env, {self._names[cache] for cache in self._config.prepared})

    def _node(self, client: Any, number: int) -> Node:
        """Return the node number `number` of a client that has its nodes throughout."""
        shared = client.platform if self._config.node == "platform" and len(self._shares) == 1 else ""
        key = ("node of starters", shared or client.index, bool(shared), number)
        nodes = self._env.shared
        if key not in nodes:
            nodes[key] = self._new()
        node: Node = nodes[key]
        node.has |= {self._names[cache] for cache in self._config.prepared}
        return node

    def _arrives(self, start: _Start) -> Generator[Tick, Any, Node]:
        """Bring a start to its node: the one that it has, or one of the pool."""
        client = start.one.client
        if self._pool is None:
            return self._node(client, start.node)
        node = self._pool.found(client, start.node)
        if node is None:
            start.wanting = Wanting(self._env, start.share["node"], start.one.held)
            yield from self._pool.take(client, start.wanting)
            node, start.wanting = start.wanting.node, None
            assert node is not None
        return node

    # -- a start -----------------------------------------------------------------------------------------------------

    def _acts(self, start: _Start) -> Generator[Tick, Any, None]:
        """Start a replica: to its node, phase by phase, until routers know that it is ready."""
        node = yield from self._arrives(start)   # never, if it is given up meanwhile
        start.one.held()
        for act in (self._image, self._process, self._tokenizer, self._weights, self._loaded, self._compile,
                    self._profiling, self._capture, self._captured, self._probe):
            left = yield from act(start, node)
            if start.given_up:
                return
            if left in self._config.keeps:
                node.has.add(self._names[left])
        if start.node:
            return
        start.one.ready("started")
        more = s_to_ns(seconds(self._config.first_request, start.share["first_request"]))
        if more and self._place.slow_first is not None:
            self._place.slow_first(start.one.client, more)

    def _image(self, start: _Start, node: Node) -> Acts:
        image, pull = self._names["image"], self._config.image
        if not pull or image in node.has:
            return None
        start.phase("image")
        if image not in node.pulls:
            node.pulls[image] = []

            def pulled(tick: Tick | None = None) -> None:   # goes on if the start is given up: the node pulls
                if "image" in self._config.keeps:
                    node.has.add(image)
                for waits in node.pulls.pop(image):
                    happen(waits)

            if isinstance(pull, Pull):
                node.link("registry", pull.bandwidth).start(pull.size, pull.bandwidth, pulled)
            else:
                after = s_to_ns(seconds(pull, start.share["image"]))
                self._env.tick_at(self._env._now + after, MEMBERSHIP, pulled)
        come = self._env.pending()
        node.pulls[image].append(come)
        yield come
        return None

    def _process(self, start: _Start, node: Node) -> Acts:
        return self._takes(start, "process", cold=False)

    def _tokenizer(self, start: _Start, node: Node) -> Acts:
        return self._takes(start, "tokenizer", cold=False)

    def _weights(self, start: _Start, node: Node) -> Acts:
        cold, storage = self._names["weights"] not in node.has, self._config.weights
        if not cold or not isinstance(storage, Storage):
            yield from self._takes(start, "weights", cold=cold)
            return "weights"
        assert self._engine is not None
        start.phase("weights (cold)")
        yield self._env.moment(self._env._now + s_to_ns(self._engine.load_fixed_s), MEMBERSHIP)
        if not start.given_up:
            read, link = self._env.pending(), node.link("storage", storage.bandwidth)
            share = self._shares[start.node]
            start.flow = link, link.start(self._engine.weight_bytes * share, self._engine.load_rate * share,
                                          lambda: happen(read))
            yield read
            start.flow = None
        return "weights"

    def _loaded(self, start: _Start, node: Node) -> Acts:
        yield from start.meetings[0].come(self._env)
        return None

    def _captured(self, start: _Start, node: Node) -> Acts:
        yield from start.meetings[1].come(self._env)
        return None

    def _compile(self, start: _Start, node: Node) -> Acts:
        start.compiles = self._names["compile"] not in node.has
        yield from self._takes(start, "compile", cold=start.compiles)
        return "compile"

    def _profiling(self, start: _Start, node: Node) -> Acts:
        return self._takes(start, "profiling", cold=start.compiles)

    def _capture(self, start: _Start, node: Node) -> Acts:
        return self._takes(start, "capture", cold=start.compiles)

    def _probe(self, start: _Start, node: Node) -> Acts:
        if start.node:
            return None
        start.phase("probe")
        given, now = self._config.probe, self._env._now
        if given is None:
            known = self._place.ready_ns(start.one.client.name, now)
        else:
            known = now + s_to_ns(seconds(given, start.share["probe"]))
        yield self._env.moment(known, MEMBERSHIP)
        return None

    def _takes(self, start: _Start, phase: str, *, cold: bool) -> Acts:
        """Wait as long as a phase takes."""
        ns = s_to_ns(self._config.seconds_of(phase, self._engine, start.share[phase], cold=cold))
        if ns:
            start.phase(f"{phase} (cold)" if cold else phase)
            yield self._env.moment(self._env._now + ns, MEMBERSHIP)
        return None
