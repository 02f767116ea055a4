"""What a transfer costs: from no time at all to max-min fair shares of a topology's links.

`NETWORKS` holds the components that can stand in YAML; their `build(env, nodes)` gives a `Network`.
"""

from hermes.core.layerwise import LayerStream, exposed_bytes
from hermes.core.network import LinkUse, Network
from hermes.network.base import NETWORKS, BaseNetwork, NetworkComponent, Site
from hermes.network.cluster import HgxBox, MultiRack, Rack
from hermes.network.components import Ideal, Link
from hermes.network.topology import Attachment, Topology, TopologyLink

__all__ = [
    "NETWORKS", "Attachment", "BaseNetwork", "HgxBox", "Ideal", "LayerStream", "Link", "LinkUse", "MultiRack",
    "Network", "NetworkComponent", "Rack", "Site", "Topology", "TopologyLink", "exposed_bytes",
]
