"""Quantities as users write them, and what is suggested for a name that is not there."""

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.errors import InputError, InputWarning, suggest
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import names_in
from hermes.scenario import load_scenario
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate, pattern


@pytest.mark.feature("Scenarios and commands", "Quantities with units")
@pytest.mark.parametrize(("parse", "text", "value"), [
    (parse_rate, "10 rps", 10), (parse_rate, "10 req/s", 10), (parse_rate, "10qps", 10), (parse_rate, "10 QPS", 10),
    (parse_rate, "10 requests/s", 10), (parse_rate, "600 req/min", 10), (parse_rate, "10 /sec", 10),
    (parse_rate, "36000 /hour", 10), (parse_rate, "600 rpm", 10), (parse_rate, "10 /s", 10), (parse_rate, "10", 10),
    (parse_duration, "1 sec", 1), (parse_duration, "1.5 seconds", 1.5), (parse_duration, "2 minutes", 120),
    (parse_duration, "1 hour", 3600), (parse_duration, "20 ms", 0.02), (parse_duration, "3 μs", 3e-6),
    (parse_bytes, "80 gb", 80e9), (parse_bytes, "80 gib", 80 * 2**30), (parse_bytes, "1 KIB", 1024),
    (parse_bytes, "5 kb", 5000), (parse_bytes, "80 GiB", 80 * 2**30), (parse_bytes, "17 bytes", 17),
    (parse_bandwidth, "400 Gbps", 50e9), (parse_bandwidth, "400 Gb/s", 50e9), (parse_bandwidth, "50 GBps", 50e9),
    (parse_bandwidth, "400 Gbit/s", 50e9), (parse_bandwidth, "8 bps", 1), (parse_bandwidth, "1 GiB/s", 2**30),
])
def test_units_as_users_write_them(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-15)
    assert re.search(pattern(parse), text), "an editor accepts what hermes reads"


@pytest.mark.parametrize(("parse", "text", "suggestion"), [
    (parse_bandwidth, "50 gb/s", "GB/s or Gb/s"), (parse_bandwidth, "50 gbps", "GBps or Gbps"),
    (parse_bytes, "50 Gb", "GB"), (parse_bytes, "50 G", None), (parse_bytes, "50 b", "B"), (parse_rate, "5 Rps", "rps"),
    (parse_rate, "5 s", None), (parse_duration, "5 m", None), (parse_duration, "5 MS", "ms"),
    (parse_duration, "5 rps", None), (parse_duration, "1 sec sec", None),
])
def test_units_that_could_be_two_things_are_refused(parse, text, suggestion):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.suggestion == suggestion
    assert not re.search(pattern(parse), text)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([parse_duration, parse_bytes, parse_bandwidth, parse_rate]),
    st.text("0123.e_+- sGgBbip/", max_size=9),
)
def test_the_pattern_in_the_schema_is_what_is_read(parse, text):
    try:
        parse(text)
    except InputError:
        assert not re.search(pattern(parse), text) or "e" in text   # 1e999 is too large, which no pattern can say
    else:
        assert re.search(pattern(parse), text)


@pytest.mark.parametrize(("name", "names", "meant"), [
    ("h100", names_in("devices"), "h100-sxm"), ("H100-80gb", names_in("devices"), "h100-sxm"),
    ("h200-sxm", names_in("devices"), "h200"), ("l40", names_in("devices"), "l40s"),
    ("rtx", names_in("devices"), "rtx-4090"), ("rtx4090", names_in("devices"), "rtx-4090"),
    ("llama-3.1", names_in("models"), "llama-3.1-8b"), ("max_num_seq", ["max_num_seqs", "max_num_batched_tokens"],
                                                       "max_num_seqs"),
    ("lod", ["load", "kind"], "load"), ("a", ["at"], "at"), ("x", ["load", "kind"], None),
    ("nothing-like-it", names_in("devices"), None),
])
def test_what_begins_alike_is_suggested_before_what_is_near(name, names, meant):
    assert suggest(name, names) == meant


def test_short_names_are_the_cards_that_people_mean():
    assert load_device("h100") == load_device("H100") == load_device("h100-sxm")
    assert load_device("a100") == load_device("A100") == load_device("a100-80gb")


SLO = """workload: {requests: 9, arrivals: {kind: poisson, rate: 4}, lengths: {kind: fixed, prompt: 300, output: 20}}
clients: [{model: llama-3.1-8b, device: h100-sxm}]
slo:
  e2e: 600
"""


@pytest.mark.parametrize(("line", "settings", "said"), [
    ("tpot: 50", [], "FILE:5:9: slo.tpot is read as 50 s; write `50 ms` for milliseconds, or `50 s`"),
    ("baseline_ttft: '250'", [], "FILE:5:18: slo.baseline_ttft is read as 250 s; write `250 ms`"),
    ("workloads: {workload: {tpot: 40}}", [], "FILE:5:32: slo.workloads.workload.tpot is read as 40 s; write `40 ms`"),
    ("tpot: 50 ms", ["slo.ttft=500"], "--set slo.ttft=500: slo.ttft is read as 500 s; write `500 ms`"),
])
def test_limits_without_a_unit_that_look_like_milliseconds_are_named(tmp_path, line, settings, said):
    file = tmp_path / "s.yaml"
    file.write_text(f"{SLO}  {line}\n")
    with pytest.warns(InputWarning) as caught:
        load_scenario(file, settings)
    assert [str(one.message).startswith(said.replace("FILE", str(file))) for one in caught] == [True]


@pytest.mark.parametrize("line", ["tpot: 0.05", "tpot: 50 s", "ttft: 10", "tpot: 1", "ttft: 500 s", "percentile: 99.9"])
def test_limits_that_may_be_seconds_are_not_named(tmp_path, line):
    file = tmp_path / "s.yaml"
    file.write_text(f"{SLO}  {line}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        load_scenario(load_scenario(file), ["seed=1"])
