"""What a batch of embeddings, retrievals or rerankings costs: the extension point for services."""

from hermes.core.stage import ServiceStage, check_count
from hermes.hardware.devices import MachineSpec
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
