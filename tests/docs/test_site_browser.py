"""The built site in headless Chromium: `make test-browser`."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from markdown_blocks import ROOT

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hermes-sim[browser]'")
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome")
                 if (path := shutil.which(name))), None)
if CHROMIUM is None:
    pytest.skip("needs Chromium (Debian: apt-get install chromium)", allow_module_level=True)
SITE = ROOT / "build" / "site"
if not (SITE / "index.html").is_file():
    pytest.skip("needs the site: make docs", allow_module_level=True)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site over HTTP on this machine, since a search index is fetched."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        made = browser.new_page()
        made.asked = []
        made.on("request", lambda asked: made.asked.append(asked.url))
        yield made
        assert [url for url in made.asked if not url.startswith((address, "data:", "blob:"))] == []
        browser.close()


def test_the_first_page_says_what_to_do_and_code_can_be_copied(page: Any, address: str) -> None:
    page.goto(f"{address}/index.html")
    assert "hermes run quickstart" in page.inner_text("main")
    page.wait_for_selector(".md-code__button, .md-clipboard")


def test_search_finds_a_key(page: Any, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.keyboard.press("f")
    page.keyboard.type("max_num_batched_tokens", delay=20)
    page.wait_for_selector("a:has-text('scenario'), li:has-text('max_num_batched_tokens')")


def test_pages_lead_to_the_ones_before_and_after(page: Any, address: str) -> None:
    page.goto(f"{address}/docs/how-to/autoscalers.html")
    assert page.locator(".md-footer__link").count() == 2


def test_the_table_of_accuracy_is_filtered_and_sorted(page: Any, address: str) -> None:
    page.goto(f"{address}/docs/accuracy.html")
    rows = page.locator("div.filtered tbody tr:visible")
    before = rows.count()
    page.fill("div.filtered input", "h100 tpot")
    assert 0 < rows.count() < before
    page.click("div.filtered th:has-text('worst_percent')")
    found = [float(text) for text in page.locator("div.filtered tbody tr:visible td:nth-child(9)").all_inner_texts()
             if text]
    assert found == sorted(found)
