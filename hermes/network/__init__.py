"""Networks: the time of transfers, and the extension point for networks of your own.

`NETWORKS` registers the components that YAML can name; their `build(env, nodes)` returns a `Network`.
"""

from hermes.core.network import LinkUse, Network, can_cancel
from hermes.network.base import NETWORKS, BaseNetwork, NetworkComponent, Site
from hermes.network.layerwise import LayerStream, exposed_bytes

__all__ = [
    "NETWORKS", "BaseNetwork", "LayerStream", "LinkUse", "Network", "NetworkComponent", "Site", "can_cancel",
    "exposed_bytes",
]
