"""Schedulers of LLM clients: step plans for a batch; the extension points for schedulers and packing policies."""

from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.core.stage import Stage
from hermes.hardware.base import StepStats
from hermes.memory.blocks import BlockPool
from hermes.schedulers.base import SCHEDULERS, LLMScheduler, run_order
from hermes.schedulers.config import SchedulerConfig
from hermes.schedulers.decode_group import DecodeGroup
from hermes.schedulers.plan import Plan
from hermes.schedulers.queues import PACKING, WaitingQueue

__all__ = [
    "PACKING", "SCHEDULERS", "BlockPool", "DecodeGroup", "Generation", "LLMScheduler", "Plan", "Reason",
    "SchedulerConfig", "Stage", "StepStats", "WaitingQueue", "run_order",
]
