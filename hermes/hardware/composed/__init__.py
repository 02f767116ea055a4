"""Hardware model `composed`: what a user says of it, and where the figures come from that no table has.

`hermes.hardware.composed.composed_terms` adds up the terms.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.config.data_files import kept
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.composed.kernel_tables import ENGINES, KernelTables, kernels_of, load_kernels
from hermes.hardware.composed.term_sources import GROUPED_DTYPE, SKEW, Backend, HostTime, Sources, TermOverride
from hermes.hardware.config import ClientTerms, HardwareConfig
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, StepTime, load_engine
from hermes.hardware.descriptions.links import LinkTime
from hermes.hardware.descriptions.models import ModelDescription
from hermes.hardware.engine_memory import captured_sizes
from hermes.hardware.lora import Lora
from hermes.hardware.roofline import Dtype, KvDtype, Roofline, RooflineModel
from hermes.sums import float_sum
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.hardware.composed.all_to_all import AllToAll
    from hermes.hardware.composed.engine_links import EngineLinks

__all__ = ["Composed"]

TILE_ROWS = 128             # of FlashAttention 3 for heads of 128 values
SORT_BYTES = 335.0          # of memory traffic for each logit that the sampler sorts: float32 keys, int64 positions


class Beside(ConfigModel):
    """What decodes cost in one attention launch with a prompt, for each layer and query head of a device.

    One launch for both does not split long contexts. Where it does not pack the query heads that share a KV head
    either, each of them reads its KV again, from the second-level cache. Where it does (`mixed_attention: packed` of
    the device), a decode costs a tile of the prompt's kernel and `per_seq`; the other two do not count. Fitted to
    operator tables of an RTX PRO 6000 with 32 query heads over 8 KV heads; others (64 over 8, 32 over 4) and another
    card (RTX 4090) agree within 15%.
    """

    per_seq: Duration = 14e-9
    """Of each decode: tiles that turn out empty."""
    per_seq_token: Duration = 0.031e-9
    """Of each decode and token of the prompt: a decode gets as many tiles as the prompt has."""
    read: Annotated[float, Field(ge=0, le=100)] = 0.47
    """Time for a query head to read its KV, over that at the memory's peak rate; all heads of a device together take
    at least the time to read the KV once."""


class Composed(HardwareConfig):
    """Step times composed of named terms, each from the best source there is for the device and the model."""

    of_terms: ClassVar[bool] = True

    kind: Literal["composed"] = "composed"
    model: Annotated[str, Field(max_length=4096)] = ""
    """A model description: shipped name, YAML file, or Hugging Face config.json; the client's where left out."""
    device: Annotated[str, Field(max_length=4096)] = ""
    """A device description: shipped name or YAML file; the client's where left out."""
    kernels: Annotated[str, Field(max_length=4096)] = ""
    """Kernel tables: an engine (vllm, sglang, trtllm: its tables of the device), a shipped name, or a YAML file that
    `hermes fit` made of measured terms; those of the client's engine and device where left out."""
    engine: Annotated[str, Field(max_length=100)] = ""
    """Engine whose own time each step contains; the client's where left out."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share every layer (tensor parallelism)."""
    pp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pipeline stages of `tp` devices each."""
    hop: LinkTime | Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """What joins all stages, as `link`; left out, the devices' link inside a box, `link` between boxes."""
    dp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks that each have a part of the requests and share a mixture's experts (data parallelism); `tp` is of each."""
    ep: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share a mixture's experts, whole ones on each (expert parallelism): all `tp * dp` of them. 1: every
    device has a part of each expert."""
    routing_skew: Annotated[float, Field(ge=0, le=10)] = SKEW
    """How unevenly tokens choose experts: 0 is even, NVIDIA's planner has 1.01 (`hermes.hardware.composed.experts`)."""
    all2all: Backend = "allgather_reducescatter"
    """How tokens reach the devices of their experts (`dp` and `ep`), as `--all2all-backend` of vLLM, whose default it
    is: every device gathers all tokens, or DeepEP's kernels send them where they are needed (low latency: inside CUDA
    graphs; high throughput: without)."""
    moe_backend: Literal["auto", "triton", "deep_gemm"] = "auto"
    """Kernels of a mixture's experts: those of the kernel tables, or grouped products (DeepGEMM) by their published
    rates. auto: grouped products for experts of FP8 blocks behind DeepEP, which no table holds; else the tables."""
    dtype: Dtype = "auto"
    """Storage of the layers' weights; auto is that of the model description."""
    kv_dtype: KvDtype = "auto"
    """Storage of the KV cache; auto is that of the activations."""
    asynchronous: bool | None = None
    """Whether the host prepares the next step while the device computes this one: its time hides behind the device's,
    and an idle engine's first step is longer; false adds it to each step. Left out, as the client's scheduler plans
    (`continuous`, `static`, `mixed`: false). A given value changes the price alone, not when the scheduler plans."""
    link: LinkTime | Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """What joins the devices: a shipped description or file (`hw_profiles/links`), or latency and bandwidth of an
    all-reduce. Left out, the device's `link`; else the kernel tables of cards with NVLink; else PCIe through host
    memory, with a warning. For an engine of more devices than one box joins (`domain` and `machine` of the device): the
    network between boxes, one port for each device; left out, `infiniband-ndr`, with a warning."""
    all_reduce: Literal["engine", "nccl"] = "engine"
    """Kernels of tensor-parallel all-reduces: those that the engine's version launches by size (its own, symmetric
    memory, NCCL), or NCCL's alone, as with `--disable-custom-all-reduce` and devices that do not reach each other."""
    step: StepTime | None = None
    """The engine's own time of each step; that of the engine where left out."""
    cudagraph_capture_sizes: Annotated[list[Annotated[int, Field(ge=1, le=2**20)]], Field(max_length=4096)] = []
    """Tokens of the steps that are captured as CUDA graphs, as vLLM's field of this name: a decode batch is padded to
    the next one, and one beyond the largest is launched without a graph. Left out, those of the engine."""
    top_p: bool | None = None
    """Whether the sampler keeps the most probable tokens only; left out, what the publisher's generation settings say
    (`generation_config.json` beside a `config.json`)."""
    lora: Lora | None = None
    """LoRA adapters that are computed beside the weights; needs `scheduler.max_loras`. Left out, such clients have
    adapters of rank 16 on every matrix. Adapters of models with latent attention have no price."""
    beside: Beside = Beside()
    """What decodes cost in one attention launch with a prompt."""
    terms: dict[str, TermOverride] = Field(default_factory=dict, max_length=100)
    """Terms to change, by their names in `hermes explain`."""

    def sampled(self, sorts: bool) -> Self:
        if self.top_p not in (None, sorts):
            raise InputError(Verbatim(f"{str(self.top_p).lower()} contradicts the workload's sampling: "
                                      f"{'top_p' if sorts else 'greedy'}; leave top_p out"), field="hardware.top_p")
        return self.model_copy(update={"top_p": sorts})

    def completed(self, client: ClientTerms) -> Self:
        """Return this with what the client says for what is left out."""
        return self.model_copy(update={
            "model": self.model or client.model, "device": self.device or client.device,
            "engine": self.engine or client.engine, "kernels": self.kernels or client.kernels,
            "tp": self.tp if self.tp > 1 else client.tp,
            "dp": self.dp if self.dp > 1 else client.dp, "ep": self.ep if self.ep > 1 else client.ep,
            "pp": self.pp if self.pp > 1 else client.pp,
            "asynchronous": client.asynchronous if self.asynchronous is None else self.asynchronous,
            "lora": Lora() if client.adapters and self.lora is None else self.lora,
        })

    def build(self, base_dir: Path | None = None, layers: int | None = None) -> ComposedModel:
        """The model. Raises `InputError` for unknown or malformed descriptions and a `tp` that does not fit.

        layers: As many layers only, of the last kind that the model has (a head that drafts has one).
        """
        return kept((type(self), self.model_dump_json(), base_dir, layers), partial(self._built, base_dir, layers))

    def _built(self, base_dir: Path | None, layers: int | None) -> ComposedModel:
        base = Roofline(model=self.model, device=self.device, tp=self.tp, pp=self.pp, dtype=self.dtype,
                        kv_dtype=self.kv_dtype).build(base_dir, dp=self.dp, layers=layers)
        self._check_ranks(base.model)
        name = base.device.kernels if self.kernels in ("", *ENGINES) else self.kernels
        with inside("kernels" if self.kernels else "device"):
            given_tables = bool(name)
            kernels = load_kernels(name, base_dir) if name else (
                kernels_of(base.device.name, self.kernels or ENGINES[0]))
        step = self.step
        if step is None:
            with inside("engine"):
                step = load_engine(self.engine or NEWEST_ENGINE).step
        host = HostTime(step.host * NS_PER_S, step.host_per_seq * NS_PER_S, self.asynchronous is not False)
        joined = self._joined(base, kernels, base_dir, given_tables)
        grouped = self._grouped(base)
        heads = base.model.num_heads / self.tp
        lanes = heads * base.model.num_layers * NS_PER_S
        shared = heads / max(base.model.num_kv_heads / self.tp, 1)
        kernel = base.device.mixed_attention
        reads = max(self.beside.read * shared, 1.0)
        counts = {"per_head": {"per_seq", "per_seq_token", "read"}, "packed": {"per_seq"}, "apart": set()}[kernel]
        for key in ("per_seq", "per_seq_token", "read"):
            if key not in counts and getattr(self.beside, key) != getattr(Beside(), key):
                raise InputError(Verbatim(f"left out: it does not count for {base.device.name} (mixed_attention: "
                                          f"{kernel})"), getattr(self.beside, key), field=f"beside.{key}")
        beside = (self.beside.per_seq * lanes, self.beside.per_seq_token * lanes, reads)
        largest = 0 if self.all2all == "deepep_high_throughput" else step.largest_graph
        graphs = tuple(sorted(set(self.cudagraph_capture_sizes))) if largest else ()
        graphs = graphs or captured_sizes(largest) or (0,)   # (0,): no graphs
        sizes_captured = graphs if base.device.type == "gpu" else ()
        bandwidth = base.device.memory_bandwidth / NS_PER_S
        sorts = base.model.top_p if self.top_p is None else self.top_p
        sampler = SORT_BYTES * base.model.vocab_size / bandwidth if sorts else 0.0
        sources = Sources(
            sizes_captured, step.exposed * NS_PER_S, step.uncaptured * NS_PER_S, step.exposed_per_seq * NS_PER_S,
            beside, tile_rows=TILE_ROWS if kernel == "packed" else 0, apart=kernel == "apart", sampling_ns=sampler,
            idle_ns=step.idle * NS_PER_S,
            engine=f"engine {self.engine or NEWEST_ENGINE}" if self.step is None else "given",
            terms=self.terms, routing_skew=self.routing_skew, whole_experts=self.ep > 1, grouped=grouped, **joined)
        model = ComposedModel(base, kernels, host, sources)
        if self.lora is not None and base.model.mla is None:
            from hermes.hardware.composed.composed_lora import ComposedWithLora  # few clients have adapters

            model = ComposedWithLora(base, kernels, host, sources, self.lora)
        unknown = sorted(self.terms.keys() - model.sources_of().keys())
        if unknown:
            names = sorted(model.sources_of())
            raise InputError(f"a term of this model: {', '.join(names)}", unknown[0], field="terms",
                             suggestion=suggest(unknown[0], names))
        return model

    def _joined(self, base: RooflineModel, kernels: KernelTables | None, base_dir: Path | None, tables_first: bool
                ) -> dict[str, Any]:   # Any: fields of `Sources`
        """Return the collectives between the devices of the engine, and the links that they assume."""
        if self.tp * self.pp * self.dp == 1:   # nearly always: the other modules stay unloaded
            return {}
        from hermes.hardware.composed.engine_links import EngineLinks

        links = EngineLinks(base.device, base.efficiency, kernels, self.link, self.hop, base_dir, tables_first,
                            self.tp, self.pp, self.dp, self.engine or NEWEST_ENGINE, self.all_reduce == "nccl")
        hops, said, trust = links.hops()
        ways: dict[str, Any] = {"exchange": links.exchange()} if self.all2all == "allgather_reducescatter" else {
            "all_to_all": self._all_to_all(links, base.model)}
        return {"reduces": links.tensor(), **ways, "hops": tuple(hops), "hop_text": said,
                "hop_trust": trust, "assumed": tuple(links.assumed)}

    def _all_to_all(self, links: EngineLinks, model: ModelDescription) -> AllToAll:
        """Return DeepEP's exchange between the devices of the engine."""
        import numpy as np

        from hermes.hardware.composed.all_to_all import AllToAll, vector_bytes
        from hermes.hardware.composed.experts import dealt

        near, far, boxes, said = links.ports()
        low = self.all2all == "deepep_low_latency"
        deals = dealt(model, self.ep, self.routing_skew, np.ones(1))
        busiest = float_sum(float(share.max()) for _, share in deals) / len(deals)
        fp8 = self._expert_dtype(model) == GROUPED_DTYPE
        text = f"DeepEP {'low latency' if low else 'high throughput, launches without CUDA graphs not priced'}, {said}"
        return AllToAll(low, self.tp * self.dp, boxes, model.experts_per_token, vector_bytes(model.hidden_size, fp8),
                        near, far, busiest, self.tp, text)

    def _expert_dtype(self, model: ModelDescription) -> str:
        """Return the precision of the experts' weights."""
        return model.expert_dtype or (self.dtype if self.dtype != "auto" else model.dtype)

    def _grouped(self, base: RooflineModel) -> bool:
        """Return whether the experts are grouped products. Raises `InputError` for what they have no rates of."""
        fits = base.model.num_experts > 0 and self._expert_dtype(base.model) == GROUPED_DTYPE
        if self.moe_backend == "deep_gemm" and not fits:
            raise InputError(Verbatim(f"left out: grouped products have published rates for experts of FP8 blocks; "
                                      f"{base.model.name} has none"), self.moe_backend, field="moe_backend")
        fits = fits and base.device.type == "gpu" and "fp8" in base.device.flops
        behind = self.moe_backend == "auto" and self.all2all != "allgather_reducescatter"
        return fits and (self.moe_backend == "deep_gemm" or behind)

    def _check_ranks(self, model: ModelDescription) -> None:
        """Raise `InputError` for ranks that share nothing, and for experts that are not shared by all devices."""
        if self.all2all != "allgather_reducescatter" and (self.dp == 1 or self.ep == 1):
            raise InputError(Verbatim("left out: DeepEP exchanges tokens between data-parallel ranks that have whole "
                                      "experts (parallel: {dp: 8, ep: 8})"), self.all2all, field="all2all")
        if self.dp > 1 and not model.num_experts:
            raise InputError(Verbatim(f"the ranks of a dense model share nothing: {model.name} on {self.dp} ranks is "
                                      f"`count: {self.dp}`"), field="dp")
        if self.ep > 1 and (self.ep != self.tp * self.dp or not model.num_experts or model.num_experts % self.ep):
            what = f"a mixture of experts, whose number ep divides ({model.name} has {model.num_experts})"
            raise InputError(f"tp * dp ({self.tp * self.dp}), and {what}", self.ep, field="ep")
