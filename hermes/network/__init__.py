"""Networks: the time of transfers, and the extension point for networks of your own.

`NETWORKS` registers the components that YAML can name; their `build(env, nodes)` returns a `Network`.
"""

from hermes.core.layerwise import LayerStream, exposed_bytes
from hermes.core.network import LinkUse, Network
from hermes.network.base import NETWORKS, BaseNetwork, NetworkComponent, Site

__all__ = [
    "NETWORKS", "BaseNetwork", "LayerStream", "LinkUse", "Network", "NetworkComponent", "Site", "exposed_bytes",
]
