"""What an engine counts before it cuts KV blocks, by engine and version: each term with its source and its range.

Rules of vLLM are read from its releases 0.8.5 to 0.29 (`determine_available_memory` of vllm/v1/worker/gpu_worker.py,
`profile_run` and `profile_cudagraph_memory` of its model runners), SGLang's from 0.4.9 and 0.5.23
(`_profile_available_bytes` of srt/mem_cache/kv_cache_configurator.py). Sizes that no rule gives are from start-up logs;
docs/background/capacity.md says which. All bytes are of one device.

Weights as an engine holds them are padded to kernels' tiles, kept twice, rounded. MXFP4 experts:
`mxfp4_round_up_hidden_size_and_intermediate_size` of fused_moe/oracle/mxfp4.py (0.29), `create_weights` of
quantization/mxfp4.py (0.10 to 0.15), both in vllm/model_executor/layers. Latent attention:
`process_weights_after_loading` of attention/mla_attention.py there, rotary tables: `cos_sin_cache` of rotary_embedding.
PyTorch's allocator rounds a large tensor up to 2 MiB, and splits off what is left over if it is more than 1 MiB
(c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from hermes.hardware.descriptions.models import ModelDescription, precision

__all__ = [
    "ALONE", "NEWEST_RULES", "Around", "Held", "MemoryRules", "Part", "SamplerRows", "Tiles", "captured_sizes",
    "engine_terms", "held_beside", "latent_workspace", "memory_rules", "sglang_share", "tables_beside", "tiles",
]

MIB = 2**20
Version = tuple[int, int]
Sums = Literal["vllm", "sglang", "trtllm"]


class Part(NamedTuple):
    """A number of bytes, its source, and the least and most that it may be (None: exactly that)."""

    bytes: int
    source: str
    low: int | None = None
    high: int | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """Least and most bytes."""
        return (self.bytes if self.low is None else self.low, self.bytes if self.high is None else self.high)


class SamplerRows(NamedTuple):
    """Bytes of each sampled row and word of the vocabulary in the profile run, and of each filtered row."""

    word: int
    source: str
    filtered: int = 0
    sorts: bool = False


_SORTS = SamplerRows(34, "sorted", sorts=True)   # 33.6 bytes between 6 and 1,024 rows of gpt-oss-120b, 0.10 to 0.14
_FILTERS = SamplerRows(14, "filtered", 4)   # logits of 16 and 32 bits, probabilities, noise
_GUMBEL = SamplerRows(6, "logits alone")     # model runner V2
FILTER_ROWS = 128   # of the filtering kernel, one for each multiprocessor


class MemoryRules(NamedTuple):
    """How one version of an engine finds the memory for KV.

    Args:
        sums: Whose rule: see `hermes.hardware.capacity.cut_blocks`.
        version: Minor version of vLLM; for other engines the newest, whose step stands in for theirs.
    """

    sums: Sums = "vllm"
    version: Version = (0, 33)

    @property
    def flag(self) -> str:
        """The engine's name of `memory.utilization`."""
        return {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static",
                "trtllm": "free_gpu_memory_fraction"}[self.sums]

    @property
    def counts_activations(self) -> bool:
        """Whether activations are in the sum; SGLang's are in what its share leaves."""
        return self.sums != "sglang"

    def second_runner(self, model: ModelDescription, dtype: str) -> bool:
        """Whether vLLM's model runner V2 serves the model (`use_v2_model_runner` of vllm/config/vllm.py)."""
        dense, wide = not model.num_experts, precision(dtype).layer_bytes >= 2
        plain = dense and model.causal and not (model.qkv_bias or model.linear_bias or model.window) and (
            model.norms_per_layer == 2)
        return (self.version >= (0, 29) or (self.version >= (0, 25) and dense)
                or (self.version >= (0, 24) and plain) or (self.version >= (0, 23) and plain and wide)
                or (self.version >= (0, 22) and plain and wide and model.qk_norm))

    def sampler(self, model: ModelDescription, dtype: str) -> SamplerRows:
        """Return what sampling takes in the profile run."""
        if self.second_runner(model, dtype):
            return _GUMBEL
        return _FILTERS if self.version >= (0, 17) else _SORTS


