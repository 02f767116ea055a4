"""Topologies without a list of links: boxes of GPUs, racks of boxes, several racks behind a spine.

    box     GPUs joined by an NVLink switch; their host, reached over PCIe
    rack    boxes and servers on one non-blocking switch: a GPU client has the NICs of its GPUs, a host has its own
    racks   rack switches on a spine, each over one uplink, which may be oversubscribed

`place` puts the clients into boxes. A client with GPUs takes as many as it has devices, and their NVLinks, PCIe links
and NICs are its own. Clients without GPUs (retrieval, processing, KV stores) that name a box sit at its host. Others
are separate servers, spread evenly over the racks.

The defaults are those of an HGX H100: NVLink 4 with 450 GB/s per direction and GPU, PCIe 5.0 x16 with 64 GB/s, one NIC
of 400 Gbit/s per GPU. Latencies are round figures of such links, not measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator
from simpy.core import Environment

from hermes.config import Duration
from hermes.core.network import Network
from hermes.errors import InputError, Verbatim
from hermes.network.base import FailingLinks, Site
from hermes.network.components import LinkBandwidth
from hermes.network.topology import TopologyLink, TopologyNetwork, check_links
from hermes.units import counted

__all__ = ["Box", "HgxBox", "Layout", "MultiRack", "Rack"]

SPINE = "spine"


class Box(NamedTuple):
    """A box, named `RACK/BOX`, with its clients on GPUs and its clients at the host."""

    name: str
    gpu_clients: list[Site]
    host_clients: list[Site]

    @property
    def gpus(self) -> int:
        return sum(site.gpus for site in self.gpu_clients)


class Layout(NamedTuple):
    """Places of the clients: per rack its boxes, and its separate servers."""

    boxes: dict[str, list[Box]]
    servers: dict[str, list[Site]]


class _Parts(FailingLinks):
    """Parts of a box."""

    gpus_per_box: int = Field(default=8, ge=1, le=4096)
    """GPUs of a box. Clients are put into boxes by their number of devices."""
    nvlink: LinkBandwidth = 450e9
    """Bytes/s of a GPU to the NVLink switch of its box, in each direction."""
    nvlink_latency: Duration = 1e-6
    """Time of a byte from a GPU to the switch."""
    pcie: LinkBandwidth = 64e9
    """Bytes/s between a GPU and the host of its box, in each direction."""
    pcie_latency: Duration = 1e-6
    """Time of a byte from a GPU to the host."""

    def build(self, env: Environment, nodes: Sequence[str]) -> Network:
        """Build the network of one run between clients with one GPU each."""
        return self.build_at(env, [Site(node) for node in nodes])

    def build_at(self, env: Environment, sites: Sequence[Site]) -> Network:
        """Build the network of one run. `InputError` if the clients do not fit."""
        layout = self.place(sites)
        links, places = self._links(layout)
        nodes = dict.fromkeys(site.name for site in sites)
        for name in _inner_names(layout):
            if name in nodes:
                raise InputError(Verbatim(f"client {name!r} has the name of a part of the network; rename the client"),
                                 field="clients")
        check_links(links)
        ends = dict.fromkeys([*(end for link in links for end in (link.a, link.b)), *places.values()])
        return TopologyNetwork(env, list(nodes), [end for end in ends if end not in nodes], links, places)

    def place(self, sites: Sequence[Site]) -> Layout:
        """Place the clients."""
        raise NotImplementedError

    def _links(self, layout: Layout) -> tuple[list[TopologyLink], dict[str, str]]:
        """Return all links, and the node of each client without links of its own."""
        links: list[TopologyLink] = []
        places: dict[str, str] = {}
        for boxes in layout.boxes.values():
            for box in boxes:
                self._box(box, links, places)
        return links, places

    def _box(self, box: Box, links: list[TopologyLink], places: dict[str, str]) -> None:
        for site in box.gpu_clients if len(box.gpu_clients) > 1 else ():
            links.append(_link(site.name, f"{box.name}/nvlink", self.nvlink * site.gpus, self.nvlink_latency))
        for site in box.gpu_clients if box.host_clients else ():
            links.append(_link(site.name, f"{box.name}/host", self.pcie * site.gpus, self.pcie_latency))
        places |= {site.name: f"{box.name}/host" for site in box.host_clients}

    def _fill(self, sites: Sequence[Site], rack: str, limit: int | None) -> list[Box]:
        """Fill the boxes of one rack: by the clients' platform if it names a box, otherwise in order, as they fit."""
        named: dict[str, Box] = {}
        free: list[Site] = []
        for site in sites:
            wanted = self._box_of(site)
            if wanted is None:
                free.append(site)
                continue
            box = named.setdefault(wanted, Box(wanted, [], []))
            (box.gpu_clients if site.gpus else box.host_clients).append(site)
        for box in named.values():
            if box.gpus > self.gpus_per_box:
                raise InputError(f"at most {self.gpus_per_box} GPUs in box {box.name!r}", box.gpus,
                                 field="gpus_per_box")
        number = 0
        for site in free:
            if site.gpus > self.gpus_per_box:
                raise InputError(f"clients of at most {counted(self.gpus_per_box, 'device')} ({site.name!r})",
                                 site.gpus, field="gpus_per_box")
            while (name := f"{rack}/box{number}") in named and named[name].gpus + site.gpus > self.gpus_per_box:
                number += 1
            named.setdefault(name, Box(name, [], [])).gpu_clients.append(site)
        boxes = list(named.values())
        if limit is not None and len(boxes) > limit:
            raise InputError(f"at least {len(boxes)} boxes in {rack!r} for its clients", limit, field="boxes_per_rack")
        return boxes

    def _box_of(self, site: Site) -> str | None:
        """Return the box that a client's platform names, or None."""
        return site.platform or None


