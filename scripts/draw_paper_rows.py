"""Draw rows of the papers' tables (studies/NAME/paper.csv) by a seed, to check them by hand.

    python scripts/draw_paper_rows.py 58 40 23e8b78d

draws 40 rows with seed 58 from the tables of a commit: those of studies/checked.csv. Rows of which the paper has no
figure are left out, and so are the studies of posts in place of a paper.
"""

from __future__ import annotations

import csv
import io
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POSTS = ("routers", "start_up")
Row = dict[str, str]


def rows_at(commit: str) -> list[Row]:
    """Return the rows of all tables at a commit, by study."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    found = []
    for path in sorted(git("ls-tree", "-r", "--name-only", commit, "studies").split()):
        study = Path(path).parent.name
        if Path(path).name == "paper.csv" and study not in POSTS:
            found += [{"study": study} | row for row in csv.DictReader(io.StringIO(git("show", f"{commit}:{path}")))]
    return [row for row in found if row["paper"] not in ("", "-")]


def drawn(seed: int, count: int, rows: list[Row]) -> list[Row]:
    """Return `count` of the rows, in their order."""
    return [rows[place] for place in sorted(random.Random(seed).sample(range(len(rows)), count))]


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__)
        return 2
    for row in drawn(int(arguments[0]), int(arguments[1]), rows_at(arguments[2])):
        print(f"{row['study']}: {row['figure']} | {row['paper']} | {row['here']} | {row['verdict']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
