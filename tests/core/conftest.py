"""Kernel tests run scenarios made of test components."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenario_parts


@pytest.fixture(scope="module", autouse=True)
def _test_components() -> Iterator[None]:
    with scenario_parts.registered():
        yield
