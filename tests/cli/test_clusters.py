"""Commands tell runs of one name apart by their cluster, whatever a site calls that label."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from laggard_cli.clusters import Run, find_run
from laggard_cli.errors import CommandError
from laggard_cli.main import main
from laggard_cli.past.alerts import alerts_at
from laggard_cli.profile.choice import addresses, choose_pair
from laggard_cli.prometheus import Prometheus
from tests.support.answering import Answer, answering
from tests.support.fake_prometheus import Series, fake_prometheus, firing


def ranks(cluster: str, label: str = "cluster", own: Sequence[float] = (0.1, 0.1, 0.2)) -> Series:
    """Own times of a run by rank."""
    return [({"training_run": "r", "training_rank": str(rank), label: cluster}, each) for rank, each in enumerate(own)]


def alert(cluster: str, label: str = "cluster") -> dict[str, Any]:
    """Rank 2 is slow."""
    found = firing("TrainingStraggler", "r", "2")
    return {**found, "labels": {**found["labels"], label: cluster}}


def site(label: str = "cluster") -> Mapping[str, Series]:
    """What a server knows of a run in two clusters."""
    return {
        f"count by ({label}, training_run)": [({"training_run": "r", label: name}, 1) for name in ("east", "west")],
        "laggard_rules_info": [({}, 1)],
        "own_seconds:compared": [*ranks("east", label), *ranks("west", label, (0.1, 0.1, 0.1, 0.1))],
        f"group by ({label}, training_run, training_rank, instance)": [
            ({"training_run": "r", "training_rank": "2", label: name, "instance": f"{name}:9495"}, 1)
            for name in ("east", "west")
        ],
        f"group by ({label})": [({label: name}, 1) for name in ("east", "west")],
    }


def diagnosed(address: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, str, int, int]]:
    """Return cluster, name, number of verdicts and number of ranks of each run."""
    assert main(["diagnose", "--prometheus", address, "--json", *arguments]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    return [(run["cluster"], run["run"], len(run["verdicts"]), len(run["ranks"])) for run in runs]


@pytest.mark.parametrize(("label", "arguments"), [("cluster", ()), ("site", ("--label", "cluster=site"))])
def test_a_name_is_that_of_a_run_in_each_cluster(
    label: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdicts and ranks are those of one cluster; one can be asked for, also where another label names clusters."""
    with fake_prometheus(site(label), [alert("east", label)]) as address:
        east, west = ("east", "r", 1, 3), ("west", "r", 0, 4)
        assert diagnosed(address, capsys, *arguments) == [east, west]
        assert diagnosed(address, capsys, *arguments, "--run", "r", "--cluster", "west") == [west]
        assert main(["diagnose", "--prometheus", address, "--run", "r", *arguments]) == 0
        assert capsys.readouterr().out.count("run r  cluster ") == 2
        assert main(["diagnose", "--prometheus", address, "--run", "r", "--cluster", "north", *arguments]) == 2
        assert capsys.readouterr().err == (
            f"laggard diagnose: error: --run 'r' --cluster 'north' is not in Prometheus at {address}; "
            "runs now: r of cluster east, r of cluster west\n"
        )


def test_a_run_of_several_clusters_needs_one() -> None:
    """Who asks for one run by its name is told the clusters that have it, unless only one has."""
    with fake_prometheus(site(), []) as address, contextlib.closing(Prometheus(address)) as client:
        with pytest.raises(CommandError, match="run 'r' is in several clusters: 'east', 'west'; give --cluster"):
            find_run(client, "r", None, "training_steps_total", seconds=60, at=0)
        assert find_run(client, "r", "west", "training_steps_total", seconds=60, at=0) == Run("west", "r")
    one: Mapping[str, Series] = {"group by (cluster)": [({"cluster": "east"}, 1)]}
    with fake_prometheus(one, []) as address, contextlib.closing(Prometheus(address)) as client:
        assert find_run(client, "r", None, "training_steps_total", seconds=60, at=0) == Run("east", "r")
    with fake_prometheus({}, []) as address, contextlib.closing(Prometheus(address)) as client:
        assert find_run(client, "r", None, "training_steps_total", seconds=60, at=0) == Run("", "r")


def test_a_profile_is_of_one_cluster() -> None:
    """The culprit, its peer and the exporters that are asked are those of one cluster."""
    with (
        fake_prometheus(site(), [alert("east"), alert("west")]) as address,
        contextlib.closing(Prometheus(address)) as client,
    ):
        with pytest.raises(
            CommandError, match="--cluster is needed: verdicts name ranks of r of cluster east, r of cluster west"
        ):
            choose_pair(client, "r")
        chosen = choose_pair(client, "r", "west")
        assert (chosen.run, chosen.culprit, chosen.peer) == (Run("west", "r"), 2, 1)
        assert addresses(client, chosen.run, [2]) == {2: ("west:9495", "")}


def test_rules_of_other_names_are_read_under_ours() -> None:
    """What fired in the past says what its rule says, whose expression, labels and templates have a site's names."""
    rule = {
        "type": "alerting",
        "name": "TrainingStraggler",
        "query": 'run_rank:training_straggler_score:ratio{site!=""} > 1.2',
        "labels": {"severity": "warning"},
        "annotations": {"description": "Rank {{ $labels.rank }} of {{ $labels.training_run }} in {{ $labels.site }}."},
    }
    labels = {"training_run": "r", "rank": "2", "site": "east"}
    said = {"alertname": "TrainingStraggler", "severity": "warning", "alertstate": "firing"}
    asked: list[str] = []

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("/rules"):
            data: Any = {"groups": [{"rules": [rule]}]}
        else:
            asked.append(parameters["query"])
            is_alert = "ALERTS" in asked[-1]
            metric = {"__name__": "ALERTS", **labels, **said} if is_alert else {**labels, "cluster": "another label"}
            data = {"result": [{"metric": metric, "value": [0, "1.5"]}]}
        return Answer(json.dumps({"status": "success", "data": data}).encode())

    names = {"cluster": "site", "training_rank": "rank"}
    with answering() as server, contextlib.closing(Prometheus(server.url, None, names)) as client:
        server.answer = answer
        (found,) = alerts_at(client, 1000.0)
    assert found["annotations"]["description"] == "Rank 2 of r in east."
    assert {name: found["labels"][name] for name in ("cluster", "training_rank")} == {
        "cluster": "east",
        "training_rank": "2",
    }
    assert asked[-1] == rule["query"]
