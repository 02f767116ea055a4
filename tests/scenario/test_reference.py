"""docs/reference/scenario.md says what the models say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_up_to_date():
    command = [sys.executable, str(ROOT / "scripts" / "build_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