class HgxBox(_Parts):
    """One box: GPUs joined by an NVLink switch, and their host over PCIe."""

    kind: Literal["hgx_box"] = "hgx_box"

    def place(self, sites: Sequence[Site]) -> Layout:
        gpus = sum(site.gpus for site in sites)
        if gpus > self.gpus_per_box:
            raise InputError(f"at least the {gpus} GPUs of its clients in the box", self.gpus_per_box,
                             field="gpus_per_box")
        box = Box("box", [s for s in sites if s.gpus], [s for s in sites if not s.gpus])
        return Layout({"box": [box]}, {"box": []})


class _Racked(_Parts):
    """Boxes and servers with NICs on rack switches."""

    nics_per_box: int | None = Field(default=None, ge=1, le=4096)
    """NICs of a box; a client has the share of its GPUs. Left out, one per GPU."""
    nic: LinkBandwidth = 50e9
    """Bytes/s of a NIC, in each direction."""
    nic_latency: Duration = 2e-6
    """Time of a byte from a box or server to the rack switch."""
    host_nic: LinkBandwidth = 50e9
    """Bytes/s of a host or server without GPUs to the rack switch, in each direction."""
    boxes_per_rack: int | None = Field(default=None, ge=1, le=100_000)
    """Boxes that fit into a rack."""

    @model_validator(mode="after")
    def _nearest_is_fastest(self) -> Self:
        if not self.nvlink_latency <= self.pcie_latency <= self.nic_latency:
            raise InputError("latencies that grow outwards: nvlink <= pcie <= nic (transfers take the path of least "
                             "latency)", [self.nvlink_latency, self.pcie_latency, self.nic_latency],
                             field="nic_latency")
        return self

    def _links(self, layout: Layout) -> tuple[list[TopologyLink], dict[str, str]]:
        links, places = super()._links(layout)
        per_gpu = (self.nics_per_box or self.gpus_per_box) / self.gpus_per_box * self.nic
        for rack, boxes in layout.boxes.items():
            for box in boxes:
                links += [_link(s.name, rack, per_gpu * s.gpus, self.nic_latency) for s in box.gpu_clients]
                if box.host_clients:
                    links.append(_link(f"{box.name}/host", rack, self.host_nic, self.nic_latency))
            links += [_link(s.name, rack, self.host_nic, self.nic_latency) for s in layout.servers[rack]]
        return links, places


class Rack(_Racked):
    """Boxes and servers on one switch. A client's `platform` is its box; without one, boxes fill in order."""

    kind: Literal["rack"] = "rack"

    def place(self, sites: Sequence[Site]) -> Layout:
        boxes = self._fill([s for s in sites if s.gpus or s.platform], "rack", self.boxes_per_rack)
        return Layout({"rack": boxes}, {"rack": [s for s in sites if not (s.gpus or s.platform)]})

    def _box_of(self, site: Site) -> str | None:
        return f"rack/{site.platform}" if site.platform else None


