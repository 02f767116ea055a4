"""Nodes of starters: what each keeps from one start to the next, and pools from which groups take them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from hermes.core.clock import MEMBERSHIP, Acting, Clock, Tick, happen
from hermes.errors import InputError, Verbatim
from hermes.fleet.startup_link import StarterLink
from hermes.fleet.startup_phases import Pool
from hermes.fleet.startup_times import seconds
from hermes.units import s_to_ns

__all__ = ["Node", "NodePool", "Wanting", "pool_of"]


class Node:
    """A machine on which replicas start.

    Attributes:
        has: Names of what it keeps: images, weights in the page cache, compiled models.
        pulls: Image that is being pulled -> events of the starters that wait for it.
    """

    __slots__ = ("_env", "_links", "has", "pulls")

    def __init__(self, env: Clock, has: Iterable[str]) -> None:
        self._env, self.has = env, set(has)
        self.pulls: dict[str, list[Tick]] = {}
        self._links: dict[tuple[str, float], StarterLink] = {}

    def link(self, where: str, bandwidth: float) -> StarterLink:
        """Return its link to `registry` or `storage`: one for each bandwidth that a group gives."""
        key = where, bandwidth
        if key not in self._links:
            self._links[key] = StarterLink(self._env, bandwidth)
        return self._links[key]


class Wanting:
    """A start that wants a node.

    Attributes:
        share: The number that it has drawn for the time of provisioning.
        held: Called at least once when its devices are held.
        come: Event of the moment at which it has its node.
        node: That node.
    """

    __slots__ = ("come", "held", "node", "share")

    def __init__(self, env: Clock, share: float, held: Callable[[], None]) -> None:
        self.share, self.held, self.come = share, held, env.pending()
        self.node: Node | None = None


def pool_of(env: Clock, config: Pool, prepared: set[str]) -> NodePool:
    """Return the pool of a group, which other groups may have as well. Raises `InputError` if they say otherwise.

    prepared: What every node has for this group from the beginning.
    """
    if config.name is None:
        return NodePool(env, config, prepared)
    key = "node pool", config.name
    if key not in env.shared:
        env.shared[key] = NodePool(env, config, prepared)
    pool: NodePool = env.shared[key]
    pool.join(config, prepared)
    return pool


class NodePool:
    """The nodes of one group, or of several.

    Args:
        prepared: What every node has from the beginning.
    """

    def __init__(self, env: Clock, config: Pool, prepared: set[str]) -> None:
        self._env, self._config, self._prepared = env, config, set(prepared)
        self._idle: dict[Node, int] = {self._new(): 0 for _ in range(config.nodes)}   # since when
        self._of: dict[int, list[Node]] = {}                                    # client -> its nodes
        self._queue: list[Wanting] = []
        self._ordered = 0
        for node in self._idle:
            self._keep(node)

    def join(self, config: Pool, prepared: set[str]) -> None:
        """Let another group take nodes."""
        if config != self._config:
            raise InputError(Verbatim(f"pool {config.name!r} is described in two ways; give it one `nodes`, "
                                      "`provisioning`, `most`, `stock_out` and `keep`"), field="pool")
        self._prepared |= prepared
        for node in self._idle:
            node.has |= prepared

    def _new(self) -> Node:
        """Return a node that joins just now."""
        return Node(self._env, self._prepared)

    def found(self, client: Any, number: int) -> Node | None:
        """Return the node number `number` of a client, None if it has not so many."""
        have = self._of.get(client.index, [])
        return have[number] if number < len(have) else None

    @property
    def _present(self) -> int:
        """Nodes that have joined."""
        return sum(map(len, self._of.values())) + len(self._idle)

    def put(self, client: Any) -> Node:
        """Give a client that is ready at the start another node of its own."""
        node = self._new()
        self._of.setdefault(client.index, []).append(node)
        most, used = self._config.most, self._present
        if most is not None and used > most:
            raise InputError(f"at least the nodes at the start of all its groups, {used} or more", most,
                             field="start_up.pool.most")
        return node

    def take(self, client: Any, wanting: Wanting) -> Iterator[Tick]:
        """Give a client one more node: an empty one, the one with most in its caches first, or the next that is free or
        joins."""
        self._queue.append(wanting)
        self._serve()
        if wanting.node is None:
            self._order()
            yield wanting.come
        assert wanting.node is not None
        self._of.setdefault(client.index, []).append(wanting.node)

    def forget(self, wanting: Wanting) -> None:
        """Note that a start is given up while it waits. What was ordered comes and is kept empty."""
        if wanting in self._queue:
            self._queue.remove(wanting)
        elif wanting.node is not None:
            self._release(wanting.node)

    def gone(self, client: Any) -> None:
        """Take back the nodes of a client, if it has any."""
        for node in self._of.pop(client.index, []):
            self._release(node)

    def lost(self, client: Any) -> None:
        """Forget the first node of a client, which is down for good: another may be ordered in its place. Take back the
        others."""
        nodes = self._of.pop(client.index, [])
        if nodes:
            self._order()
        for node in nodes[1:]:
            self._release(node)

    def _release(self, node: Node) -> None:
        self._idle[node] = self._env._now
        self._serve()
        if node in self._idle:
            self._keep(node)

    def _keep(self, node: Node) -> None:
        """Let an empty node go if it is still empty when its time has passed."""
        since = self._idle[node]

        def over(tick: Tick) -> None:
            if self._idle.get(node) == since:
                del self._idle[node]
                self._order()

        self._env.tick_at(since + s_to_ns(self._config.keep), MEMBERSHIP, over)

    def _serve(self) -> None:
        while self._queue and self._idle:
            node = max(self._idle, key=lambda node: len(node.has))   # of equal ones the first
            del self._idle[node]
            wanting = self._queue.pop(0)
            wanting.node = node
            wanting.held()
            happen(wanting.come)

    def _order(self) -> None:
        """Order a node for each start that waits without one, as far as the stock goes."""
        most = self._config.most
        while self._ordered < len(self._queue) and (
                most is None or self._present + self._ordered < most):
            wanting = self._queue[self._ordered]
            self._ordered += 1
            Acting(self._env, self._provision(wanting))

    def _provision(self, wanting: Wanting) -> Generator[Tick, Any, None]:
        while (end := self._out_until()) is not None:
            yield self._env.moment(end, MEMBERSHIP)
        if wanting in self._queue:
            wanting.held()
        yield self._env.moment(self._env._now + s_to_ns(seconds(self._config.provisioning, wanting.share)), MEMBERSHIP)
        self._ordered -= 1
        self._release(self._new())

    def _out_until(self) -> int | None:
        """Return when the provider has nodes again, None if it has some now."""
        for out in self._config.stock_out:
            end = s_to_ns(out.at) + s_to_ns(out.length)
            if s_to_ns(out.at) <= self._env._now < end:
                return end
        return None
