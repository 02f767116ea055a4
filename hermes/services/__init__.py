"""Services of clients without an LLM engine: the work of a batch; the extension point for services of your own."""

from hermes.core.stage import ServiceStage, check_count
from hermes.hardware.descriptions.devices import MachineSpec
from hermes.services.base import (
    SERVICES,
    Encoder,
    EncoderService,
    PerItem,
    PhaseCost,
    Service,
    Work,
    check_memory,
    count_option,
    machine_of,
)

__all__ = [
    "SERVICES", "Encoder", "EncoderService", "MachineSpec", "PerItem", "PhaseCost", "Service", "ServiceStage", "Work",
    "check_count", "check_memory", "count_option", "machine_of",
]
