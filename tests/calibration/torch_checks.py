"""Checks of the torch engine, run by an interpreter that has torch: `python -m tests.calibration.torch_checks NAME...`.

Prints one JSON document with what each found; the tests in `test_torch.py` look at it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from hermes.calibration.collect import torch_attention as attention
from hermes.calibration.collect.torch_engine import Step, TorchEngine
from hermes.calibration.collect.torch_graphs import capture_sizes
from hermes.calibration.collect.torch_model import Shape
from hermes.calibration.collect.torch_online import Regions, TorchOnline

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 500,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
}
DEVICE = torch.device("cpu")


def engine(config: dict[str, Any] = CONFIG, **options: Any) -> TorchEngine:
    return TorchEngine(
        Shape.of(config), device="cpu", dtype="fp32", pool_tokens=4096, longest=1024, **options
    )


def attention_is_right() -> Any:
    """Differences from attention written out, by precision."""
    out = {}
    for name, heads, kv_heads in (("grouped", 8, 2), ("multi-head", 4, 4), ("one", 6, 1)):
        shape = Shape(64, 1, heads, kv_heads, 32, 1, 1)
        for dtype in (torch.float32, torch.bfloat16):
            backend = attention.PerSequence(shape, 400, dtype, DEVICE)
            out[f"{name} {dtype}"] = attention.difference(backend, shape, dtype, DEVICE)
    return out


def a_wrong_backend_is_not_chosen() -> Any:
    """The self-check sees a causal mask that is aligned with the first key instead of the last."""
    class Wrong(attention.PerSequence):
        def _block(self, q: Any, k: Any, v: Any, start: int, position: int) -> Any:
            return super()._block(q, k, v, start, 0)

    shape = Shape(64, 1, 8, 2, 32, 1, 1)
    return attention.difference(Wrong(shape, 400, torch.float32, DEVICE), shape, torch.float32, DEVICE)


def _generate(one: TorchEngine, begin: int, prompt: list[int], chunks: list[int], count: int) -> list[int]:
    """Greedy decoding of one sequence, its prompt in chunks."""
    done, tokens = 0, list(prompt)
    for index, size in enumerate(chunks):
        last = index == len(chunks) - 1
        out = one.step(Step(prefills=[(begin, done, size, last)], tokens=tokens[done : done + size]))
        done += size
    tokens.append(int(out[0]))
    while len(tokens) < len(prompt) + count:
        out = one.step(Step(decodes=[(begin, len(tokens) - 1)], tokens=[tokens[-1]]))
        tokens.append(int(out[0]))
    return tokens[len(prompt):]


def chunks_and_batches_change_nothing() -> Any:
    """The same prompt whole, in chunks, by recomputing everything, and beside others, with all kinds of models."""
    out = {}
    kinds = ({}, {"model_type": "qwen2"}, {"model_type": "qwen3"}, {"tie_word_embeddings": True})
    for change in kinds:
        config = CONFIG | change
        one = engine(config)
        prompt = torch.randint(0, 500, (300,), generator=torch.Generator().manual_seed(3)).tolist()
        whole = _generate(one, 16, prompt, [300], 12)
        chunked = _generate(one, 512, prompt, [7, 150, 142, 1], 12)
        anew = [int(one.step(Step(prefills=[(16, 0, 300 + n, True)], tokens=prompt + whole[:n]))[0]) for n in range(12)]
        other = prompt[::-1]
        _generate(one, 1024, other, [300], 1)
        together = one.step(Step(
            decodes=[(1024, 300), (512, 311)], prefills=[(16, 0, 200, False), (2048, 0, 300, True)],
            tokens=[5, chunked[-1], *prompt[:200], *prompt],
        )).tolist()
        alone = [int(one.step(Step(decodes=[(1024, 300)], tokens=[5]))[0]),
                 int(one.step(Step(decodes=[(512, 311)], tokens=[chunked[-1]]))[0]), whole[0]]
        name = next(iter(change.items()), ("model_type", "llama"))
        out[str(name)] = {"whole": whole, "chunked": chunked, "anew": anew, "together": together, "alone": alone}
    return out


def static_decodes_are_the_same() -> Any:
    """Decodes through the padded buffers of graphs, several times, and without them."""
    out = {}
    for static in (False, True):
        one = engine(static=static, max_num_seqs=20)
        results = []
        for batch in (1, 3, 9, 20, 2):
            begins = [16 + 128 * i for i in range(batch)]
            for begin in begins:
                one.step(Step(prefills=[(begin, 0, 60, True)], tokens=[(begin + n) % 500 for n in range(60)]))
            for n in range(4):
                step = Step(decodes=[(begin, 60 - index + n) for index, begin in enumerate(begins)],
                            tokens=[(n + index) % 500 for index in range(batch)])
                results.append(one.step(step).tolist())
        out[str(static)] = results
        out[f"{static} graphs"] = one.graphs is not None
    out["sizes"] = capture_sizes(300)
    return out


def ranks_are_slices() -> Any:
    """Sizes of one rank, and whether it computes."""
    out = {}
    for tp in (1, 2, 4):
        shape = Shape.of(CONFIG, tp)
        one = TorchEngine(shape, device="cpu", dtype="bf16", pool_tokens=512, longest=256)
        ids = one.step(Step(decodes=[(16, 20)], prefills=[(64, 10, 30, True)])).tolist()
        weights = sum(
            t.numel() for layer in one.model.layers for t in (layer.qkv, layer.out, layer.gate_up, layer.down))
        out[tp] = {"heads": shape.heads, "kv_heads": shape.kv_heads, "inner": shape.inner, "vocab": shape.vocab,
                   "weights": weights, "ids": ids}
    return out


class _Silent:
    """Stands in for the engine where only the schedule matters: every token's successor is 1."""

    def __init__(self, real: TorchEngine) -> None:
        self.longest, self.shape = real.longest, real.shape
        self.steps: list[Step] = []

    def step(self, step: Step) -> Any:
        self.steps.append(step)
        return torch.ones(len(step.decodes) + sum(s for _, _, _, s in step.prefills), dtype=torch.int64)


