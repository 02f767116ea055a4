"""README.md: the figures it gives of the quickstart are those that the quickstart gives."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

from hermes.api import simulate
from hermes.results import Results

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def quickstart() -> Results:
    return simulate("quickstart")


def test_the_number_of_steps_is_that_of_the_quickstart(quickstart: Results) -> None:
    found = re.findall(r"the quickstart's ([\d,]+) steps", README)
    assert found == [f"{quickstart.summary['steps']['steps']:,}"]


def test_the_figure_shows_what_the_quickstart_gives(quickstart: Results) -> None:
    path = ROOT / "docs" / "img" / "quickstart_cdf.py"
    spec = importlib.util.spec_from_file_location("quickstart_cdf", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with Image.open(path.with_name("quickstart-cdf.png")) as image:
        assert image.info["Description"] == module.described(quickstart)
