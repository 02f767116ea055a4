"""A regression report as Markdown, for a pull request, and as JUnit XML, for a CI system."""

from __future__ import annotations

from xml.etree import ElementTree

from hermes.results.regress import Difference, RegressReport

__all__ = ["to_junit", "to_markdown"]

MOST = 100   # rows of a table


def to_markdown(report: RegressReport) -> str:
    """Return a heading and, with differences, a table of the first of them."""
    counted = f"{report.metrics:,} metrics of {report.scenarios:,} scenarios"
    if report.ok:
        return f"### Predictions: no differences\n\n{counted} are as recorded.\n"
    several = "s" if len(report.differences) > 1 else ""
    lines = [f"### Predictions: {len(report.differences):,} difference{several}", "", f"In {counted}.", "",
             "| scenario | metric | old | new | change | over seeds |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for found in report.differences[:MOST]:
        spread = "" if found.seeds is None else f"CV {100 * found.seeds['cv']:.2g}% ({found.seeds['class']})"
        change = found.what if found.change is None else f"{found.change:+.4%}"
        cells = (found.scenario, found.metric, _cell(found.old), _cell(found.new), change, spread)
        lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    if len(report.differences) > MOST:
        lines.append(f"\nand {len(report.differences) - MOST:,} more")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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
