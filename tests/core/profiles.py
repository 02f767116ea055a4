"""How many random scenarios to try: the same few in every run of the tests, or as many new ones as asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from long_runs import quick_and_full

EXAMPLES = os.environ.get("HERMES_EXAMPLES", "")
_checks = [HealthCheck.too_slow, HealthCheck.data_too_large]


def quick(examples: int) -> Any:
    """Hypothesis settings: bounded, and the same scenarios each time; five times as many in CI, and more each night."""
    return quick_and_full(max(6, examples // 5), examples, thorough=5 * examples, derandomize=True,
                          suppress_health_check=_checks)


thorough = settings(max_examples=int(EXAMPLES or 1), deadline=None, suppress_health_check=_checks)


def when_asked_for(test: Callable[..., None]) -> Any:
    """A test that runs where HERMES_EXAMPLES says how many scenarios to try: HERMES_EXAMPLES=2000 pytest -m long."""
    skip = pytest.mark.skipif(not EXAMPLES, reason="set HERMES_EXAMPLES to the number of random scenarios to try")
    return pytest.mark.long(skip(test))
