"""Jobs of an engine that offloads KV to host memory (vLLM's OffloadingConnector), on the clock.

A part of the scheduler (`hermes.schedulers.host_offload`) starts jobs. `HostJobs` gives them their time on the link to
the host and tells that part when the engine learns that they are complete:

- Jobs of one direction follow each other; both directions run at the same time. A job takes latency + bytes /
  bandwidth, the bytes of one device.
- A load starts when the computation of the step that planned it ends, at once if that step computes nothing. A store
  starts with the step after the one that planned it. A step that has to flush stores starts when they are complete.
- The engine asks once a step, when it has launched the step's computation. So it learns at the end of a step what was
  complete at its start. With nothing to compute it asks all the time.

Sources: vllm/v1/worker/gpu/kv_connector.py (pre_forward, post_forward, no_forward),
vllm/distributed/kv_transfer/kv_connector/v1/offloading/worker.py, vllm/v1/kv_offload/cpu/gpu_worker.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.clients.parts import StepPart
from hermes.clients.tier_config import HostOffloadConfig
from hermes.core.clock import TRANSFER
from hermes.core.record import TierInfo
from hermes.errors import InputError, Verbatim
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.host_offload import HostOffload, Job
from hermes.schedulers.parts import part_of
from hermes.schedulers.plan import Plan
from hermes.units import NS_PER_S, s_to_ns

if TYPE_CHECKING:
    from hermes.clients.build import Place
    from hermes.clients.llm import LLMClient

__all__ = ["HostJobs", "HostLink", "host_offload_of", "jobs_of"]


class HostLink:
    """The link between a client's devices and its host, and what the record says about the host cache.

    Args:
        offload: Starts the jobs.
        bandwidth: Bytes/s of one device, one direction.
        latency: Seconds before the first byte of a job.
        block_bytes: KV bytes of a block, of all devices.
        devices: Devices that share a block; each copies its part over a link of its own.

    Attributes:
        read_bytes, written_bytes: Of the jobs started so far, of all devices.
        busy_ns: Time with at least one job.
    """

    def __init__(self, name: str, offload: HostOffload, *, bandwidth: float, latency: float,
                 block_bytes: float, chunk_bytes: int, devices: int) -> None:
        self.name, self.offload = name, offload
        self.bandwidth, self.latency_ns = bandwidth, s_to_ns(latency)
        self.block_bytes, self.chunk_bytes, self.devices = block_bytes, chunk_bytes, devices
        self.read_bytes = self.written_bytes = self.busy_ns = 0
        self._free_ns = {True: 0, False: 0}   # when a direction is free: loads, stores
        self._until_ns = 0                    # end of the latest job

    def start(self, job: Job, now_ns: int) -> int:
        """Start a job; return its end."""
        size = len(job.blocks) * self.block_bytes
        begin = max(now_ns, self._free_ns[job.load])
        end = begin + self.latency_ns + round(size / self.devices / self.bandwidth * NS_PER_S)
        self._free_ns[job.load] = end
        if job.load:
            self.read_bytes += round(size)
        else:
            self.written_bytes += round(size)
        self.busy_ns += max(0, end - max(begin, self._until_ns))
        self._until_ns = max(end, self._until_ns)
        return end

    def info(self, names: list[str]) -> TierInfo:
        """Return the record's entry of the host cache."""
        host, size = self.offload.host, self.chunk_bytes
        return TierInfo(
            name="host", where=self.name, scope="client", clients=(self.name,), capacity_bytes=host.capacity * size,
            bandwidth=self.bandwidth, policy=host.policy, busy_ns=self.busy_ns, read_bytes=self.read_bytes,
            written_bytes=self.written_bytes, hits=host.hits, misses=host.misses, evictions=host.evictions,
            refused=host.refused, used_bytes=host.used * size, peak_bytes=host.peak * size,
            hit_tokens=self.offload.loaded_tokens,
        )


