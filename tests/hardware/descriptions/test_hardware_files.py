"""Malformed description files: one line that names the file and the field, never a traceback."""

import re

import pytest
import yaml
from each import each

from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.hardware import HARDWARE, load_device, load_model, load_profile
from hermes.hardware.descriptions.files import find, names_in
from hermes.hardware.fitted.table import load_table

SHIPPED = {
    load_profile: "splitwise-2023-llama-2-70b-h100-tp8.yaml",
    load_table: "tables/splitwise-2023-llama-2-70b-h100-tp8.yaml",
    load_model: "models/llama-2-70b.yaml",
    load_device: "devices/h100-sxm.yaml",
}


def text_of(loader):
    return (resource_dir("hw_profiles") / SHIPPED[loader]).read_text()


def refusal(loader, content, tmp_path):
    """The message for a file with this content; it must be one line and start with the file."""
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        loader("file.yaml", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}:")
    assert len(message) < 1000
    return message.removeprefix(f"{path}:").strip()


def unplaced(message):
    """A message without its line and column."""
    return re.sub(r"^(\d+:)+ ", "", message)


@each("loader", SHIPPED)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a mapping"),
        ("[]", "expected a mapping"),
        ("just text", "expected a mapping"),
        ("a: [1, 2", "1:.*expected valid YAML"),
        ("a: b: c", "1:5: expected valid YAML"),
        ("name: x\nname: y", "2:1: name: expected each key once, found 'name' again"),
        ("name: &x [1]\nother: *x", "2:1: other: expected one of the keys|1:7: name: expected text, found a list"),
        ("? [a, b]\n: 1", "1:3: expected a key that is a word"),
        ("? {a: b}\n: 1", "1:3: expected a key that is a word"),
        ("date: 2026-13-77", "1:1: date: expected one of the keys"),
        ("!!python/object/apply:os.system ['true']", "1:1: expected a plain value, found the tag"),
        (b"\x00\x01\x02\xff\xfe", "expected UTF-8 text"),
        (b"name: \x01", "1: expected printable text, found character U.0001"),
        (b"\xff" * 100, "expected UTF-8 text"),
        ("[" * 5000, "1:62: expected at most 60 levels"),
        ("{a: " * 5000, "1:245: expected at most 60 levels"),
        ("no_such_key: 1", "1:1: no_such_key: expected one of the keys"),
        ("1: 2", "1:1: 1: expected one of the keys"),
    ],
)
def test_files_that_are_not_descriptions(loader, content, message, tmp_path):
    assert re.search(message, refusal(loader, content, tmp_path))


# up to here nothing is complete; further on a shorter file can be whole (a table with fewer points)
INCOMPLETE_BEFORE = {
    load_profile: "\n  decode:\n", load_table: "\ndecode:\n", load_model: "\nvocab_size", load_device: "\nsources:\n"
}


@pytest.mark.parametrize("loader", SHIPPED)
def test_every_truncation_is_refused(loader, tmp_path):
    text = text_of(loader)
    end = text.index(INCOMPLETE_BEFORE[loader])
    for length in range(0, end, max(1, end // 60)):
        refusal(loader, text[:length], tmp_path)


@pytest.mark.drawn
@pytest.mark.parametrize("loader", SHIPPED)
def test_every_top_level_key_is_checked(loader, tmp_path):
    data = yaml.safe_load(text_of(loader))
    for key in data:
        misspelt = {("x" + k if k == key else k): v for k, v in data.items()}
        assert refusal(loader, yaml.safe_dump(misspelt), tmp_path)
        for junk in ([[]], {"a": {}}, -1.5, True):
            broken = yaml.safe_dump(data | {key: junk})
            assert unplaced(refusal(loader, broken, tmp_path)).startswith(key), (key, junk)
    wrong = refusal(loader, yaml.safe_dump(data | {"nmae": 1}), tmp_path)
    assert "nmae: expected one of the keys" in wrong
    assert wrong.endswith("found 'nmae' (did you mean 'name'?)")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("phases.decode.terms.0.seconds", float("nan"), "expected a finite number, found"),
        ("phases.decode.terms.0.seconds", float("inf"), "expected a finite number, found"),
        ("phases.decode.terms.0.seconds", "fast", "expected a number, found 'fast'"),
        ("phases.decode.terms.0.seconds", None, "expected a number"),
        ("phases.decode.terms.0.seconds", True, "expected a number"),
        ("phases.decode.terms.0.seconds", 1e9, "expected a number of at most 1000, found 1000000000"),
        ("phases.decode.terms.0.seconds", 10**400, "expected a .*number"),
        ("phases.decode.terms.0.term", "decode_ctxx", r"expected features among .* \(did you mean 'decode_ctx'\?\)"),
        ("phases.decode.terms.0.term", "sin(decode_ctx)", "expected a product of features"),
        ("phases.decode.terms.0.term", 1, "expected text, found 1"),
        ("phases.decode.terms", [], "expected"),
        ("phases.decode.range.decode_seqs", [-5, 10], "expected 0 <= lowest <= highest, found"),
        ("phases.decode.range.decode_seqs", [10, 5], "expected 0 <= lowest <= highest, found"),
        ("phases.decode.range.decode_seqs", [1, 2, 3], "expected"),
        ("phases.decode.range.decode_seqs", [1, float("nan")], "expected a finite number"),
        ("phases.decode.range.decode_seqs", 5, "expected a list, found 5"),
        ("phases.decode.floor_s", -1.0, "expected a number of at least 0, found -1"),
        ("phases.decode.points", 1.5, "expected an integer, found 1.5"),
        ("phases.decode.error.mape", -0.1, "expected a number of at least 0"),
        ("provenance.sha256", "abc", "found 'abc'"),
        ("provenance.tensor_parallel", 0, "expected a number of at least 1, found 0"),
        ("format", "hermes-profile/2", "'hermes-profile/1', found 'hermes-profile/2'"),
        ("name", "", "expected"),
    ],
)
def test_fields_of_a_profile(path, value, message, tmp_path):
    data = yaml.safe_load(text_of(load_profile))
    *parents, last = path.split(".")
    part = data
    for key in parents:
        part = part[int(key) if key.isdigit() else key]
    part[last] = value
    found = unplaced(refusal(load_profile, yaml.safe_dump(data), tmp_path))
    assert found.startswith(f"{path}")
    assert re.search(message, found)


