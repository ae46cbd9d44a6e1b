"""The dashboards: what is committed is what the builders make, and every query uses series and labels that exist."""

from __future__ import annotations

import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import promql_parser as promql
import pytest

from dashboards.__main__ import FOLDER
from dashboards.boards import BOARDS
from dashboards.encoding import encode
from dashboards.queries import CHOSEN, PANELS, concrete
from tests.rules.pack import Labels, Rule, alerts, known, rules

JSON = {board.uid: json.loads((FOLDER / f"{board.uid}.json").read_text(encoding="utf-8")) for board in BOARDS}


@functools.cache
def series() -> Mapping[str, frozenset[str]]:
    """Return all series: with ALERTS the labels of every alert, with what an exporter says of itself its target."""
    found = known()
    labels = (Labels(found).of(promql.parse(rule.expr)) for rule in alerts())
    exporters = {name: found[name] | {"instance"} for name in found if name.startswith("laggard_exporter_")}
    return {**found, **exporters, "ALERTS": found["ALERTS"].union(*labels)}


def test_committed() -> None:
    """The files are what the builders make today, and there is no other file."""
    assert {f"{board.uid}.json": encode(board.build()) for board in BOARDS} == {
        path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()
    }


def test_the_form_for_a_catalogue(tmp_path: Path) -> None:
    """``--share`` writes each dashboard with what it needs, and changes neither the rest of it nor the repository."""
    before = {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    command = [sys.executable, "-m", "dashboards", "--share", str(tmp_path / "new" / "folder")]
    subprocess.run(command, check=True, timeout=60)
    assert {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir()} == before
    for uid, board in JSON.items():
        shared = json.loads((tmp_path / "new" / "folder" / f"{uid}.json").read_text(encoding="utf-8"))
        needed = {(each["type"], each["id"]) for each in shared.pop("__requires")}
        kinds = {panel["type"] for panel in board["panels"]} - {"row"}
        assert needed == {("grafana", "grafana"), ("datasource", "prometheus"), *(("panel", kind) for kind in kinds)}
        assert (shared.pop("__inputs"), shared.pop("__elements")) == ([], {})
        assert shared == {**board, "id": None}


@pytest.mark.parametrize("uid", JSON)
def test_shape(uid: str) -> None:
    """A dashboard is in UTC, says what it answers, links to its siblings, and its data source can be chosen."""
    board = JSON[uid]
    assert board["uid"] == uid
    assert board["timezone"] == "utc"
    assert board["description"].endswith((".", "?"))
    assert board["tags"] == ["laggard"]
    (link,) = board["links"]
    assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)
    variables = board["templating"]["list"]
    assert variables[0]["name"] == "datasource"
    assert variables[0]["query"] == "prometheus"
    assert all(variable["datasource"]["uid"] == "${datasource}" for variable in variables[1:])


