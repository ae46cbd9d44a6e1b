"""``laggard report``: its arithmetic, its words, its page; and what it says where it cannot be made."""

from __future__ import annotations

import base64
import dataclasses
import http.server
import json
import re
import ssl
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import yaml

from laggard_cli.main import main
from laggard_cli.pack import alert, pack_folder
from laggard_cli.past.templates import TemplateError, render
from laggard_cli.past.times import moment, seconds
from laggard_cli.prometheus import Range, Sample
from laggard_cli.report import causes, costs, heat, raster
from laggard_cli.report.history import Counted
from laggard_cli.report.judgement import judged, missing
from laggard_cli.report.page import page
from laggard_cli.report.runbooks import to_html
from laggard_cli.report.sentences import wrong
from laggard_cli.report.span import Span
from laggard_cli.report.verdicts import Firing
from tests.cli.report_runs import BEGIN, HOSTILE, Server, problem, run

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


def test_a_slow_rank_costs_its_excess_on_all_ranks() -> None:
    """The mean of what its alert asks while it fired, 0.5 s of 1.5 s, for 25 minutes of 8 ranks."""
    (told,) = run().told
    assert told.cost is not None
    assert told.cost.share == pytest.approx(0.5 / 1.5)
    assert told.cost.rank_hours == pytest.approx(0.5 / 1.5 * 8 * 1500 / 3600)
    assert told.says == (
        "Rank 5 of run llama-7b-17 on llama-7b-17-node-0 needs 1.62 times as long as its peers in backward "
        "(since 22:48:20 UTC, costs 33% of each step)"
    )
    assert told.cost.arithmetic == "33% of each step; \u00d7 8 ranks \u00d7 25 min = 1.11 rank-hours"


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "TrainingInputWorkersBusy",
            'run:training_data_share:ratio{cluster="",training_run="r"}',
            "33% of each step; ",
        ),
        ("TrainingInputBound", "its query", "33% of each step; "),
        ("TrainingStalled", None, "no step ended for 25 min while this fired: 8 ranks"),
        ("TrainingLossSpike", None, None),
    ],
)
def test_an_alert_says_what_it_costs(name: str, asked: str | None, said: str | None) -> None:
    """A recorded share of each step, all of the time, or nothing that could be told; of a hostile template nothing."""
    server, history = Server(), run(healthy=True).history
    firing = problem("r", "5", "node-0")
    told = dataclasses.replace(firing, alert=name, query="its query", cost=alert(name)["annotations"].get("cost", ""))
    found = costs.cost(cast("Counted", server), history, told)
    assert server.asked == ([asked] if asked else [])
    assert (said is None) is (found is None)
    assert found is None or (said or "") in found.arithmetic
    assert costs.cost(cast("Counted", server), history, dataclasses.replace(told, cost="{{ nobody knows }}")) is None


def test_a_problem_of_several_ranks_says_it_of_each() -> None:
    """The worst with its numbers, the others after it; without the rule's text the title says it of all."""
    one, two = problem("r", "3", "node-0"), problem("r", "5", "node-0")
    both = dataclasses.replace(one, firings=[*one.firings, *two.firings])
    assert wrong(both).endswith("in backward; the same of rank 5")
    # Its host became known, so that it fires under another label.
    unplaced = problem("r", "3", "")
    again = dataclasses.replace(one, firings=[*one.firings, *unplaced.firings])
    assert wrong(again).endswith("in backward")
    assert wrong(dataclasses.replace(both, summary="")) == (
        "Ranks 3, 5 on node-0, phase backward: one rank makes the others wait in every step"
    )


def test_peers_are_compared_as_the_rules_compare() -> None:
    """The median from eight ranks on, the lower quartile from three, of two the faster; what is missing is left out."""
    column = np.arange(1.0, 9.0)[:, None]
    assert costs.reference(column).tolist() == [4.5]
    assert costs.reference(column[:4]).tolist() == [1.75]
    assert costs.reference(column[:2]).tolist() == [1.0]
    assert np.isnan(costs.reference(np.full((2, 1), np.nan))).all()


