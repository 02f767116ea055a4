"""`hermes profile list` and `show` on everything that ships."""

import json
import re
from typing import get_args

import pytest

from hermes.calibration.importers import IMPORTERS
from hermes.calibration.importers import aiconfigurator as aiconfigurator_importer
from hermes.cli import main
from hermes.cli.profile_import import _parameter
from hermes.errors import InputError
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.profile import load_profile


@pytest.mark.long
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


def test_list_says_which_engine_the_steps_are_of(capsys):
    assert main(["profile", "list", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["hardware profiles"]
    of = {name: (entry["engine"], entry["engine_year"]) for name, entry in entries.items()}
    assert of["splitwise-2023-llama-2-70b-h100-tp8"] == ("vLLM", 2023)
    assert of["llama-3.1-70b-h100-tp4-bf16"] == ("vllm 0.24.0", 2026)
    for name, (engine, year) in of.items():
        assert (year == 2023) == name.startswith("splitwise-2023-"), (engine, year)
    assert main(["profile", "list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in entries)    # none is broken over two lines
    assert re.search(r"^splitwise-2023-bloom-176b-a100-tp8 .* vLLM \(2023\) ", text, re.M)


@pytest.mark.feature("Hardware", "`hermes profile list`, `hermes profile show`")
def test_show_takes_every_name_that_list_prints(capsys):
    assert main(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"hardware tables", "models", "devices", "links", "workload profiles"} <= set(listed)
    for what, names in listed.items():
        assert names, what
        if what == "hardware profiles":   # `test_show_states_provenance_ranges_and_errors_of_every_shipped_profile`
            continue
        for name in names:
            assert main(["profile", "show", name]) == 0, (what, name)
            assert name in capsys.readouterr().out
            assert main(["profile", "show", name, "--json"]) == 0
            json.loads(capsys.readouterr().out)


def test_show_prints_every_description_of_a_name(capsys):
    assert main(["profile", "show", "rtx-4090"]) == 0
    text = capsys.readouterr().out
    assert "rtx-4090 (devices): devices/rtx-4090.yaml" in text
    assert "rtx-4090 (efficiency factors): efficiency/rtx-4090.yaml" in text
    assert main(["profile", "show", "rtx-4090", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"devices", "efficiency factors"}
    assert main(["profile", "show", "llama-3.1-8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_context"] == 131_072


def test_a_mistyped_profile_is_one_line(capsys):
    assert main(["profile", "show", "splitwise-2023-llama-2-70b-h100-tp44"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" in error
    assert error.count("\n") == 1


def test_an_optional_number_of_an_importer_is_a_number(monkeypatch, tmp_path, capsys):
    asked = []

    def ask(script, request, *rest):
        asked.append(request)
        raise InputError("no more than the request")

    monkeypatch.setattr(aiconfigurator_importer, "ask", ask)
    command = ["profile", "import", "aiconfigurator", "--model", "Qwen/Qwen3-32B", "--system", "h100_sxm"]
    assert main([*command, "--mixed-attention", "3.3", "-o", str(tmp_path / "s.yaml")]) == 2
    assert asked[0]["mixed_attention"] == 3.3, capsys.readouterr().err
    assert main([*command, "--mixed-attention", "much", "-o", str(tmp_path / "s.yaml")]) == 2
    assert "--mixed-attention" in capsys.readouterr().err


@pytest.mark.parametrize("kind", IMPORTERS.names())
def test_every_option_of_an_importer_has_the_type_of_its_field(kind):
    """By the JSON Schema of the field: a number there is a number on the command line, however it is written here."""
    types = {"number": float, "integer": int, "boolean": bool, "string": str}
    importer = IMPORTERS.get(kind)
    properties = importer.model_json_schema()["properties"]
    for name in importer.model_fields.keys() - {"kind"}:
        schema = properties[name]
        parts = [part["type"] for part in schema.get("anyOf", [schema]) if part.get("type", "null") != "null"]
        wanted = types[parts[0] if parts else "string"]
        made = get_args(_parameter(name, importer.model_fields[name], "").annotation)[0]
        assert made in (wanted, wanted | None), name
