"""The values of an LLM client that scrapers see (`hermes.core.scraped`), evaluated without an event for each scrape.

The values change when a step ends. Between two runs of steps they are kept here. Inside a run they follow from its
plan: no sequence joins or leaves, and the decode group says which blocks a number of steps takes. What else changes the
queue or the memory during a run (arrivals, KV that comes or goes, aborts) calls `note` before it does, which keeps the
values of the step before. So each scrape finds the values of the last step that had ended by then, the same with runs
as with `stepping: every_step`.

A scraper needs its latest sample alone: when the values change, it keeps the one of its last scrape before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.core.clock import SCRAPE, STEP_END
from hermes.core.scraped import NEVER, ForwardPass, Sample

if TYPE_CHECKING:
    from hermes.clients.llm_readings import LLMReadings

__all__ = ["ClientScraper", "Scrapes"]

_Values = tuple[int, int, float]   # waiting, running, kv_use
_EMPTY: _Values = (0, 0, 0.0)


class Scrapes:
    """Values of one client for all of its scrapers.

    Attributes:
        scrapers: See `hermes.core.scraped.Scraper`.
        since_ns: End of the step from which `values` are; -1 before the first.
        down: Whether scrapes fail, because the client has crashed.
        keeps_passes: Whether the last step of each run is kept.
        last_pass: That of the last run that has ended.
    """

    __slots__ = ("_noted", "_noted_ns", "_running", "_step_end", "_waiting", "client", "down", "keeps_passes",
                 "last_pass", "scrapers", "since_ns", "values")

    def __init__(self, client: LLMReadings) -> None:
        self.client = client
        self.scrapers: list[ClientScraper] = []
        self.since_ns, self.values, self.down = -1, _EMPTY, False
        pace = client.step_parts.pace
        # place of its step ends among the events of an instant: ranks end theirs together
        self._step_end = STEP_END + (client.index if pace is None else pace.first_index())
        self._noted_ns, self._noted = -1, False
        self._waiting = self._running = 0
        self.keeps_passes, self.last_pass = False, ForwardPass()

    # -- changes of the client -------------------------------------------------------------------------------------

    def note(self) -> None:
        """Keep the values of the last step that has ended. Called before something changes the queue or the memory
        that is no step, possibly in the middle of a run."""
        client = self.client
        flight, steps, now = client._flight, client.steps, client.env._now
        if flight.plan is None:
            return
        view, pos = steps.view, steps.pos
        ended = bisect_right(view, now, pos, pos + flight.planned) - pos
        if ended and view[pos + ended - 1] == now and client.env._priority <= self._step_end:
            ended -= 1   # in single steps its end is still to come at this instant
        if ended and (end := view[pos + ended - 1]) > self.since_ns:
            values = self._inside(ended)
            self._keep_samples(end)
            self.since_ns, self.values, self._noted_ns = end, values, end
        self._wake(now)

    def ending(self, now: int) -> None:
        """Keep samples of scrapes during the run that ends now. Called before anything else changes."""
        self._noted = self._noted_ns == now   # the run was cut at this instant, and the values are known
        self._keep_samples(now)
        self.since_ns = now
        if self.keeps_passes:
            self.last_pass = self.pass_in_flight(self.client._flight.planned)

    def settled(self) -> None:
        """Count sequences. Called when those that ended have left, before the ends are reported, at which the same
        client may get new ones."""
        self._waiting, self._running = self.client.num_waiting, self.client.num_running

    def ended(self, now: int) -> None:
        """Take the values of the step that has just ended. Called when its blocks are free."""
        if not self._noted:
            pool = self.client.scheduler.pool
            self.values = self._waiting, self._running, (pool.num_blocks - pool.free_blocks) / pool.num_blocks
        self._wake(now)

    def lost(self, now: int) -> None:
        """Let all scrapes fail from now on: the client crashes. Called before anything else changes. The last sample
        stays the last one."""
        if not self.down:
            self._keep_samples(now)
            self.down = True
            self._wake(now)

    def found(self, now: int) -> None:
        """Let scrapes see an empty engine, which has started now. Until its first scrape there is no sample."""
        self.since_ns, self.values, self.down = now, _EMPTY, False
        self._noted_ns, self._noted = -1, False
        self.last_pass = ForwardPass()
        for scraper in self.scrapers:
            scraper.kept, scraper.asleep = None, False
            if scraper.alarm is not None:
                scraper.alarm(now)

    def _keep_samples(self, before_ns: int) -> None:
        """Let each scraper keep its last sample before the values of `before_ns`."""
        if self.down:
            return
        since = self.since_ns
        for scraper in self.scrapers:
            at = before_ns - 1 - (before_ns - 1 - scraper.offset_ns) % scraper.period_ns
            if at >= since and at >= scraper.offset_ns:   # others have been kept
                known = scraper.sample
                scraper.kept = known if known is not None and known.at_ns == at else Sample(at, *self.at(at))

    def _wake(self, now: int) -> None:
        for scraper in self.scrapers:
            if scraper.asleep:
                scraper.asleep = False
                assert scraper.alarm is not None
                scraper.alarm(now + (scraper.offset_ns - now) % scraper.period_ns)

    # -- values ----------------------------------------------------------------------------------------------------

    def at(self, time_ns: int) -> _Values:
        """Return the values after the last step that had ended by a time, which is neither before `since_ns` nor in the
        future."""
        client = self.client
        flight = client._flight
        if flight.plan is not None:
            view, pos = client.steps.view, client.steps.pos
            ended = bisect_right(view, time_ns, pos, pos + flight.planned) - pos
            if ended and view[pos + ended - 1] > self.since_ns:
                return self._inside(ended)
        return self.values

    def _inside(self, ended: int) -> _Values:
        """Return the values when so many steps of the run in flight had ended."""
        client = self.client
        scheduler, plan = client.scheduler, client._flight.plan
        assert plan is not None
        pool, group = scheduler.pool, scheduler.group
        used = pool.num_blocks - pool.free_blocks
        if plan.decodes and group.grows and plan.taken != ended:   # the blocks of `taken` steps are taken by now
            used += group.blocks_for(ended) - group.blocks_for(plan.taken)
        return client.num_waiting, client.num_running, used / pool.num_blocks

    def constant(self, at_ns: int, *, counts: bool) -> bool:
        """Whether the values of a scrape at a time stay as they are until a run ends, or something is noted. counts:
        Those of the sequences alone, which are constant from the first step on that has seen them."""
        client = self.client
        flight = client._flight
        if flight.plan is None:
            return not client.num_running   # a run of several steps follows a step in which its sequences joined
        if not counts:
            return False
        view, pos = client.steps.view, client.steps.pos
        ended = bisect_right(view, at_ns, pos, pos + flight.planned)
        return ended > pos and view[ended - 1] > self.since_ns

    def pass_in_flight(self, ended: int) -> ForwardPass:
        """Return the last of the first `ended` steps of the run in flight, at least one."""
        client = self.client
        flight, view, pos = client._flight, client.steps.view, client.steps.pos
        plan = flight.plan
        assert plan is not None
        began = view[pos + ended - 2] if ended > 1 else flight.start_ns
        return ForwardPass(view[pos + ended - 1] - began, plan.prefill_seqs, plan.prefill_tokens, plan.decode_seqs,
                           plan.decode_ctx + (ended - 1) * plan.decode_seqs)


class ClientScraper:
    """One scraper of one client; see `hermes.core.scraped.Scraper`.

    Attributes:
        kept: Sample of the last scrape before the client's values changed.
        asleep: Whether it waits for the next change to call `alarm`.
        counts: See `hermes.core.scraped.Scraper`.
    """

    __slots__ = ("_of", "alarm", "asleep", "counts", "kept", "offset_ns", "period_ns", "sample")

    def __init__(self, scrapes: Scrapes, period_ns: int, offset_ns: int) -> None:
        self._of, self.period_ns, self.offset_ns = scrapes, period_ns, offset_ns
        self.kept: Sample | None = None
        self.sample: Sample | None = None
        self.alarm: Callable[[int], None] | None = None
        self.asleep = self.counts = False

    def refresh(self) -> int:
        of = self._of
        env = of.client.env
        now = env._now if env._priority >= SCRAPE else env._now - 1   # the scrape of this instant is still to come
        at = now - (now - self.offset_ns) % self.period_ns
        if of.down or at < of.since_ns:
            self.sample = self.kept
        elif at < self.offset_ns:
            self.sample = None
        else:
            self.sample = Sample(at, *of.at(at))
            if self.alarm is not None and of.constant(at, counts=self.counts):
                self.asleep = True
                return NEVER
        if of.down and self.alarm is not None:
            self.asleep = True
            return NEVER
        return at + self.period_ns

    def read(self) -> Sample | None:
        self.refresh()
        return self.sample
