"""``laggard doctor``: what is said of rules, profiles and targets, and what to do."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
import yaml
from promql_parser import parse_duration

from laggard.version import PACK_VERSION
from laggard_cli.doctor import rules, targets
from laggard_cli.doctor.findings import Finding
from laggard_cli.doctor.rules import _shipped
from laggard_cli.doctor.server import Group, Rule, Target
from laggard_cli.pack import pack_folder
from laggard_cli.rules.formats import merged
from laggard_cli.rules.profiles import load_profile
from laggard_cli.rules.render import render_pack


@pytest.mark.parametrize("name", ["production", "quick", "fast", "large"])
def test_the_profile_is_known_by_the_intervals(name: str) -> None:
    """Also where a site has changed some; none at all is production."""
    profile = load_profile(pack_folder("rules"), name)
    groups = [
        Group(group, "", profile.interval(interval, group), evaluated=True, seconds=0, rules=())
        for group, (interval, _) in _shipped().items()
    ]
    groups[0] = dataclasses.replace(groups[0], interval=timedelta(seconds=77))
    assert rules.profile_of(groups).name == name
    assert rules.profile_of([]).name == "production"


def _loaded() -> list[Group]:
    def rule(name: str) -> Rule:
        return Rule(name, {"version": PACK_VERSION} if name == "laggard_rules_info" else {}, "ok", "")

    return [
        Group(name, "/etc/x/a.yml", interval, evaluated=True, seconds=0.1, rules=tuple(map(rule, names)))
        for name, (interval, names) in _shipped().items()
    ]


def test_what_is_said_of_rules() -> None:
    """Those of the pack are right; slow, failing, changed and foreign ones are told, with the place to write again."""
    profile = load_profile(pack_folder("rules"), "production")
    assert [each.status for each in rules.check(_loaded(), profile)] == ["works"]
    found = _loaded()
    found[0] = dataclasses.replace(found[0], seconds=61.0)
    (place, first), *_ = ((place, each) for place, each in enumerate(found) if each.name == "laggard-alert-telemetry")
    assert [rule.name for rule in first.rules[:2]] == ["LaggardWatchdog", "TrainingRankClash"]
    failing = dataclasses.replace(first.rules[1], health="err", error="many-to-many")
    found[place] = dataclasses.replace(first, rules=(failing, *first.rules[2:], Rule("mine", {}, "ok", "")))
    found.append(Group("laggard-gone", "/etc/x/b.yml", timedelta(seconds=15), evaluated=True, seconds=0, rules=()))
    again = "laggard rules render --profile production --output /etc/x, then reload the server"
    assert list(rules.check(found, profile)) == [
        Finding(
            "rules",
            "fault",
            f"other rules than this laggard's: {first.name} lacks LaggardWatchdog, laggard-gone is none of this "
            f"version, {first.name} has mine more",
            again,
        ),
        Finding(
            "rules",
            "fault",
            f"{failing.name} of group {first.name} fails: many-to-many",
            "two series where one must be, or a server older than 2.42: the server's log has all",
        ),
        Finding(
            "rules",
            "fault",
            f"evaluated too slowly, and so left out at times: {found[0].name} (61.0 s every 15s)",
            "give the server more processors, or its rules the profile large; docs/deploy.md has shards",
        ),
    ]


@pytest.mark.parametrize(
    ("error", "do"),
    [
        ("query timed out in expression evaluation", "raise --query.timeout, "),
        ("query processing would load too many samples into memory", "raise --query.max-samples"),
        ('1.0/query?query=max(own{cluster=%!q(<nil>),training_run="r"})', "vmalert 1.90 or newer"),
        ("the query exceeded the maximum number of chunks (limit: 20 chunks)", "raise the limit that the error names"),
        ("found duplicate series for the match group", "two series where one must be"),
    ],
)
def test_an_error_of_a_rule_has_its_remedy(error: str, do: str) -> None:
    """By what Prometheus says."""
    found = _loaded()
    found[0] = dataclasses.replace(found[0], rules=(dataclasses.replace(found[0].rules[0], health="err", error=error),))
    said = {each.detail: each.do for each in rules.check(found, load_profile(pack_folder("rules"), "production"))}
    ((detail, remedy),) = [(detail, each) for detail, each in said.items() if " fails: " in detail]
    assert remedy.startswith(do)
    assert detail.partition(" fails: ")[2] == error
    found[0] = dataclasses.replace(found[0], rules=(dataclasses.replace(found[0].rules[0], error=error + "x" * 5000),))
    assert all(len(each.detail) < 500 for each in rules.check(found, load_profile(pack_folder("rules"), "production")))


def test_all_rules_loaded_twice_are_one_line() -> None:
    """Whichever way the files of the second copy are named."""
    found = _loaded()
    again = [dataclasses.replace(group, file="/etc/y/all.yml") for group in found]
    said = list(rules.check([*found, *again], load_profile(pack_folder("rules"), "production")))
    assert [each.detail for each in said] == [
        f"{len(found)} groups loaded several times, from /etc/x/a.yml, /etc/y/all.yml"
    ]


def test_features_that_break_divisions_are_said() -> None:
    """Prometheus 3.15 drops a metric's type too late for a division, where both are on; either alone does no harm."""
    both = "type-and-unit-labels,promql-delayed-name-removal"
    profile = rules.profile_of(())
    (found,) = rules.flags({"enable-feature": f"st-storage,{both}"}, profile)
    assert (found.status, found.do) == ("fault", "take one of the two from --enable-feature")
    assert found.detail.startswith("with type-and-unit-labels and promql-delayed-name-removal")
    for alone in (*both.split(","), ""):
        assert list(rules.flags({"enable-feature": alone, "query.lookback-delta": "5m"}, profile)) == []


