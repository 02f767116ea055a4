"""Settings of all tests."""

import pytest
from hypothesis import settings

# How long an example takes says nothing about whether it is right, and on a busy machine nothing at all: the first one
# of a process also builds the models of a scenario.
settings.register_profile("hermes", deadline=None)
settings.load_profile("hermes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long` unless `-m` names them."""
    if "long" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
