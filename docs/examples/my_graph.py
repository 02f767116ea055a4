from typing import Any

from pydantic import Field

from hermes.pipelines import PIPELINES, GraphTemplate


@PIPELINES.register("debate")
class Debate(GraphTemplate):
    """Several answers side by side, then one that has read them all."""

    voices: int = Field(default=3, ge=1, le=100)
    """Answers before the last."""
    share: float = Field(default=0.5, gt=0, le=1)
    """How long each of them is, as a share of the output."""

    def nodes(self) -> dict[str, dict[str, Any]]:
        length = f"ceil(output * {self.share:g})"
        return {
            "voice": {"kind": "generate", "output": length, "copies": self.voices},
            "last": {"kind": "generate", "after": "voice", "prompt": f"prompt + {self.voices} * {length}"},
        }
