"""``laggard report``: templates of annotations, times and durations say what Prometheus says."""

from __future__ import annotations

import re

import pytest
import yaml

from laggard_cli.pack import pack_folder
from laggard_cli.past.templates import TemplateError, render
from laggard_cli.past.times import moment, seconds
from laggard_cli.prometheus import Sample
from tests.cli.report.runs import BEGIN

LABELS = {"training_run": 'a "run"', "training_rank": "3", "training_phase": "backward", "host_name": "node-1"}


def nothing(_: str) -> list[Sample]:
    """Answer no expression."""
    return []


#: Templates, and what they say.
SAID = {
    "{{ $labels.training_rank }} {{- if $labels.host_name }} on {{ $labels.host_name }}{{ end }}": "3 on node-1",
    '{{ if eq $labels.training_phase "data" -}} a {{- else if eq $labels.training_phase "forward" "backward" -}} b '
    "{{- else -}} c {{- end }}": "b",
    "{{ if not $labels.uuid }}no GPU{{ else }}{{ $labels.uuid }}{{ end }}": "no GPU",
    '{{ $value | humanizePercentage }} {{ $value | printf "%.2f" }} {{ $value | humanize }}': "123.4% 1.23 1.234",
    "{{ 0.00123 | humanizeDuration }}, {{ 12.5 | humanizeDuration }}": "1.23ms, 12.5s",
    "{{ 318 | humanizeDuration }}, {{ 90061 | humanizeDuration }}": "5m 18s, 1d 1h 1m 1s",
    "{{ 12345678 | humanize1024 }}B {{ 12345 | humanize }}": "11.77MiB 12.35k",
    '{{ with printf "x{run=%q}" $labels.training_run | query }}{{ . | first | value }}{{ else }}none{{ end }}': "none",
    "/d?run={{ $labels.training_run | urlquery }}": "/d?run=a+%22run%22",
    """'{{ reReplaceAll "'" "'\\\\''" "it's $1" }}'""": r"""'it'\''s $1'""",
}


@pytest.mark.parametrize(("template", "expected"), SAID.items())
def test_templates_say_what_prometheus_says(template: str, expected: str) -> None:
    """Branches, functions and trimmed spaces of Go's templates, as Prometheus has them."""
    assert render(template, LABELS, 1.234, nothing) == expected


def test_templates_ask_and_go_through_the_answer() -> None:
    """What a template asks is given to the server with names quoted, and each sample of the answer is told."""
    asked: list[str] = []

    def answer(expression: str) -> list[Sample]:
        asked.append(expression)
        return [Sample({"host_name": "a"}, 0.5), Sample({"host_name": "b"}, 0.25)]

    template = (
        '{{ with printf "hosts{training_run=%q}" $labels.training_run | query }}{{ (. | first).Labels.host_name }}:'
        "{{- range $index, $host := . }}{{ if $index }}, {{ end }}{{ $host.Labels.host_name }} {{ $host | value }}"
        "{{ end }}{{ end }}"
    )
    assert render(template, LABELS, 1.0, answer) == "a:a 0.5, b 0.25"
    assert asked == ['hosts{training_run="a \\"run\\""}']


@pytest.mark.parametrize(
    "template", ["{{ if $value }}", "{{ end }}", "{{ nosuch $value }}", "{{ $nosuch }}", "{{ # }}"]
)
def test_a_template_that_can_not_be_read_is_an_error(template: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(TemplateError):
        render(template, LABELS, 1.0, nothing)


def test_every_annotation_of_the_pack_can_be_said() -> None:
    """The shipped alerts use no part of Go's templates that is not known."""
    said = 0
    for path in pack_folder("rules").glob("alert*.yml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in (rule for rule in group["rules"] if "alert" in rule):
                for name in ("summary", "description", "recommendation"):
                    text = render(rule["annotations"].get(name, ""), LABELS, 1.5, lambda _: [Sample(LABELS, 0.5)])
                    assert "{{" not in text
                    said += bool(text)
    assert said > 100


def test_times_and_durations() -> None:
    """ISO 8601, seconds since 1970; durations of several parts."""
    assert moment("--from", "2023-11-14T22:13:20Z") == moment("--from", "2023-11-14 22:13:20 UTC") == BEGIN
    assert moment("--from", "1700000000") == BEGIN
    assert (seconds("--last", "1h30m"), seconds("--last", "2d")) == (5400, 172800)


#: A number that is not known, or what stands where one was left out: a space before a mark, or two prepositions.
_HOLE = re.compile(r"\?| [.,;:)](?!\w)|\( |\b(?:by|of|to|from|than|at|for) (?:by|of|to|from|than|times)\b")


def test_what_is_not_known_leaves_no_hole() -> None:
    """An alert lasts longer than some of what it tells, and is read later still: only its limits are always there."""
    holes: list[str] = []

    def limits(expression: str) -> list[Sample]:
        return [Sample({}, 0.5)] if "laggard_threshold" in expression or "_limit_seconds" in expression else []

    for path in pack_folder("rules").glob("alert*.yml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in (rule for rule in group["rules"] if "alert" in rule):
                for name in ("title", "summary", "cost", "description", "recommendation"):
                    template = rule["annotations"].get(name, "")
                    labels = dict.fromkeys(re.findall(r"\$labels\.(\w+)", template), "x")
                    said = render(template, labels, 1.5, limits)
                    holes += [f"{rule['alert']}: {hole[0]!r} in {said}" for hole in _HOLE.finditer(said)]
    assert holes == []
