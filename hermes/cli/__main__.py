"""`python -m hermes.cli`."""

from hermes.cli import main

raise SystemExit(main())
