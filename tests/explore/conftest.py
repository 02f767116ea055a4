"""A small scenario and sweeps over it."""

from pathlib import Path

import pytest

SMALL = (Path(__file__).parent / "small.yaml").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with `small.yaml` in it."""
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def write(folder: Path):
    """Writes a sweep's file, `scenario: small.yaml` first."""

    def make(text: str, name: str = "sweep.yaml") -> Path:
        path = folder / name
        path.write_text("scenario: small.yaml\n" + text)
        return path

    return make
