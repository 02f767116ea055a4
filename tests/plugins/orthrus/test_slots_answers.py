"""What a slot policy may answer: anything else is one line that names the policy."""

import pytest

from hermes import simulate
from hermes.errors import InputError
from hermes.plugins.orthrus.slots import SLOTS


@pytest.mark.parametrize("answer", [None, (1,), (0, 0), (-5, 300), (1.5, 2.5), "ab", (1, 0)])
def test_an_answer_that_is_none_names_the_policy(answer, monkeypatch):
    class Odd:
        def slots(self, state):
            return answer

    monkeypatch.setattr(SLOTS, "get", lambda name: Odd)
    with pytest.raises(InputError, match="from slot policy Odd") as found:
        simulate({"workload": {"requests": 3, "arrivals": {"kind": "at_once"},
                               "lengths": {"kind": "fixed", "prompt": 9, "output": 3}},
                  "clients": [{"name": "llm", "scheduler": {"kind": "heterogeneous", "slots": "ibs"},
                               "memory": {"num_blocks": 90}, "hardware": {
                                   "kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}]})
    assert found.value.field.endswith("scheduler.slots")
