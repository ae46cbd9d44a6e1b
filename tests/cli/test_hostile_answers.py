"""Whatever a server answers, a command ends with a result, or with one line and an exit code that is not 0."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard_cli import prometheus, unread
from laggard_cli.main import main
from laggard_cli.pack import pack_rules
from tests.fuzz.test_parsers import fuzz
from tests.support.answering import Answer, Answering, answering
from tests.support.fake_prometheus import fake_prometheus, firing

#: Each command as it is asked about a server; FILE is a new file, CREDENTIALS one that holds some.
COMMANDS = (
    ("diagnose",),
    ("diagnose", "--json"),
    ("diagnose", "--run", "r"),
    ("diagnose", "--at", "2026-01-31T08:00:00Z"),
    ("diagnose", "--watch", "0.001"),
    ("diagnose", "--watch", "0.001", "--json"),
    ("diagnose", "--stacks"),
    ("report", "--run", "r", "--last", "20m", "-o", "FILE"),
    ("gate", "--baseline", "run:r", "--candidate", "run:r"),
    ("gate", "--baseline", "run:r", "--candidate", "run:r", "--json"),
    ("gate", "--candidate", "run:r", "--save", "FILE"),
    ("profile", "--timeout", "0.1"),
    ("profile", "--run", "r", "--ranks", "0,1", "--exporter-credentials", "CREDENTIALS", "--timeout", "0.1"),
)
_NAMES = ("r", "r", "r", "", "x\x1b]0;owned\x07\nline", "[/bold]", "[red]", ":boom:", "\ud800", "9" * 5000, "a/../b")
_RANKS = ("0", "1", "2", "10", "-1", "٣", "9" * 5000, "", "zwei", "[/]")
_VALUES = ("NaN", "+Inf", "-Inf", "0", "-1", "1", "0.1", "0.2", "2", "8", "1e308", "1e29", "-1e29", "5e-324", "1e18")
_LABELS = {
    "training_run": _NAMES,
    "cluster": ("", "", "east", "x\x1b]0;owned\x07", "[/bold]"),
    "training_rank": _RANKS,
    "training_phase": ("data", "communication", "forward", "checkpoint", "[/]", ""),
    "training_peer_group": ("", "0", "1", "[x]"),
    "training_reason": ("warmup", "waiting", "\x1b[2J"),
    "training_signal": ("communication", "data"),
    "training_memory_kind": ("device", "host_rss", "[/]"),
    "host_name": ("node-1", "node-2", "a.*", "]"),
    "name": ("straggler_score", "x"),
    "alertname": ("TrainingStraggler", "TrainingStalled", "TrainingJobStalled", "Training", "Other", "LaggardWatchdog"),
    "alertstate": ("firing", "pending"),
    "severity": ("critical", "warning", "info", "page", "", "P1"),
    "__name__": ("ALERTS", "run:training_step_seconds:mean", "run:training_data_share:ratio"),
}
_TEXTS = ("", "text", "{{ $value }}", "{{ unknown }}", "{{ range }}", "[/bold] text [red]", "\x1b]0;owned\x07", "a\nb")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(_VALUES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("result", "metric", "value", "values", "alerts", "groups", "rules", "labels", "status")),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
HTML = b"<!doctype html><html><body><form action=/login>Sign in</form></body></html>"


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    """Serve for all examples."""
    with answering() as found:
        yield found


class _Watched(Exception):  # noqa: N818 - an end, and no error
    """Ends ``--watch``."""


def ask(command: tuple[str, ...], url: str, folder: Path) -> tuple[int, str, str]:
    """Run a command; return its exit code, and what it printed."""
    files = {"FILE": str(folder / "made"), "CREDENTIALS": str(folder / "credentials")}
    (folder / "credentials").write_text("user:password")
    arguments = [files.get(each, each) for each in command]
    passed = 0

    def sleep(_: float) -> None:
        nonlocal passed
        passed += 1
        if passed > 2:
            raise KeyboardInterrupt

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("laggard_cli.diagnose.command.time.sleep", sleep)
        patch.setenv("LAGGARD_STATE_DIR", str(folder))
        code = main([arguments[0], "--prometheus", url, *arguments[1:]])
    return code, out.getvalue(), err.getvalue()


def holds(command: tuple[str, ...], code: int, out: str, err: str) -> None:
    """Assert that a command ended as it may: with a result, by Ctrl-C, or with one line."""
    allowed = (0, 1, 3, 130) if command[0] == "gate" else (0, 130)
    if code in allowed:
        if "--json" in command:
            lines = out.splitlines() if "--watch" in command else [out]
            for text in filter(None, lines):
                json.loads(text, parse_constant=pytest.fail)
    else:
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(f"laggard {command[0]}: error: ")
    assert "\x1b]0;owned" not in out + err


def success(data: Any) -> Answer:
    """Return data as Prometheus sends it."""
    return Answer(
        json.dumps({"status": "success", "data": data}).encode(), headers={"Content-Type": "application/json"}
    )


class _Hostile:
    """Answers in the right form with names and numbers of all kinds."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, path: str, parameters: dict[str, str]) -> Answer:
        some = range(self._chance.choice((0, 1, 1, 2, 5)))
        if path.endswith("/alerts"):
            return success({"alerts": self._chance.choice(([self._alert() for _ in some], None))})
        if path.endswith("/rules"):
            rules = [{"type": "alerting", **self._rule()} for _ in some]
            return success({"groups": [{"rules": rules}]})
        if path.endswith("_range"):
            return success({"resultType": "matrix", "result": [self._range(parameters) for _ in some]})
        return success({"resultType": "vector", "result": [self._sample(parameters) for _ in some]})

    def _labels(self) -> dict[str, str]:
        return {name: self._chance.choice(values) for name, values in _LABELS.items() if self._chance.random() < 0.7}

    def _sample(self, parameters: dict[str, str]) -> dict[str, Any]:
        query = parameters["query"]
        labels = {"training_run": "r"} if "count by (cluster, training_run)" in query else self._labels()
        at = float(parameters.get("time", time.time()))
        value = self._chance.choice((*_VALUES, str(at))) if "timestamp" in query else self._chance.choice(_VALUES)
        return {"metric": labels, "value": [at, value]}

    def _range(self, parameters: dict[str, str]) -> dict[str, Any]:
        begin, end, step = (float(parameters[name]) for name in ("start", "end", "step"))
        usual = self._chance.random() < 0.7
        times = [begin + step * number for number in range(int(min(60, (end - begin) / step)) + 1)]
        if not usual:
            times = [self._chance.choice((*times, 0.0, -1e300, 1e300)) for _ in times]
        steady = self._chance.choice(_VALUES)
        return {
            "metric": self._labels(),
            "values": [[moment, self._chance.choice((steady, steady, *_VALUES))] for moment in times],
        }

    def _alert(self) -> dict[str, Any]:
        whole = {
            "labels": self._labels(),
            "annotations": self._annotations(),
            "state": self._chance.choice(("firing", "pending", "new")),
            "activeAt": self._chance.choice(("2026-01-01T00:00:00Z", "", "soon")),
            "value": self._chance.choice((*_VALUES, "", None)),
        }
        return {name: each for name, each in whole.items() if self._chance.random() < 0.9}

    def _annotations(self) -> dict[str, str]:
        names = ("summary", "description", "recommendation", "runbook_url")
        return {name: self._chance.choice(_TEXTS) for name in names if self._chance.random() < 0.8}

    def _rule(self) -> dict[str, Any]:
        name = self._chance.choice(_LABELS["alertname"])
        return {"name": name, "query": "x", "labels": {"severity": "page"}, "annotations": self._annotations()}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_and_numbers_of_all_kinds(
    server: Answering, tmp_path_factory: pytest.TempPathFactory, command: tuple[str, ...]
) -> None:
    """NaN, infinity, huge numbers, missing labels, foreign alerts and severities end no command."""
    folder = tmp_path_factory.mktemp("hostile")

    @settings(parent=fuzz, max_examples=max(5, fuzz.max_examples // 6), deadline=None)
    @given(st.integers(0, 2**32))
    def one(seed: int) -> None:
        server.answer = _Hostile(random.Random(seed))
        holds(command, *ask(command, server.url, folder))

    one()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_answers_of_another_form(
    server: Answering, tmp_path_factory: pytest.TempPathFactory, command: tuple[str, ...]
) -> None:
    """JSON that is no answer of Prometheus is one line, and nothing that looks like a verdict."""
    folder = tmp_path_factory.mktemp("form")

    @settings(parent=fuzz, max_examples=max(3, fuzz.max_examples // 12), deadline=None)
    @given(st.lists(_JSON, min_size=1, max_size=4), st.booleans())
    def one(pieces: list[Any], within: bool) -> None:  # noqa: FBT001 - an example
        asked = 0

        def answer(_: str, __: dict[str, str]) -> Answer:
            nonlocal asked
            asked += 1
            piece = pieces[asked % len(pieces)]
            if not within:
                return success(piece)
            return success({"result": [piece], "alerts": [piece], "groups": [{"rules": [piece]}]})

        server.answer = answer
        holds(command, *ask(command, server.url, folder))

    one()


#: What is sent, and what is said of it.
REFUSED = {
    "empty": (Answer(b""), "does not answer as Prometheus: no JSON at /api/v1/query"),
    "login page": (
        Answer(HTML, headers={"Content-Type": "text/html"}),
        "no JSON at /api/v1/query; a login page needs a token by --http.config.file",
    ),
    "redirects to itself": (Answer(b"", 302, {"Location": "/api/v1/query"}), "Exceeded maximum allowed redirects"),
    "redirects to nowhere": (
        Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}),
        "cannot be reached: Connection refused",
    ),
    "redirects to what is no URL": (Answer(b"", 302, {"Location": "http://[:"}), "cannot be reached: "),
    "redirects to a file": (Answer(b"", 302, {"Location": "file:///etc/passwd"}), "cannot be reached: "),
    "deep": (Answer(b"[" * 100_000), "no JSON"),
    "a number too long": (Answer(b"9" * 10_000), "no JSON"),
    "bytes": (Answer(bytes(range(256))), "no JSON"),
    "no gzip": (Answer(b"no gzip at all", headers={"Content-Encoding": "gzip"}), "cannot be reached: "),
    "another version": (
        Answer(b'{"status":"success","results":[]}'),
        "JSON of another form at /api/v1/query; try an API of version 1",
    ),
    "not found": (Answer(b'{"message":"Not found"}', 404), "refuses /api/v1/query: Not found"),
    "too many requests": (Answer(b"slow down", 429), "is asked too often; try again later: HTTP 429 at /api/v1/query"),
    "a start": (Answer(b"Service Unavailable", 503), "is not ready: HTTP 503 at /api/v1/query"),
    "a gateway": (
        Answer(HTML, 502, {"Content-Type": "text/html"}),
        "does not answer the proxy before it; try again later: HTTP 502 at /api/v1/query\n",
    ),
    "a gateway that waits no longer": (
        Answer(HTML, 504, {"Content-Type": "text/html"}),
        "does not answer the proxy before it in time; try a shorter time or one run: HTTP 504 at /api/v1/query\n",
    ),
    "an error page": (
        Answer(HTML, 500, {"Content-Type": "text/html"}),
        "does not answer as Prometheus: HTTP 500 at /api/v1/query\n",
    ),
    "its own words": (
        Answer(b'{"status":"error","error":"many\\nlines\\u001b[2J"}', 422),
        "refuses /api/v1/query: many\\nlines\\x1b[2J",
    ),
    "a part of its stores": (
        Answer(b'{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}'),
        "answers /api/v1/query without a part of its stores; try again once all are back",
    ),
    "no tenant": (
        Answer(b"no org id\n", 401, {"Content-Type": "text/plain; charset=utf-8"}),
        "HTTP 401 at /api/v1/query (no org id); --http.config.file gives a password, a token or headers",
    ),
    "Amazon's gateway": (
        Answer(b'{"message":"Missing Authentication Token"}', 403, {"Content-Type": "application/json"}),
        "HTTP 403 at /api/v1/query (Missing Authentication Token); --http.config.file gives",
    ),
    "Google's API": (
        Answer(b'{"error":{"code":404,"message":"Method not found.","status":"NOT_FOUND"}}', 404),
        "refuses /api/v1/query: Method not found.\n",
    ),
    "late": (Answer(b"", wait=20), "did not answer within 0.3 s"),
    "huge": (Answer(b" " * 2_000_000), "with more than 1 MiB; try a shorter time or one run"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", [each for each in COMMANDS if "--watch" not in each], ids=" ".join)
def test_what_is_no_prometheus_is_one_line(
    server: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    """A login page, a redirect, a gateway, too much and too late end every command with exit code 2 and the reason."""
    answer, said = REFUSED[name]
    monkeypatch.setattr(prometheus, "_TIMEOUT_SECONDS", 0.3 if name == "late" else 20)
    monkeypatch.setattr(prometheus, "_MOST_BYTES", 1 << 20)
    server.answer = lambda _, __: answer
    code, out, err = ask(command, server.url, tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said.replace("/api/v1/query", "") in re.sub("/api/v1/(query_range|query|alerts)", "", err)


def test_what_an_answer_lacks_is_said_once(server: Answering, tmp_path: Path) -> None:
    """A warning of a store that did not answer, and none about the question."""
    seen: list[dict[str, str]] = []

    def answer(_: str, parameters: dict[str, str]) -> Answer:
        seen.append(parameters)
        found = {"resultType": "vector", "result": [], "alerts": [], "groups": []}
        warnings = ["remote_read: connection\nrefused", "PromQL info: metric might not be a counter"]
        return Answer(
            json.dumps({"status": "success", "data": found, "warnings": warnings, "isPartial": False}).encode()
        )

    server.answer = answer
    _, _, err = ask(("diagnose",), server.url, tmp_path)
    assert err.count(f"laggard: Prometheus at {server.url} warns: remote_read: connection\\nrefused\n") == 1
    assert "counter" not in err
    assert len(seen) > 1
    assert all(each["partial_response"] == "false" and each["deny_partial_response"] == "1" for each in seen)


def test_a_server_that_refuses_what_only_others_know_is_asked_without(server: Answering, tmp_path: Path) -> None:
    """Google's API refuses parameters that it does not know, and patterns for names: the rest is asked and answered."""
    seen: list[bool] = []

    def answer(_: str, parameters: dict[str, str]) -> Answer:
        seen.append("partial_response" in parameters)
        if seen[-1]:
            unknown = 'Unknown name "partial_response": Cannot bind query parameter.'
            return Answer(json.dumps({"error": {"code": 400, "message": unknown}}).encode(), 400)
        if "__name__=~" in parameters.get("query", ""):
            return Answer(b'{"status":"error","error":"=~ is an unsupported matchtype for the __name__ label"}', 400)
        return success({"resultType": "vector", "result": [], "alerts": [], "groups": []})

    server.answer = answer
    _, out, err = ask(("diagnose",), server.url, tmp_path)
    assert "does not run laggard's rules" in out + err
    assert seen == [True] + [False] * (len(seen) - 1)
    assert len(seen) > 2
    _, out, _ = ask(("doctor", "--json"), server.url, tmp_path)
    (names,) = (each for each in json.loads(out)["findings"] if each["check"] == "names")
    assert names["status"] == "unknown"
    assert "=~ is an unsupported matchtype" in names["detail"]


STALLED = {
    "laggard_rules_info": [({"version": "1"}, 1.0)],
    "count by (cluster, training_run)": [({"training_run": "r"}, 1.0)],
    "run:training_ranks_live:count": [({"training_run": "r"}, 2.0)],
    "run_rank:training_step_own_seconds:compared": [
        ({"training_run": "r", "training_rank": str(rank)}, float("nan")) for rank in (0, 1)
    ],
    "increase(training_steps_excluded_total": [
        ({"training_run": "r", "training_reason": reason}, count)
        for reason, count in (("warmup", 6.0), ("compile", 9.0))
    ],
}


def test_a_stalled_run_without_own_times_has_its_verdict(tmp_path: Path) -> None:
    """No step in a window is no own time: the verdict on the stall is shown, as text and as JSON."""
    dog = firing("LaggardWatchdog", "", severity="info")
    with fake_prometheus(STALLED, [dog, firing("TrainingStalled", "r", "1", "critical")]) as url:
        assert "TrainingStalled  critical  rank 1" in ask(("diagnose",), url, tmp_path)[1]
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert (found["ranks"], [each["alert"] for each in found["verdicts"]]) == ([], ["TrainingStalled"])


def test_a_run_whose_steps_are_all_excluded_says_why(tmp_path: Path) -> None:
    """Where no step counts, the reasons and their numbers stand in the place of a verdict."""
    with fake_prometheus(STALLED, [firing("LaggardWatchdog", "", severity="info")]) as url:
        out = ask(("diagnose",), url, tmp_path)[1]
    assert (
        "not judged: no step is measured: all steps of the last 5 minutes are excluded (compile 9, warmup 6)"
        in " ".join(out.split())
    )


def test_a_site_may_have_severities_and_alerts_of_its_own(tmp_path: Path) -> None:
    """An alert of the pack keeps its place under a site's severity; a foreign alert is shown if it names the run."""
    bare = {"labels": {"alertname": "TrainingSyncLate", "training_run": "r"}, "state": "firing"}
    foreign = {"labels": {"alertname": "TrainingJobStalled", "severity": "page"}, "state": "firing"}
    alerts = [bare, foreign, firing("TrainingStalled", "r", "1", "P1"), firing("LaggardWatchdog", "", severity="info")]
    with fake_prometheus(STALLED, alerts) as url:
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert [(each["alert"], each["severity"]) for each in found["verdicts"]] == [
        ("TrainingStalled", "P1"),
        ("TrainingSyncLate", ""),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "training.steps",
        "training.steps_total",
        "training_steps",
        "training__steps__total",
        # Of vmagent's stream aggregation.
        "training_steps_total:15s_without_instance_total",
        # Of Telegraf's inputs.prometheus with metric_version = 1, its default.
        "training_steps_total_counter",
    ],
)
def test_names_that_are_not_translated_are_said(name: str, tmp_path: Path) -> None:
    """A server with other names than the rules read says which, and what to set, in the place of "no run"."""
    dotted = {"__name__=~": [({"__name__": name}, 1.0)], "laggard_rules_info": [({"version": "1"}, 1.0)]}
    with fake_prometheus(dotted, [firing("LaggardWatchdog", "", severity="info")]) as url:
        code, _, err = ask(("diagnose",), url, tmp_path)
    assert code == 2
    assert f"steps arrive as {name}, and the rules read training_steps_total; take out what renames" in err
    assert "translation_strategy: UnderscoreEscapingWithSuffixes" in err
    assert err.endswith("or -opentelemetry.usePrometheusNaming of VictoriaMetrics\n")
    (asked,) = re.findall(r'__name__=~"(.+?)"', unread.RENAMED)
    assert re.fullmatch(asked, name)


def test_what_the_rules_record_is_no_other_name() -> None:
    """Of a run with few steps the rules record how many each rank made, and nobody has renamed these."""
    (asked,) = re.findall(r'__name__=~"(.+?)"', unread.RENAMED)
    recorded = {rule["record"] for rule in pack_rules() if "record" in rule}
    assert "run_rank:training_steps:total" in recorded
    assert not [name for name in recorded if re.fullmatch(asked, name)]


def test_why_metrics_do_not_arrive_stands_beside_the_alert(tmp_path: Path) -> None:
    """Where the alert says that no metric of a rank arrives, the name or the label that is gone is said too."""
    known = {
        "run:training_ranks_live:count or": [({"training_run": "r"}, 1.0)],
        "run:training_ranks_live:count": [({"training_run": "r"}, 4.0)],
    }
    down = [firing("TrainingTelemetryDown", "r", "0"), firing("LaggardWatchdog", "", severity="info")]
    # With its name the label of the run has another one too, so that nobody knows whose steps these are.
    with fake_prometheus({**known, "__name__=~": [({"__name__": "training.steps"}, 1.0)]}, down) as url:
        out = " ".join(ask(("diagnose",), url, tmp_path)[1].split())
    assert out.startswith(
        "run r 4 ranks steps arrive as training.steps, and the rules read training_steps_total; take out"
    )
    without = {"training_run": "r", "gone": "training_rank"}
    nameless = {'training_step_own_duration_seconds_count{training_run=""}': [(without, 1.0)]}
    with fake_prometheus({**nameless, **known}, down) as url:
        out = " ".join(ask(("diagnose",), url, tmp_path)[1].split())
    assert "series arrive without the label training_rank; take out what drops or moves labels: " in out


def test_who_is_compared_by_now_is_not_called_uncompared(tmp_path: Path) -> None:
    """The reasons are two minutes old at most: a rank that has an own time since is in no count and in no list."""
    run = {"training_run": "r"}
    of_ranks = [({**run, "training_rank": str(rank)}, 0.1) for rank in range(4)]
    reasons = [
        ({**labels, "training_reason": reason}, 1.0)
        for labels, _ in of_ranks
        for reason in ("few_steps", "outside_window")
    ]
    begun = {
        "run:training_ranks_live:count or": [(run, 1.0)],
        "run:training_ranks_live:count": [(run, 4.0)],
        "run:training_signal_available:count": [(run, 4.0)],
        "run_rank_reason:training_rank_uncompared:info": reasons,
        "run_reason:training_ranks_uncompared:count": [
            ({**run, "training_reason": reason}, 4.0) for reason in ("few_steps", "outside_window")
        ],
        "run_rank:training_step_own_seconds:mean": of_ranks[:3],
        "run_rank_phase:training_wait_seconds:mean": of_ranks,
    }
    with fake_prometheus(begun, [firing("LaggardWatchdog", "", severity="info")]) as url:
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert found["missing"] == [
        "1 of 4 ranks is not compared: rank 3 (no recent step: scraped too rarely, or standing still)"
    ]
    assert found["uncompared"] == {"outside_window": 1}
    # The counts follow the names, by minutes with vmalert and Thanos' ruler by remote write.
    begun |= {"run_rank_reason:training_rank_uncompared:info": [], "run_rank:training_step_own_seconds:mean": of_ranks}
    with fake_prometheus(begun, [firing("LaggardWatchdog", "", severity="info")]) as url:
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert (found["missing"], found["uncompared"]) == ([], {})


def test_a_run_is_not_healthy_where_rules_fail(tmp_path: Path) -> None:
    """A limit of the server's, or a join that finds two series: what such a rule would say is not known."""
    run = {"training_run": "r"}
    of_ranks = [({**run, "training_rank": str(rank)}, 0.1) for rank in range(4)]
    trains = {
        "run:training_ranks_live:count": [(run, 4.0)],
        "run:training_signal_available:count": [(run, 4.0)],
        "run_rank:training_step_own_seconds:mean": of_ranks,
        "run_rank_phase:training_wait_seconds:mean": of_ranks,
    }
    watchdog = firing("LaggardWatchdog", "", severity="info")
    with fake_prometheus(trains, [watchdog]) as url:
        assert "healthy: no alert fires" in ask(("diagnose",), url, tmp_path)[1]
    with fake_prometheus(trains, [watchdog], failing=["TrainingStalled", "TrainingRankDied"]) as url:
        _, out, _ = ask(("diagnose",), url, tmp_path)
    assert "healthy" not in out
    assert "not judged by rules that fail: TrainingStalled and 1 more; laggard doctor says why" in " ".join(out.split())


def test_native_histograms_are_the_reason(tmp_path: Path) -> None:
    """A run whose histograms are native is not judged, and the reason is not that it has made too few steps."""
    run = {"training_run": "r"}
    native = {
        "run:training_ranks_live:count or": [(run, 1.0)],
        "run:training_ranks_live:count": [(run, 4.0)],
        "(training_step_own_duration_seconds)": [(run, 1.0)],
        "increase(training_steps_excluded_total": [({**run, "training_reason": "warmup"}, 8.0)],
    }
    with fake_prometheus(native, [firing("LaggardWatchdog", "", severity="info")]) as url:
        out = ask(("diagnose",), url, tmp_path)[1]
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert "not judged: histograms arrive as native ones, and the rules read classic ones; set always_" in out
    assert found["missing"] == [found["unread"]]


def test_how_much_slow_ranks_cost_is_shown(tmp_path: Path) -> None:
    """The slow-down of a run, and the peer group and the host of a verdict, stand in text and JSON."""
    slow = {**STALLED, "run:training_slowdown:ratio": [({"training_run": "r"}, 1.34)]}
    stage = firing("TrainingStageSlow", "r")
    stage["labels"] |= {"training_peer_group": "pp-1", "host_name": "node-1"}
    with fake_prometheus(slow, [stage, firing("LaggardWatchdog", "", severity="info")]) as url:
        out = ask(("diagnose",), url, tmp_path)[1]
        (found,) = json.loads(ask(("diagnose", "--json"), url, tmp_path)[1])["runs"]
    assert "slow-down 1.34\u00d7" in out
    assert "TrainingStageSlow  warning  peer group pp-1, host node-1" in out
    assert (found["facts"]["slowdown"], found["verdicts"][0]["peer_group"]) == (1.34, "pp-1")