def online_schedule() -> Any:
    """A schedule as `hermes conform` reads it: requests that arrive between steps, long and short prompts."""
    online = TorchOnline({
        "max_num_batched_tokens": 96, "max_num_seqs": 6, "num_blocks": 512, "block_size": 16, "dtype": "fp32",
        "model": CONFIG,
    })
    silent = online.engine = _Silent(online.engine)  # type: ignore[assignment]
    draw = torch.Generator().manual_seed(7)
    requests = [
        {"id": i, "arrival_step": int(torch.randint(0, 60, (1,), generator=draw)),
         "prompt_tokens": int(torch.randint(1, 250, (1,), generator=draw)),
         "output_tokens": int(torch.randint(1, 30, (1,), generator=draw)), "priority": 0, "prefix_group": None,
         "prefix_tokens": 0} for i in range(30)
    ]
    requests.sort(key=lambda r: r["arrival_step"])
    steps, index, added = [], 0, 0
    while added < len(requests) or online.busy():
        while added < len(requests) and requests[added]["arrival_step"] <= index:
            request = requests[added]
            online.add(added, request["prompt_tokens"], request["output_tokens"])
            added += 1
        if online.busy():
            before = {seq.request: seq.computed for seq in [*online.running, *online.waiting]}
            order = [seq.request for seq in online.running] + [seq.request for seq in online.waiting]
            chunks = {}
            schedule = online._schedule

            def observed(schedule: Any = schedule, chunks: Any = chunks) -> Any:
                found = schedule()
                chunks.update({seq.request: seq.chunk for seq in found})
                return found

            online._schedule = observed  # type: ignore[method-assign]
            online.step()
            online._schedule = schedule  # type: ignore[method-assign]
            steps.append([[requests[r]["id"], chunks[r], before[r]] for r in order if r in chunks])
        index += 1
    return {"requests": requests, "steps": steps, "sampled_steps": len(silent.steps)}


