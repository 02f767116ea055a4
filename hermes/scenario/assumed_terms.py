"""Defaults of hardware of named terms (`composed`) that may decide a result: host, sampler, links, experts, precision.

Each is a change of one field of the hardware, so that the same alternative can be priced and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hermes.hardware.composed.boxes import FAR_LINK
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.descriptions.links import load_interconnect
from hermes.hardware.fitted.adjusted import AdjustedModel

__all__ = ["OfTerms", "of_terms"]

GB = 1e9
ENGINE = 1.5        # times the engine's own time of a step: another host, a later version
SLOWER = 0.5        # of an assumed link's bandwidth; its latency stays
WIDENED = 1.25      # times a product whose weights are widened first
_NOT_PRODUCTS = {"elementwise", "engine", "lm_head", "sampling", "attention_of_prompts", "attention_of_decodes",
                 "decodes_beside_prompt", "all_reduce", "dispatch", "combine", "hops", "router"}
_LINKS = {"all_reduce": "tensor-parallel link", "dispatch": "link between ranks", "hops": "link between stages"}


class OfTerms(NamedTuple):
    """A default of the hardware.

    Attributes:
        key, value: Field of the hardware that sets the alternative.
        scales: The same as factors of terms, where that is all; None where the hardware has to be built anew.
    """

    name: str
    default: str
    alternative: str
    key: str
    value: Any
    scales: dict[str, float] | None = None


def of_terms(client: Any, built: Any, said: Callable[[str], bool]) -> Iterator[OfTerms]:
    """Yield the defaults of one group of LLM clients.

    Args:
        client: Its configuration (`LLMClientConfig`), completed.
        built: Its hardware model, if it is built already.
        said: Whether the scenario has a value at a key of the client.
    """
    model = built.base if isinstance(built, AdjustedModel) else built
    if not isinstance(model, ComposedModel):
        return
    sources = model.sources_of()

    def scaled(name: str, default: str, alternative: str, terms: list[str], factor: float) -> OfTerms:
        own = {term: change.model_dump() for term, change in client.hardware.terms.items()}
        return OfTerms(name, default, alternative, "terms", {**own, **{term: {"scale": factor} for term in terms}},
                       dict.fromkeys(terms, factor))

    def free(*terms: str) -> list[str]:
        return [name for name in terms if name in sources and not said(f"hardware.terms.{name}")]

    if client.hardware.top_p is None and free("sampling"):
        sorts = model.sources.sampling_ns > 0
        yield OfTerms("sampling", "top-p" if sorts else "greedy", "greedy" if sorts else "top-p", "top_p", not sorts,
                      {"sampling": 0.0} if sorts else None)
    exposed = model.sources.exposed_ns / 1e6
    if exposed and not said("hardware.step") and free("engine"):
        yield scaled("engine time", f"{exposed:.2g} ms of each step (vLLM 0.23 on an H100 host)",
                     f"{ENGINE:g} times that", ["engine"], ENGINE)
    if not model.host.asynchronous and not client.scheduler.follows_engine and not said("hardware.asynchronous"):
        yield OfTerms("host's time", f"added to each step, as {client.scheduler.kind} plans no step ahead",
                      "hidden behind the device", "asynchronous", True)
    yield from _links(client, model, said, free)
    yield from _experts(client, model, said, free)
    yield from _widened(model, free, scaled)


def _links(client: Any, model: ComposedModel, said: Callable[[str], bool], free: Callable[..., list[str]]
           ) -> Iterator[OfTerms]:
    """Links without a name, or of which only the data sheet is known, at half their bandwidth.

    `hardware.link` is the link between boxes if the engine has several: then those inside stay as they are.
    """
    if said("hardware.link"):
        return
    device, sources = model.base.device, model.sources_of()
    for one in model.sources.assumed:
        if one.key == "hardware.link" and free(*one.terms):
            found, name = load_interconnect(one.link), _LINKS[one.terms[0]]
            rate = found.rate(device.rates) or 0.0
            yield _half("link between boxes" if one.link == FAR_LINK else name,
                        f"{one.link}, {rate / GB:.3g} GB/s a device", found.latency or 0.0, found.latency_per_doubling,
                        rate)
    if model.sources.assumed:
        return
    sizes = {"all_reduce": model.base.options.tp, "dispatch": _ranks(client), "hops": 2}
    for term, name in _LINKS.items():
        if sizes[term] > 1 and free(term) and sources[term].startswith("datasheet"):
            share = model.base.efficiency.all_reduce_of(sizes[term])
            rate = device.link_bandwidth * share.bandwidth
            yield _half(name, f"{rate / GB:.3g} GB/s a device, from the data sheet", share.latency, 0.0, rate)
            return


def _half(name: str, default: str, latency: float, per_doubling: float, rate: float) -> OfTerms:
    value = {"latency": latency, "latency_per_doubling": per_doubling, "bandwidth": SLOWER * rate}
    return OfTerms(name, default, "half its bandwidth", "link", value)


def _ranks(client: Any) -> int:
    """Return the data-parallel ranks of an engine."""
    return int(max(client.parallel.dp, client.hardware.dp))


def _experts(client: Any, model: ComposedModel, said: Callable[[str], bool], free: Callable[..., list[str]]
             ) -> Iterator[OfTerms]:
    """Expert parallelism: how tokens reach the ranks of their experts, the experts' load, and their kernels."""
    sources = model.sources
    if not sources.whole_experts:
        return
    if _ranks(client) > 1 and free("dispatch", "combine") and not said("hardware.all2all"):
        low = client.role == "decode"   # prompts would go in pieces of 256 tokens
        yield OfTerms("expert parallelism", "each rank gets all tokens (all-gather)",
                      f"DeepEP, {'low latency' if low else 'high throughput'}", "all2all",
                      "deepep_low_latency" if low else "deepep_high_throughput")
    if sources.routing_skew and free("experts") and not said("hardware.routing_skew"):
        yield OfTerms("balance of experts", f"none, routing skew {sources.routing_skew:g}", "even (EPLB)",
                      "routing_skew", 0.0)
    if sources.grouped and free("experts") and not said("hardware.moe_backend"):
        yield OfTerms("experts' kernels", "grouped products at published rates", "Triton's, of kernel tables",
                      "moe_backend", "triton")


def _widened(model: ComposedModel, free: Callable[..., list[str]], scaled: Callable[..., OfTerms]) -> Iterator[OfTerms]:
    """Weights of a precision that the card does not multiply: they are widened first, here in no time."""
    dtype, device = model.base.options.dtype, model.base.device
    if not dtype.startswith("fp8") or device.type != "gpu" or "fp8" in device.flops:
        return
    terms = free(*(name for name in model.sources_of() if name not in _NOT_PRODUCTS))
    if terms:
        yield scaled("weight-only FP8", f"{device.name} widens the weights in no time",
                     f"products {WIDENED:g} times as long", terms, WIDENED)
