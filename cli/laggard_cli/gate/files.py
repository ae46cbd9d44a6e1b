"""A verdict for programs: JSON, and JUnit's XML."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from laggard_cli.gate.measured import Measured
from laggard_cli.gate.verdict import LEVEL, WHOLE, Comparison, Outcome, Verdict
from laggard_cli.gate.view import facts, headline, rule
from laggard_cli.terminal import printable_lines
from laggard_cli.units import amount


def plain(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON has it; what a comparison has not is null."""
    return {
        "outcome": verdict.outcome.value,
        "limit": verdict.limit,
        "significance": LEVEL,
        "correction": "holm",
        "rule": rule(verdict.limit),
        "needed": verdict.needed,
        "baseline": _run(verdict.baseline),
        "candidate": _run(verdict.candidate),
        "comparisons": [{**vars(each), "outcome": each.outcome.value} for each in verdict.comparisons],
    }


def _run(measured: Measured) -> dict[str, Any]:
    return {
        "source": measured.source,
        "run": measured.run,
        "ranks": measured.ranks,
        "unit": measured.unit,
        "length": measured.length,
    }


def junit(verdict: Verdict) -> bytes:
    """Return a verdict as JUnit's XML: a test case for each comparison; what is not decided is an error."""
    cases = verdict.comparisons
    counts = {
        "tests": len(cases),
        "failures": sum(case.outcome is Outcome.FAIL for case in cases),
        "errors": sum(_element(case) == "error" for case in cases),
        "skipped": sum(_element(case) == "skipped" for case in cases),
    }
    texts = {name: str(count) for name, count in counts.items()}
    suites = ET.Element("testsuites", texts)
    suite = ET.SubElement(suites, "testsuite", {"name": "laggard gate", "time": "0", **texts})
    for case in cases:
        element = ET.SubElement(suite, "testcase", {"classname": "laggard.gate", "name": case.name, "time": "0"})
        kind = _element(case)
        if kind:
            found = ET.SubElement(element, kind, {"message": case.reason})
            found.text = f"{amount(case.baseline, case.unit)} in the baseline, {amount(case.candidate, case.unit)} now"
    ET.SubElement(suite, "system-out").text = printable_lines(
        "\n".join((headline(verdict), facts(verdict), rule(verdict.limit)))
    )
    return ET.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _element(case: Comparison) -> str:
    """Return how JUnit calls it; a phase that is not decided holds up nothing, so it is no error."""
    if case.outcome is Outcome.UNDECIDED:
        return "error" if case.name in WHOLE else "skipped"
    return {Outcome.FAIL: "failure", Outcome.TOLD: "skipped"}.get(case.outcome, "")
