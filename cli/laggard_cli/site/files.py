"""The files of a site: those of ``deploy`` and of the pack, with the site's hosts, interval, cluster and links.

What a comment there explains, the written file explains too: a text is changed where it must differ, and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml
from promql_parser import display_duration

from laggard_cli.labels import CLUSTER
from laggard_cli.pack import pack_folder
from laggard_cli.rules.beside import alertmanager, dashboards
from laggard_cli.rules.profiles import Profile
from laggard_cli.rules.render import render

#: Where the containers find the folder of the site.
_INSIDE = "/etc/laggard"
#: What a service of deploy/compose mounts here.
_MOUNTS = {
    "prometheus": [f".:{_INSIDE}:ro", "prometheus:/prometheus"],
    "alertmanager": [f".:{_INSIDE}:ro", "alertmanager:/alertmanager"],
    "grafana": [
        "./grafana/provisioning:/etc/grafana/provisioning:ro",
        "./grafana/dashboards:/var/lib/grafana/dashboards/laggard:ro",
        "grafana:/var/lib/grafana",
    ],
}
#: The comment with which a file begins.
_HEAD = re.compile(r"\A(?:#.*\n)+")
#: Below the interval where that is possible: of it, in a scrape.
_TIMEOUT_SHARE = 2 / 3


@dataclass(frozen=True)
class Site:
    """What differs from one site to another."""

    profile: Profile
    #: ``HOST:PORT`` of each node exporter.
    targets: Sequence[str]
    #: Name of the cluster, where one server has several.
    cluster: str = ""
    #: Where Grafana is, for the links of alerts.
    grafana: str = "http://localhost:3000"
    #: Where runbooks are, when not on the web.
    runbooks: str = ""
    #: Label to another name.
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def interval(self) -> str:
        """How often everything is scraped, as Prometheus writes it."""
        return display_duration(self.profile.scrape_interval)


def site_files(site: Site) -> dict[str, str]:
    """Return the text of each file by its path in the folder of the site.

    Raises :class:`laggard_cli.rules.RulesError` where the rules cannot be rendered.
    """
    links = {"dashboard_url": f"{site.grafana.rstrip('/')}/d/"}
    if site.runbooks:
        links["runbook_url"] = f"{site.runbooks.rstrip('/')}/"
    rules = render(site.profile, links=links, labels=site.labels)
    boards = dashboards(site.labels)
    provisioning = {name: _read("dashboards/provisioning", f"{name}.yml") for name in ("dashboards", "datasources")}
    provisioning["datasources"] = _replaced(
        provisioning["datasources"], "timeInterval: 15s", f"timeInterval: {site.interval}"
    )
    return {
        "README.md": _README.format(interval=site.interval, arguments=_arguments(site)),
        "compose.yaml": _compose(),
        "prometheus.yml": _prometheus(site),
        "nodes.yml": _NODES + yaml.safe_dump([{"targets": list(site.targets)}]),
        "alertmanager.yml": alertmanager(site.labels, receivers=True),
        # Who keeps the folder in a repository keeps no secret there.
        "secrets/.gitignore": "*\n!.gitignore\n",
        **{f"rules/{name}": text for name, text in rules.items()},
        **{f"grafana/dashboards/{name}": text for name, text in boards.items()},
        **{f"grafana/provisioning/{name}/laggard.yml": text for name, text in provisioning.items()},
    }


def _read(folder: str, name: str) -> str:
    return (pack_folder(folder) / name).read_text(encoding="utf-8")


def _replaced(text: str, old: str, new: str, times: int = 1) -> str:
    """Return a text with another part in place of one that is there so often: a file that has changed is noticed."""
    if text.count(old) != times:
        raise ValueError(f"{old!r} must be there {times} times, it is {text.count(old)} times")
    return text.replace(old, new)


def _prometheus(site: Site) -> str:
    text = _HEAD.sub(_PROMETHEUS, _read("deploy/prometheus", "prometheus.yml"), count=1)
    seconds = site.profile.scrape_interval.total_seconds()
    for old, new in (
        ("../../rules/*.yml", "rules/*.yml"),
        ("rule pack's production profile", f"rule pack's {site.profile.name} profile"),
        ("scrape_interval: 15s", f"scrape_interval: {site.interval}"),
        ("scrape_timeout: 10s", f"scrape_timeout: {max(1, int(seconds * _TIMEOUT_SHARE))}s"),
        ("evaluation_interval: 15s", f"evaluation_interval: {display_duration(site.profile.evaluation_interval)}"),
    ):
        text = _replaced(text, old, new)
    if site.cluster:
        label = f"  external_labels: {{{site.labels.get(CLUSTER, CLUSTER)}: {json.dumps(site.cluster)}}}\n"
        text = _replaced(text, "\nrule_files:", f"{label}\nrule_files:")
    listed = '    static_configs:\n      - targets: ["localhost:9495"]\n'
    return _replaced(text, listed, "    file_sd_configs:\n      - files: [nodes.yml]\n", times=2)


def _compose() -> str:
    """Return the services of deploy/compose that belong to the server, over the files of the site."""
    whole: dict[str, Any] = yaml.safe_load(_read("deploy/compose", "compose.yaml"))
    services = cast("dict[str, dict[str, Any]]", whole["services"])
    # It belongs to each node, and is built from a checkout there.
    del services["exporter"]
    for name, service in services.items():
        service["volumes"] = _MOUNTS[name]
    for name in ("prometheus", "alertmanager"):
        flags = [flag for flag in services[name]["command"] if not flag.startswith("--config.file=")]
        services[name]["command"] = [f"--config.file={_INSIDE}/{name}.yml", *flags]
    # What alertmanager.yml names by a relative path.
    services["alertmanager"]["working_dir"] = _INSIDE
    whole["volumes"] = dict.fromkeys(services)
    return _COMPOSE + yaml.safe_dump(whole, sort_keys=False, width=120)


def _arguments(site: Site) -> str:
    """Return the arguments of ``laggard rules render`` with which the rules here were made."""
    given = [f"--profile {site.profile.name}", f"--dashboard-base {site.grafana.rstrip('/')}/d/"]
    if site.runbooks:
        given.append(f"--runbook-base {site.runbooks.rstrip('/')}/")
    return " ".join([*given, *(f"--label {old}={new}" for old, new in site.labels.items())])


_PROMETHEUS = """\
# Prometheus for laggard: scrapes the node exporter of each host in nodes.yml, and through it the ranks of that host;
# evaluates the rule pack. For thousands of ranks, and from 2.53 on, add `runtime: {gogc: 400}`: rules cost less
# processor time and more memory.
"""
_NODES = """\
# Each host that runs laggard-exporter, as HOST:PORT. Prometheus reads this file again when it changes.
"""
_COMPOSE = """\
# Prometheus with the rules, Alertmanager, Grafana with the dashboards, on loopback. The hosts of nodes.yml run
# laggard-exporter.
#
#   GRAFANA_PASSWORD=... docker compose up --detach
"""
_README = """\
# laggard, this site