@pytest.mark.parametrize("uid", JSON)
def test_layout(uid: str) -> None:
    """Panels have numbers of their own, stay inside of the grid and do not lie over each other."""
    panels = JSON[uid]["panels"]
    assert sorted(panel["id"] for panel in panels) == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels() -> None:
    """A panel says what it shows and in which unit, and asks the data source that was chosen."""
    for panel in PANELS:
        assert panel.json["title"], panel
        assert panel.json["description"].endswith("."), panel
        assert panel.json["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel
        assert _unit(panel.json), panel


def test_queries_use_our_series() -> None:
    """Every query parses, uses series and labels that exist, and the names of its lines use labels that it returns."""
    labels = Labels(series())
    for panel in PANELS:
        for target in panel.targets:
            shown = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            assert shown <= labels.of(promql.parse(concrete(target["expr"]))), (panel, target["expr"])
        for transformation in panel.json.get("transformations", []):
            if transformation["id"] == "organize":
                columns = set(transformation["options"]["includeByName"]) - {"Value"}
                assert columns <= labels.of(promql.parse(concrete(panel.targets[0]["expr"]))), panel


@pytest.mark.parametrize("uid", JSON)
def test_variables_use_our_series(uid: str) -> None:
    """What can be chosen comes from series that exist."""
    for variable in JSON[uid]["templating"]["list"][1:]:
        if variable["name"] in CHOSEN:
            query, label = CHOSEN[variable["name"]]
            assert label in Labels(series()).of(promql.parse(concrete(query)))
            assert (variable["includeAll"], variable["multi"], variable["current"]["value"]) == (True, True, "$__all")
            assert variable["regex"] == f'/{label}="([^"]+)"/'
            continue
        match = re.fullmatch(r'label_values\(([\w:]+)(?:{cluster="\$cluster"})?, (\w+)\)', variable["query"]["query"])
        assert match is not None
        assert match[2] in series()[match[1]]


def test_colours_of_own_times_begin_at_the_threshold() -> None:
    """A heat map of multiples is dark at 1, and from the alert's threshold on in the brightest third of its colours."""
    (shipped,) = (rule.expr for rule in _thresholds() if rule.labels.get("name") == "straggler_score")
    threshold = float(shipped.removeprefix("vector(").removesuffix(")"))
    maps = [panel.json for panel in PANELS if panel.json["type"] == "heatmap"]
    ranges = {panel["title"]: (panel["options"]["color"]["min"], panel["options"]["color"]["max"]) for panel in maps}
    assert len(ranges) == 3
    for title, (least, most) in ranges.items():
        if "multiple" in title:
            assert least == 1
            assert (threshold - least) / (most - least) == pytest.approx(2 / 3)


def test_thresholds_exist() -> None:
    """Every line that a panel draws is a threshold of the pack."""
    shipped = {rule.labels.get("name") for rule in _thresholds()}
    drawn = {
        name
        for panel in PANELS
        for target in panel.targets
        for name in re.findall(r'threshold(?::value)?{name="(\w+)"', target["expr"])
    }
    assert len(drawn) >= 10
    assert drawn <= shipped


def test_alerts_link_to_dashboards() -> None:
    """The address in an alert leads to a dashboard that there is, with a variable that it has."""
    said = (re.sub(r"{{ (with|end)\b.*?}}", "", rule.annotations["dashboard_url"]) for rule in alerts())
    addresses = {re.sub(r"{{.*?}}", "x", address) for address in said}
    for address in addresses:
        uid = urlsplit(address).path.removeprefix("/d/")
        variables = {variable["name"] for variable in JSON[uid]["templating"]["list"]}
        assert {name.removeprefix("var-") for name in parse_qs(urlsplit(address).query)} <= variables


def test_a_list_of_verdicts_opens_any_run() -> None:
    """Grafana fills an address in by encodeURI, which leaves & and # of a name as they are, unless it is told."""
    links = [
        link["url"]
        for board in JSON.values()
        for panel in board["panels"]
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        for found in override["properties"]
        if found["id"] == "links"
        for link in found["value"]
    ]
    assert len(links) == 2
    run, values = "a & b#c", {"__data.fields.opens": "&var-cluster=east", "__url_time_range": "from=1"}
    for link in links:
        filled = re.sub(r"\${([^}]+)}", lambda found: values.get(found[1], quote(run)), link)
        assert ":percentencode}" in link.partition("${__data")[0]
        assert parse_qs(urlsplit(filled).query) == {"var-training_run": [run], "var-cluster": ["east"], "from": ["1"]}


def _thresholds() -> Iterator[Rule]:
    return (rule for rule in rules() if rule.name == "laggard_threshold")


def _unit(panel: Mapping[str, Any]) -> str | None:
    """Return the unit of a panel's values; bars of a timeline stand for texts."""
    if panel["type"] == "state-timeline":
        return "a state"
    if panel["type"] == "heatmap":
        return panel["options"]["cellValues"]["unit"]
    if panel["type"] == "table":
        overrides = panel["fieldConfig"]["overrides"]
        return next(each["properties"][0]["value"] for each in overrides if each["properties"][0]["id"] == "unit")
    return panel["fieldConfig"]["defaults"]["unit"]
