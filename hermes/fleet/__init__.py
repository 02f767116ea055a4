"""Fleets: what a serving platform adds around engines. Replicas that join and leave, and what decides it.

    config       the option `fleet` of a group of clients
    autoscalers  registry of what decides how many replicas there are
    start_ups    registry of how a replica starts; startup, startup_*: by phases, on nodes with caches
    spares       started replicas that are kept back
    replicas     the slots of a group: starting, ready, draining, gone
    fleet        all groups of a simulation, and the routers that see who is ready
"""
