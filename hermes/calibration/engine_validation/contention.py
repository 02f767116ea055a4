"""Rules that reject attempts spoiled by other load on the machine, fixed before any comparison with a prediction.

Wall clock: the engine's busy time is cut into windows of `WINDOW_S`. A window is contended if the process got less than
1 - `LOST_SHARE` of a CPU while it was stepping, because of other work. An attempt with more than `CONTENDED_WINDOWS` of
them is rejected. (An engine that waits for a GPU uses little CPU by nature: the rule is for engines on a CPU.)

Both clocks: the reference batch, measured before and after in CPU time (wall time on a GPU), must lie within
`REFERENCE_OFF` of its time while calibrating; else the machine was slower or faster than the one of the profile. If the
calibration's reference is unknown, the median of all attempts takes its place.

No rule looks at a request's times. Rejected attempts stay in the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hermes.calibration.engine_validation.result import EngineResult

__all__ = ["CONTENDED_WINDOWS", "LOST_SHARE", "REFERENCE_OFF", "RULES", "WINDOW_S", "Verdict", "judge",
           "reference_of"]

WINDOW_S = 2.0
LOST_SHARE = 0.10
CONTENDED_WINDOWS = 0.10
REFERENCE_OFF = 0.10

RULES = (
    f"wall clock on a CPU: rejected when in more than {CONTENDED_WINDOWS:.0%} of the windows of {WINDOW_S:g} s of busy "
    f"time the engine got less than {1 - LOST_SHARE:.0%} of a CPU",
    f"both clocks: rejected when the reference batch, before or after, is more than {REFERENCE_OFF:.0%} off the "
    "calibration's (or, without one, off the median of all attempts)",
)


@dataclass
class Verdict:
    """Whether an attempt counts, and the state of the machine while it ran."""

    accepted: bool = True
    reasons: list[str] = field(default_factory=list)
    windows: int = 0
    contended_windows: int = 0
    lost_share: float = 0.0
    """Share of the wall time of all steps that was not CPU time."""
    others_share: float | None = None
    """Mean number of CPUs that other processes kept busy meanwhile; None if the system does not tell."""
    reference_s: tuple[float, float] = (0.0, 0.0)
    """Reference step before and after."""

    def reject(self, reason: str) -> None:
        self.accepted = False
        self.reasons.append(reason)


def reference_of(result: EngineResult, on_cpu: bool) -> tuple[float, float]:
    """Return the reference step before and after, in seconds of the clock that shows the machine's speed."""
    before, after = result.reference.before, result.reference.after
    return (before.cpu_s, after.cpu_s) if on_cpu else (before.wall_s, after.wall_s)


def _others(load: list[list[float]]) -> float | None:
    if len(load) < 2:
        return None
    (wall0, own0, busy0), (wall1, own1, busy1) = load[0], load[-1]
    return max(0.0, ((busy1 - busy0) - (own1 - own0)) / (wall1 - wall0))


def judge(result: EngineResult, expected_reference_s: float, *, on_cpu: bool = True) -> Verdict:
    """Apply the rules to one attempt."""
    wall, cpu = np.asarray(result.steps.wall_s), np.asarray(result.steps.cpu_s)
    window = (np.cumsum(wall) // WINDOW_S).astype(int)
    walls, cpus = np.bincount(window, wall), np.bincount(window, cpu)
    some = walls > 0
    contended = int((cpus[some] < (1 - LOST_SHARE) * walls[some]).sum())
    verdict = Verdict(
        windows=int(some.sum()), contended_windows=contended,
        lost_share=float(max(0.0, 1 - cpu.sum() / wall.sum())) if len(wall) else 0.0,
        others_share=_others(result.load), reference_s=reference_of(result, on_cpu),
    )
    if result.clock == "wall" and on_cpu and contended > CONTENDED_WINDOWS * verdict.windows:
        verdict.reject(f"{contended} of {verdict.windows} windows contended")
    for when, seconds in zip(("before", "after"), verdict.reference_s, strict=True):
        off = seconds / expected_reference_s - 1
        if abs(off) > REFERENCE_OFF:
            verdict.reject(f"reference {when} {off:+.1%}")
    return verdict
