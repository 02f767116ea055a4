"""The YAML loader: what it accepts, what it refuses, and that both say where."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config.yaml_document import MAX_DEPTH, as_node, load_yaml, parse_yaml
from hermes.errors import InputError


def refusal(text):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("-7", -7), ("0x1f", 31), ("0o17", 15), ("10_000", "10_000"), ("1e5", 1e5), ("1.", 1.0), (".5", 0.5),
    ("2.5e-3", 0.0025), ("-.inf", -math.inf), ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
    ("yes", "yes"), ("on", "on"), ("n", "n"), ("0777", "0777"), ("12:30:00", "12:30:00"), ("2024-01-01", "2024-01-01"),
    ("20 ms", "20 ms"), ("'1'", "1"), ('"true"', "true"), ("1_", "1_"), ("_1", "_1"), ("1e", "1e"), ("0x", "0x"),
    ("\u0661", "\u0661"), ("1_0.5", "1_0.5"),
])
def test_scalars(text, value):
    found = parse_yaml(f"a: {text}").child("a").value
    assert found == value
    assert type(found) is type(value)


def test_nan():
    assert math.isnan(parse_yaml("a: .nan").child("a").value)


@pytest.mark.parametrize(("text", "expected"), [
    ("a: 1\nb: 2\na: 3", "f.yaml:3:1: a: expected each key once, found 'a' again"),
    ("x:\n  - {p: 1, p: 2}", "f.yaml:2:12: x.0.p: expected each key once, found 'p' again"),
    ("a: !!python/object/apply:os.system [ls]", "f.yaml:1:4: a: expected a plain value, found the tag "),
    ("a: !mine 3", "f.yaml:1:4: a: expected a plain value, found the tag !mine"),
    ("!!str a: 3", "f.yaml:1:1: expected a key that is a word"),
    ("a: &x {b: *x}", "f.yaml:1:11: a.b: expected an anchor defined above, found an alias inside itself: *x"),
    ("a: &x [1, *x]", "f.yaml:1:11: a.1: expected an anchor defined above, found an alias inside itself: *x"),
    ("a: *gone", "expected an anchor defined above, found an alias to nothing: *gone"),
    ("a: 1\n---\nb: 2", "expected one YAML document, found a second one"),
    ("? [a, b]\n: 3", "f.yaml:1:3: expected a key that is a word"),
    ("a: [1, 2", "expected valid YAML"),
    ("a: 1\n  b: 2", "f.yaml:2:4: expected valid YAML"),
    ("é:\n\tb: 1", "f.yaml:2:1: expected valid YAML, found a tab (indent with spaces)"),
    ("a: [1, 2\nb: 3", "f.yaml:2:2: expected valid YAML, found no ',' or ']'"),
    ("a: @b", "f.yaml:1:4: expected valid YAML, found character"),
    ("a: 'unfinished", "expected valid YAML"),
    ("a: " + "9" * 5000, "f.yaml:1:4: a: expected a number of at most 300 digits, found 5000"),
    ("<<: 3\na: 1", "expected an alias to a mapping, found 3"),
])
def test_refusals(text, expected):
    assert expected in refusal(text)


def test_depth_is_limited_with_and_without_aliases():
    assert f"at most {MAX_DEPTH} levels" in refusal("a: " + "[" * 900 + "]" * 900)
    ladder = "\n".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else 1}]" for i in range(2 * MAX_DEPTH))
    assert f"at most {MAX_DEPTH} levels" in refusal(ladder)


def test_alias_bombs_are_refused_quickly():
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 1}]" for i in range(20))
    assert "counting what aliases stand for" in refusal(bomb)


def test_aliases_and_merge_keys():
    node = parse_yaml("base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}\nlist: [*b]\ntwo: {<<: [*b, {z: 4}]}")
    assert node.plain() == {
        "base": {"x": 1, "y": 2}, "other": {"x": 1, "y": 3}, "list": [{"x": 1, "y": 2}],
        "two": {"x": 1, "y": 2, "z": 4},
    }


def test_positions():
    node = parse_yaml("a:\n  - b: 1\n    cc: 2\n", "f.yaml")
    inner = node.child("a").child(0).child("cc")
    assert (inner.mark.line, inner.mark.column) == (3, 9)
    assert (inner.key.line, inner.key.column) == (3, 5)
    assert node.nearest("a.0.nothing.here")[0].value.keys() == {"b", "cc"}


@pytest.mark.parametrize(("raw", "expected"), [
    (b"a: \xff\xfe", "expected UTF-8 text, found byte 0xff at offset 3"),
    (b"a: 1\nb: \x00", "f.yaml:2: expected printable text, found character U+0000"),
    (b"\x89PNG\r\n\x1a\n\x00", "expected UTF-8 text"),
    (b"a: \x1b[31m", "expected printable text, found character U+001B"),
])
def test_binary(tmp_path, raw, expected):
    path = tmp_path / "f.yaml"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"f\.yaml") as caught:
        load_yaml(path)
    assert expected in str(caught.value)


def test_unreadable(tmp_path):
    for path in (tmp_path, tmp_path / "missing.yaml", "nul\0byte"):
        with pytest.raises(InputError, match="expected a readable file"):
            load_yaml(path)


def test_byte_order_mark_and_crlf(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: ü\r\n".encode())
    assert load_yaml(path).plain() == {"a": 1, "b": "ü"}


def test_cyclic_python_data():
    data = {}
    data["a"] = data
    with pytest.raises(InputError, match="levels"):
        as_node(data)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        parse_yaml(text, "f.yaml").plain()
    except InputError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("bytes") / "f.yaml"
    path.write_bytes(raw)
    try:
        load_yaml(path)
    except InputError as error:
        assert str(path) in str(error)
