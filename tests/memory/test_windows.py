"""KV memory of models with sliding windows: what vLLM's arithmetic says, and that no block is lost."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.api import simulate
from hermes.clients.memory import window_groups
from hermes.hardware.descriptions.models import load_model
from hermes.memory.windows import WindowGroups, WindowPool, WindowPrefixPool


@pytest.mark.feature("Hardware", "KV groups of layers with sliding windows")
@pytest.mark.parametrize(("name", "layers", "windowed"), [("gpt-oss-120b", 18, 1), ("gpt-oss-20b", 12, 1),
                                                         ("gemma-3-27b", 10, 6)])
def test_layers_are_put_into_groups_as_the_engine_does(name, layers, windowed):
    groups = window_groups(load_model(name))
    assert (groups.layers, groups.windowed) == (layers, windowed)


@pytest.mark.parametrize(("whole", "windowed", "expected"), [
    (10, 12, (12, 1)),     # nearly alike: one group each, padded
    (20, 10, None), (0, 30, None), (30, 0, None),
])
def test_other_mixtures_of_layers(whole, windowed, expected):
    model = load_model("gemma-3-27b").model_copy(update={
        "num_layers": whole + windowed, "window_layers": windowed, "window": 1024 if windowed else 0})
    found = window_groups(model)
    assert expected == (None if found is None else (found.layers, found.windowed))


def test_blocks_of_a_sequence_by_hand():
    groups = WindowGroups(layers=10, windowed=6, window=1024, ahead=2048)
    assert groups.blocks(100, 16) == 6 * 7                 # shorter than the window: all of it
    assert groups.blocks(30_000, 16) == 6 * (64 + 1)       # a window, which may begin inside a block
    assert groups.admission(1500, 16) == 6 * 94            # the prompt is computed at once
    assert groups.admission(30_000, 16) == 6 * (192 + 1)   # the window and a step of 2,048 tokens


def sequence(prompt, output, name):
    return SimpleNamespace(prompt_tokens=prompt, target_tokens=output, num_tokens=prompt, num_computed=0, num_blocks=0,
                           grouped=False, common=None, block_key=lambda index, size: (name, index), own_name=name)


class Sequence(SimpleNamespace):
    __hash__ = object.__hash__


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 200), st.booleans()), min_size=1, max_size=30),
       st.sampled_from([WindowPool, WindowPrefixPool]))
def test_no_block_is_lost(requests, make):
    groups = WindowGroups(layers=2, windowed=3, window=64, ahead=32)
    pool, held = make(400, 16, groups=groups), []
    for number, (prompt, output, leaves) in enumerate(requests):
        seq = Sequence(**vars(sequence(prompt, output, f"s{number}")))
        if pool.missing_blocks(seq, prompt) <= pool.free_blocks:
            before = pool.free_blocks
            pool.admit(seq, prompt)
            assert before - pool.free_blocks == -(-prompt // 16) + groups.blocks(prompt + output, 16)
            held.append(seq)
        if leaves and held:
            pool.free(held.pop(0))
    for seq in held:
        pool.free(seq)
    assert pool.free_blocks == pool.num_blocks


@pytest.mark.parametrize("caching", [False, True])
def test_runs_of_steps_are_single_steps(caching):
    base = {
        "name": "windows", "seed": 3,
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 20},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 10, "max": 3000},
                                 "output": {"kind": "uniform", "min": 1, "max": 300}}},
        "clients": [{"model": "gpt-oss-20b", "device": "l40s",
                     "memory": {"num_blocks": 1500, "prefix_caching": caching}}],
    }
    runs, steps = simulate(base), simulate(base | {"stepping": "every_step"})
    assert runs.requests["e2e_s"].tolist() == steps.requests["e2e_s"].tolist()
    assert runs.requests["preemptions"].tolist() == steps.requests["preemptions"].tolist()
    whole = simulate(base | {"clients": [base["clients"][0] | {
        "memory": {"num_blocks": 1500, "prefix_caching": caching, "hybrid": False}}]})
    assert whole.requests["queue_s"].sum() < runs.requests["queue_s"].sum()   # as many blocks, of all layers each


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("blocks", "stages"), [(31, 1), (56, 2)])
def test_a_request_that_never_finds_room_is_turned_away(blocks, stages, caching):
    """To be admitted takes more room in a window's groups than is held: requests between the two waited for ever."""
    results = simulate({
        "seed": 7,
        "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 40},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 300},
                                 "output": {"kind": "uniform", "min": 2, "max": 40}}},
        "clients": [{"model": "gpt-oss-120b", "device": "h100-sxm", "parallel": {"pp": stages},
                     "memory": {"num_blocks": blocks, "prefix_caching": caching},
                     "scheduler": {"kind": "chunked", "max_num_batched_tokens": 192}}]})
    status = results.requests["status"]
    assert set(status) == {"completed", "rejected"}
    groups = WindowGroups(layers=18, windowed=1, window=128, ahead=192)
    for prompt, output, found in results.requests[["prompt_tokens", "output_tokens", "status"]].itertuples(index=False):
        most = -(-(prompt + output - 1) // 16)
        need = most + max(groups.blocks(prompt + output, 16), groups.admission(prompt + output - 1, 16))
        assert (found == "rejected") == (need > blocks // stages), (prompt, output)


def test_kv_that_moves_keeps_every_token():
    clients = [{"model": "gpt-oss-20b", "device": "h100-sxm", "count": "1P1D"}]
    results = simulate({"workload": {"requests": 2, "arrivals": {"kind": "at_once"},
                                     "lengths": {"kind": "fixed", "prompt": 100, "output": 10}}, "clients": clients})
    alone = simulate({"workload": {"requests": 2, "arrivals": {"kind": "at_once"},
                                   "lengths": {"kind": "fixed", "prompt": 100, "output": 10}},
                      "clients": [{**clients[0], "count": 1}]})
    assert alone.clients["num_blocks"][0] == pytest.approx(2 * results.clients["num_blocks"][0], rel=0.001)
