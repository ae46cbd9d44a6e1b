"""Every file in deploy is exercised by a test, or says in its first line that it is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.collector.support import ROOT

_FOLDER = ROOT / "deploy"
_SAYS_SO = re.compile(r"# Not (exercised|run|built|started) by a test: ")
_CHART = "tests/deploy/test_helm.py::test_it_deploys_what_the_manifests_do"
_SERVER = "tests/deploy/test_apiserver.py::test_it_is_accepted_and_stays"
_SLURM = "tests/deploy/test_slurm.py::test_the_example_job"
_THANOS = "tests/deploy/test_thanos.py::test_same_verdict_as_prometheus"
#: The test in which the program that a file is for takes it, by the path of the file or of its folder.
_EXERCISED = {
    "alertmanager/alertmanager.yml": _THANOS,
    "alertmanager/receivers.yml": "tests/cli/test_init.py::test_slack_and_pagerduty_get_what_an_alert_says",
    "kubernetes/base": _SERVER,
    "kubernetes/gpu": _SERVER,
    "kubernetes/helm/.helmignore": "tests/deploy/test_helm.py::test_the_archive_is_whole",
    "kubernetes/helm/Chart.yaml": "tests/deploy/test_helm.py::test_the_archive_is_whole",
    "kubernetes/helm/files": _CHART,
    "kubernetes/helm/templates/NOTES.txt": "tests/deploy/test_apiserver.py::test_helm_installs_upgrades_and_removes",
    "kubernetes/helm/templates/dashboards.yaml": _CHART,
    "kubernetes/helm/templates/exporter.yaml": _CHART,
    "kubernetes/helm/templates/monitors.yaml": _CHART,
    "kubernetes/helm/templates/network-policy.yaml": _CHART,
    "kubernetes/helm/templates/rules.yaml": _CHART,
    "kubernetes/helm/values.schema.json": "tests/deploy/test_helm.py::test_a_wrong_value_is_one_line",
    "kubernetes/helm/values.yaml": "tests/deploy/test_helm.py::test_a_value_changes_what_it_names_and_nothing_else",
    "kubernetes/job.yaml": "tests/deploy/test_apiserver.py::test_the_commands_of_the_page",
    "mimir/overrides.yaml": "tests/deploy/test_mimir.py::test_a_real_mimir_names_the_slow_rank_of_each_cluster",
    "prometheus/large.yml": "tests/deploy/test_large.py::test_its_heap_may_grow",
    "prometheus/prometheus.yml": "tests/rules/test_configurations.py::test_prometheus_loads_it",
    "prometheus/pushed.yml": "tests/deploy/test_ways.py::test_a_way_leads_to_a_verdict",
    "prometheus/sharded.yml": "tests/deploy/test_shards.py::test_two_shards_say_what_one_says",
    "slurm/epilog.sh": _SLURM,
    "slurm/laggard.conf": _SLURM,
    "slurm/prolog.sh": _SLURM,
    "slurm/task-prolog.sh": _SLURM,
    "slurm/train.sbatch": _SLURM,
    "slurm/laggard-slurm-targets.service": "tests/deploy/test_slurm.py::test_systemd_runs_it",
    "slurm/laggard-slurm-targets.timer": "tests/deploy/test_slurm.py::test_systemd_is_content",
    "systemd/laggard-exporter.service": "tests/deploy/test_systemd.py::test_systemd_runs_it",
    "systemd/otelcol-laggard@.service": "tests/deploy/test_collector_unit.py::test_systemd_runs_it",
    "thanos/endpoints.yml": _THANOS,
    "thanos/hashring.json": _THANOS,
    "thanos/query.flags": _THANOS,
    "thanos/receive.flags": _THANOS,
    "thanos/rule.flags": _THANOS,
}


def _files() -> list[str]:
    """Return all files of the folder; a link to a folder is what it leads to."""
    return sorted(str(path.relative_to(_FOLDER)) for path in _FOLDER.rglob("*") if path.is_file())


def _entry(file: str) -> str | None:
    """Return the entry of the table that speaks of a file."""
    parents = [file, *(str(parent) for parent in Path(file).parents)]
    return next((each for each in parents if each in _EXERCISED), None)


def test_every_file_is_exercised_or_says_so() -> None:
    """A file is in the table above or has a first line that says why no test runs it, and never both."""
    for file in _files():
        first = (_FOLDER / file).read_text(encoding="utf-8").partition("\n")[0]
        assert bool(_SAYS_SO.match(first)) != (_entry(file) is not None), f"deploy/{file}: {first}"


def test_the_table_is_of_what_there_is() -> None:
    """Each entry is a file or folder that is there, and names a test that is there."""
    for entry, test in _EXERCISED.items():
        assert (_FOLDER / entry).exists(), entry
        module, _, name = test.partition("::")
        tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, test
