"""scripts/next_engine.py and scripts/engine_sources.py: what they print of an engine whose rules differ."""

import sys
from pathlib import Path

import pytest

from evidence.schedules.vllm_replay import RecordedSchedule, replay
from hermes.hardware.descriptions.engines import load_engine

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import engine_sources  # noqa: E402
import next_engine  # noqa: E402
from schedule_mixtures import mixture, mixtures  # noqa: E402

OLD = '''class Scheduler:
    def schedule(self):
        """Plan a step."""
        first()
        second()  # always

    def other(self):
        pass
'''
NEW = '''# moved down by a comment
class Scheduler:
    def schedule(self):
        """Plan a step, in other words."""
        first()

        # in between
        between()
        second()

    def other(self):
        pass
'''


def test_only_code_counts_and_lines_are_those_of_the_new_source():
    assert engine_sources.hunks(OLD, NEW, "Scheduler.schedule") == [
        engine_sources.Hunk(8, [], ["        between()"])]
    assert engine_sources.hunks(OLD, NEW, "Scheduler.other") == []
    assert engine_sources.hunks(OLD, NEW, "Scheduler.gone") is None
    assert engine_sources.hunks(OLD, "", "Scheduler.other")[0].added == []


def test_the_report_names_rule_file_and_line(tmp_path, monkeypatch):
    for name, text in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "core.py").write_text(text)
    monkeypatch.setattr(engine_sources, "CITED", (("7: a cap", "core.py", ("Scheduler.schedule", "Scheduler.gone")),))
    assert list(engine_sources.report(tmp_path / "old", tmp_path / "new", lines=True)) == [
        "7: a cap: Scheduler.schedule", "  vllm/core.py:8  -0 +1", "      +        between()",
        "7: a cap: Scheduler.gone", "  core.py: there is no Scheduler.gone; cite its successor in CITED"]


def test_mixtures_are_the_same_again_and_others_by_seed():
    assert mixture(5, asynchronous=True) == mixture(5, asynchronous=True)
    drawn = mixtures(12, 3, asynchronous=False)
    assert len({str(one) for one in drawn}) == 12
    assert {"max_loras", "local_interval", "num_speculative_tokens"} <= {key for one in drawn for key in one}


@pytest.mark.parametrize(("engine", "same"), [("vllm-0.33", True), ("vllm-0.32", False)])
def test_an_engine_with_other_rules_is_found_with_its_first_step(engine, same, monkeypatch, capsys):
    """An engine that follows the rules of a version here stands for the real one."""
    plans = [("mixtures", mixture(seed, asynchronous=True)) for seed in (300003, 300059)]
    for _feature, plan in plans:
        plan.pop("local_interval", None)
    steps = [{"steps": replay(RecordedSchedule.model_validate({**plan, "steps": []}), load_engine(engine),
                              every_step=True)} for _feature, plan in plans]
    assert next_engine.replayed(plans, steps, load_engine("vllm-0.33")) is same
    said = capsys.readouterr().out
    assert ("4 of 4" in said) is same
    assert ("mixtures: mixture-async-300003: step " in said) is not same


def test_an_unknown_version_is_replayed_with_the_newest_rules():
    assert next_engine.rules_of("0.99.1").name == "vllm-0.33"
    assert next_engine.rules_of("0.28.0").name == "vllm-0.28"


def test_an_answer_without_steps_counts_as_a_difference(capsys):
    plans = [("mixtures", mixture(1, asynchronous=False))]
    assert not next_engine.replayed(plans, [{"error": "TypeError: no such field"}], load_engine("vllm-0.33"))
    assert "mixture-1: the engine answers: TypeError" in capsys.readouterr().out
