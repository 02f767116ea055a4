"""KV tiers on the clock: the entries of a tier, and the link over which it is read and written.

Used by clients that serve whole contexts (`hermes.clients.kv_retrieval`) and by LLM clients that keep blocks of their
prefix cache in tiers (`hermes.clients.tiers`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import NamedTuple

from hermes.clients.tier_config import KvTierConfig, TiersConfig
from hermes.core.block_hashes import PromptContent
from hermes.core.clock import Clock
from hermes.core.record import TierInfo
from hermes.errors import InputError, Verbatim
from hermes.memory.admission import Frequency
from hermes.memory.tiers import Store, find_chain
from hermes.network import LinkUse, exposed_bytes
from hermes.network.flows import FlowEngine
from hermes.units import s_to_ns

__all__ = ["Hierarchy", "Read", "Tier", "block_keys", "build_tiers"]

Entries = list[tuple[Hashable, int]]   # (key, bytes)
Held = dict[Hashable, Callable[[], None]]
"""Reads and writes under way, each with the function that stops it."""


class Tier:
    """A tier on the clock. All its reads and writes share its bandwidth, and those of one client its port, max-min
    fairly.

    Attributes:
        read_bytes, written_bytes: Of completed reads and writes, and of stopped ones what had moved.
        busy_ns: Time with at least one read or write.
    """

    def __init__(self, config: KvTierConfig, env: Clock, where: str) -> None:
        self.config, self.env, self.where = config, env, where
        frequency = Frequency(config.admission_sample) if config.admission == "frequency" else None
        self.store = Store(config.capacity, config.build_eviction(), frequency)
        self.rates = config.rates
        self.lookup_ns = s_to_ns(config.lookup + self.rates.latency_s)
        self.clients: list[int] = []
        self.read_bytes = self.written_bytes = self.busy_ns = 0
        self._active = 0
        self._since_ns = 0

    @property
    def share(self) -> float:
        """Bytes/s that one more flow of a client without others would get now."""
        return min(self.rates.alone, self.rates.bandwidth / (self._active + 1))

    @cached_property
    def _link(self) -> FlowEngine:
        """Its bandwidth, then the port of each client, if clients have ports."""
        return FlowEngine(self.env, self._bandwidths())

    def _bandwidths(self) -> list[float]:
        return [self.rates.bandwidth, *([] if self.rates.port is None else [self.rates.port] * len(self.clients))]

    def _path(self, client: int) -> tuple[int, ...]:
        return (0,) if self.rates.port is None else (0, 1 + self.clients.index(client))

    def info(self, names: list[str]) -> TierInfo:
        """Return the record's entry of this tier; `names` are those of all clients, by index."""
        config, store = self.config, self.store
        return TierInfo(
            name=config.name, where=self.where, scope=config.scope,
            clients=tuple(names[index] for index in dict.fromkeys(self.clients)), capacity_bytes=config.capacity,
            bandwidth=self.rates.bandwidth, policy=config.eviction, busy_ns=self.busy_until_now_ns(),
            read_bytes=self.read_bytes, written_bytes=self.written_bytes, hits=store.hits, misses=store.misses,
            evictions=store.evictions, refused=store.refused, used_bytes=store.used_bytes, peak_bytes=store.peak_bytes,
            link=self.link_use(),
        )

    def read(self, client: int, num_bytes: int, done: Callable[[], None], held: Held | None = None) -> None:
        """Read `num_bytes` bytes for a client, by its index; call `done()` when the last has left (at once, if there
        are none). held: Keeps the function that stops it, while it is under way."""
        self._flow(client, num_bytes, done, held, writes=False)

    def write(self, client: int, num_bytes: int, done: Callable[[], None], held: Held | None = None) -> None:
        """Write, as `read` reads."""
        self._flow(client, num_bytes, done, held, writes=True)

    def _flow(
        self, client: int, num_bytes: int, done: Callable[[], None], held: Held | None, *, writes: bool,
    ) -> None:
        if num_bytes <= 0:
            done()
            return
        if not self._active:
            self._since_ns = self.env._now
        self._active += 1

        def over(num_bytes: int) -> None:
            self._active -= 1
            if not self._active:
                self.busy_ns += self.env._now - self._since_ns
            if writes:
                self.written_bytes += num_bytes
            else:
                self.read_bytes += num_bytes
            if held is not None:
                del held[flow]

        def ended() -> None:
            over(num_bytes)
            done()

        flow = self._link.start(self._path(client), num_bytes, ended)
        if held is not None:
            held[flow] = lambda: over(self._link.cancel(flow))

    def link_use(self) -> LinkUse:
        """Return the use of the link so far, over time."""
        rates = self._bandwidths()
        return self._link.uses([self.config.name] * len(rates), rates)[0]

    def busy_until_now_ns(self) -> int:
        """Return the time in which the tier was busy so far."""
        return self.busy_ns + (self.env._now - self._since_ns if self._active else 0)


def build_tiers(configs: list[KvTierConfig], env: Clock, index: int, name: str, platform: str) -> list[Tier]:
    """Return the tiers of one client, nearest first. Shared tiers are made once per scope."""
    scopes = {"client": name, "platform": platform, "rack": platform.split("/")[0], "all": ""}
    tiers: list[Tier] = []
    for i, config in enumerate(configs):
        where = scopes[config.scope]
        if not where and config.scope in ("platform", "rack"):
            raise InputError(Verbatim(f"missing: tier {config.name!r} is shared by the {config.scope} of its clients"),
                             field="platform")
        key = ("kv tier", config.name, config.scope, where)
        if key not in env.shared:
            env.shared[key] = Tier(config, env, where)
        tier: Tier = env.shared[key]
        if tier.config != config:
            raise InputError(Verbatim(f"shared tier {config.name!r} is described in two ways; give it one capacity, "
                                      "bandwidth and eviction"), field="tiers.levels")
        if tier in tiers:
            raise InputError(Verbatim(f"two tiers of this client are named {config.name!r}; rename one"),
                             field=f"tiers.levels.{i}.name")
        if index not in tier.clients:   # a replica that starts again attaches its parts anew
            tier.clients.append(index)
        tiers.append(tier)
    return tiers


