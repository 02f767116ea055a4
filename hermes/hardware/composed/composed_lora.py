"""Hardware model `composed` of an engine whose requests have LoRA adapters: one more term, `lora`."""

from __future__ import annotations

from hermes.arrays import FloatArray
from hermes.hardware.base import StepStats
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.composed.kernel_curves import GRAPH_LAUNCH_NS
from hermes.hardware.composed.kernel_tables import KernelTables
from hermes.hardware.composed.term_sources import HostTime, Sources
from hermes.hardware.descriptions.models import precision
from hermes.hardware.lora import Lora, LoraWork, Rates, named
from hermes.hardware.roofline import RooflineModel
from hermes.hardware.trust import GUESS, Trust
from hermes.units import NS_PER_S

__all__ = ["ComposedWithLora"]

TERM = "lora"


class ComposedWithLora(ComposedModel):
    """Named terms, with those of the adapters in the batch (`hermes.hardware.lora`).

    Rates are the roofline's: the projections' share of the peak arithmetic, the element-wise operators' share of the
    memory's bandwidth. No launch was measured: each kernel takes what any kernel of a CUDA graph does.
    """

    def __init__(self, base: RooflineModel, kernels: KernelTables | None, host: HostTime, sources: Sources, lora: Lora
                 ) -> None:
        super().__init__(base, kernels, host, sources)
        factors, device = base.efficiency, base.device
        launch_ns = GRAPH_LAUNCH_NS if device.type == "gpu" else factors.kernel_latency * NS_PER_S
        rates = Rates(NS_PER_S / (device.peak(base.work.wide) * factors.qkv_o.compute),
                      NS_PER_S / (device.memory_bandwidth * factors.elementwise), launch_ns,
                      precision(base.options.dtype).other_bytes)
        modules = lora.of_model(base.model)
        self.lora = LoraWork.of(base.model, lora.rank, modules, base.options.tp, rates)
        self._said = (f"roofline of {device.name}, LoRA kernels: rank {lora.rank} on {named(modules)}, "
                      f"{len(self.lora.kernels)} kernels a layer, {launch_ns / 1e3:g} us for each launch")

    def _lora_ns(self, stats: StepStats) -> float:
        if not stats.lora_adapters:
            return 0.0
        return self._changed(TERM, self.lora.ns(stats.lora_tokens, stats.lora_adapters), stats.lora_tokens)

    def _parts(self, stats: StepStats) -> tuple[float, float]:
        device, host = super()._parts(stats)
        return device + self._lora_ns(stats), host

    def _rank_ns(self, stats: StepStats, rows: int, captured: bool, num_steps: int) -> FloatArray:
        return super()._rank_ns(stats, rows, captured, num_steps) + self._lora_ns(stats)

    def _work_terms(self, stats: StepStats) -> dict[str, float]:
        out = super()._work_terms(stats)
        if stats.lora_adapters:
            out[TERM] = self._lora_ns(stats)
        return out

    def sources_of(self) -> dict[str, str]:
        change = self.sources.terms.get(TERM)
        return {**super().sources_of(), TERM: self._said if change is None else f"{self._said}, {change.text()}"}

    def trust_of(self) -> dict[str, Trust]:
        return {**super().trust_of(), TERM: GUESS}