def test_symptoms_stand_behind_their_cause() -> None:
    """What follows from what is as Alertmanager has it; a cause must be there at the time, on the same rank or host."""
    slow = problem("r", "5", "node-0")
    node = dataclasses.replace(problem("r", "", "node-0"), alert="TrainingNodeSlow")
    elsewhere = dataclasses.replace(problem("r", "", "node-1"), alert="TrainingNodeSlow")
    later = dataclasses.replace(node, firings=[Firing(node.worst, BEGIN + 4000, BEGIN + 5000)])
    assert causes.cause(slow, [slow, elsewhere, later, node]) is node
    assert causes.cause(slow, [slow, elsewhere, later]) is None
    # What makes a rank slow may make it unsteady too.
    unsteady = dataclasses.replace(slow, alert="TrainingContention")
    assert causes.cause(slow, [slow, unsteady]) is None
    assert causes.cause(unsteady, [slow, unsteady]) is None
    stalled = dataclasses.replace(node, alert="TrainingStalled", severity="critical")
    assert causes.cause(slow, [slow, stalled]) is stalled
    assert causes.cause(dataclasses.replace(slow, alert="TrainingLossSpike"), [slow, stalled]) is None
    assert causes.cause(node, [slow, node]) is None


def test_a_slow_stage_is_seen_against_the_other_stages() -> None:
    """Within its group no rank is slow; across groups all of them are."""
    history = dataclasses.replace(run(healthy=True).history, groups={str(rank): f"s{rank // 4}" for rank in range(8)})
    history.own[4:] *= 1.5
    assert np.nanmax(costs.excess(history)) < 1.01
    assert np.nanmin(costs.excess(history, across=True)[4:]) > 1.1


def test_a_healthy_run_says_why() -> None:
    """What was compared, and how far it is from a verdict."""
    report = run(healthy=True)
    assert report.judged.headline == "Healthy: no verdict above info in these 60 min."
    assert report.judged.reasons == [
        "8 of 8 ranks were compared.",
        "The slowest, rank 2, needed 1.00 times as long as its peers; a verdict needs 1.20.",
        "On average 10% of a step went into waiting for data; a verdict needs 20%.",
        "There was no time in which no rank ended a step.",
    ]


def test_healthy_is_said_of_all_ranks_or_of_none() -> None:
    """A rank that reports and was never compared is named, and one that never reported is counted."""
    history = run(healthy=True).history
    history.own[6] = np.nan
    unknown = missing(history, None, exporters=True, remarks=[])
    found = judged(history, [], [], unknown)
    assert (found.state, found.headline) == (
        "unknown",
        "No verdict above info in these 60 min, and 1 rank was never compared.",
    )
    assert "7 of 8 ranks were compared." in found.reasons
    assert any("no step counts: rank 6." in said for said in found.reasons)
    found = judged(dataclasses.replace(history, expected=10), [], [], [])
    assert found.headline.endswith("and 3 ranks were never compared.")


def test_a_bubble_is_not_reported_as_transfer() -> None:
    """What all ranks wait is transfer and has a limit; in a pipeline it is bubble too and has none."""
    history = run(healthy=True).history
    history.limits["communication_bound_share"] = 0.16
    history.facts["run:training_communication_floor_share:ratio"] = np.full(len(history.times), 0.1)
    said = judged(history, [], [], []).reasons
    assert "On average 10% of a step went into transfer; a verdict needs 16%." in said
    history.facts["run:training_stages:count"] = np.full(len(history.times), 4.0)
    said = judged(history, [], [], []).reasons
    assert "On average 10% of a step went into transfer and bubble." in said


def test_missing_is_said_and_is_not_zero() -> None:
    """A time without data is transparent in the picture, left out of means, and told; one without steps is grey."""
    report = run()
    assert any("Pictures show gaps" in said and "of rank 1 8%" in said for said in report.missing)
    history = report.history
    pixels = raster.shaded(costs.excess(history), 0.95, 1.5, history.reports)
    assert (pixels[1, 30:40, 3] == 0).all()
    assert (pixels[0, :, 3] == 255).all()
    still = dataclasses.replace(history, own=np.full_like(history.own, np.nan))
    assert raster.shaded(costs.excess(still), 0.95, 1.5, still.reports)[0, 0].tolist() == list(raster.STILL)


def test_the_culprit_is_brightest() -> None:
    """Its pixels in the second half, and no others, are at the upper end of the palette."""
    history = run().history
    pixels = raster.shaded(costs.excess(history), 0.95, 1.5, history.reports).astype(int)
    bright = pixels[..., 1] > 200
    assert bright[5, 60:].all()
    assert bright.sum() == bright[5, 60:].sum()


