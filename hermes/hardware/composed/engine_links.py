"""Links between the devices of one engine: times of its collectives, each from the best source there is.

Inside a box (`hermes.hardware.composed.boxes`): the link that the scenario or the device names, else the card's kernel
tables, else PCIe through host memory or the data sheet. Between boxes: the link that the scenario names, else
`infiniband-ndr`. What nobody named is kept as an `AssumedLink`, with the ends of what sites measured.

Each time has a `Trust`: that of a named link is the link's own; kernel tables of two devices are near, those of four
and more differ from site to site; an assumed link has its ends, PCIe those of machines with and without peer access.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.composed.boxes import FAR_LINK, AssumedLink, Spread, across, crossings, half, spread
from hermes.hardware.composed.kernel_tables import KernelTables
from hermes.hardware.composed.term_sources import Exchange, Reduces, Times
from hermes.hardware.descriptions.devices import DeviceDescription
from hermes.hardware.descriptions.engines import Forms, reduce_rules
from hermes.hardware.descriptions.links import (
    Joined,
    LinkDescription,
    LinkTime,
    all_reduce_times,
    formula,
    load_interconnect,
)
from hermes.hardware.efficiency import Efficiency
from hermes.hardware.fitted.operator_curves import rising
from hermes.hardware.trust import BY_SITE, FEW, GUESS, MEASURED, NEAR, Trust, wider

__all__ = ["EngineLinks"]

PCIE_LINK = "pcie-host-memory"   # what kernel tables say of PCIe belongs to the machine that they were measured on
PEER_LINK = "pcie-peer"           # the fast end of its range, for cards whose driver allows peer access
NAMING = "hardware: {kind: composed, link: ...}"


@dataclass
class EngineLinks:
    """What joins the devices of one engine.

    Args:
        named: The link that the scenario names: between boxes if the engine has several, else inside its box.
        hop: The link between stages that the scenario names.
        tables_first: Whether the user named the kernel tables, whose all-reduces then go before an assumed PCIe link.
        engine: Engine that chooses the kernels of all-reduces; "" for one that nothing is known of.
        only_nccl: Whether all-reduces are NCCL's, whatever the engine would choose.
    """

    device: DeviceDescription
    factors: Efficiency
    kernels: KernelTables | None
    named: LinkTime | str | None
    hop: LinkTime | str | None
    base_dir: Path | None
    tables_first: bool
    tp: int
    pp: int
    dp: int
    engine: str = ""
    only_nccl: bool = False
    assumed: list[AssumedLink] = field(default_factory=list)

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def boxes(self) -> int:
        """Boxes of the engine."""
        box = self.device.box
        if self.tp > box:
            return self.dp * self.pp * spread(self.tp, 1, box).boxes
        return -(-self.dp * self.pp // (box // self.tp))

    def tensor(self) -> Reduces | None:
        """Return the all-reduces of a tensor-parallel group; None for those of the kernel tables or the roofline."""
        if self.tp == 1:
            return None
        lie = spread(self.tp, 1, self.device.box)
        if lie.boxes == 1:
            return self._alone()
        if (whole := self._whole(self.tp)) is not None:
            return whole
        near = None   # only NCCL reduces over boxes
        if lie.near > 1:
            near = self.inside(lie.near, "all_reduce", tables=self.tables_first, only_nccl=True)
        far, said, trust = self._far(lie.boxes, "all_reduce")
        if near is None:
            return Reduces(far, far, said, trust=trust)
        return Reduces(across(near.captured, far, lie.near), across(near.launched, far, lie.near),
                       self._both(near.source, lie, said), near.measured_bytes, wider(near.trust, trust))

    def _alone(self) -> Reduces | None:
        """Return the all-reduces of a tensor-parallel group inside one box; None for the roofline's."""
        named = self._named(self.tp, "all_reduce", tables=self.tables_first)
        tabled = self.kernels is not None and self.tp in self.kernels.all_reduce_ranks
        if self.only_nccl and named is not None and "assumed" not in named.source:
            raise InputError(Verbatim(f"left out: the link says how long all-reduces take ({named.source})"), "nccl",
                             field="all_reduce")
        if named is not None or tabled:
            return named or self.inside(self.tp, tables=self.tables_first, only_nccl=self.only_nccl)
        if self.only_nccl:
            raise InputError(Verbatim(f"a link: nothing is known of NCCL between {self.tp} {self.device.name}"), "nccl",
                             field="all_reduce")
        return None

    def exchange(self) -> Exchange | None:
        """Return the collectives around the experts of data-parallel ranks; None with one rank."""
        if self.dp == 1:
            return None
        lie = spread(self.dp, self.tp * self.pp, self.device.box)
        if lie.boxes == 1:
            return self._gather(self.dp)
        if (whole := self._whole(self.dp)) is not None:
            return Exchange(half(whole.captured), half(whole.captured), whole.source, wider(GUESS, whole.trust))
        far, said, trust = self._far(lie.boxes, "dispatch", "combine")
        if lie.near == 1:
            return Exchange(half(far), half(far), f"{said}, half an all-reduce each", wider(GUESS, trust))
        near = self._gather(lie.near)
        return Exchange(across(near.gather, half(far), lie.near), across(near.scatter, half(far), lie.near),
                        self._both(near.source, lie, said), wider(near.trust, trust))

    def ports(self) -> tuple[float, float, int, str]:
        """Return the bytes that a device moves in a nanosecond inside its box and between boxes, the number of boxes,
        and the source: the rate of a named link, else a part of the data sheet's.

        An all-reduce between two devices sends each byte once: its slope is the rate.
        """
        from hermes.hardware.composed.all_to_all import NVLINK_SHARE

        near = self._named(2, "dispatch", "combine")
        rate, said = self.device.link_bandwidth * NVLINK_SHARE / 1e9, f"{NVLINK_SHARE:.0%} of NVLink's data sheet"
        if near is not None:
            rate, said = _slope(near.captured), near.source
        if self.boxes == 1:
            return rate, rate, 1, said
        far = self._far(2, "dispatch", "combine")
        return rate, _slope(far.times), self.boxes, (
            f"{said} in boxes of {self.devices // self.boxes}; {far.source} between")

    def hops(self) -> tuple[list[Times], str, Trust | None]:
        """Return the way to each stage but the first, the source, and how far to trust it.

        Sending is taken to be an all-reduce between two devices, in which each sends its bytes once.
        """
        if self.pp == 1:
            return [], "", None
        if self.hop is not None:
            with inside("hop"):
                times, said, trust = all_reduce_times(self.hop, 2, self.device.rates, self.base_dir)
            return [times] * (self.pp - 1), said, trust
        far = crossings(self.pp, self.tp, self.device.box)
        out: dict[bool, Joined] = {}
        if not all(far):
            out[False] = self._near_hop()
        if any(far):
            out[True] = self._far(2, "hops")
        said = "; ".join(one.source for one in out.values())
        if len(out) > 1:
            said = f"{sum(far)} of {len(far)} between boxes: {out[True].source}; the others: {out[False].source}"
        return [out[one].times for one in far], said, wider(*(one.trust for one in out.values()))

    def _near_hop(self) -> Joined:
        named = self._named(2, "hops")
        if named is None and self.kernels is not None and 2 in self.kernels.all_reduce_ranks:
            return Joined(self.kernels.all_reduce(2, captured=False), f"kernel tables {self.kernels.file.name}", GUESS)
        near = self.inside(2)
        return Joined(near.launched, near.source, GUESS if named is None else near.trust or GUESS)

    def _named(self, members: int, *terms: str, tables: bool = False) -> Reduces | None:
        """Return the all-reduces inside a box over a named link, or over PCIe; None where other sources know them.

        tables: Whether the kernel tables go before an assumed PCIe link.
        """
        link = self.device.link if self.boxes > 1 else self.named or self.device.link
        measured = tables and self.kernels is not None and members in self.kernels.all_reduce_ranks
        if not link and not measured and self.device.over_pcie:
            return self._over_pcie(members, terms)
        if not link:
            return None
        with inside("link"):
            times, said, trust = all_reduce_times(link, members, self.device.rates, self.base_dir)
        return Reduces(times, times, said, trust=trust)

    def _over_pcie(self, members: int, terms: tuple[str, ...]) -> Reduces:
        """Return the all-reduces over an assumed PCIe link, whose range reaches to machines with peer access."""
        times, said, _ = all_reduce_times(PCIE_LINK, members, self.device.rates, None)
        found = load_interconnect(PCIE_LINK)
        if self.device.peers_over_pcie:
            found = found.model_copy(update={"fast": load_interconnect(PEER_LINK).fast})
        self._assume(found, members, members, Spread(members, 1), terms)
        return Reduces(times, times, said, trust=found.trust(members, self.device.rates))

    def inside(self, members: int, *terms: str, tables: bool = False, only_nccl: bool = False) -> Reduces:
        """Return the all-reduces inside a box from whatever source there is.

        only_nccl: NCCL's, where the kernel tables tell them from those of the engine's choice.
        """
        found = self._named(members, *terms, tables=tables)
        if found is not None:
            return found
        if self.kernels is not None and members in self.kernels.all_reduce_ranks:
            return self._tabled(self.kernels, members, only_nccl)
        share = self.factors.all_reduce_of(members)
        times = formula(share.latency, 0.0, self.device.link_bandwidth * share.bandwidth, members)
        return Reduces(times, times, f"datasheet of {self.device.name}", trust=GUESS if members <= FEW else BY_SITE)

    def _tabled(self, kernels: KernelTables, members: int, only_nccl: bool) -> Reduces:
        """Return the all-reduces of kernel tables, NCCL's where the engine that measured them chose otherwise."""
        sizes, ns = kernels.all_reduce(members, captured=True)
        captured, launched = (sizes, rising(ns)), kernels.all_reduce(members, captured=False)
        launched = launched[0], rising(launched[1])
        trust = MEASURED if kernels.file.cold else NEAR if members <= FEW else BY_SITE
        name, last = f"kernel tables {kernels.file.name}", float(sizes[-1])
        measured, rules = reduce_rules(kernels.file.engine), reduce_rules(self.engine)
        if measured is None or kernels.file.cold or kernels.file.device != self.device.name:   # the user's choice
            return Reduces(captured, launched, name, last, trust)
        name, had = f"{name} ({kernels.file.engine})", measured.forms(self.device, members)
        wants = Forms() if only_nccl else had if rules is None else rules.forms(self.device, members)
        if all(wants.of(size) != "nccl" or had.of(size) == "nccl" for size in sizes):
            return Reduces(captured, launched, f"{name}: {had.text()}", last, trust)
        from hermes.hardware.composed.reduce_forms import nccl_times, replaced

        inside_graph, from_host = (nccl_times(kernels, members, had, captured=kind) for kind in (True, False))
        if inside_graph is None or from_host is None:
            return Reduces(captured, launched, f"{name}: {had.text()}, in place of {wants.text()}", last, BY_SITE)
        return Reduces(replaced(captured, inside_graph, had, wants), replaced(launched, from_host, had, wants),
                       f"{name}: {wants.text()}, from all-gathers and reduce-scatters", last, trust)

    def _gather(self, members: int) -> Exchange:
        from hermes.hardware.composed.experts import gathered  # most models have none

        named = self._named(members, "dispatch", "combine")
        found = gathered(self.kernels, None if named is None else named.captured, members)
        if found is not None:
            gather, scatter, said = found
            if named is None:
                return Exchange(gather, scatter, said, GUESS)
            return Exchange(gather, scatter, f"{named.source}, {said}", wider(GUESS, named.trust))
        near = self.inside(members)
        return Exchange(half(near.captured), half(near.captured), f"{near.source}, half an all-reduce each",
                        wider(GUESS, near.trust))

    def _whole(self, members: int) -> Reduces | None:
        """Return the all-reduces of a named link that was measured with the whole group, boxes and all."""
        if not isinstance(self.named, str):
            return None
        with inside("link"):
            if all(times.ranks != members for times in load_interconnect(self.named, self.base_dir).measured):
                return None
            times, said, trust = all_reduce_times(self.named, members, self.device.rates, self.base_dir)
        return Reduces(times, times, said, float(times[0][-1]), trust)

    def _far(self, boxes: int, *terms: str) -> Joined:
        """Return the all-reduces between boxes, each device with one in every other box."""
        if self.named is None:
            self._assume(load_interconnect(FAR_LINK), self.devices, boxes, Spread(self.device.box, self.boxes), terms)
        with inside("link"):
            return all_reduce_times(self.named or FAR_LINK, boxes, self.device.rates, self.base_dir)

    def _both(self, near: str, lie: Spread, far: str) -> str:
        return f"{near} in boxes of {lie.near}; {far} between {lie.boxes}"

    def _assume(self, found: LinkDescription, members: int, ranks: int, lie: Spread, terms: tuple[str, ...]) -> None:
        """Note an assumed link, each once with all its terms.

        members: Devices that it joins. ranks: Devices of one all-reduce over it.
        """
        earlier = next((one for one in self.assumed if one.link == found.name), None)
        if earlier is not None:
            self.assumed[self.assumed.index(earlier)] = earlier._replace(
                terms=tuple(dict.fromkeys((*earlier.terms, *terms))))
            return
        device = self.device.name
        figures = f"{found.name} is assumed ({self._figures(found, ranks)})"
        if lie.boxes > 1:
            text = f"{members} {device} are {lie.boxes} boxes of up to {lie.near}; between boxes {figures}"
        else:
            text = f"{members} {device} have no NVLink; between them {figures}"
        key = "hardware.link"
        remedy = f"name yours: {NAMING}"
        if lie.boxes == 1 and self.boxes > 1:   # `link` is the one between boxes
            key, remedy = "device.link", "name yours: `link` of a device file"
        self.assumed.append(AssumedLink(found.name, key, terms, f"{text}; {remedy}"))

    def _figures(self, found: LinkDescription, ranks: int) -> str:
        """Return rate and latency of an assumed link, and those at the ends of its range."""
        rates, doublings = self.device.rates, math.log2(ranks) - 1.0
        rate, latency = found.rate(rates) or 0.0, (found.latency or 0.0) + doublings * found.latency_per_doubling
        said = f"{rate / 1e9:.3g} GB/s for each device, {latency * 1e6:.3g} us"
        if found.fast is None or found.slow is None:
            return said
        slow, fast = (end.rate(ranks, rates) / 1e9 for end in (found.slow, found.fast))
        short, long = (1e6 * (end.latency + doublings * end.latency_per_doubling) for end in (found.fast, found.slow))
        return f"{said}; sites have {slow:.2g} to {fast:.2g} GB/s, {short:.2g} to {long:.2g} us"


def _slope(times: Times) -> float:
    """Return bytes for each nanosecond between the two last points."""
    sizes, ns = times
    return float((sizes[-1] - sizes[-2]) / max(ns[-1] - ns[-2], 1e-9))
