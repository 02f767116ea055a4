"""What a transfer costs, and the extension point for networks of one's own.

`NETWORKS` holds the components that can stand in YAML; their `build(env, nodes)` gives a `Network`.
"""

from hermes.core.layerwise import LayerStream, exposed_bytes
from hermes.core.network import LinkUse, Network
from hermes.network.base import NETWORKS, BaseNetwork, NetworkComponent, Site

__all__ = [
    "NETWORKS", "BaseNetwork", "LayerStream", "LinkUse", "Network", "NetworkComponent", "Site", "exposed_bytes",
]