class HostJobs(StepPart):
    """See the module's docstring."""

    _client: LLMClient   # set when it joins

    def __init__(self, link: HostLink) -> None:
        self._link, self._offload = link, link.offload
        self._loads: list[Job] = []      # planned by the step that runs
        self._stores: list[Job] = []     # planned by it too: submitted with the next step
        self._moving: set[Job] = set()   # submitted, not complete
        self._complete_jobs: list[Job] = []   # complete, and the engine does not know
        self._heard: list[Job] = []      # complete, and known at the end of the step that runs
        self._awaited: set[Job] = set()  # the next step waits for them
        self._stalled: Plan | None = None   # that step
        self._polling = False            # nothing to compute: the engine asks for complete jobs all the time

    def attach(self, client: LLMClient) -> None:
        super().attach(client)
        self._client, client.step_parts.planner = client, self
        client.tiers = [self._link]  # type: ignore[list-item]  # only `info` is asked for

    def waits(self) -> bool:
        return bool(self._moving) or self._stalled is not None

    def planned(self) -> bool:
        return self._stalled is not None and bool(self._stalled.prefills or self._stalled.decodes)

    # -- steps ---------------------------------------------------------------------------------------------------

    def next_plan(self, client: LLMClient) -> Plan | None:
        scheduler = client.scheduler
        if self._stalled is not None:
            if self._awaited:
                return None
            plan: Plan | None = self._stalled
            assert plan is not None
            self._stalled = None
            if plan.prefills or plan.decodes:
                return self._launch(plan)
            self._hear()
        elif self._polling:
            self._hear()
        self._polling = False
        while True:
            plan = scheduler.plan(client._max_run)
            computes = plan is not None and bool(plan.prefills or plan.decodes)
            self._take_jobs(computes)
            if plan is not None and not computes:   # it only preempts
                scheduler.complete(plan, 1, -1, 0)
                if plan.preempted and not scheduler.running:
                    client._gave_up_alone()
            if self._awaited:
                self._stalled = plan or Plan()
                return None
            if plan is not None and computes:
                return self._launch(plan)
            if not self._hear() and plan is None:
                break
        self._polling = True
        if client.events.room is not None:
            client.events.room(client)
        return None

    def _launch(self, plan: Plan) -> Plan:
        """Start a step: at its end the engine knows the jobs that are complete now."""
        self._heard, self._complete_jobs = self._complete_jobs, []
        return plan

    def _hear(self) -> bool:
        """Tell the scheduler of all complete jobs; return whether there are any."""
        jobs, self._complete_jobs = self._complete_jobs, []
        for job in jobs:
            self._offload.job_done(job)
        return bool(jobs)

    def completed(self, client: LLMClient) -> None:
        heard, self._heard = self._heard, []
        for job in heard:
            self._offload.job_done(job)
        for job in self._loads:
            self._submit(job)
        self._loads.clear()

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _take_jobs(self, computes: bool) -> None:
        """Take the jobs of a new plan, and submit those of the plan before that it did not start yet."""
        for job in self._stores:
            self._submit(job)
        started, flushed = self._offload.take_jobs()
        self._stores = [job for job in started if not job.load]
        for job in started:
            if job.load and computes:
                self._loads.append(job)
            elif job.load:
                self._submit(job)
        for job in flushed:
            if job in self._stores:
                self._stores.remove(job)
                self._submit(job)
            if job in self._moving:
                self._awaited.add(job)

    def _submit(self, job: Job) -> None:
        self._moving.add(job)
        env = self._client.env
        env.tick_at(self._link.start(job, env._now), TRANSFER, lambda tick: self._ended_job(job))

    def _ended_job(self, job: Job) -> None:
        self._moving.discard(job)
        self._complete_jobs.append(job)
        self._awaited.discard(job)
        if self._client._flight.plan is None and not self._awaited:
            self._client.wake()


def host_offload_of(offload: HostOffloadConfig, block_bytes: float, config: ChunkedConfig) -> HostOffload:
    """Return the part of the scheduler that starts jobs. block_bytes: KV bytes of a block, of all devices."""
    host = offload.build(block_bytes, ranked=config.ranks_chunks)
    return HostOffload(host, blocks_per_chunk=offload.blocks_per_chunk, prompt_only=offload.offload_prompt_only,
                       offers_anew=config.offers_anew)


def jobs_of(offload: HostOffloadConfig, place: Place) -> HostJobs:
    """Return the jobs of one client. Raises `InputError` if the bandwidth to its host is unknown."""
    config, info, base_dir, scheduler = place.config, place.info, place.base_dir, place.scheduler
    part = part_of(scheduler, HostOffload)
    assert part is not None   # `hermes.clients.build` gave it
    device = config.device_of(info, base_dir)
    bandwidth = offload.bandwidth or (device.host_bandwidth if device is not None else None)
    if bandwidth is None:
        raise InputError(Verbatim("missing: give it, or give the client a `device`"),
                         field="memory.kv_offload.bandwidth")
    per_token = config.memory.kv_bytes(config.memory_model(info, base_dir), info, base_dir)
    block_bytes = scheduler.pool.block_size * per_token
    return HostJobs(HostLink(
        place.name, part, bandwidth=bandwidth, latency=offload.latency, block_bytes=block_bytes,
        chunk_bytes=offload.chunk_bytes(block_bytes), devices=config.num_devices(info)))