def test_a_picture_is_a_png() -> None:
    """Its header and pixels are those that were given."""
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    content = base64.b64decode(raster.data_uri(pixels).removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[16:24] == (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    place = content.index(b"IDAT")
    length = int.from_bytes(content[place - 4 : place], "big")
    rows = zlib.decompress(content[place + 4 : place + 4 + length])
    assert rows == b"\0" + pixels[0].tobytes() + b"\0" + pixels[1].tobytes()


def test_of_many_ranks_the_culprit_has_a_row_of_its_own() -> None:
    """512 ranks: the named one first, then groups, of which the one with the culprit shows its worst; below 3 MB."""
    report = run(512, 301, columns=240)
    rows = heat.rows_of(report.history, [each.problem for each in report.told])
    assert (rows[0].label, rows[0].marked) == ("rank 301", True)
    assert len(rows) < 64
    (group,) = (row for row in rows[1:] if row.marked)
    assert 301 in group.members
    values = heat.pooled(costs.excess(report.history), rows)
    assert values[rows.index(group), -1] == values[0, -1] > 1.6
    assert len(page(report).encode()) < 3e6 / 4


def test_without_anything_to_compare_nothing_is_judged() -> None:
    """A run whose ranks report no step, or of which nothing reports, is not healthy; its page says what is missing."""
    history = run().history
    nothing_own = {name: np.full_like(history.own, np.nan) for name in ("own", "wait")}
    silent = dataclasses.replace(history, **nothing_own, phases={})
    empty = np.zeros((0, len(history.times)))
    absent = dataclasses.replace(silent, own=empty, wait=empty, reports=empty, ranks=[], hosts={}, information=[])
    for each, first in ((silent, "Ranks report and no step counts yet"), (absent, "No rank's own metrics are there")):
        unknown = missing(each, None, exporters=False, remarks=["The rule is gone."])
        found = judged(each, [], [], unknown)
        assert found.headline == "Not judged: in these 60 min the ranks could not be compared."
        assert found.reasons[0].startswith(first)
        assert found.reasons[-1] == "The rule is gone."
        text = page(
            dataclasses.replace(run(), history=each, told=(), judged=found, losses=None, missing=tuple(unknown))
        )
        assert "No node exporter shows the state files of this run" in text


def test_losses_without_a_number_are_none() -> None:
    """What the rules could not divide is left out; parts of whole hours are weighed by their length."""

    class Server:
        """Answers with a goodput of 0.5 over two hours, the first one short."""

        def say(self, what: str) -> None:
            pass

        def at(self, expression: str, moment: float) -> list[Sample]:
            return [Sample({}, BEGIN + 5400)] if "timestamp" in expression else []

        def over(self, expression: str, span: Span, step: float | None = None) -> list[Range]:
            if "goodput" in expression:
                return [Range({}, {BEGIN + 1800: 0.2, BEGIN + 5400: 0.8})]
            return [Range({"training_reason": "waiting"}, {BEGIN + 1800: 0.8, BEGIN + 5400: float("nan")})]

    history = dataclasses.replace(run().history, span=Span(BEGIN, BEGIN + 5400, 60, 60))
    found = costs.losses(cast("Counted", Server()), history)
    assert found is not None
    assert (found.rank_hours, found.price) == (8 * 1.5, None)
    assert found.goodput == pytest.approx((0.2 + 2 * 0.8) / 3)
    assert found.lost == {"waiting": pytest.approx(0.8 / 3)}


class _Attributes(HTMLParser):
    """Collects elements, attributes and identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_hostile_names_stay_text() -> None:
    """A run's name can add no element and no attribute, end no style, hide nothing; and nothing may be loaded."""
    text = page(run(name=HOSTILE))
    found, plain = _Attributes(), _Attributes()
    found.feed(text)
    plain.feed(page(run()))
    assert found.elements == plain.elements
    assert not {"script", "iframe", "object", "img", "link", "form"} & set(found.elements)
    assert {name for name, _ in found.attributes} == {name for name, _ in plain.attributes}
    assert not any(name.startswith("on") or name == "style" for name, _ in found.attributes)
    assert text.count("</style>") == 1
    assert "\u202e" not in text
    assert "\x1b" not in text
    (policy,) = (value for name, value in found.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert all(
        value.startswith(("#", "data:image/png", "https://runbooks/"))
        for name, value in found.attributes
        if name in ("href", "src")
    )
    wrong = dataclasses.replace(run().told[0].problem, runbook_url="javascript:alert(1)")
    report = run()
    told = dataclasses.replace(report.told[0], problem=wrong)
    assert "javascript" not in page(dataclasses.replace(report, told=(told,)))


def test_every_runbook_is_html_that_leads_somewhere() -> None:
    """Headings, tables and commands are elements, links lead to pages beside it, and no Markdown is left."""
    elements: Counter[str] = Counter()
    for path in sorted(Path("rules/runbooks").glob("*.md")):
        made = to_html(path.read_text(), f"https://site/{path}")
        found = _Attributes()
        found.feed(made)
        elements.update(found.elements)
        assert f">{path.stem}</h" not in made
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", made, flags=re.DOTALL)
        assert not re.search(r"^#|```|\]\(|^\|", prose, re.MULTILINE), path.name
        links = [value for name, value in found.attributes if name == "href"]
        assert all(link.startswith(("https://", "http://")) for link in links)
        beside = [Path(link.removeprefix("https://site/")) for link in links if link.startswith("https://site/")]
        assert all(page.with_name(page.name.partition("#")[0]).is_file() for page in beside), links
    assert min(elements[name] for name in ("h4", "pre", "code", "a", "li", "table")) > 0
    assert not {"h1", "h2", "script", "img"} & set(elements)


@pytest.mark.parametrize("url", ["", "javascript:alert(1)", "file:///etc/passwd"])
def test_a_runbook_without_a_place_has_no_links(url: str) -> None:
    """Relative links lead nowhere from a file, and what looks like HTML is text."""
    page = "# A\n\n## B\n\n[one](B.md) and [*two*](https://here/) `x` [c](javascript:alert(1)) <script>x</script>\n"
    assert to_html(page, url) == (
        '<h4>B</h4>\n<p>one and <a href="https://here/" rel="noreferrer"><em>two</em></a> <code>x</code> '
        "[c](javascript:alert(1)) &lt;script&gt;x&lt;/script&gt;</p>\n"
    )


class _Fake(http.server.BaseHTTPRequestHandler):
    """A Prometheus without any series, but for the names of two runs; under /private it wants a password."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("query", [""])[0]
        known = "group by (cluster, training_run)" in query
        result = [{"metric": {"training_run": name}, "value": [0, "1"]} for name in ("one", "two") if known]
        kind = "matrix" if url.path.endswith("query_range") else "vector"
        body: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": result}}
        content = json.dumps(body).encode()
        allowed = "private" not in url.path or self.headers["Authorization"] == "Basic dTpyaWdodA=="  # u:right
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve it, once in the open and once with a certificate that nobody trusts."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key", "-out", folder / "crt",
         "-days", "1", "-subj", "/CN=localhost"], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Fake) for _ in range(2)]
    servers[1].socket = context.wrap_socket(servers[1].socket, server_side=True)
    threads = [Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    plain, secure = (f"127.0.0.1:{server.server_port}" for server in servers)
    yield {
        "http": f"http://{plain}",
        "private": f"http://u:secret@{plain}/private",
        "allowed": f"http://u:right@{plain}/private",
        "https": f"https://{secure}",
        "down": "http://127.0.0.1:1",
    }
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


#: A server, arguments, and what is said of them.
REFUSED = {
    ("down",): "cannot be reached: Connection refused",
    ("private",): "wants to know who asks: HTTP 401 at /api/v1/query; --http.config.file gives a password",
    ("https",): "; --http.config.file names the authority to trust",
    ("allowed",): "--run 'r' is not in Prometheus at",
    ("http", "--from", "2026-01-02", "--to", "2026-01-01"): (
        "--from 2026-01-02 is not before --to 2026-01-01: the range is empty"
    ),
    ("http", "--from", "2026-01-01", "--to", "2026-01-02"): (
        "from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC; runs there: one, two"
    ),
    (
        "http",
        "--from",
        "yesterday",
    ): "--from must be a time, got 'yesterday'; try 2026-01-31T08:00:00Z",
    ("http", "--last", "2x"): "--last must be a duration, got '2x'; try 90m, 1h or 2d",
    ("http", "--last", "1h", "--from", "2026-01-01"): "--from and --last exclude each other",
}


@pytest.mark.parametrize("given", REFUSED, ids=" ".join)
def test_what_can_not_be_done_is_one_line_and_loses_nothing(
    fake: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    """The line names the thing; an earlier report stays as it was, and nothing lies beside it."""
    server, *arguments = given
    output = tmp_path / "report.html"
    output.write_text("earlier")
    code = main(["report", "--prometheus", fake[server], "--run", "r", "-o", str(output), *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert line.startswith("laggard report: error: ")
    assert REFUSED[given] in line
    assert "secret" not in line
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "earlier")]


def test_an_output_that_can_not_be_written_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a folder that is not there nor one in place of the file costs a query."""
    for output, reason in ((tmp_path / "no" / "r.html", "No such file or directory"), (tmp_path, "is a directory")):
        assert main(["report", "--prometheus", "http://127.0.0.1:1", "--run", "r", "-o", str(output)]) == 2
        assert capsys.readouterr().err == f"laggard report: error: --output {output}: {reason}\n"
    assert list(tmp_path.iterdir()) == []
