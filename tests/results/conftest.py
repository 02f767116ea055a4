"""Tests in the rooms share the records of this folder, and what tests of figures simulate."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE / "figures")]