def test_a_range_of_an_unknown_feature(tmp_path):
    data = yaml.safe_load(text_of(load_profile))
    data["phases"]["decode"]["range"] = {"decode_seq": [1, 2]}
    found = unplaced(refusal(load_profile, yaml.safe_dump(data), tmp_path))
    assert found.startswith("phases.decode.range: expected a feature among")
    assert "did you mean 'decode_seqs'" in found


def test_missing_fields_are_named(tmp_path):
    data = yaml.safe_load(text_of(load_profile))
    del data["phases"]["prefill"]
    found = unplaced(refusal(load_profile, yaml.safe_dump(data), tmp_path))
    assert found == "phases.prefill: expected a value (required), found nothing"


def test_numbers_without_a_dot_are_numbers(tmp_path):
    head, decode = text_of(load_profile).split("\n  decode:\n")
    decode = re.sub("seconds: [0-9.]+", "seconds: 3e-2", decode, count=1)
    (tmp_path / "p.yaml").write_text(f"{head}\n  decode:\n{decode}")
    assert load_profile("p.yaml", tmp_path).phases.decode.terms[0].seconds == 0.03


def test_json_errors_are_located(tmp_path):
    for content, message in (
        ('{"a": 1,\n}', r"c\.json:2:1: expected valid JSON"), ("[" * 100_000, "expected valid JSON"),
        ("", r"c\.json:1:1: "), (f"[{'9' * 5000}]", "expected valid JSON"),
    ):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(InputError, match=message):
            load_model("c.json", tmp_path)


@pytest.mark.parametrize(
    "name",
    ["", "nope", "../hw_profiles/x", "/etc", "a\0b", "x" * 5000, "x/" + "y" * 5000, "~", ".", "*.yaml", "devices"],
)
def test_names_and_paths_that_do_not_exist(name, tmp_path):
    for loader in SHIPPED:
        with pytest.raises(InputError) as caught:
            loader(name, tmp_path)
        assert "\n" not in str(caught.value)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path):
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(InputError, match="expected a file of at most 8388608 bytes"):
        load_profile("big.yaml", tmp_path)


def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch):
    path = tmp_path / "secret.yaml"
    path.write_text("x")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match=r"secret\.yaml: expected a readable file, found permission denied"):
        load_profile("secret.yaml", tmp_path)


def test_a_path_object_is_always_a_path(tmp_path):
    (tmp_path / "llama-2-70b").write_text(text_of(load_model).replace("llama-2-70b", "mine", 1))
    assert load_model(tmp_path / "llama-2-70b").name == "mine"
    assert load_model("llama-2-70b").name == "llama-2-70b"
    assert find(tmp_path / "llama-2-70b", None, "models", "a model") == tmp_path / "llama-2-70b"


def test_profiles_are_read_when_a_model_is_built_not_before():
    for kind in ("polynomial", "table"):
        component = HARDWARE.get(kind).model_validate({"kind": kind, "profile": "missing"})
        with pytest.raises(InputError):
            component.build()


@pytest.mark.parametrize("name", [name for name in names_in("") if name.startswith("splitwise-2023-")])
def test_the_old_names_of_profiles_of_2023_give_the_new_one_in_one_line(name):
    plain = name.removeprefix("splitwise-2023-")
    for load, old in ((load_profile, plain), (load_table, f"splitwise-{plain}")):
        with pytest.raises(InputError, match=rf"{name} is its name now, as it was measured on an engine of") as got:
            load(old)
        assert "\n" not in str(got.value)
        assert repr(old) in str(got.value)
