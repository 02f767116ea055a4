"""Run the kernel's benchmarks, then those of step pricing: `python -m benchmarks` (or `make bench`)."""

import argparse
import sys

from benchmarks import core, hardware

parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--genz-python")
own, sys.argv[1:] = parser.parse_known_args()
core.main()
if not {"--only", "--case"} & set(sys.argv):
    json_file = next((b for a, b in zip(sys.argv, sys.argv[1:], strict=False) if a == "--json"), None)
    hardware.main(own.genz_python, json_file)
