"""Designs of the study: which memories hold KV besides the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes.hardware.descriptions.memories import load_memory
from hermes.study import Context, Point
from hermes.sums import float_sum

__all__ = ["ALONE", "DESIGNS", "DEVICES", "REPLICAS", "Design", "Store", "host", "point", "seconds"]

REPLICAS, TP = 6, 4
DEVICES = REPLICAS * TP
UNLIMITED = "100000 TB"
CXL = ("cxl-expander", "cxl-box", "rdma-pool")   # without a public price: DRAM's, times a premium


@dataclass(frozen=True)
class Store:
    """A memory of a design.

    Args:
        memory: Its name in `hw_profiles/memories`, or a file of the study.
        gb: Capacity of one store.
        shared: Whether all replicas share one store; else each has its own.
    """

    memory: str
    gb: float
    shared: bool = False

    @property
    def total_gb(self) -> float:
        return self.gb * (1 if self.shared else REPLICAS)


@dataclass(frozen=True)
class Design:
    """Memories of a design, nearest first."""

    name: str
    stores: tuple[Store, ...] = ()

    def levels(self, context: Context, unlimited: bool = False) -> list[dict[str, Any]]:
        """Return the scenario's tiers."""
        found = []
        for number, store in enumerate(self.stores):
            memory = str(context.file(store.memory)) if store.memory.endswith(".yaml") else store.memory
            found.append({"name": f"tier-{number}", "capacity": UNLIMITED if unlimited else f"{store.gb:g} GB",
                          "bandwidth": memory, "scope": "all" if store.shared else "client"})
        return found

    def dollars_per_hour(self, context: Context, gpu: float) -> float:
        """Return dollars of an hour: devices at `gpu` dollars each, memories over their years, and their watts."""
        return DEVICES * gpu + float_sum(self._hourly(context, store) for store in self.stores)

    def _hourly(self, context: Context, store: Store) -> float:
        memory = load_memory(store.memory)
        price = memory.dollars_per_gb
        if price is None:
            price = (load_memory("host-ddr5").dollars_per_gb or 0.0) * context["cxl_premium"]
        watts = memory.watts_per_gb or 0.0
        per_gb = price * context["price_factor"] / (8760 * context["years"]) + watts / 1000 * context["dollars_per_kwh"]
        return float(store.total_gb * per_gb)


def host(gb_per_gpu: float) -> Design:
    """Return the design with so much DRAM of the hosts for each GPU."""
    return Design(f"host {gb_per_gpu:g}", (Store("host-ddr5", TP * gb_per_gpu),))


ALONE = Design("HBM alone")
DESIGNS = {design.name: design for design in (
    ALONE, host(32), host(64), host(128), host(256),
    Design("CXL box", (Store("cxl-box", 16_000, shared=True),)),
    Design("rack pool", (Store("rdma-pool", DEVICES * 256, shared=True),)),
    Design("DCN flash", (Store("dcn-flash", 120_000, shared=True),)),
    Design("flash 100G", (Store("flash-100g", 120_000, shared=True),)),
)}


def point(
    context: Context, design: Design, rate: float, gap_s: float = 30.0, *, unlimited: bool = False,
    columns: dict[str, Any] | None = None, **more: Any,
) -> Point:
    """Return a point: conversations/s, seconds between an answer and the next turn. more: further settings, with `__`
    for dots."""
    settings: dict[str, Any] = {
        "workload.arrivals.rate": f"{rate:.6g} /s", "workload.lengths.think_time": f"{gap_s:g} s",
        "workload.duration": f"{seconds(context, gap_s):g} s",
    } | {key.replace("__", "."): value for key, value in more.items()}
    settings |= ({"clients.0.tiers.levels": design.levels(context, unlimited)} if design.stores
                 else {"clients.0.tiers": None})
    label = f"{design.name}, {rate:.4g}/s, gap {gap_s:g} s" + (", unlimited" if unlimited else "") + "".join(
        f", {key}" for key in more)
    return Point(label, settings, {"design": design.name, "rate": rate, "gap": gap_s, **(columns or {})},
                 context["seed"])


def seconds(context: Context, gap_s: float) -> float:
    """Return how long conversations start: most of a mean life (six turns), at least `window_s`."""
    least: float = context["window_s"]
    return max(least, 5 * gap_s)