def regions_never_overlap() -> Any:
    """Takes and gives at random; what is taken is disjoint, and all is free in the end."""
    draw, regions, held, worst = torch.Generator().manual_seed(0), Regions(2048), {}, 0
    for _ in range(3000):
        if held and torch.rand(1, generator=draw) < 0.5:
            begin = list(held)[int(torch.randint(0, len(held), (1,), generator=draw))]
            regions.give(begin, held.pop(begin))
        else:
            tokens = int(torch.randint(1, 300, (1,), generator=draw))
            begin = regions.take(tokens)
            if begin is not None:
                assert begin not in held
                held[begin] = tokens
        places = [place for begin, tokens in held.items() for place in range(begin, begin + tokens)]
        worst += len(places) != len(set(places)) or (max(places, default=0) >= 2048 + 16)
    for begin, tokens in held.items():
        regions.give(begin, tokens)
    return {"overlaps": worst, "free": regions._free}


class WrittenOut:
    """A kernel for sequences of different lengths, as far as results go."""

    name, static = "written out", True

    def decode(self, q: Any, k: Any, v: Any, plan: Any) -> Any:
        return attention.written_out(q, k, v, plan)

    prefill = decode


def one_launch_is_both_launches() -> Any:
    """A prompt of 40 tokens beside three decodes: as one launch, and apart; the largest difference."""
    from hermes.calibration.collect.terms_torch import TorchBackend

    point = {"term": "beside", "batch": 3, "new": 40, "context": 70, "heads": 8, "kv_heads": 2, "head_dim": 16}
    plan = {"device": "cpu", "dtype": "fp32", "threads": 1, "cache_bytes": 1, "points": [point]}
    results, launches = [], []
    for kernel in (None, WrittenOut()):
        backend = TorchBackend(plan)
        if kernel is not None:
            backend._attentions = dict.fromkeys(backend._attentions, (kernel, []))
        operator = backend.operator(point)
        launches.append(operator.notes["launch"])
        found = operator.calls[0]()
        results.append(torch.cat(found) if isinstance(found, tuple) else found)
    return {"launches": launches, "off": float((results[0] - results[1]).abs().max()), "size": list(results[0].shape)}


def timing_reads_every_copy() -> Any:
    """The timing of CUDA devices, with stand-ins for events and graphs: how often each copy runs in a repetition."""
    import time

    from hermes.calibration.collect import terms_torch
    from hermes.calibration.collect.terms_timing import Operator
    from hermes.calibration.collect.torch_graphs import eager_record

    def between(run: Any) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    terms_torch.between_events, terms_torch.graph_record = between, eager_record
    point = {"term": "norm", "rows": 1, "width": 8}
    backend = terms_torch.TorchBackend({"device": "cpu", "dtype": "fp32", "threads": 1, "cache_bytes": 1,
                                        "points": [point]})
    counts = [0] * 5

    def call(index: int) -> Any:
        def run() -> None:
            counts[index] += 1
            time.sleep(2e-4)

        return run

    operator = Operator([call(index) for index in range(5)])
    rows, how = backend._time_cuda(operator, 3, 4e-3)
    return {"counts": counts, "times": [row["time_s"] for row in rows], "how": how}


def pages_are_those_of_the_pool() -> Any:
    """vLLM's interface, whose kernel is stood in for by one that gathers pages: the difference from the reference."""
    import types

    def paged(q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, seqused_k: Any,
              causal: bool, block_table: Any, fa_version: int) -> Any:
        out = torch.empty_like(q)
        for row, used in enumerate(seqused_k.tolist()):
            begin, end = cu_seqlens_q[row].item(), cu_seqlens_q[row + 1].item()
            keys, values = (pool[block_table[row][: -(-used // 16)].long()].flatten(0, 1) for pool in (k, v))
            starts, lengths = torch.tensor([0, used]), torch.tensor([used])
            plan = attention.Chunks(starts, lengths, torch.tensor([0, end - begin]), used, end - begin)
            out[begin:end] = attention.written_out(q[begin:end], keys, values, plan)
        return out

    fake = types.ModuleType("vllm.vllm_flash_attn")
    fake.flash_attn_varlen_func, fake.is_fa_version_supported = paged, lambda version: version == 2  # type: ignore[attr-defined]
    sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.vllm_flash_attn": fake}
    try:
        from hermes.calibration.collect.vllm_attention import VllmFlash

        kernel, shape = VllmFlash(), Shape(64, 1, 8, 2, 32, 1, 1)
        return {"name": kernel.name, "off": attention.difference(kernel, shape, torch.float32, DEVICE)}
    finally:
        del sys.modules["vllm"], sys.modules["vllm.vllm_flash_attn"]


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
