"""Networks: the time of transfers, from none at all to max-min fair shares of a topology's links.

`NETWORKS` registers the components that YAML can name; their `build(env, nodes)` returns a `Network`.
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
