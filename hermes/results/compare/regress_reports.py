"""A regression report as Markdown, for a pull request, and as JUnit XML, for a CI system."""

from __future__ import annotations

from xml.etree import ElementTree

from hermes.results.compare.regress import Difference, RegressReport
from hermes.results.layout import markdown_table
from hermes.units import counted

__all__ = ["to_junit", "to_markdown"]

MOST = 100   # rows of a table


def to_markdown(report: RegressReport) -> str:
    """Return a heading and, with differences, a table of the first of them."""
    if report.ok:
        return f"### Predictions: no differences\n\n{report.compared} are as recorded.\n"
    rows = []
    for found in report.differences[:MOST]:
        spread = "" if found.seeds is None else f"CV {100 * found.seeds['cv']:.2g}% ({found.seeds['class']})"
        change = found.what if found.change is None else f"{found.change:+.4%}"
        rows.append((found.scenario, found.metric, _cell(found.old), _cell(found.new), change, spread, found.verdict))
    table = markdown_table(("scenario", "metric", "old", "new", "change", "over seeds", "verdict"), rows)
    more = f"\n\nand {len(report.differences) - MOST:,} more" if len(report.differences) > MOST else ""
    return (f"### Predictions: {counted(len(report.differences), 'difference')}\n\nIn {report.compared}.\n\n"
            f"{table}{more}\n")


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def to_junit(report: RegressReport, names: list[str]) -> str:
    """Return JUnit XML: a test case per scenario, which fails with its differences. names: All scenarios, in order."""
    of_each: dict[str, list[Difference]] = {name: [] for name in names}
    for found in report.differences:
        of_each.setdefault(found.scenario, []).append(found)
    failures = sum(bool(found) for found in of_each.values())
    suite = ElementTree.Element("testsuite", name="hermes regress", tests=str(len(of_each)), failures=str(failures))
    for name, differences in of_each.items():
        case = ElementTree.SubElement(suite, "testcase", classname="hermes.regress", name=name)
        if differences:
            said = f"{len(differences)} predictions differ"
            failure = ElementTree.SubElement(case, "failure", message=said)
            failure.text = "\n".join(
                f"{one.metric or name}: {one.what}, {_cell(one.old)} -> {_cell(one.new)}" for one in differences[:MOST])
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