class MultiRack(_Racked):
    """Racks on a spine. A client's `platform` is its rack, or `RACK/BOX`; without one, racks fill in order."""

    kind: Literal["multi_rack"] = "multi_rack"
    boxes_per_rack: int = Field(default=8, ge=1, le=100_000)
    """Boxes that fit into a rack."""
    racks: int | None = Field(default=None, ge=1, le=100_000)
    """Racks over which clients without a platform are spread. Left out, as many as needed."""
    oversubscription: float | None = Field(default=None, gt=0, le=1e6)
    """Bandwidth of all NICs of a full rack over that of its uplink; 1 is non-blocking. Left out, `uplink` applies, or
    else 1."""
    uplink: LinkBandwidth | None = None
    """Bytes/s between a rack switch and the spine, in each direction, instead of `oversubscription`."""
    uplink_latency: Duration = 2e-6
    """Time of a byte from a rack switch to the spine; between racks it counts twice."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.uplink is not None and self.oversubscription is not None:
            raise InputError(Verbatim("uplink and oversubscription exclude each other; give one"), field="uplink")
        return self

    @property
    def uplink_bandwidth(self) -> float:
        """Bytes/s of a rack's uplink."""
        nics = self.nics_per_box or self.gpus_per_box
        return self.uplink or self.boxes_per_rack * nics * self.nic / (self.oversubscription or 1.0)

    def place(self, sites: Sequence[Site]) -> Layout:
        racks = self._racks(sites)
        boxes = {rack: self._fill([s for s in inside if s.gpus or self._box_of(s)], rack, self.boxes_per_rack)
                 for rack, inside in racks.items()}
        servers = {rack: [s for s in inside if not (s.gpus or self._box_of(s))] for rack, inside in racks.items()}
        return Layout(boxes, servers)

    def _racks(self, sites: Sequence[Site]) -> dict[str, list[Site]]:
        """Return the clients of each rack."""
        racks: dict[str, list[Site]] = {}
        size = self.gpus_per_box * self.boxes_per_rack
        free = [site for site in sites if not site.platform and site.gpus]
        servers = [site for site in sites if not site.platform and not site.gpus]
        if free:
            needed = self._needed(free, size)
            number = self.racks or needed
            if number < needed:
                raise InputError(f"at least {needed} racks for the clients without a platform", number, field="racks")
            per_rack = -(-len(free) // number) if self.racks else 0
            self._deal(free, [f"rack{i}" for i in range(number)], per_rack, racks)
        for site in sites:
            if site.platform:
                racks.setdefault(site.platform.split("/")[0], []).append(site)
        names = list(racks) or [f"rack{i}" for i in range(self.racks or 1)]
        for index, site in enumerate(servers):
            racks.setdefault(names[index * len(names) // len(servers)], []).append(site)
        return racks

    def _needed(self, sites: Sequence[Site], size: int) -> int:
        boxes, room = 0, 0
        for site in sites:
            if site.gpus > room:
                boxes, room = boxes + 1, self.gpus_per_box
            room -= site.gpus
        return max(1, -(-boxes // self.boxes_per_rack))

    def _deal(self, sites: Sequence[Site], names: list[str], per_rack: int, racks: dict[str, list[Site]]) -> None:
        """Deal clients to racks in order: a fixed number to each rack, or until its boxes are full."""
        rack, boxes, room, held = 0, 0, 0, 0
        for site in sites:
            full = site.gpus > room and boxes == self.boxes_per_rack
            if (full or (per_rack and held == per_rack)) and rack + 1 < len(names):
                rack, boxes, room, held = rack + 1, 0, 0, 0
            if site.gpus > room:
                boxes, room = boxes + 1, self.gpus_per_box
            room -= site.gpus
            held += 1
            racks.setdefault(names[rack], []).append(site)

    def _box_of(self, site: Site) -> str | None:
        return site.platform if "/" in site.platform else None

    def _links(self, layout: Layout) -> tuple[list[TopologyLink], dict[str, str]]:
        links, places = super()._links(layout)
        if len(layout.boxes) > 1:
            links += [_link(rack, SPINE, self.uplink_bandwidth, self.uplink_latency) for rack in layout.boxes]
        return links, places


def _link(a: str, b: str, bandwidth: float, latency: float) -> TopologyLink:
    return TopologyLink(a=a, b=b, bandwidth=bandwidth, latency=latency)


def _inner_names(layout: Layout) -> list[str]:
    inner = [f"{box.name}/{part}" for boxes in layout.boxes.values() for box in boxes for part in ("nvlink", "host")]
    return [SPINE, *layout.boxes, *inner]
