"""Compare a profile of kernel tables with a recorded run on a card that it never saw, the RTX PRO 6000.

    python scripts/validate_unseen_card.py [FOLDER] [--python PATH]

FOLDER holds the recorded run of Llama-3.1-8B on an RTX PRO 6000 (see validate_vllm_gpu.py, which has its scenario). The
profile is the shipped `llama-3.1-8b-rtx-pro-6000-tp1-bf16`: aiconfigurator-core, `hermes fit`. With `--python` (an
interpreter with aiconfigurator-core) the profile is also imported and fitted without each of the two effects that the
tables leave out, to show their size: unequal decode contexts, and decodes' attention beside a prefill.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from validate_vllm_gpu import CAUSES, METRICS, REFERENCE, run

from hermes.calibration.fit import fit_steps, write_profile
from hermes.calibration.importers import Aiconfigurator
from hermes.errors import HermesError

CASE, FOLDER, PROFILE = "vllm-0.19-rtx-pro-6000", "rtxpro6000-llama-3.1-8b", "llama-3.1-8b-rtx-pro-6000-tp1-bf16"
WITHOUT = {
    "without unequal contexts": {"skew": 0.0},
    "without attention beside a prefill": {"mixed_attention": 1.0},
    "without both: the tables alone": {"skew": 0.0, "mixed_attention": 1.0},
}


def show(what: str, profile: str, folder: Path) -> None:
    """Print one line: errors of the means, and of the percentiles of TPOT."""
    CAUSES[what] = [f"clients.0.hardware={{kind: polynomial, profile: '{profile}'}}"]
    rows = {(row.metric, row.stat): row.error for row in run(CASE, folder, what).rows}
    means = "  ".join(f"{metric} {rows[metric, 'mean']:+6.1%}" for metric in METRICS)
    tails = "  ".join(f"{stat} {rows['tpot', stat]:+6.1%}" for stat in ("p50", "p90", "p99"))
    print(f"{what:38s} means: {means}   tpot: {tails}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=REFERENCE / FOLDER)
    parser.add_argument("--python", help="interpreter with aiconfigurator-core")
    options = parser.parse_args()
    try:
        show("the shipped profile", PROFILE, options.folder)
        for what, choice in WITHOUT.items() if options.python else ():
            importer = Aiconfigurator(
                model="meta-llama/Meta-Llama-3.1-8B", system="rtx_pro_6000_server", python=options.python, **choice
            )
            with tempfile.TemporaryDirectory() as temporary:
                path = Path(temporary) / "profile.yaml"
                write_profile(fit_steps(importer.steps()), path)
                show(what, str(path), options.folder)
    except HermesError as error:
        print(f"validate_unseen_card: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
