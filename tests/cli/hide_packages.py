"""Hide packages from a process: as `sitecustomize.py`, with HIDDEN=NAME,... and, for broken ones, BROKEN=TEXT.

LOG=FILE notes the packages that the process looks for, one name a line.
"""

import os
import sys

_HIDDEN = frozenset(os.environ.get("HIDDEN", "").split(","))
_BROKEN = os.environ.get("BROKEN")
_LOG = os.environ.get("LOG")


class _Hidden:
    """A finder that fails as Python does without a package, or as a package whose libraries do not load."""

    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if _LOG:
            with open(_LOG, "a", encoding="utf-8") as log:
                log.write(f"{package}\n")
        if package in _HIDDEN:
            raise ImportError(_BROKEN) if _BROKEN else ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Hidden())
