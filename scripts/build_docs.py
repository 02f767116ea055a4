"""Build the documentation as a site, with every warning an error: `python scripts/build_docs.py [--only mkdocs]`.

The pages stand in docs/ and studies/, beside what they describe. A site has one root, so they are copied to build/pages
first, with their generated parts (`generated_pages`), with the README as the home page, and with the pictures and files
that pages link to. MkDocs checks the links, then Zensical writes build/site; both read mkdocs.yml.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from generated_pages import expand

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def pages() -> list[Path]:
    """Return the README and the other pages at the root that the navigation has, and all in docs/ and studies/."""
    root = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*root, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "studies").rglob("*.md"))]


def linked(page: Path) -> list[Path]:
    """Return the files that a page links to or shows, in its generated parts, too."""
    targets = LINK.findall(expand(page.read_text(encoding="utf-8")))
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


def stage() -> None:
    """Copy the pages to build/pages, and every page, picture and file that they link to, directly or not."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found, pending = set[Path](), pages()
    while pending:
        path = pending.pop()
        found.add(path)
        if path.suffix == ".md":
            pending += [target for target in linked(path) if target.is_file() and target not in found]
    for path in found:
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(expand(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    shutil.copytree(ROOT / "docs" / "site", PAGES / "docs" / "site")


def main(arguments: list[str]) -> int:
    """Stage the pages and build the site with each builder; return the first exit code other than 0."""
    stage()
    builders = arguments[1:] if arguments[:1] == ["--only"] else ["mkdocs", "zensical"]
    for builder in builders:
        # MkDocs has not the theme that mkdocs.yml describes for Zensical
        theme = ["--theme", "mkdocs"] if builder == "mkdocs" else []
        done = subprocess.run([sys.executable, "-m", builder, "build", "--strict", "--clean", *theme], cwd=ROOT,
                              check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
