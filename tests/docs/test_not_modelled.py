"""The page of all that is not modelled leads to every list of the other pages, and is found from where users look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes.results.assumes import NOT_MODELLED
from hermes.schedulers.vllm_fields import ANSWERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "background" / "not-modelled.md"
LISTS = [page for page in sorted((DOCS / "background").glob("*.md"))
         if re.search(r"^#+ Not modelled", page.read_text(encoding="utf-8"), re.MULTILINE)]


def test_there_are_lists() -> None:
    assert {page.stem for page in LISTS} >= {"vllm", "sglang", "speculation", "kv-offload"}


@pytest.mark.parametrize("page", LISTS, ids=lambda page: page.stem)
def test_each_list_of_a_page_is_linked(page: Path) -> None:
    assert f"({page.name}#not-modelled)" in PAGE.read_text(encoding="utf-8")


def test_reasons_for_refusing_fields_of_vllm_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "(../reference/vllm-fields.md)" in text
    refused = {answer.text for fields in ANSWERS.values() for answer in fields.values() if answer.how == "refused"}
    for reason, word in (("layers with a state", "Mamba"), ("encoder inputs", "encoders"),
                         ("work of adapters", "LoRA")):
        assert any(reason in text_ for text_ in refused)
        assert word in text


def test_users_find_the_page() -> None:
    assert NOT_MODELLED.endswith(PAGE.relative_to(DOCS.parent).with_suffix(".html").as_posix())
    for start in ("index.md", "STATUS.md", "../README.md", "reference/metrics.md"):
        assert "background/not-modelled.md" in (DOCS / start).read_text(encoding="utf-8"), start