NEWEST_RULES = MemoryRules()
_LARGE_CARD = 60 * 1024   # MiB
_DECODES = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512), (math.inf, 512, 512))
"""Memory in GiB below which SGLang captures batches of so many decodes, with fewer than 4 devices and with more."""


def sglang_share(memory: int, tokens: int, devices: int) -> float:
    """Return SGLang's default `mem_fraction_static` (`handle_gpu_memory_settings` of srt/arg_groups/memory_hook.py,
    0.5.23): what is left besides 1.5 MiB for each token of a chunk, 2 MiB for each captured decode, and constants."""
    mib = memory / MIB
    decodes = next(few if devices < 4 else many for least, few, many in _DECODES if mib < least * 1024)
    reserved = 512 + 1.5 * max(tokens, 2048) + devices / 8 * 1024 + 2 * decodes
    if mib > _LARGE_CARD:
        reserved = max(reserved, 10 * 1024)
    return max(round((mib - reserved) / mib, 3), 0.01)


def memory_rules(engine: str, version: str) -> MemoryRules:
    """Return the rules of an engine by its name (`vllm-0.15`) and exact version."""
    named: dict[str, Sums] = {"sglang": "sglang", "trtllm": "trtllm"}
    sums, found = named.get(engine.partition("-")[0], "vllm"), re.match(r"v?(\d+)\.(\d+)", version)
    return MemoryRules(sums, (int(found[1]), int(found[2]))) if found and sums == "vllm" else MemoryRules(sums)


def captured_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes of the CUDA graphs that vLLM captures by default, up to `largest` (vllm/config, 0.15 to 0.32)."""
    return tuple(size for size in (1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16)) if size <= largest)


_LOGS = "start-up logs of vLLM 0.8 to 0.29"
NON_TORCH = Part(144 * MIB, f"loaded kernels and libraries: {_LOGS}", 72 * MIB, 360 * MIB)
WORKSPACES = Part(104 * MIB, f"workspaces of matrix products and attention: {_LOGS}", 0, 550 * MIB)
CAPTURED = Part(384 * MIB, "graphs that the profile run captures and drops (since 0.18, model runner V1): RTX 4090, "
                           "vLLM 0.19.0", 100 * MIB, 900 * MIB)
GRAPH_BYTES = {"dense": 0.28 * MIB, "mixture": 0.56 * MIB}
"""Of each layer and captured size: vLLM 0.21.0 with Qwen2.5-14B, and 3.45 GiB of 94 layers and 67 sizes of
Qwen3-235B-A22B (0.10.2)."""
UNPACKED = Part(800 * MIB, "4-bit weights under model runner V2: four of five starts of Qwen3-AWQ on 0.28 took 1 to "
                           "1.3 GiB more than in 16 bits, one did not; cause unknown", 0, 1340 * MIB)
NCCL_BYTES = {1: 0, 2: 358_612_992, 4: 411_041_792}
"""Buffers of NCCL by tensor parallelism (from the system files of aiconfigurator-core 0.12.0, Apache-2.0)."""
NCCL_NETWORK = (600 * MIB, 230 * MIB)
"""Of several machines, and of each rank: 2 ranks of Qwen3-30B-A3B (vLLM 0.8.5), 16 of DeepSeek-R1 (0.8.4)."""
CONTEXT = Part(832 * MIB, "CUDA context and libraries before the weights load: four starts of SGLang, 0.2 to 1.7 GiB",
               200 * MIB, 1600 * MIB)
WORKSPACE_TOKENS = (128 * 1024, 64 * 1024)   # of latent attention, at most: until 0.10, and since
WORKSPACE_REQUESTS, WORKSPACE_BLOCKS, BLOCK = 8, 4, 16   # longest requests, or blocks of each sequence
CONNECTOR = Part(0, "buffers of a KV connector: none with LMCache on 0.10.2, up to 3.1 GiB in one log of 0.9", 0,
                 round(3.1 * 2**30))


class Around(NamedTuple):
    """What a client's memory depends on besides its model, device and step.

    Args:
        connected: Whether a KV connector runs.
        longest: Tokens of the longest request, None without a limit.
        machines: That its devices stand in; None: as many as they need.
    """

    connected: bool = False
    longest: int | None = None
    machines: int | None = None


ALONE = Around()


def latent_workspace(rules: MemoryRules, model: ModelDescription, longest: int | None, seqs: int) -> int:
    """Return the tokens of latent attention's workspace (`determine_chunked_prefill_workspace_size`); 0 without."""
    if model.mla is None or rules.sums != "vllm":
        return 0
    wanted = max(WORKSPACE_REQUESTS * (longest or model.max_context or 0), WORKSPACE_BLOCKS * seqs * BLOCK)
    return max(min(wanted, WORKSPACE_TOKENS[rules.version >= (0, 11)]), seqs * BLOCK)


