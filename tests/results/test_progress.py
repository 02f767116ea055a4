"""Progress on standard error: a bar on a terminal alone."""

import pytest

from hermes.results.progress import ProgressBar


@pytest.mark.parametrize("show", [True, False])
def test_nothing_is_written_where_no_terminal_is(show: bool, capsys: pytest.CaptureFixture[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """`rich` from 13 to 14.0 wrote an empty line at the end of a bar that it did not show."""
    from rich.progress import Progress

    monkeypatch.setattr(Progress, "stop", lambda _: pytest.fail("a bar ends that was not shown"))
    with ProgressBar("points", show=show) as bar:
        bar.update(1, 2)
        bar.update(2, 2)
    assert capsys.readouterr() == ("", "")