| file | what it is | you change |
|---|---|---|
| `nodes.yml` | the hosts that run `laggard-exporter`; Prometheus reads it again when it changes | yes |
| `prometheus.yml` | scrapes those hosts every {interval}, evaluates `rules/` | where Prometheus does more than this |
| `alertmanager.yml` | one message for a run, to Slack and PagerDuty | channel, receivers |
| `secrets/` | `slack-url` and `pagerduty-key`, which `alertmanager.yml` names | yes |
| `rules/`, `grafana/` | the rule pack and the dashboards | no: an update writes them again |
| `compose.yaml` | Prometheus, Alertmanager and Grafana as containers | where you use it |

Start, in this folder:

```sh
printf %s WEBHOOK > secrets/slack-url
GRAFANA_PASSWORD=... docker compose up --detach
```

Or without containers, with Alertmanager started in this folder too, since it looks for `secrets/` there:

```sh
prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:9090 &
alertmanager --config.file=alertmanager.yml --storage.path=alertmanager-data --web.listen-address=127.0.0.1:9093 &
```

On each host `laggard-exporter`, and jobs by `laggard run`. Then ask what is missing:

```sh
laggard doctor --prometheus http://localhost:9090
```

After an update of laggard, write rules and dashboards again, and have Prometheus load them (`kill -HUP`). Then
update hosts and jobs.

```sh
laggard rules render {arguments} --output rules --dashboards grafana/dashboards
```
"""