def engine_terms(rules: MemoryRules, model: ModelDescription | None, *, dtype: str, tp: int, ranks: int, machines: int,
                 over_pcie: bool, layers: int, max_num_seqs: int, graphs: bool, cuda: bool, around: Around,
                 ) -> dict[str, Part]:
    """Return what the engine takes besides weights and activations, by name.

    Args:
        tp: Devices that share a layer. ranks: Devices that join in collectives. machines: That they stand in.
        over_pcie: Whether PCIe joins them. layers: On one device.
        graphs: Whether it captures graphs. cuda: Whether the card is NVIDIA's.
    """
    nccl = NCCL_NETWORK[0] + ranks * NCCL_NETWORK[1] if machines > 1 else (
        0 if over_pcie else NCCL_BYTES[max(n for n in NCCL_BYTES if n <= ranks)])
    if rules.sums == "sglang":
        joined = {"NCCL": Part(nccl, _ranks(ranks, machines), 0, 2 * nccl)} if nccl else {}
        return {"before loading": CONTEXT, **joined}
    found = {"libraries": NON_TORCH, "workspaces": WORKSPACES}
    if rules.sums == "trtllm":
        return {"before loading": CONTEXT, **found}
    if nccl and rules.version < (0, 11):
        found["NCCL"] = Part(nccl, f"{_ranks(ranks, machines)}; until 0.10 vLLM joins them after its first look at the "
                                   "memory", nccl // 2, nccl + 2**30)
    if model is not None:
        found["tables"] = Part(tables_beside(model, dtype, layers, tp), "rotary tables, what the allocator rounds up")
        sizes = len(captured_sizes(min(2 * max_num_seqs, 512)))
        found |= _graphs(rules, model, dtype, layers, sizes, graphs=graphs, cuda=cuda)
        dense_four_bits = precision(dtype).dequantised and precision(dtype).layer_bytes < 1 and not model.num_experts
        if dense_four_bits and rules.second_runner(model, dtype):
            found["4-bit weights"] = UNPACKED
        if (tokens := latent_workspace(rules, model, around.longest, max_num_seqs)) and model.mla is not None:
            found["latent workspace"] = Part(2 * tokens * model.mla.cached, f"{tokens:,} tokens of chunked prompts")
    return found | ({"connector": CONNECTOR} if around.connected else {})


def _ranks(ranks: int, machines: int) -> str:
    return f"{ranks} ranks" + (f" on {machines} machines" if machines > 1 else "")


def _graphs(rules: MemoryRules, model: ModelDescription, dtype: str, layers: int, sizes: int, *, graphs: bool,
            cuda: bool) -> dict[str, Part]:
    """Return what captured graphs take of the sum. ROCm's are not looked at before 0.27."""
    if not graphs or not (cuda or rules.version >= (0, 27)):
        return {}
    second, found = rules.second_runner(model, dtype), {}
    if not second and rules.version >= (0, 18):
        found["captured"] = CAPTURED
    if rules.version >= (0, 29 if second else 21):
        kind = "mixture" if model.num_experts else "dense"
        size = math.ceil(GRAPH_BYTES[kind] * layers * sizes)
        source = f"{sizes} captured sizes of {layers} layers, {GRAPH_BYTES[kind] / MIB:.2f} MiB each"
        found["graphs"] = Part(size, source, size // 5, 2 * size)
    return found


class Tiles(NamedTuple):
    """Multiples that the sizes of an expert's matrices are padded to."""

    inner: int
    hidden: int
    kernel: str


MARLIN, BLACKWELL, CDNA = Tiles(128, 256, "Marlin"), Tiles(128, 256, "FlashInfer"), Tiles(256, 256, "ROCm")
OLD_BLACKWELL, TRITON = Tiles(256, 256, "FlashInfer"), Tiles(64, 1, "Triton")
LARGE, SEGMENT, SPLIT = 10 * 2**20, 2 * 2**20, 2**20   # bytes
BLACKWELL_SINCE = (0, 17)   # 256 until then


class Held(NamedTuple):
    """Bytes that a device holds besides those of the checkpoint, and why ("" for none)."""

    bytes: int
    why: str


def tiles(capability: str, engine: str, version: tuple[int, int], cuda: bool) -> Tiles:
    """Return the tiles of MXFP4 experts on a card."""
    if not cuda:
        return CDNA
    if capability.startswith("10."):
        return OLD_BLACKWELL if engine == "vllm" and version < BLACKWELL_SINCE else BLACKWELL
    return MARLIN if engine == "vllm" else TRITON


def held_beside(model: ModelDescription, dtype: str, layers: int, tp: int, dp: int, ep: bool, used: Tiles,
                engine: str) -> Held:
    """Return what kernels hold besides the checkpoint's bytes on one device with so many layers of the model."""
    extra, why = 0.0, []
    if precision(model.expert_dtype or dtype).layer_bytes < 1 and (model.expert_dtype or dtype) == "mxfp4":
        own = 1 if ep else tp * dp
        inner = math.ceil(model.intermediate_size / own)
        padded = (math.ceil(inner / used.inner) * used.inner, math.ceil(model.hidden_size / used.hidden) * used.hidden)
        experts = model.num_experts / (tp * dp if ep else 1)
        matrices = 3 if model.gated_ffn else 2
        more = padded[0] * padded[1] - model.hidden_size * model.intermediate_size / own
        extra += more * matrices * experts * model.expert_layers * layers / model.num_layers * (
            precision("mxfp4").layer_bytes)
        if more:
            why.append(f"experts padded from {inner:,} x {model.hidden_size:,} to {padded[0]:,} x {padded[1]:,} "
                       f"({used.kernel})")
    if model.mla is not None and engine != "trtllm":   # kv_b once more, in 16 bits
        mla = model.mla
        extra += 2.0 * layers * model.num_heads / tp * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
        why.append("projections of latent attention kept twice")
    return Held(math.ceil(extra), "; ".join(why))


def tables_beside(model: ModelDescription, dtype: str, layers: int, tp: int) -> int:
    """Return the bytes of rotary tables, and what PyTorch's allocator adds to the matrices."""
    kind, heads = precision(dtype), model.num_heads + 2 * max(model.num_kv_heads, tp)
    shapes: list[int] = []
    if model.mla is None:
        shapes += [heads * model.head_dim * model.hidden_size, model.num_heads * model.head_dim * model.hidden_size]
        if not model.num_experts:
            inner = model.hidden_size * model.intermediate_size
            shapes += [(2 if model.gated_ffn else 1) * inner, inner]
    added = layers * sum(_left_over(round(shape * kind.layer_bytes / tp)) for shape in shapes)
    rotated = model.head_dim if model.mla is None else model.mla.qk_rope_head_dim
    return added + 2 * (model.max_context or 0) * rotated * (2 if model.window else 1)


def _left_over(size: int) -> int:
    """Return what PyTorch's allocator adds to a tensor."""
    more = -size % SEGMENT
    return more if size >= LARGE and more <= SPLIT else 0
