"""Serve an online workload with a real vLLM engine: `VLLM_PYTHON -m hermes.calibration.collect.vllm_online WORKLOAD
RESULT` (files of `hermes.calibration.collect.online`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hermes.calibration.collect.online import serve_workload
from hermes.calibration.collect.vllm_engine import VllmEngine, environment, prepare_environment

__all__ = ["main"]


def _start(config: dict[str, Any]) -> VllmEngine:
    prepare_environment(config, int(config.get("threads", 1)))
    return VllmEngine(config)


def main(arguments: list[str]) -> int:
    """Command line."""
    if len(arguments) != 2:
        print("usage: python -m hermes.calibration.collect.vllm_online WORKLOAD.json RESULT.json", file=sys.stderr)
        return 2
    serve_workload(Path(arguments[0]), Path(arguments[1]), _start, environment)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
