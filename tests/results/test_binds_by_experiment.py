"""What `binds` names is the resource whose doubling serves most: `scripts/binds_check.py` on its committed seed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "binds_check.py"
QUICK = (0, 4, 11, 14, 17, 24, 32, 35, 40, 43, 46)   # of eleven families


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("binds_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["binds_check"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_causes_of_some_overloads(check: ModuleType) -> None:
    cases = check.cases(check.SEED, check.CASES)
    outcomes = {number: check.experiment(cases[number]) for number in QUICK}
    wrong = {number: (one.said, one.gains) for number, one in outcomes.items() if not one.right}
    assert not wrong


@pytest.mark.whole
def test_causes_of_fifty_overloads(check: ModuleType) -> None:
    outcomes = [check.experiment(case) for case in check.cases(check.SEED, check.CASES)]
    wrong = [(number, one.case.name, one.said, one.gains) for number, one in enumerate(outcomes) if not one.right]
    assert len(outcomes) == check.CASES
    assert len(wrong) <= check.CASES - check.NEEDED, wrong
