"""Forms as users have them (`forms/`): each is read as its expectations say; `scripts/forms_check.py` prints them."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from each import check_each

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "forms_check.py"
SPEC = importlib.util.spec_from_file_location("forms_check", SCRIPT)
forms_check = sys.modules["forms_check"] = importlib.util.module_from_spec(SPEC)   # its dataclasses look it up
SPEC.loader.exec_module(forms_check)
FORMS = forms_check.forms()

PART = 9   # forms of an item


@pytest.mark.feature("Results, sweeps, studies", "`hermes import vllm`, `hermes import sglang`, `hermes import trtllm`")
@pytest.mark.parametrize("part", range(-(-len(FORMS) // PART)))
def test_forms_are_read_as_expected(part):
    def check(form):
        assert forms_check.differences(form, forms_check.run(form, forms_check.expected(form)["run"])) == []

    check_each(FORMS[part * PART:][:PART], check, lambda form: form.relative_to(forms_check.FORMS))


def test_a_form_that_is_read_otherwise_is_noticed():
    form = next(form for form in forms_check.forms("launch") if "read" in forms_check.expected(form))
    right = forms_check.run(form, forms_check.expected(form)["run"])
    assert forms_check.differences(form, forms_check.Outcome(right.document, [*right.said, "more"]))
    assert forms_check.differences(form, forms_check.Outcome({}, right.said))
    assert forms_check.differences(form, forms_check.Outcome(refused="something"))


def test_every_file_is_a_form_or_next_to_one():
    named = "".join(path.read_text(encoding="utf-8") for form in FORMS
                    for path in (form, forms_check.expectations(form)))
    for path in forms_check.FORMS.rglob("*"):
        if path.is_file() and path not in FORMS and not path.name.endswith(forms_check.END):
            assert path.name in named, path


def test_expectations_say_what_is_read_or_refused(tmp_path):
    (tmp_path / "a.sh").write_text("vllm serve x")
    (tmp_path / "a.expect.yaml").write_text("run: import vllm FORM")
    with pytest.raises(ValueError, match="either"):
        forms_check.expected(tmp_path / "a.sh")


def test_refusals_of_engines_name_the_file_and_no_key_of_a_scenario():
    def check(form):
        said = forms_check.run(form, forms_check.expected(form)["run"]).refused
        assert re.match(r"\S+\.(sh|yaml|json)(:\d+)*: ", said)
        assert not re.search(r"clients\.\d|\b(scheduler|memory|hardware|parallel|workload)\.(?!sh|yaml)\w", said)

    check_each([form for area in ("launch", "manifests") for form in forms_check.forms(area)
                if "refused" in forms_check.expected(form)], check, lambda form: form.name)
