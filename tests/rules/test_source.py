"""The source of the pack: the committed files are what it makes, and laying out changes no expression."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import promql_parser as promql
import pytest

import layout
import make_rules
from tests.rules.pack import ROOT, rules

FOLDER = ROOT / "scripts" / "rules"


def test_committed_files_are_what_the_source_makes() -> None:
    """``make rules`` would change nothing, and each file of the pack has a source."""
    done = subprocess.run(
        [sys.executable, FOLDER / "make_rules.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_mistakes_in_a_source_are_told(tmp_path: Path) -> None:
    """What is nowhere said, a text that is no template and one that is no expression: each names file and line."""
    (tmp_path / "said_once.jinja").write_text('%% set run = "cluster, training_run"\n')
    source = tmp_path / "alert.yml.jinja"
    for text, message in {
        "a: 1\nb: <<limit.stall_second>>\n": "alert.yml.jinja:2: 'dict object' has no attribute 'stall_second'",
        "a: <<runs>>\n": "alert.yml.jinja:1: 'runs' is undefined",
        "a: 1\n%% for\n": "alert.yml.jinja:2: ",
        "  - record: a\n    expr: max by (<<run>> (b)\n": "alert.yml.jinja: max by (cluster, training_run (b): ",
    }.items():
        source.write_text(text)
        with pytest.raises(make_rules.SourceError) as raised:
            make_rules.made(tmp_path)
        assert str(raised.value).startswith(message)


def test_what_is_said_once(tmp_path: Path) -> None:
    """Names stand for their text, several lines keep the indentation of the one, and all is filled."""
    (tmp_path / "said_once.jinja").write_text(
        '%% set run = "cluster, training_run"\n<%- macro links(name) -%>\na: <<name>>\nb: 2\n<%- endmacro %>\n'
    )
    (tmp_path / "alert.yml.jinja").write_text(
        "# Of runs.\n  - alert: A\n    expr: |\n      sum by (<<run>>) (\n      x)\n    annotations:\n"
        '      said: >-\n        It takes\n        <<value("y{@run}", "humanize")>>.\n      <<links("A")>>\n'
    )
    assert make_rules.made(tmp_path) == {
        "alert.yml": "# Of runs.\n  - alert: A\n    expr: sum by (cluster, training_run) (x)\n    annotations:\n"
        '      said: >-\n        It takes {{ with printf "y{cluster=%q,training_run=%q}" $labels.cluster '
        "$labels.training_run | query -}} {{ . |\n        first | value | humanize }}{{ else }}?{{ end }}.\n"
        "      a: A\n      b: 2\n"
    }


@pytest.mark.parametrize("width", [40, 110])
def test_layout_changes_no_expression(width: int) -> None:
    """Whatever the width, the lines are the same expression, and laying them out again changes nothing."""
    for rule in rules():
        lines = layout.laid_out(rule.expr, width)
        assert promql.parse(lines).prettify() == promql.parse(rule.expr).prettify()
        assert layout.laid_out(lines, width) == lines


def test_layout_shows_what_binds_more() -> None:
    """What binds more stands deeper, and what follows a closed bracket in its line."""
    text = 'a{x="1"} * b > on (x) c and on (x) max by (x, y) (d or e) / f > 0'
    assert layout.laid_out(text, 30) == ('a{x="1"} * b > on (x) c\nand on (x) max by (x, y) (\n  d or e\n) / f\n  > 0')


def test_layout_opens_together_what_closes_together() -> None:
    """A call that another makes alone, and one after the other that replaces a label, take no line of their own."""
    text = 'max by (x) (label_replace(label_replace(a or b, "x", "$1", "from", "(.+)"), "y", "", "", "")) > 0'
    assert layout.laid_out(text, 45) == (
        'max by (x) (\n  label_replace(label_replace(\n    a or b, "x", "$1", "from", "(.+)"),\n'
        '    "y", "", "", "")\n) > 0'
    )
    assert layout.laid_out("sum by (x) (max by (x, y) (rate(a[1m]) or b))", 30) == (
        "sum by (x) (max by (x, y) (\n  rate(a[1m]) or b\n))"
    )
