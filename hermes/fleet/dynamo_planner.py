"""Dynamo's planner (`kind: dynamo_planner`): prefill and decode workers, or workers that do both, by load and traffic.

The load loop looks each 5 s at the last step and the queue of each engine, and asks for one worker more or fewer. With
the targets `throughput` and `latency` it compares them with fixed thresholds; with `sla` it estimates TTFT and ITL by
regressions over the steps that it has seen. The throughput loop predicts each 180 s the traffic of the next interval,
and asks for the workers that serve it within the limits; with the load loop it gives the fewest. Nothing is decided
while workers drain; while they start, they may be given up. Prefill and decode workers share a budget of devices.

Source: ai-dynamo 1.6.1, dynamo/planner, and ai-dynamo/dynamo 0c6da1ec, components/src/dynamo/planner
(`hermes.fleet.dynamo_rules`, `hermes.fleet.dynamo_models`: the regressions are those of the latter).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from hermes.config import Duration
from hermes.errors import InputError, Verbatim
from hermes.fleet.autoscalers import AUTOSCALERS, Acts, AutoscalerView, Beats, GroupsAutoscaler, Traffic
from hermes.fleet.dynamo_models import AggModel, Constant, DecodeModel, Kalman, Predictor, PrefillModel
from hermes.fleet.dynamo_rules import (
    Sla,
    agg_load,
    budgeted,
    budgeted_pair,
    by_threshold,
    decode_load,
    guarded_pair,
    prefill_load,
    uses,
)

__all__ = ["DynamoPlanner", "Planner"]

_MISSING = {"arima": "pmdarima", "prophet": "prophet"}


@AUTOSCALERS.register("dynamo_planner")
class DynamoPlanner(GroupsAutoscaler):
    """Dynamo's planner: prefill and decode workers, or workers that do both."""

    reads_steps: ClassVar[bool] = True
    kind: Literal["dynamo_planner"] = "dynamo_planner"
    rules: Literal["1.6.1", "0c6da1ec"] = "1.6.1"
    """Release, or the older commit: there a worker goes although the others would then ask for it again, and nothing is
    decided while workers start."""
    target: Literal["throughput", "latency", "sla"] = "throughput"
    """What it optimises (`optimization_target`). `throughput` and `latency`: fixed thresholds of queue and KV memory.
    `sla`: TTFT and ITL."""
    ttft: Duration = Field(default=0.5, gt=0)
    """Limit of the TTFT, for `sla`."""
    itl: Duration = Field(default=0.05, gt=0)
    """Limit of the ITL, for `sla`."""
    load_scaling: bool | None = None
    """Whether the load loop decides. Left out, not with `sla`; the other targets have no other loop."""
    throughput_scaling: bool | None = None
    """Whether the throughput loop decides. Left out, with `sla`, which alone may have it."""
    load_interval: Duration = Field(default=5.0, gt=0)
    """Time between two looks of the load loop, and between two steps that the regressions see of an engine."""
    throughput_interval: Duration = Field(default=180.0, gt=0)
    """Time between two decisions of the throughput loop."""
    max_change: int = Field(default=8, ge=1, le=100_000)
    """Most workers of a group by which the throughput loop moves at once (`max_throughput_scaling_replicas`; 1.6.1)."""
    predictor: Literal["constant", "kalman"] = "constant"
    """Predictor of the traffic. Dynamo's default, `arima`, and `prophet` need libraries that HERMES does not have."""
    kalman_level: float = Field(default=1.0, gt=0, le=1e9)
    """Variance of the level's noise (`kalman_q_level`)."""
    kalman_trend: float = Field(default=0.1, gt=0, le=1e9)
    """Variance of the trend's noise (`kalman_q_trend`)."""
    kalman_noise: float = Field(default=10.0, gt=0, le=1e9)
    """Variance of the values' own noise (`kalman_r`)."""
    min_endpoint: int = Field(default=1, ge=1, le=100_000)
    """Fewest workers of each group."""
    max_gpu_budget: int | None = Field(default=8, ge=1, le=10**9)
    """Most devices of all groups together; null for no limit."""
    sensitivity: float = Field(default=80.0, gt=0, le=100)
    """Percent of the limits that may be used after a worker has gone (`load_scaling_down_sensitivity`)."""
    samples: int = Field(default=64, ge=2, le=100_000)
    """Most steps that a regression keeps (`max_num_fpm_samples`)."""
    buckets: int = Field(default=16, ge=1, le=10_000)
    """Buckets over which these are spread (`fpm_sample_bucket_size`), a square number."""
    min_observations: int = Field(default=5, ge=2, le=100_000)
    """Steps from which on a regression is used (`load_min_observations`)."""
    context_length: int | None = Field(default=None, ge=1, le=2**41)
    """Context of the model, with which `throughput` and `latency` compare the queues of prefill workers. Left out, that
    of the clients."""

    @field_validator("predictor", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:   # Any: what the user wrote
        if isinstance(value, str) and value in _MISSING:
            raise InputError(Verbatim(f"`{value}` needs {_MISSING[value]}, which HERMES does not depend on; take "
                                      "`constant` or `kalman`"))
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if math.isqrt(self.buckets) ** 2 != self.buckets:
            raise InputError("a square number", self.buckets, field="buckets")
        if self.target != "sla":
            for name, forced in (("load_scaling", True), ("throughput_scaling", False)):
                if getattr(self, name) not in (None, forced):
                    raise InputError(Verbatim(f"the target `{self.target}` has the load loop alone; leave it out"),
                                     field=name)
        if not self.by_load and not self.by_traffic:
            raise InputError(Verbatim("neither loop decides; turn one on"), field="throughput_scaling")
        if self.by_traffic and self.throughput_interval <= self.load_interval:
            raise InputError(f"more than {self.load_interval:g} s, the load_interval", self.throughput_interval,
                             field="throughput_interval")
        return self

    @property
    def by_load(self) -> bool:
        """Whether the load loop decides."""
        return self.target != "sla" if self.load_scaling is None else self.load_scaling

    @property
    def by_traffic(self) -> bool:
        """Whether the throughput loop decides."""
        return self.target == "sla" if self.throughput_scaling is None else self.throughput_scaling

    def check(self, most: int) -> None:
        if self.min_endpoint > most:
            raise InputError(f"at most {most} replicas, the group's count", self.min_endpoint, field="min_endpoint")

    def check_groups(self, views: Sequence[AutoscalerView]) -> None:
        roles = [view.role for view in views]
        if len(set(roles)) < len(roles) or ("both" in roles and len(roles) > 1):
            raise InputError(Verbatim("it scales one group that prefills and one that decodes, or a single group"),
                             field="kind")
        if self.max_gpu_budget is not None:
            need = sum(self.min_endpoint * view.devices for view in views)
            if need > self.max_gpu_budget:
                raise InputError(f"at least {need}, for {self.min_endpoint} of each group", self.max_gpu_budget,
                                 field="max_gpu_budget")
        for view in views:
            if view.role == "prefill" and self.target != "sla" and not (self.context_length
                                                                        or view.limits.context_tokens):
                raise InputError(Verbatim(f"{view.name} has no limit of the context; give one"),
                                 field="context_length")

    def run_groups(self, views: Sequence[AutoscalerView]) -> Acts:
        planner, beats, periods = Planner(self, views), Beats(views[0]), [self.load_interval]
        if self.by_traffic:
            periods.append(self.throughput_interval)
        for view in views:
            view.watch_engines()
        while True:
            yield beats.next(*periods)
            planner.tick(load=beats.due(self.load_interval),
                         traffic=self.by_traffic and beats.due(self.throughput_interval))


class Planner:
    """The memory of one planner, and its decisions."""

    def __init__(self, config: DynamoPlanner, views: Sequence[AutoscalerView]) -> None:
        self._config, self._views = config, views
        sizes = config.samples, config.min_observations, config.buckets
        self.prefill, self.decode, self.agg = PrefillModel(*sizes), DecodeModel(*sizes), AggModel(*sizes)
        self._models: dict[str, PrefillModel | DecodeModel | AggModel] = {
            "prefill": self.prefill, "decode": self.decode, "both": self.agg}
        self._sla = Sla(config.ttft, config.itl, config.sensitivity / 100, config.min_endpoint)
        self._load = [self._predictor() for _ in range(3)]   # requests, tokens of a prompt, of an output
        self._served = [Traffic(0, 0, 0)] * len(views)
        self._least = [1] * len(views)   # by the throughput loop
        self._newest = config.rules == "1.6.1"
        self._fewer: tuple[list[int], list[int]] | None = None   # asked for at the look before, while workers start

    def _predictor(self) -> Predictor:
        config = self._config
        if config.predictor == "constant":
            return Constant()
        return Kalman(config.kalman_level, config.kalman_trend, config.kalman_noise)

    def tick(self, *, load: bool, traffic: bool) -> None:
        """Look at the engines and the traffic, and scale."""
        decided: list[int] | None = None
        reason = "load loop"
        starting = self._starting()
        if load:
            if self._config.target == "sla":
                for view in self._views:
                    for one in view.engines():
                        self._models[view.role].observe(one.latest)
            if starting is None:
                self._fewer = None
            elif self._config.by_load:
                decided = self._by_load(starting)
        if traffic:
            wanted = self._by_traffic()
            if wanted is not None and self._config.by_load:
                self._least = wanted
            elif wanted is not None and starting is not None and decided is None:
                decided, reason = self._decided(wanted, starting, [1] * len(wanted)), "throughput loop"
        for view, workers in zip(self._views, decided or (), strict=False):
            if workers != view.wanted:
                view.scale(workers, reason)

    def _starting(self) -> list[int] | None:
        """Return the workers of each group that start. None while some drain, or not as many engines report as are
        ready; of the older rules also while any start: then nothing is decided."""
        views = self._views
        if not all(view.wanted >= view.ready == len(view.engines()) for view in views):
            return None
        starting = [view.wanted - view.ready for view in views]
        return starting if self._newest or not any(starting) else None

    # -- the load loop -----------------------------------------------------------------------------------------------

    def _by_load(self, starting: list[int]) -> list[int] | None:
        """Return the workers of each group by the load, None if nothing should change."""
        config = self._config
        asked = [self._asked(view, more) for view, more in zip(self._views, starting, strict=True)]
        both = self._views[0].role == "both"
        bounded = (both and config.target == "sla") or (self._newest and not both)   # by min and budget
        if len(asked) == 1 and asked[0] is None and not bounded:
            self._fewer = None
            return None
        return self._decided(asked, starting, self._least if config.by_traffic else [1] * len(asked))

    def _asked(self, view: AutoscalerView, starting: int) -> int | None:
        config, engines, workers, limits = self._config, view.engines(), view.ready, view.limits
        if config.target != "sla":
            context = config.context_length or limits.context_tokens or 1
            return by_threshold(view.role, config.target, uses(view.role, engines, context, limits.kv_tokens), workers,
                                config.min_endpoint, starting, holds=self._newest)
        if view.role == "prefill":
            return prefill_load(self.prefill, engines, workers, limits.batched_tokens, self._sla, starting)
        if view.role == "decode":
            return decode_load(self.decode, engines, workers, limits.kv_tokens, self._sla, starting)
        return agg_load(self.agg, engines, workers, limits.batched_tokens, limits.kv_tokens, self._sla, starting)

    def _decided(self, asked: Sequence[int | None], starting: list[int], least: list[int]) -> list[int] | None:
        """Return the workers of each group, None if nothing should change.

        While workers start, those and one that is ready may be given up, if two looks ask for it with no change between
        them.
        """
        views = self._views
        if not any(starting):
            return self._budgeted([max(view.ready if one is None else one, floor)
                                   for view, one, floor in zip(views, asked, least, strict=True)])
        fewest, fewer = self._config.min_endpoint, []
        for view, one, floor in zip(views, asked, least, strict=True):
            found = max(view.ready if one is None else one, floor, fewest)
            if len(views) == 1:
                found, = self._budgeted([found])
            stays = found > view.ready or (found == view.ready if one is None else one > view.ready)
            fewer.append(view.wanted if stays else found)
        if any(found < fewest for found in fewer):   # as there: no ready one goes while another group lacks one
            fewer = [max(found, view.ready) for view, found in zip(views, fewer, strict=True)]
        before, self._fewer = self._fewer, (starting, fewer)
        if fewer == [view.wanted for view in views]:
            self._fewer = None
        return fewer if before is not None and before == self._fewer else None

    # -- the throughput loop -----------------------------------------------------------------------------------------

    def _by_traffic(self) -> list[int] | None:
        """Return the workers of each group for the predicted traffic, None while a regression is not ready."""
        served = [view.traffic() for view in self._views]
        requests, prompts, outputs = (
            sum(now[i] - before[i] for now, before in zip(served, self._served, strict=True)) for i in range(3))
        self._served = served
        seen = (requests, prompts / requests, outputs / requests) if requests else (0, 0.0, 0.0)
        for predictor, value in zip(self._load, seen, strict=True):
            predictor.add(value)
        rate = self._load[0].next() / self._config.throughput_interval
        prompt, output = self._load[1].next(), self._load[2].next()
        found = [self._needed(view, rate, prompt, output) for view in self._views]
        workers = [one for one in found if one is not None]
        if self._newest:
            change = self._config.max_change
            workers = [min(max(one, view.ready - change), view.ready + change)
                       for view, one in zip(self._views, workers, strict=False)]
        return workers if len(workers) == len(found) else None

    def _needed(self, view: AutoscalerView, rate: float, prompt: float, output: float) -> int | None:
        config, limits = self._config, view.limits
        least = config.min_endpoint
        if view.role == "prefill":
            found = self.prefill.rate(prompt, limits.batched_tokens)
            if found is None:
                return None
            engine, ttft = found
            slow = 1 if self._newest or ttft <= config.ttft else math.ceil(ttft / config.ttft)
            return max(math.ceil(rate / engine), slow, least)
        if view.role == "decode":
            each = self.decode.rate(prompt + output / 2, output, config.itl, limits.kv_tokens, limits.seqs)
        else:
            each = self.agg.rate(prompt, output, limits.batched_tokens, config.ttft, config.itl, limits.kv_tokens,
                                 limits.seqs)
        return None if each is None else max(math.ceil(rate / each), least)

    def _budgeted(self, workers: list[int]) -> list[int]:
        """Return workers within the budget of devices. None of them starts or drains."""
        budget, least = self._config.max_gpu_budget, self._config.min_endpoint
        if len(workers) == 1:
            view, = self._views
            over = self._newest and budget is not None and view.ready * view.devices > budget
            return [budgeted(view.ready if over else workers[0], view.devices, budget, least)]
        pair = {view.role: i for i, view in enumerate(self._views)}
        p, d = pair["prefill"], pair["decode"]
        devices = self._views[p].devices, self._views[d].devices
        wanted, ready = (workers[p], workers[d]), (self._views[p].ready, self._views[d].ready)
        found = (guarded_pair(ready, wanted, devices, budget, least) if self._newest
                 else budgeted_pair(*wanted, devices, budget, least))
        workers[p], workers[d] = found
        return workers
