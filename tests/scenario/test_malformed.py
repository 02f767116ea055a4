"""Malformed scenarios, sweeps, traces and profiles: one line with file and field, or accepted; never a traceback."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from scripts_loaded import load

from hermes.config.load_drivers import DRIVERS
from hermes.workload.importers import TRACE_IMPORTERS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def fuzz():
    return load("scripts/fuzz_inputs.py")


@pytest.mark.feature("Scenarios and commands", "Mistakes are one line with file, line and column")
@pytest.mark.long
def test_malformed_inputs(fuzz, tmp_path):
    cases = 80   # every family; `make fuzz` has thousands
    counts = Counter()
    wrong = []
    for case, verdict, text in fuzz.run_all(cases, 0, tmp_path):
        counts[case.family, verdict] += 1
        if verdict == "wrong":
            wrong.append(f"{case}\n    {text}")
    print(dict(counts))
    assert not wrong, "\n".join(wrong)
    assert cases <= sum(counts.values()) <= 1.1 * cases
    assert {family for family, _ in counts} >= {*fuzz.OWN, *fuzz.SHARES, "endless"} - {"own"}
    assert sum(n for (_, verdict), n in counts.items() if verdict == "refused") > cases // 3


def test_cases_are_the_same_every_time(fuzz, tmp_path):
    from fuzzing.cases import generate

    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        for case in generate(60, random.Random(5), folder):
            assert case.path.exists()
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        if not name.endswith(".parquet"):  # pyarrow notes no time, but its version
            assert (first / name).read_bytes() == (second / name).read_bytes()


READING = re.compile(r"\b(csv_rows|json_lines|read_json|parquet_(?!metadata)\w+|npz_arrays|\w+_table|"
                     r"parse_json|read_text|read_bytes|load_yaml|text_lines)\b")
IMPORTS = re.compile(r"from hermes\.(?:config\.(?:files|tables|bench_results|load_drivers|yaml_document)|config|"
                     r"hardware\.descriptions\.files) import (\([^)]*\)|[^\n]*)")


def test_every_reader_has_a_family(fuzz):
    """A new module that reads files, trace format or load driver needs files in the fuzzer."""
    from fuzzing.outside import DRIVER_FILES, READERS, SAMPLES

    root, found = SCRIPTS.parent, set()
    for path in (*(root / "hermes").rglob("*.py"), *(root / "evidence").rglob("*.py")):
        if any(map(READING.search, IMPORTS.findall(path.read_text()))):
            _, *names = path.relative_to(root).with_suffix("").parts
            name = ".".join(names).removesuffix(".__init__")
            found.add("calibration" if names[0] == "calibration" else
                      f"evidence.{names[0]}" if path.is_relative_to(root / "evidence") else name)
    assert found == {*READERS}
    assert set(READERS.values()) <= {*fuzz.OWN, *fuzz.FAMILIES, "endless"}
    assert {*TRACE_IMPORTERS.names()} == {*SAMPLES}
    assert {*DRIVERS, "blis", "vllm-bench", "summary"} == {*DRIVER_FILES}


@pytest.mark.long
def test_every_key_of_a_scenario_is_reached(fuzz, tmp_path):
    """A new key of a component needs a scenario that has it: shipped, or in scripts/fuzzing/scenarios.yaml."""
    from fuzzing.keys import UNREACHED, reached, schema_keys, unseen

    found = reached(tmp_path / "keys")
    missing = {".".join(key) for key in schema_keys().keys() - found.keys()}
    assert {name for name in missing if not {name, name.split(".")[0]} & UNREACHED.keys()} == set()
    assert set(unseen()) <= {".".join(key) for key in found}


@pytest.mark.thorough
def test_every_key_of_a_scenario_changes_a_result(fuzz, tmp_path):
    from fuzzing.keys import effect_case, reached

    wrong = []
    for number, key in enumerate(reached(tmp_path / "keys")):
        verdict, text = fuzz.judge(effect_case(key, number, tmp_path / "keys"), {})
        wrong += [text] if verdict == "wrong" else []
    assert not wrong, "\n".join(wrong)


def test_every_entry_of_the_reviewed_list_has_a_reason(fuzz):
    assert all(isinstance(why, str) and len(why) > 3 for why in fuzz.reviewed().values())


def test_the_checker_would_notice(fuzz):
    from fuzzing.cases import difference

    assert difference({"a": {"b": "20 ms"}}, {"a": {"b": 0.02, "c": 1}}) is None
    assert difference({"a": 1}, {"b": 1}) == ".a is not there"
    assert difference({"a": [1, 2]}, {"a": [1]}) == ".a: 2 items became 1"
    assert difference({"a": True}, {"a": 1}) == ".a: True became 1"
    assert difference({"a": "3 s"}, {"a": 4.0}) == ".a: '3 s' became 4.0"
    assert difference({"a": None}, {"a": 4.0}) == ".a: None became 4.0"
