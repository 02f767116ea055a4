"""Studies: questions that take many simulations, answered by tables, plots and findings.

A study is a folder `studies/NAME` of the repository, outside the package, with `study.yaml` (title and assumptions),
`report.py` (a function `run(context) -> Report`, and `compare(context) -> list[Compared]` if study.yaml has `what_if`;
further modules may lie in the same folder) and `page.md`. `hermes study NAME` runs one; it also takes the path of a
study's folder anywhere.

    loading   find a study, read study.yaml, import its modules, set its assumptions
    points    simulate the points of a study: resumable, in parallel, each once
    search    find the highest rate that a system sustains
    report    the tables, plots and findings that a study returns
    compared  figures of a paper with those of a study, and the verdict on each
    figures   figures that every point can extract
"""

from hermes.study.compared import VERDICTS, Compared
from hermes.study.loading import Assumption, Context, Study, StudyConfig, known_studies, load_study
from hermes.study.points import Point, run_points, scenario_of, sweep_points
from hermes.study.report import Plot, Report, Table
from hermes.study.search import Search, run_searches

__all__ = ["VERDICTS", "Assumption", "Compared", "Context", "Plot", "Point", "Report", "Search", "Study", "StudyConfig",
           "Table", "known_studies", "load_study", "run_points", "run_searches", "scenario_of", "sweep_points"]
