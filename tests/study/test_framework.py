"""The frame of all studies: found by name or path, with assumptions, resumable, alike on any number of workers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import hermes
import hermes.explore.sweep.executor
from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.results.figures.stability import stability
from hermes.study import Compared, Point, Report, known_studies, load_study, run_points
from hermes.study.figures import point_figures

ROOT = Path(__file__).parents[2]
BASE = {
    "workload": {"requests": 400, "arrivals": {"kind": "poisson", "rate": "4 /s"},
                 "lengths": {"kind": "fixed", "prompt": 256, "output": 64}},
    "clients": [{"name": "a", "model": "llama-3.1-8b", "device": "h100-sxm",
                 "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}],
}
CONFIG = {
    "title": "what two and two is",
    "assumptions": {
        "two": {"value": 2, "range": [0, 10], "meaning": "the second number", "source": "assumed", "turns": "4 is 5"},
        "mode": {"value": "plus", "options": ["plus", "times"], "meaning": "what is done", "source": "assumed"},
        "share": {"value": 0.5, "range": [0, 1], "meaning": "a part", "source": "assumed"},
    },
}
REPORT = '''
import pandas as pd

from hermes.study import Compared, Point, Report, Table, run_points

from ..beside.more import extra
from .figures import tokens


def run(context):
    two = context["two"]
    total = 2 + two if context["mode"] == "plus" else 2 * two
    frame = run_points(context, "runs", [Point(str(n), {"workload.requests": n}, {"n": n}) for n in (3, 4, 5)],
                       scenario="base.yaml", extract=tokens)
    tables = [Table("sum", "Sum", pd.DataFrame({"a": [float(total), float("nan")], "b": ["x", "y"]})),
              Table("runs", "Runs", frame[["n", "seen"]])]
    return Report(tables, findings=[f"{total} ({'quick' if context.quick else 'full'}), {extra}"])
'''
FIGURES = '''
from dataclasses import dataclass

from ..beside.more import extra


@dataclass
class Count:
    seen: int


def tokens(results):
    assert extra == "beside"
    return vars(Count(int(results.record.prompt_tokens.sum())))
'''


@pytest.fixture
def tiny(tmp_path):
    """The folder of a study outside the checkout."""
    folder = tmp_path / "mine" / "two-and-two"
    folder.mkdir(parents=True)
    (folder.parent / "beside").mkdir()
    (folder.parent / "beside" / "more.py").write_text("extra = 'beside'\n")
    (folder / "study.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    (folder / "report.py").write_text(REPORT)
    (folder / "figures.py").write_text(FIGURES)
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    return folder


def refused(capsys, *arguments):
    """The one line that a command prints when it refuses."""
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.feature("Results, sweeps, studies", "`hermes study`")
@pytest.mark.long
def test_a_study_runs_from_its_folder(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["study", str(tiny), "--quick", "--workers", "2", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "4 (quick), beside" in printed
    assert (out / "sum.csv").read_text() == "a,b\n4.0,x\n,y\n"
    assert (out / "runs.csv").read_text() == "n,seen\n3,768\n4,1024\n5,1280\n"
    page = (out / "report.md").read_text()
    assert "| 4 | x |" in page
    assert "| - | y |" in page
    assert "| two | 2 | 0 to 10 | the second number | assumed |" in page


@pytest.mark.long
def test_assumptions_are_set_and_checked(tiny, tmp_path, capsys):
    study = ["study", tiny, "-o", tmp_path / "out", "--workers", "1"]
    assert main([*map(str, study), "--set", "two=3", "--set", "mode=times"]) == 0
    printed = capsys.readouterr().out
    assert "6 (full)" in printed
    assert "two = 3 (assumed: 2)" in printed
    assert "Changed: mode = times (assumed: plus)." in (tmp_path / "out" / "report.md").read_text()
    line = refused(capsys, *study, "--set", "tow=3")
    assert "two, mode, share" in line
    assert "did you mean 'two'" in line
    for change, said in (("two=11", "an integer from 0 to 10"), ("two=2.5", "an integer"), ("two=true", "an integer"),
                         ("mode=minus", "one of plus, times"), ("share=nan", "a number from 0 to 1"),
                         ("share=[1]", "a number"), ("two", "NAME=VALUE")):
        assert said in refused(capsys, *study, "--set", change)
    assert load_study(tiny).context(tmp_path, changes=["share=1"])["share"] == 1.0


@pytest.mark.parametrize(("key", "value", "said"), [
    ("value", 11, "from 0 to 10"), ("options", [2], "either range or options"), ("range", [1], "at least 2"),
    ("rang", [0, 1], "one of the keys"),
])
def test_a_wrong_assumption_names_its_place(tiny, capsys, key, value, said):
    config = CONFIG | {"assumptions": {"two": CONFIG["assumptions"]["two"] | {key: value}}}
    (tiny / "study.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    line = refused(capsys, "study", tiny)
    assert f"{tiny}/study.yaml:" in line
    assert said in line


def test_a_study_that_cannot_be_imported_is_one_line(tiny, capsys, tmp_path):
    (tiny / "report.py").write_text("import nothing_like_this\n")
    line = refused(capsys, "study", tiny, "-o", tmp_path / "out")
    assert "report.py:1:" in line
    assert "nothing_like_this" in line


def test_a_report_does_not_replace_the_files_of_a_study(tiny, capsys):
    assert "a folder other than that of the study's own files" in refused(capsys, "study", tiny, "-o", tiny)


def test_an_unknown_study_is_one_line(capsys):
    line = refused(capsys, "study", "metiss")
    assert "did you mean 'metis'" in line


@pytest.mark.long
def test_an_installed_wheel_has_no_studies(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hermes.study.loading.known_studies", dict)
    monkeypatch.setattr("hermes.study.known_studies", dict)
    line = refused(capsys, "study", "metis")
    assert "clone the repository" in line
    assert main(["study", "--list"]) == 0
    assert "not part of the installed package" in capsys.readouterr().out
    assert main(["study", str(tiny), "--workers", "1", "-o", str(tmp_path / "out")]) == 0


@pytest.mark.long
def test_an_installed_package_finds_the_studies_around_the_current_folder(tiny, tmp_path):
    """Another copy of the package, with its data inside as in a wheel, run in a folder of a checkout and outside."""
    package, checkout = tmp_path / "site-packages" / "hermes", tmp_path / "checkout"
    shutil.copytree(Path(hermes.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("hw_profiles", "traces", "scenarios"):
        (package / "_data").mkdir(exist_ok=True)
        (package / "_data" / name).symlink_to(ROOT / name)
    shutil.copytree(tiny.parent, checkout / "studies")
    (checkout / "docs").mkdir()

    def printed(folder, *arguments):
        command = [sys.executable, "-P", "-m", "hermes.cli", "study", *arguments]
        return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(package.parent)}, check=True,
                              capture_output=True, text=True).stdout

    assert "two-and-two" in printed(checkout / "docs", "--list")
    assert "4 (quick), beside" in printed(checkout, "two-and-two", "--quick", "--workers", "2", "-o", "out")
    assert "not part of the installed package" in printed(tmp_path, "--list")


@pytest.mark.parametrize(("paper", "here", "more", "verdict"), [
    (2.0, 2.3, {}, "agrees"), (2.0, 2.31, {}, "differs"), (2.0, 2.31, {"neutral": 1.0}, "direction"),
    (2.0, 0.9, {"neutral": 1.0}, "differs"), (2.0, 0.8, {"neutral": 1.0}, "reversed"),
    (2.0, 0.8, {"neutral": 1.0, "interval": (0.7, 1.1)}, "differs"), (57.0, 1.04, {"neutral": 1.0}, "differs"),
    (2.0, 2.3, {"neutral": 1.0, "interval": (0.9, 2.6)}, "noise"), ((1.0, 2.0), (0.9, 2.2), {}, "agrees"),
    ((1.0, 2.0), (0.5, 1.2), {}, "partly"),
    ((1.1, 1.2), 1.0, {"neutral": 1.0}, "differs"), ((1.1, 1.2), (1.0, 1.15), {"neutral": 1.0}, "partly"),
    (1.1, 1.06, {"neutral": 1.0}, "agrees"), (1.03, 1.06, {"neutral": 1.0}, "direction"),
    ("no lower", 2.0, {"agrees": True, "neutral": 0.0, "interval": (-1.0, 4.0)}, "noise"),
    ((1.0, 2.0), (0.5, 4.0), {"cases": (0.5, 4.0)}, "differs"),
    ((1.0, 2.0), (0.5, 4.0), {"cases": (0.5, 1.5, 4.0)}, "partly"),
    ((1.8, 4.5), (2.0, 2.0), {"cases": (2.0,), "of": 4}, "partly"),
    (2.0, 2.0, {"cases": (2.0,) * 4, "of": 4}, "agrees"),
    ((1.8, 4.5), 11.0, {"neutral": 1.0, "cases": (11.0,), "of": 4}, "differs"),
    (2.0, 2.0, {"qualifier": "fitted"}, "fitted"), (2.0, 3.0, {"qualifier": "fitted"}, "differs"),
    (2.0, 3.0, {"qualifier": "paper wrong"}, "paper wrong"), (2.0, 2.0, {"qualifier": "paper wrong"}, "agrees"),
    (2.0, 2.0, {"qualifier": "not comparable"}, "not comparable"), (2.0, None, {"qualifier": "given"}, "given"),
    ("slower", 3.0, {"agrees": False, "qualifier": "reversed"}, "reversed"),
    ((-1.0, 1.0), 0.5, {"neutral": 0.0}, "agrees"),
    ((12.0, 18.0), (-3.0, 5.0), {"neutral": 0.0}, "differs"), (-10.0, -11.0, {}, "agrees"), (0.0, 0.0, {}, "agrees"),
    ("big", "huge", {"agrees": True}, "agrees"), ("1 or more", 0.8, {"agrees": False}, "differs"), (None, 3.0, {}, "-"),
    (2.0, None, {}, "cannot tell"), (2.0, 2.0, {"settled": False}, "cannot tell"),
])
def test_a_verdict_says_whether_the_study_agrees(paper, here, more, verdict):
    assert Compared("one", paper, here, **more).verdict == verdict


@pytest.mark.long
def test_points_are_kept_and_the_same_on_any_number_of_workers(tiny, tmp_path, monkeypatch):
    study = load_study(tiny)
    points = [Point(f"{n}", {"workload.requests": n}, {"n": n}, seed) for n in (30, 40) for seed in (1, 2)]
    points += [Point("none", {"workload.requests": 20}, {"n": 20}), points[0]]
    made = {}
    for workers in (0, 1, 2):
        context = study.context(tmp_path / str(workers), workers=workers)
        frame = run_points(context, "p", points, scenario="base.yaml", extract=study.module("figures").tokens)
        made[workers] = {path.name: path.read_bytes() for path in context.out.rglob("results.parquet")}
        assert frame["n"].tolist() == [30, 30, 40, 40, 20, 30]
        assert frame["seed"].tolist()[:4] == [1, 2, 1, 2]
        assert frame["seen"].tolist() == [256 * n for n in frame["n"]]
    assert made[0] == made[1] == made[2]
    # a second run simulates what is new, and nothing else
    ran = []
    perform = hermes.explore.sweep.executor.perform
    monkeypatch.setattr("hermes.explore.sweep.executor.perform",
                        lambda job, *built: ran.append(job.task) or perform(job, *built))
    again = run_points(study.context(tmp_path / "0", workers=0), "p", [*points, Point("new", {"workload.requests": 9})],
                       scenario="base.yaml", extract=study.module("figures").tokens)
    assert ran.count("run") == 1
    assert again["seen"].tolist()[:6] == frame["seen"].tolist()


def test_an_interrupted_study_keeps_its_points(tiny, tmp_path, monkeypatch):
    study, perform, done = load_study(tiny), hermes.explore.sweep.executor.perform, []

    def interrupted(job, *built):
        if job.task == "run" and len(done) == 2:
            raise KeyboardInterrupt
        done.append(job.key) if job.task == "run" else None
        return perform(job, *built)

    context = study.context(tmp_path / "out", workers=0)
    monkeypatch.setattr("hermes.explore.sweep.executor.perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.run(context)
    monkeypatch.setattr("hermes.explore.sweep.executor.perform", lambda job, *built: (
        done.append(job.key) if job.task == "run" else None) or perform(job, *built))
    assert study.run(context).tables[1].frame["seen"].tolist() == [768, 1024, 1280]
    assert len(done) == len(set(done)) == 3


def test_a_failing_point_is_one_error(tiny, tmp_path):
    study = load_study(tiny)
    (tiny / "figures.py").write_text("def tokens(results):\n    return {'seen': [1]}\n")
    with pytest.raises(InputError, match="a point that can be simulated"):
        study.run(study.context(tmp_path, workers=0))


COMPARE = """

