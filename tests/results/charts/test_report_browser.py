"""The page in headless Chromium: `make test-browser`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.cli import main

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hermes-sim[browser]'")
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome")
                 if (path := shutil.which(name))), None)
if CHROMIUM is None:
    pytest.skip("needs Chromium (Debian: apt-get install chromium)", allow_module_level=True)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for name, extra in (("one", []), ("two", ["--set", "clients.0.count=2", "--set", "name=two"])):
        call = ["run", "quickstart", "--set", "workload.requests=300", *extra, "-o", str(folder / name), "-q"]
        assert main(call) == 0
    path = folder / "page.html"
    assert main(["report", str(folder / "one"), str(folder / "two"), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture(params=[(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")],
                ids=lambda one: f"{one[0]}-{one[1]}")
def opened(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[Any]:
    """The page, with what it said to the console and what it asked for."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900 if width > 400 else 844}, color_scheme=scheme)
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda asked: page.asked.append(asked.url))
    page.goto(page_file.as_uri())
    page.wait_for_function("Object.keys(specs).every(id => views[id])")
    yield page
    assert page.said == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_all_charts_are_drawn_and_nothing_overflows(opened: Any) -> None:
    charts = opened.query_selector_all(".chart svg")
    assert len(charts) >= 9
    assert all(chart.bounding_box()["width"] > 200 for chart in charts)
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_theme_changes(opened: Any) -> None:
    def background() -> str:
        return str(opened.evaluate("getComputedStyle(document.body).backgroundColor"))

    before = background()
    opened.click("#theme")
    opened.wait_for_timeout(300)
    assert background() != before
    opened.click("#theme")
    assert background() == before


def test_the_legend_shows_one_run(opened: Any) -> None:
    opened.locator("#chart0 .role-legend-symbol path").first.click()
    opened.wait_for_timeout(200)
    assert len(opened.evaluate("views.chart0.data('shown_store')")) == 1


def test_texts_lie_inside_their_charts(opened: Any) -> None:
    """Labels at the ends of lines and at percentiles used to be cut at the right edge of narrow pages."""
    outside = opened.evaluate("""() => [...document.querySelectorAll('.chart svg')].flatMap(svg => {
        const edge = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => text.textContent && (
            text.getBoundingClientRect().right > edge.right + 2 || text.getBoundingClientRect().left < edge.left - 2)
        ).map(text => text.textContent)})""")
    assert outside == []


def test_the_page_follows_the_scheme_of_the_system(opened: Any) -> None:
    for scheme in ("dark", "light"):
        opened.emulate_media(color_scheme=scheme)
        opened.wait_for_timeout(300)
        assert opened.evaluate("document.documentElement.dataset.theme") == scheme


def test_lines_of_the_slo_are_seen_on_both_grounds(opened: Any) -> None:
    """Dashed lines were black on the dark ground."""
    stroke = opened.evaluate("document.querySelector('#chart0 .mark-rule.role-mark line').getAttribute('stroke')")
    dark = opened.evaluate("document.documentElement.dataset.theme") == "dark"
    assert stroke == ("#e4e8ee" if dark else "#1c2128")
