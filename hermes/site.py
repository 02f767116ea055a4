"""Addresses of the documentation, for messages and help texts: a wheel has no docs/ folder."""

from __future__ import annotations

__all__ = ["SITE_URL", "page_url"]

SITE_URL = "https://hermes.example"
"""Root of the site that `make docs` builds. The project has no address yet: this name is reserved (RFC 2606)."""


def page_url(page: str) -> str:
    """Return the address of a page of docs/, such as `how-to/fleet` for docs/how-to/fleet.md."""
    return f"{SITE_URL}/docs/{page}.html"