def test_rules_of_a_local_run_are_those_that_it_wrote() -> None:
    """Its groups have other names, and its alerts go to a terminal; what fails is a fault there too."""
    local = load_profile(pack_folder("rules"), "local")
    found = [
        Group(
            group["name"],
            "/runs/x/servers/rules.yml",
            parse_duration(group["interval"]),
            evaluated=True,
            seconds=0.1,
            rules=tuple(
                Rule(
                    rule.get("record") or rule["alert"],
                    {key: str(text) for key, text in rule.get("labels", {}).items()},
                    "ok",
                    "",
                )
                for rule in group["rules"]
            ),
        )
        for group in yaml.safe_load(merged(render_pack(local), local.name))["groups"]
    ]
    assert rules.ours(found) == found
    assert rules.profile_of(found) == local
    number = sum(len(group.rules) for group in found)
    assert list(rules.check(found, local)) == [
        Finding("rules", "works", f"{number} rules of version {PACK_VERSION} are evaluated, profile local")
    ]
    assert rules.alertmanagers([], found) == Finding("alerts", "works", "go to the terminal of laggard run --local")
    failing = dataclasses.replace(found[0].rules[0], health="err", error="many-to-many")
    found[0] = dataclasses.replace(found[0], rules=(failing, *found[0].rules[1:]))
    (fault,) = rules.check(found, local)
    assert fault.detail == f"{failing.name} of group laggard-merged-local-10s fails: many-to-many"


#: What Prometheus says of a scrape that fails, from its source and from issues of its users.
ERRORS = {
    'Get "http://a:9495/metrics": context deadline exceeded': "open the port",
    'Get "http://a:9495/metrics": dial tcp 10.0.0.1:9495: i/o timeout': "open the port",
    'Get "http://a:9495/metrics": dial tcp 10.0.0.1:9495: connect: no route to host': "check the network",
    "server returned HTTP status 401 Unauthorized": "give the job the basic_auth",
    "server returned HTTP status 400 Bad Request": "the exporter serves with TLS",
    'Get "http://a:9495/metrics": net/http: HTTP/1.x transport connection broken: malformed HTTP response "\\x15"': (
        "the exporter serves with TLS"
    ),
    'Get "https://a:9495/metrics": http: server gave HTTP response to HTTPS client': "the exporter serves without TLS",
    'Get "https://a/metrics": x509: certificate signed by unknown authority': "name the authority",
    "server returned HTTP status 503 Service Unavailable": "the exporter cannot read the state folder",
    "sample limit exceeded": "raise this limit of the job",
    "something else": "open the address",
}


@pytest.mark.parametrize(("error", "do"), ERRORS.items())
def test_an_error_of_a_scrape_has_its_remedy(error: str, do: str) -> None:
    """By what Prometheus says."""
    assert targets.advice(error).startswith(do)


def test_targets_of_a_kind_are_one_line() -> None:
    """A thousand hosts that refuse are one finding, which names a few of them."""
    refused = [
        Target("nodes", f"n{number}:9495", "http://n", "down", "connection refused", None) for number in range(7)
    ]
    waiting = Target("nodes", "n9:9495", "http://n", "unknown", "", None)
    assert [(each.status, each.detail) for each in targets.down([*refused, waiting])] == [
        ("fault", "n0:9495, n1:9495, n2:9495, n3:9495, n4:9495 and 2 more of job nodes: down, connection refused"),
        ("unknown", "n9:9495: not scraped yet"),
    ]
