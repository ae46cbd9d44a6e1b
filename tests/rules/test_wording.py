"""What alerts say: rendered by promtool with the values of a scenario, and read over here for what a person would mind.

The unit tests hold every version of Prometheus to these words; see promtool-tests/wording.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.rules.pack import ROOT, alerts

SCENARIOS = ROOT / "promtool-tests"
WORDING: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = yaml.load(
    (SCENARIOS / "wording.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
RENDERED = {
    alert: rendered for plays in WORDING.values() for spoken in plays.values() for alert, rendered in spoken.items()
}

#: The number of an expression that nobody rounded, what Go prints for a missing or a wrong value, a template left over.
_BAD = re.compile(r"\d\.\d{3}(?!%)|\de[+-]\d|<no value>|%!|NaN|[+-]Inf|\{\{|\}\}|  | [.,;:](\s|$)|\[\]")
#: A number with its unit, or a count of what is named; not a version.
_NUMBER = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)(?!\.?\d)(\S*)(?: (\w+))?")
_UNIT = re.compile(r"(%|k|M|ms|us|s|m|h|d|GiB|MiB|KiB|B)?\)?[.,:;]?")


def test_every_alert_is_rendered() -> None:
    """Each alert fires in some scenario, with all of its annotations written down; the watchdog does so in all."""
    assert RENDERED.keys() == {rule.name for rule in alerts()} - {"LaggardWatchdog"}


@pytest.mark.parametrize("alert", sorted(RENDERED))
def test_descriptions_read_well(alert: str) -> None:
    """A description is a sentence with rounded numbers, each with its unit or with what it counts."""
    assert RENDERED[alert], "it says nothing"
    for rendered in RENDERED[alert]:
        said: dict[str, str] = rendered["exp_annotations"]
        assert set(said) - {"cost"} == {
            "title",
            "summary",
            "description",
            "recommendation",
            "runbook_url",
            "dashboard_url",
        }
        for text in (said["description"], said["recommendation"]):
            assert not _BAD.search(text), text
            assert re.match(r"[A-Z]", text), text
            assert text.endswith("."), text
        for value, rest, word in _NUMBER.findall(said["description"]):
            assert _UNIT.fullmatch(rest), f"{value}{rest} in {said['description']}"
            assert rest or word, f"{value} of what? {said['description']}"


def test_bad_wording_is_seen() -> None:
    """The check above is worth something."""
    for text in ("It took 0.123456 s.", "It took <no value>.", "It took 1e+06.", "It took  3 s.", "It is NaN."):
        assert _BAD.search(text)
    assert not _BAD.search("It took 1.25 times as long: 12.5ms of 3h 2m, 40.01% (limit 5%).")


def test_a_command_in_an_alert_quotes_the_name_of_the_run() -> None:
    """Whoever starts a job chooses its name, and somebody else copies the command into a shell."""
    said = [" ".join(rule.annotations.get("recommendation", "").split()) for rule in alerts()]
    after = [text[each.end() :] for text in said for each in re.finditer("--run ", text)]
    assert after
    quoted = """'{{ reReplaceAll "'" "'\\\\''" $labels.training_run }}'"""
    assert [text[: len(quoted)] for text in after] == [quoted] * len(after)
