"""Compare KV memory with what engines printed at start-up.

    python scripts/kv_lines.py [FILE.csv] [--no-terms]

FILE.csv has the columns of `kv-lines.csv` (one row for each start of an engine). Of each row: KV in GiB a card here and
printed, the error, and the terms of the sum. Rows are `complete`, `assumed` or `partial`, as the file says; `fitted`
marks those that terms were found on. A row without card, utilisation or a described model is listed with the reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evidence.accuracy.kv_lines import compared, summary

HERE = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=HERE.parent / "shared" / "data" / "kv-lines.csv")
    parser.add_argument("--no-terms", action="store_true", help="leave out the terms")
    asked = parser.parse_args()
    rows = list(compared(asked.file))
    for row in rows:
        print(row.line())
        if not asked.no_terms and row.terms:
            print("     " + "; ".join(f"{name} {size:.2f}" for name, size in row.terms.items()))
    print()
    for line in summary(rows):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