class Read(NamedTuple):
    """A read from one tier of a hierarchy."""

    tier: Tier
    depth: int
    num_bytes: int
    entries: Entries


def block_keys(content: PromptContent | None, num_tokens: int, unit: int, model: str) -> list[Hashable]:
    """Return chained hashes of the leading blocks of `unit` tokens that other prompts may have as well
    (`hermes.core.block_hashes`). They include the model, because a tier may hold the KV of several."""
    keys: list[Hashable] = []
    if content is None:
        return keys
    for index in range(num_tokens // unit):
        key = content.block_key(index, unit)
        if key is None:   # this block and those after it are the sequence's own
            break
        keys.append((model, key))
    return keys


class Hierarchy:
    """The tiers of one client, and the movement of entries between them."""

    def __init__(self, tiers: list[Tier], config: TiersConfig, client: int) -> None:
        self.tiers, self.promote, self.demote, self._client = tiers, config.promote, config.demote, client
        self._held: Held = {}
        self._written = tiers if config.write == "all" else tiers[:1]

    def find(self, keys: list[Hashable], size: int) -> tuple[list[Read], int]:
        """Return the reads for the leading blocks of a chain that some tier has, and the number of these blocks."""
        found = find_chain([tier.store for tier in self.tiers], keys)
        reads = []
        for depth, tier in enumerate(self.tiers):
            entries = [(key, size) for key, where in zip(keys, found, strict=False) if where == depth]
            if entries:
                reads.append(Read(tier, depth, size * len(entries), entries[::-1]))
        return reads, len(found)

    def fetch(self, reads: list[Read], done: Callable[[], None], overlap: tuple[int, float] | None = None) -> None:
        """Read in parallel; call `done()` when nothing is left to wait for.

        Args:
            overlap: (layers, seconds of prefill) that may hide the reads, layer by layer.
        """
        left = len(reads)
        if not left:
            done()

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for read in reads:
            if overlap is None:
                read.tier.read(self._client, read.num_bytes, partial(self._read_whole, read, one), self._held)
            else:
                self._read_exposed(read, read.num_bytes, overlap, one)

    def _read_whole(self, read: Read, done: Callable[[], None]) -> None:
        self._lift(read)
        done()

    def _read_exposed(
        self, read: Read, rest: int, overlap: tuple[int, float], ready: Callable[[], None]
    ) -> None:
        """Read what the prefill cannot hide, judge again, and let the rest run during the prefill."""
        layers, hidden_s = overlap
        waited = exposed_bytes(rest, layers, hidden_s, read.tier.share)
        if rest < read.num_bytes and waited * layers <= read.num_bytes + layers:   # delay of one layer at most
            read.tier.read(self._client, rest, partial(self._lift, read), self._held)
            ready()
            return

        def there() -> None:
            if rest > waited:
                self._read_exposed(read, rest - waited, overlap, ready)
            else:
                self._read_whole(read, ready)

        read.tier.read(self._client, waited, there, self._held)

    def keep(self, entries: Entries, done: Callable[[], None]) -> None:
        """Store entries (key, bytes); call `done()` once all are written. Entries that a tier has are not written."""
        left = len(self._written)

        def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for depth in range(len(self._written)):
            self._write(depth, entries, one)

    def warm(self, keys: list[Hashable]) -> None:
        """Copy those of the keys that only lower tiers have to the nearest tier."""
        for depth, tier in enumerate(self.tiers[1:], 1):
            found = [(key, tier.store.entries[key]) for key in keys if key in tier.store
                     and not any(key in nearer.store for nearer in self.tiers[:depth])]
            if found:
                found.reverse()   # the hottest is written last
                tier.read(self._client, sum(size for _, size in found), partial(self._write, 0, found, _nothing),
                          self._held)

    def _lift(self, read: Read) -> None:
        """Write entries that were read to the tiers above, if `promote` is set."""
        for upper in range(read.depth if self.promote else 0):
            self._write(upper, read.entries, _nothing)

    def _write(self, depth: int, entries: Entries, done: Callable[[], None]) -> None:
        tier = self.tiers[depth]
        held = tier.store.entries
        fit = [(key, size) for key, size in entries if held.get(key, -1) < size <= tier.store.capacity_bytes]
        new = [entry for entry in fit if tier.store.admits(*entry)]
        if self.demote and len(new) < len(fit) and depth + 1 < len(self.tiers):
            admitted = set(new)
            self._write(depth + 1, [entry for entry in fit if entry not in admitted], _nothing)
        tier.store.refused += sum(size > tier.store.capacity_bytes for _, size in entries)

        def written() -> None:
            evicted: Entries = []
            for key, size in new:
                if held.get(key, -1) < size:   # unless a longer context came in during the write
                    evicted += tier.store.put(key, size) or ()
            if self.demote and evicted and depth + 1 < len(self.tiers):
                self._write(depth + 1, evicted, _nothing)
            done()

        tier.write(self._client, sum(size - held.get(key, 0) for key, size in new), written, self._held)

    def stop(self) -> None:
        """Stop all reads and writes under way: the client goes down. Tiers of its own are empty then."""
        for stop in list(self._held.values()):
            stop()
        for tier in self.tiers:
            if tier.config.scope == "client":
                tier.store.clear()


def _nothing() -> None:
    pass
