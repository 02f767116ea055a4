"""Fleets that `hermes size --scale` compares: a group with an autoscaler's targets, `min` and `start`, or static."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes.config import ConfigModel
from hermes.errors import InputError, Verbatim
from hermes.scenario import Scenario
from hermes.site import page_url

__all__ = ["HARDEST", "RATIO", "Fleet", "Limit", "Space", "space_of"]

RATIO = 1.05        # of neighbouring targets
HARDEST = 100       # levels from the scenario's own target: 130 times as much, or as little
_LEAST, _MOST = 0.001, 1e6   # of a target, as an HPA has it


class Limit(NamedTuple):
    """How many minutes of a run may be out of limit: a number, or a share."""

    minutes: float | None = None
    share: float | None = None

    def allows(self, out: int, minutes: int) -> bool:
        """Whether `out` of so many minutes are within it."""
        most = self.minutes if self.minutes is not None else (self.share or 0.0) * minutes
        return out <= most + 1e-9

    @property
    def text(self) -> str:
        if self.minutes is not None:
            return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'}"
        return f"{100 * (self.share or 0.0):.4g}% of the minutes"


@dataclass(frozen=True)
class Fleet:
    """One fleet.

    Args:
        start: Replicas that are ready at the start; of a static fleet throughout.
        least: The autoscaler's `min`; None if it has none, and of a static fleet.
        level: How far its targets are from the scenario's own, in steps of 5%; None of a static fleet.
        target: The first of its targets.
        most: The autoscaler's `max`; None: as the scenario has it.
    """

    start: int
    least: int | None = None
    level: int | None = None
    target: float = 0.0
    most: int | None = None

    @property
    def is_static(self) -> bool:
        return self.level is None

    @property
    def label(self) -> str:
        if self.is_static:
            return f"static {self.start}"
        return f"target {self.target:g}{self.bounds}"

    @property
    def bounds(self) -> str:
        """`min`, `max` and `start` in words."""
        named = [f", {name} {value}" for name, value in (("min", self.least), ("max", self.most)) if value is not None]
        return f"{''.join(named)}, start {self.start}"


@dataclass(frozen=True)
class Space:
    """What is varied.

    Args:
        group: Name of the group of clients.
        place: Dotted path of its `fleet`.
        kind: Of its autoscaler.
        targets: Dotted path of each target, within the autoscaler, with the scenario's own value.
        what: The first target in words, such as `running`.
        least: The autoscaler's own `min`; None if it has none.
        start: The fleet's own `start`.
        most: Most replicas of the autoscaler.
        capped: Whether the autoscaler has a `max`.
        most_static: Most replicas that may be ready at the start: fewer than `count` where a pool has fewer nodes.
    """

    group: str
    place: str
    kind: str
    targets: dict[str, float]
    what: str
    least: int | None
    start: int
    most: int
    most_static: int
    capped: bool = False

    def scaled(self, level: int, least: int | None, start: int, most: int | None = None) -> Fleet:
        """Return the fleet with targets `level` steps from the scenario's own."""
        return Fleet(start, least, level, self._targets(level)[0], most)

    def static(self, replicas: int) -> Fleet:
        return Fleet(replicas)

    def settings(self, fleet: Fleet) -> dict[str, Any]:
        """Return the scenario's keys of a fleet, with their values."""
        if fleet.level is None:
            return {f"{self.place}.autoscaler": {"kind": "static"}, f"{self.place}.start": fleet.start}
        paths = [f"{self.place}.autoscaler.{path}" for path in self.targets]
        bounds = {f"{self.place}.autoscaler.{name}": value
                  for name, value in (("min", fleet.least), ("max", fleet.most)) if value is not None}
        return {f"{self.place}.start": fleet.start, **bounds,
                **dict(zip(paths, self._targets(fleet.level), strict=True))}

    @property
    def levels(self) -> tuple[int, int]:
        """Return the lowest and the highest level whose targets an autoscaler takes."""
        within = [level for level in range(-HARDEST, HARDEST + 1)
                  if all(_LEAST <= target <= _MOST for target in self._targets(level))]
        return min(within, default=0), max(within, default=0)

    def _targets(self, level: int) -> list[float]:
        # in thousandths, in which an HPA counts; the scenario's own stays as it is written
        return [own if not level else round(float(f"{own * RATIO**level:.4g}"), 3) for own in self.targets.values()]


def space_of(scenario: Scenario, group: str | None = None) -> Space:
    """Return what can be varied in a scenario. group: Name of the group; None for the only one with an autoscaler that
    has a target. Raises `InputError`."""
    found = {client.name: number for number, client in enumerate(scenario.clients)
             if client.value_of("fleet") is not None}
    if not found:
        raise InputError(Verbatim("no group of clients has a `fleet`; give one a fleet with an autoscaler, such as "
                                  f"`hpa` ({page_url('how-to/fleet')})"), field="--scale")
    if group is not None and group not in found:
        raise InputError(f"a group with a fleet: one of {', '.join(found)}", group, field="--group")
    able = {name: number for name, number in found.items()
            if dict(_targets_of(scenario.clients[number].fleet.autoscaler))}
    asked = found if group is None else {group: found[group]}
    able = {name: number for name, number in able.items() if name in asked}
    if not able:
        number = next(iter(asked.values()))
        kind = scenario.clients[number].fleet.autoscaler.kind
        raise InputError("an autoscaler with a target: hpa, keda, kpa or apa", kind,
                         field=f"clients.{number}.fleet.autoscaler.kind")
    if len(able) > 1:
        raise InputError(f"the group to size: --group NAME, one of {', '.join(able)}", None, field="--group")
    ((name, number),) = able.items()
    return _space(scenario, name, number)


def _space(scenario: Scenario, name: str, number: int) -> Space:
    client = scenario.clients[number]
    fleet, autoscaler = client.fleet, client.fleet.autoscaler
    targets = dict(_targets_of(autoscaler))
    first = getattr(autoscaler, "metrics", None) or getattr(autoscaler, "triggers", None) or [autoscaler]
    pool = fleet.start_up.value_of("pool")
    nodes = client.count if pool is None or pool.most is None else pool.most - pool.nodes
    least = getattr(autoscaler, "min", None)
    return Space(
        group=name, place=f"clients.{number}.fleet", kind=autoscaler.kind, targets=targets,
        what=str(getattr(first[0], "metric", "target")), least=least, start=fleet.start,
        most=min(getattr(autoscaler, "max", None) or client.count, client.count),
        most_static=max(min(client.count, nodes), 1), capped="max" in type(autoscaler).model_fields)


def _targets_of(autoscaler: Any) -> Iterator[tuple[str, float]]:   # Any: a plug-in's autoscaler
    """Yield path and value of each target: `target`, or those of its lists of metrics."""
    for field in type(autoscaler).model_fields:
        value = getattr(autoscaler, field)
        if field == "target" and isinstance(value, int | float):
            yield field, float(value)
        elif isinstance(value, list):
            for place, part in enumerate(value):
                target = getattr(part, "target", None) if isinstance(part, ConfigModel) else None
                if isinstance(target, int | float):
                    yield f"{field}.{place}.target", float(target)
