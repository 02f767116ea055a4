"""What a request costs the kernel, in bytecodes: the same on each machine, unlike seconds.

`python benchmarks/bytecodes.py --only CASE --top 20 --against TREE` says which function took on weight.
"""

import sys

import pytest

import hermes.clients.llm
from benchmarks.bytecodes import of_more_requests

REQUESTS = 60
BYTECODES = {"chunked": 283_566, "disaggregated": 507_488}   # of so many more requests, Python 3.11
MORE = 1.005


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecodes are those of Python 3.11")
@pytest.mark.skipif(not hermes.clients.llm.__file__.endswith(".py"), reason="compiled functions run no bytecodes")
@pytest.mark.parametrize("case", BYTECODES)
def test_a_request_costs_what_it_did(case: str) -> None:
    found = of_more_requests(case, REQUESTS)
    assert sum(found.values()) <= MORE * BYTECODES[case], sorted(found.items(), key=lambda item: -item[1])[:10]
    assert found["core/clock.py:Clock.drain"] > 0   # the functions were seen
