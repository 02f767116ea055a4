from pathlib import Path
from typing import Literal

import numpy as np

from hermes.config import Duration
from hermes.hardware import HARDWARE, HardwareConfig, StepStats, VectorHardwareModel


@HARDWARE.register("linear")
class Linear(HardwareConfig):
    """A fixed time for each step, and so much for each token."""

    kind: Literal["linear"] = "linear"
    step: Duration = 0.005
    """Time of a step whatever it computes."""
    prompt_token: Duration = 100e-6
    """Time of each new token of a prompt."""
    context_token: Duration = 50e-9
    """Time of each KV token that decoding sequences read."""

    def build(self, base_dir: Path | None = None) -> "LinearModel":
        return LinearModel(self)


class LinearModel(VectorHardwareModel):
    def __init__(self, config: Linear) -> None:
        self.config, self.name = config, "linear"

    def run_seconds(self, stats: StepStats, num_steps: int) -> np.ndarray:
        context = stats.decode_ctx + stats.decode_seqs * np.arange(num_steps)
        fixed = self.config.step + self.config.prompt_token * stats.prefill_tokens
        return fixed + self.config.context_token * context
