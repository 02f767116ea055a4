"""Build the documentation as a site, with every warning an error: `python scripts/build_docs.py [--only mkdocs]`.

The pages stand in docs/ and studies/, beside what they describe. A site has one root, so they are copied to build/pages
first, with the README as the home page and with the pictures and files that pages link to. MkDocs and Zensical then
read mkdocs.yml and write build/site.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def pages() -> list[Path]:
    """Return the README, and every page in docs/ and studies/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "studies").rglob("*.md"))]


def linked(page: Path) -> list[Path]:
    """Return the files that a page links to or shows."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


def stage() -> None:
    """Copy the pages and their linked files to build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found = pages()
    for path in {*found, *(target for page in found for target in linked(page) if target.is_file())}:
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def main(arguments: list[str]) -> int:
    """Stage the pages and build the site with each builder; return the first exit code other than 0."""
    stage()
    builders = arguments[1:] if arguments[:1] == ["--only"] else ["mkdocs", "zensical"]
    for builder in builders:
        done = subprocess.run([sys.executable, "-m", builder, "build", "--strict", "--clean"], cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
