"""The one writer of YAML: whatever it writes reads back the same, with our reader and with a general one."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import hermes
from hermes.config.files import unseen_character
from hermes.config.yaml_document import parse_yaml
from hermes.config.yaml_writer import to_flow, to_yaml
from hermes.errors import InputError
from hermes.pipelines.graph import Graph
from hermes.pipelines.nodes import ServiceNode
from hermes.pipelines.yaml_export import as_yaml
from hermes.plugins.orthrus.overhead_fit import FittedRate, write_overhead

ODD = st.one_of(
    st.text(), st.text("'\"\\#:{}[],&*!|>%@`-?~<=\n\t ", max_size=12),
    st.sampled_from(["null", "~", "", "yes", "No", "1e5", "0x1f", "1_000", ".inf", "12:30", "2026-01-01", "- a", "a: b",
                     "a #b", " a", "a ", "\ufeff", "\x85", "\x07", "<<", "true", "é", "0o17", "..."]),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-10**200, 10**200),
                    st.floats(allow_nan=False, allow_infinity=True), ODD)
DATA = st.dictionaries(ODD.filter(bool), st.recursive(SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(ODD.filter(bool), inner, max_size=4)), max_leaves=12), max_size=4)


@given(DATA, ODD, st.booleans())
@example({"a": {"it's": 'a "quote"'}}, 'a "quote"\n# and: {more', False)
def test_data_survives(data, header, compact):
    text = to_yaml(data, header, compact=compact)
    assert parse_yaml(text).plain() == data
    assert yaml.safe_load(text) == data


@given(DATA)
def test_data_survives_on_one_line(data):
    text = to_flow(data)
    assert "\n" not in text
    assert parse_yaml(f"key: {text}").plain() == {"key": data}


def test_long_lists_are_wrapped():
    data = {"curve": {"values": [i / 7 for i in range(200)], "names": [["a" * 50] * 5]}}
    text = to_yaml(data)
    assert max(map(len, text.splitlines())) <= 118
    assert parse_yaml(text).plain() == data


def test_numbers_of_numpy_are_numbers():
    assert to_yaml({"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True)}) == "a: 3\nb: 0.5\nc: true\n"


def test_a_key_that_no_reader_takes_is_refused():
    with pytest.raises(ValueError, match="1000 characters"):
        to_yaml({"a" * 2000: 1})


@given(ODD.filter(bool))
@example("\x1b")
def test_a_profile_keeps_odd_names(tmp_path_factory, name):
    fitted = [FittedRate(kind, mode, 1.0, 1.0, 0.001, 1.0)
              for kind in ("embed", "generate") for mode in ("serial", "overlapped")]
    name = name.strip()[:100] or "x"
    path = tmp_path_factory.mktemp("overhead") / "fitted.yaml"
    if re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", name):   # a name is one line, and moves no cursor
        with pytest.raises(InputError, match="name: expected one line of text"):
            write_overhead(fitted, name, [f'"{name}"'], path)
        return
    if unseen_character(name) is not None:   # it looks like another
        with pytest.raises(InputError, match="name: expected text without direction marks"):
            write_overhead(fitted, name, [f'"{name}"'], path)
        return
    assert write_overhead(fitted, name, [f'"{name}"'], path).provenance == [f'"{name}"']


def test_a_pipeline_keeps_odd_options():
    node = ServiceNode(kind='na"me', options={"it's": "a: b # c", "null": "yes"})
    read = parse_yaml(as_yaml("odd: 'one'", Graph({"first": node}))).plain()
    assert read["pipelines"]["odd: 'one'"]["stages"]["first"]["options"] == node.options


def test_nothing_else_writes_yaml():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(hermes.__file__).parent.rglob("*.py")}
    assert not [str(path) for path, text in sources.items() if re.search(r"yaml\.(safe_)?dump|SafeDumper", text)]
