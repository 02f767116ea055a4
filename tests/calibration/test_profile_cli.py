"""`hermes profile show` and `plot` on everything that ships."""

import json

import pytest

from hermes.calibration.profile_plot import plot_profile
from hermes.cli import main
from hermes.hardware.files import names_in
from hermes.hardware.profile import load_profile


def test_show_states_provenance_ranges_and_errors_of_every_shipped_profile(capsys):
    for name in names_in(""):
        assert main(["profile", "show", name]) == 0
        text = capsys.readouterr().out
        profile = load_profile(name)
        assert name in text
        assert profile.provenance.hardware in text
        assert f"{profile.phases.decode.error.mape:.2%}" in text
        assert "decode_seqs" in text
        assert main(["profile", "show", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["provenance"]["source"] == profile.provenance.source


def test_list_shows_errors_as_figures(capsys):
    assert main(["profile", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["hardware profiles"]
    assert set(entries) == set(names_in(""))
    for name, entry in entries.items():
        assert entry["kind"] in ("measured steps", "kernel tables", "analytical")
        assert 0 < entry["held_out_mape"]["decode"] < 0.2, name


def test_plot_is_a_picture_and_refuses_other_endings(tmp_path, capsys):
    name = names_in("")[0]
    assert main(["profile", "plot", name, "-o", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["profile", "plot", name, "-o", str(tmp_path / "p.doc")]) == 2
    assert "ends in .png" in capsys.readouterr().err


def test_curves_are_dotted_outside_the_measured_range():
    figure = plot_profile(load_profile("llama-2-70b-h100-tp4"))
    axes = figure.axes[2]  # decode against batch
    solid = [line for line in axes.lines if line.get_linestyle() == "-"]
    high = load_profile("llama-2-70b-h100-tp4").phases.decode.range["decode_seqs"][1]
    for line in solid:
        x, y = line.get_data()
        drawn = [a for a, b in zip(x, y, strict=True) if b == b]
        assert max(drawn, default=0) <= high
    assert len(solid) == 4


@pytest.mark.parametrize("command", ["show", "plot"])
def test_a_mistyped_profile_is_one_line(command, capsys):
    assert main(["profile", command, "llama-2-70b-h100-tp44"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" in error
    assert error.count("\n") == 1