def compare(context):
    two = context["two"]
    return [Compared("sum", 5, 2 + two, "it counts", 1, "Fig. 1", (3.5, 4.5), 0.0),
            Compared("pair", (1, 2), (two, 3.0)),
            Compared("words", "big", "small" if two < 3 else "large", agrees=two > 2),
            Compared("same", None, 1)][:4 if two < 9 else 1]
"""


def compared_study(tiny, what_if):
    missing = [{"where": "Table 9", "figure": "users", "paper": "12", "why": "nobody was asked"}]
    (tiny / "study.yaml").write_text(yaml.safe_dump(CONFIG | {"what_if": what_if, "missing": missing}, sort_keys=False))
    report = REPORT.replace("import Point", "import Compared, Point").replace('{extra}"])', '{extra}"],'
                            'compared=compare(context))')
    (tiny / "report.py").write_text(report + COMPARE)
    return load_study(tiny)


def test_the_figures_of_a_paper_stand_beside_those_under_other_assumptions(tiny, tmp_path):
    study = compared_study(tiny, {"three": {"two": 3}, "Nine, times": {"two": 9, "mode": "times"}})
    report = study.run(study.context(tmp_path / "out", workers=0))
    paper, what_if = report.tables[:2]
    columns = ["where", "figure", "paper", "here", "interval", "range", "verdict", "why"]
    assert paper.frame.to_dict("records") == [dict(zip(columns, row, strict=True)) for row in (
        ("Fig. 1", "sum", "5.0", "4.0", "3.5 to 4.5", "4.0 to 11.0", "direction", "it counts"),
        ("", "pair", "1 to 2", "2 to 3", "-", "2 to 3", "partly", ""),
        ("", "words", "big", "small", "-", "2 outcomes", "differs", ""),
        ("", "same", "-", "1", "-", "the same", "-", ""),
        ("Table 9", "users", "12", "-", "-", "-", "not computed", "nobody was asked"))]
    assert what_if.frame.to_dict("records") == [
        {"figure": name, "here": here, "under": under} for name, here, under in (
            ("sum", "4.0", "as assumed"), ("sum", "5.0", "three"), ("sum", "11.0", "Nine, times"),
            ("pair", "2 to 3", "as assumed"), ("pair", "3 to 3", "three"),
            ("words", "small", "as assumed"), ("words", "large", "three"))]
    # a label's figures are those that --set gives
    other = load_study(tiny).context(tmp_path / "b", workers=0, changes=["two=9", "mode=times"])
    assert study.run(other).tables[0].frame["here"].tolist()[0] == "11.0"
    quick = study.run(study.context(tmp_path / "quick", quick=True, workers=0))
    assert [table.name for table in quick.tables] == ["paper", "sum", "runs"]
    assert "range" not in quick.tables[0].frame
    assert "what_if" in quick.notes[-1]


@pytest.mark.parametrize(("what_if", "said"), [
    ({"a": {"tow": 3}}, "did you mean 'two'"), ({"a": {"two": 11}}, "an integer from 0 to 10"),
    ({"a": {"mode": "minus"}}, "one of plus, times"), ({"a": {"two": [1]}}, "what_if.a.two"),
])
def test_a_wrong_what_if_names_its_place(tiny, capsys, what_if, said):
    (tiny / "study.yaml").write_text(yaml.safe_dump(CONFIG | {"what_if": what_if}, sort_keys=False))
    line = refused(capsys, "study", tiny)
    assert f"{tiny}/study.yaml:" in line
    assert said in line


@pytest.mark.parametrize("name", known_studies())
def test_every_study_is_complete(name):
    study = load_study(name)
    assert (study.name, study.title != "") == (name, True)
    page = (study.folder / "page.md").read_text(encoding="utf-8")
    turning = [key for key, one in study.config.assumptions.items() if one.turns]
    assert len(turning) == 1
    assert f"`{turning[0]}`" in page, "the page names the assumption that turns its conclusion round"
    table = page[:page.index("\n\n", page.index("| paper | here | why |"))]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert 3 <= len(rows) <= 12, "a table of at most ten rows opens the page"
    decisions = re.findall(r"^\d+\. ", table, flags=re.MULTILINE)   # of an architect, before the table
    assert table.count("\n\n") <= (4 if len(decisions) == 10 else 2)
    words = re.sub(r"```.*?```|!?\[|\]\([^)]*\)|[|#*`-]", " ", page, flags=re.DOTALL).split()
    assert len(words) <= 400
    for target in re.findall(r"\]\(([^)#\s]+)", page):
        assert target.startswith("https://") or (study.folder / target).exists(), target


def test_studies_are_listed(capsys):
    for arguments in (["study"], ["study", "--list"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in known_studies())
    assert len(known_studies()) == 15


def test_the_wheel_has_no_studies():
    built = (ROOT / "pyproject.toml").read_text().split("[tool.hatch.build", 1)[1].split("[tool.pytest", 1)[0]
    assert "studies" not in built
    assert not (Path(hermes.__file__).parent / "studies").exists()


def test_a_study_is_not_imported_by_the_command_line():
    script = "import sys, hermes.cli; print([name for name in sys.modules if name.startswith('hermes.study')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_reference_data_that_is_not_there_is_one_line(tiny, tmp_path):
    study = load_study(tiny)
    with pytest.raises(InputError, match="--data"):
        study.context(tmp_path).need_data("splitwise")
    with pytest.raises(InputError, match="splitwise"):
        study.context(tmp_path, data=tmp_path).need_data("splitwise")


@pytest.mark.parametrize(("rate", "seqs", "steady"), [
    ("4 /s", 256, True), ("40 /s", 4, False), ("4000 /s", 256, None),
])
def test_stability(rate, seqs, steady):
    """Four a second are served as they come; forty with four at a time pile up; 400 at once are too few to tell."""
    scenario = BASE | {"workload": BASE["workload"] | {"arrivals": {"kind": "poisson", "rate": rate}}}
    scenario["clients"] = [BASE["clients"][0] | {"scheduler": {"kind": "chunked", "max_num_seqs": seqs}}]
    figures = point_figures(simulate(scenario))
    assert figures["stable"] is steady
    assert figures["kv_capacity_tokens"] > 0
    assert 0 < figures["kv_peak_share"] <= 1
    assert figures["rejected"] == 0


def test_requests_in_the_system_by_hand():
    """Four requests a second apart, each there for half a second: half a request in the system, at any time."""
    results = simulate(BASE | {"workload": BASE["workload"] | {"requests": 9}})
    record = results.record
    record.arrival_ns[:] = np.arange(9) * 1_000_000_000
    record.finish_ns[:] = record.arrival_ns + 500_000_000
    found = stability(record, 5e8)
    assert (found.in_system_early, found.in_system_late) == (0.5, 0.5)
    assert found.stable is True
    assert found.window_s == 8.0


def test_tables_and_plots_have_names_of_their_own(tmp_path):
    import pandas as pd

    from hermes.study import Table

    with pytest.raises(InputError, match="different names"):
        Report([Table("a", "A", pd.DataFrame()), Table("a", "B", pd.DataFrame())]).write(tmp_path)
