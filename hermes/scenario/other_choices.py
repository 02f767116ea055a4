"""What the other choices of routers would have given one request.

The scenario is simulated once to see the decisions about the request, and once more for each other choice: everything
until the decision is the same, the stage goes to the other client, and the router goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hermes.errors import InputError
from hermes.results.results import Results
from hermes.routing.decisions import Decision, Decisions

__all__ = ["Choice", "Outcome", "other_choices"]


class Outcome(NamedTuple):
    """What became of a request when a client got its stage.

    Attributes:
        client: The client that the stage was given to.
        ttft_s, e2e_s: NaN unless the request was completed.
        queue_s: Time in queues, all stages together.
        cached_tokens: Found in prefix caches, all stages together.
        others_ttft_s, others_e2e_s: Change of the mean over all other requests that were completed in both runs.
        reason: Why the request was not completed, or "".
    """

    client: str
    ttft_s: float
    e2e_s: float
    queue_s: float
    cached_tokens: int
    others_ttft_s: float
    others_e2e_s: float
    reason: str


@dataclass
class Choice:
    """A decision, and what the choices gave: the router's first, then the others, the best by its figure first."""

    decision: Decision
    outcomes: list[Outcome]


def other_choices(run: Callable[[Decisions], Results], request: int, most: int) -> tuple[Results, list[Choice]]:
    """Return the results as they are, and for each decision about a request what at most `most` other choices give.

    run: Simulates the scenario with routers that tell the decisions. Raises `InputError` for a request that does not
    exist, or about which nothing was decided.
    """
    seen = Decisions(request)
    results = run(seen)
    if not 0 <= request < len(results.requests):
        raise InputError(f"a request of this run, 0 to {len(results.requests) - 1}", request)
    decisions = [(number, decision) for number, decision in enumerate(seen.made) if len(decision.among) > 1]
    if not decisions:
        raise InputError("a request for which a router had several clients to choose from", request)
    choices = []
    for number, decision in decisions:
        outcomes = [_outcome(results, results, request, decision.chosen)]
        for client in decision.best_others()[:most]:
            outcomes.append(_outcome(run(Decisions(request, {number: client})), results, request, client))
        choices.append(Choice(decision, outcomes))
    return results, choices


def _outcome(found: Results, usual: Results, request: int, client: str) -> Outcome:
    row = found.requests.iloc[request]
    others = np.arange(len(usual.requests)) != request
    both = others & (usual.requests["status"] == "completed").to_numpy() & (
        found.requests["status"] == "completed").to_numpy()
    ttft_s, e2e_s = (float((found.requests[name] - usual.requests[name])[both].mean()) for name in ("ttft_s", "e2e_s"))
    done = row["status"] == "completed"
    reason = "" if done else str(row["reject_reason"] or row["status"])
    return Outcome(client, float(row["ttft_s"]) if done else np.nan, float(row["e2e_s"]) if done else np.nan,
                   float(row["queue_s"]), int(row["cached_tokens"]), ttft_s, e2e_s, reason)
