"""Pods of Kubernetes: the fields that are read of them and checked when they are written, and their life as a fleet's.

A pod that has to go gets its preStop hook, then SIGTERM, and after `terminationGracePeriodSeconds` in all SIGKILL. vLLM
goes on for `--shutdown-timeout` at SIGTERM, and without it aborts what runs (vllm/config/vllm.py of 0.33, pull request
36666, read, not run); other engines are taken to finish.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict

from hermes.deploy.typed import Keys, Part, Whole, whole_of
from hermes.errors import InputError, Verbatim
from hermes.fleet.config import Drain, FleetConfig, Liveness
from hermes.fleet.config import Probe as FleetProbe

__all__ = ["Container", "Environment", "Life", "Pod", "Resources", "ending_of"]

GRACE_S = 30   # Kubernetes' default
AT_ONCE_S = 0.001


def _word(value: object) -> object:
    if isinstance(value, dict | list):
        raise InputError("a list of words", Verbatim("something else"))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _words(value: object) -> object:
    if not isinstance(value, list):
        raise InputError("a list of words", Verbatim("something else"))
    return value


Word = Annotated[str, BeforeValidator(_word)]
Words: TypeAlias = Annotated[list[Word], BeforeValidator(_words)]


class Lenient(Part):
    """Part of an object of which only these fields are read."""

    model_config = ConfigDict(extra="ignore")


class EnvVar(Lenient):
    name: str | None = None
    value: Word | None = None
    value_from: dict[str, Keys] | None = None


class Environment(Lenient):
    env: list[EnvVar] | None = None
    env_from: list[dict[str, Keys | str]] | None = None


class Probe(Lenient):
    http_get: Keys | None = None
    initial_delay_seconds: Whole = 0
    period_seconds: Whole = 10
    timeout_seconds: Whole = 1
    failure_threshold: Whole = 3
    termination_grace_period_seconds: Whole | None = None

    @property
    def keys(self) -> Keys:
        return {"period": self.period_seconds, "timeout": self.timeout_seconds, "failures": self.failure_threshold}


class Hook(Lenient):
    sleep: dict[Literal["seconds"], Whole] = {}
    exec: dict[Literal["command"], Words] = {}

    @property
    def seconds(self) -> int | None:
        """How long it sleeps; None where it does something else."""
        found = re.search(r"\bsleep\s+(\d{1,6})s?\b", " ".join(self.exec.get("command", [])))
        return self.sleep.get("seconds", int(found[1]) if found else None)


class Lifecycle(Lenient):
    pre_stop: Hook | None = None


class Resources(Lenient):
    limits: dict[str, Word] | None = None
    requests: dict[str, Word] | None = None

    @property
    def gpus(self) -> int | None:
        """Devices, None if it does not say."""
        return next((int(own) for name, own in (self.limits or self.requests or {}).items()
                     if (name.endswith("/gpu") or name == "gpu") and own.isdecimal()), None)


class Container(Environment):
    name: str | None = None
    image: Word | None = None
    command: Words | None = None
    args: Words | None = None
    ports: list[Keys] | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    resources: Resources = Resources()


class Pod(Lenient):
    containers: list[Container] | None = None
    termination_grace_period_seconds: Whole | None = None


@dataclass
class Life:
    """How a pod and its engine start and end.

    Args:
        container: Of the engine.
        grace: `terminationGracePeriodSeconds` of the pod, if it is written.
    """

    container: Container
    grace: int | None

    def fleet(self, shutdown_s: int, *, aborts: bool) -> tuple[Keys, list[str]]:
        """Return keys of a fleet that differ from its defaults, and notes on what they do not say.

        Args:
            shutdown_s: The engine's `--shutdown-timeout`.
            aborts: Whether the engine aborts what runs at SIGTERM without it.
        """
        notes, hook = list[str](), self.container.lifecycle.pre_stop
        limit = GRACE_S if self.grace is None else self.grace
        if hook is not None and hook.seconds is None:
            notes.append("lifecycle.preStop: its command is not read; write how long it takes as fleet.drain.pre_stop")
        sleep = min((hook and hook.seconds) or 0, limit)
        end = min(limit, sleep + shutdown_s) if aborts else limit
        written = shutdown_s or hook is not None or self.grace is not None
        found: Keys = {"drain": {"pre_stop": sleep, "grace": end or AT_ONCE_S}} if written else {}
        if written and limit and not end:
            notes.append("vLLM aborts what runs at SIGTERM without --shutdown-timeout: replicas do not drain")
        if (ready := self.container.readiness_probe) is not None:
            found["probe"] = ready.keys
        for key, usual in (("drain", Drain()), ("probe", FleetProbe())):
            found[key] = {name: own for name, own in found.get(key, {}).items() if own != getattr(usual, name)}
        found = {key: own for key, own in found.items() if own}
        if (alive := self.container.liveness_probe) is not None:
            own = alive.termination_grace_period_seconds
            found["liveness"] = alive.keys | {"grace": limit if own is None else own}
        if found and (starts := self.container.startup_probe or alive) is not None:
            most = starts.initial_delay_seconds + starts.period_seconds * starts.failure_threshold
            notes.append(f"a start that takes more than {most} s is killed there, and goes on here")
        if found and ready is not None and ready.initial_delay_seconds:
            notes.append(f"readinessProbe.initialDelaySeconds is not read: there no replica is ready within "
                         f"{ready.initial_delay_seconds} s of its start")
        return found, notes


def ending_of(fleet: FleetConfig | None, path: str) -> tuple[Keys, Keys, list[str]]:
    """Return fields of a pod and of its container, and flags of vLLM, for the drain and the probes of a fleet."""
    if fleet is None:
        return {}, {}, []
    pod, container, flags = Keys(), Keys(), list[str]()
    drain, alive = fleet.drain, fleet.liveness
    if drain.grace is not None:
        sleep, grace = whole_of(drain.pre_stop, f"{path}.drain.pre_stop"), drain.grace
        grace = 0 if grace == AT_ONCE_S else whole_of(grace, f"{path}.drain.grace")
        pod["terminationGracePeriodSeconds"] = max(grace, 1)
        container |= {"lifecycle": {"preStop": {"sleep": {"seconds": sleep}}}} if sleep else {}
        flags += ["--shutdown-timeout", str(grace - sleep)] if grace > sleep else []
    container["readinessProbe"] = _probe_of(fleet.probe, f"{path}.probe")
    if alive is not None:
        container["livenessProbe"] = _probe_of(alive, f"{path}.liveness") | {
            "terminationGracePeriodSeconds": max(1, whole_of(alive.grace, f"{path}.liveness.grace"))}
    return pod, container, flags


def _probe_of(probe: FleetProbe | Liveness, path: str) -> Keys:
    return {"periodSeconds": whole_of(probe.period, f"{path}.period"), "failureThreshold": probe.failures,
            "timeoutSeconds": max(1, whole_of(probe.timeout, f"{path}.timeout"))}
