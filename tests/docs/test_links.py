"""Links of all pages lead somewhere, anchors included; pages named in code exist; how-to pages are short."""

import re

from each import each
from markdown_blocks import ROOT, anchors, pages, whole


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@each("page", pages(), ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"(?ms)^```.*?^```$", "", whole(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            assert not re.match(r"https?://(pypi\.org|files\.pythonhosted)", target), f"{target}: a package's own home"
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), target
        if anchor:
            assert anchor in anchors(found), target


def test_pages_named_in_code_and_scenarios_exist():
    wrong = []
    for folder in ("hermes", "scripts", "scenarios", "hw_profiles", "benchmarks", "notebooks", "studies", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".ipynb"):
                for named in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
                    if not (ROOT / named).is_file():
                        wrong.append(f"{path.relative_to(ROOT)}: {named}")
    assert not wrong


def test_every_page_is_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    reached, pending = {index}, [index]
    while pending:
        page = pending.pop()
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            if found.is_file() and found not in reached:
                reached.add(found)
                pending.append(found)
    left = [name_of(page) for page in sorted((ROOT / "docs").rglob("*.md")) if page not in reached]
    assert [name for name in left if not name.startswith("docs/studies/")] == []


def test_every_how_to_opens_with_its_question_and_has_a_command():
    wrong = []
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        opening = text.split("\n\n")[1]
        if "?" not in opening or not re.search(r"(?m)^```bash\n(?:.*\n)*?hermes ", text):
            wrong.append(name_of(page))
    assert not wrong
