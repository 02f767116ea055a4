"""`python -m hermes`: the command line."""

import sys

from hermes.cli import main

sys.exit(main())
