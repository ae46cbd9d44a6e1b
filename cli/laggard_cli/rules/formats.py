"""The rendered pack in the forms that other systems load: manifests, namespaces of a ruler, a jsonnet mixin.

Each takes the rule files of a profile as data and returns the name and text of each file to write. Groups, rules and
expressions are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

#: Rule file to its content: ``{"groups": [...]}``.
Pack = Mapping[str, Mapping[str, Any]]

#: Labels by which Prometheus operators commonly select rules, as kube-prometheus does.
MANIFEST_LABELS = {"prometheus": "k8s", "role": "alert-rules"}


#: With what the name of a merged group begins; its profile and its interval follow.
MERGED = "laggard-merged-"


def merged(pack: Pack, profile: str) -> str:
    """Return one rule file in which the rules of an interval are one group, in the order of their layers.

    A rule sees what those before it recorded a moment ago, where it waits for the next turn of its own group otherwise.
    And for a small server most of an evaluation is the start of it: one group wakes it once.
    """
    rules: dict[str, list[Any]] = {}
    for content in pack.values():
        for group in content["groups"]:
            rules.setdefault(group["interval"], []).extend(group["rules"])
    groups = [
        {"name": f"{MERGED}{profile}-{interval}", "interval": interval, "rules": each}
        for interval, each in rules.items()
    ]
    return dump({"groups": groups})


def prometheus(pack: Pack) -> dict[str, str]:
    """Return plain rule files, for Prometheus, Thanos Ruler and vmalert."""
    return {name: dump(dict(content)) for name, content in pack.items()}


def operator(pack: Pack) -> dict[str, str]:
    """Return one PrometheusRule for each rule file, for the Prometheus operator."""
    return {
        name: dump(
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": {"name": _namespace(name), "labels": dict(MANIFEST_LABELS)},
                "spec": dict(content),
            }
        )
        for name, content in pack.items()
    }


def mimir(pack: Pack) -> dict[str, str]:
    """Return one namespace for each rule file, as ``mimirtool`` and ``cortextool rules load`` read them."""
    return {name: dump({"namespace": _namespace(name), **content}) for name, content in pack.items()}


def jsonnet(pack: Pack) -> dict[str, str]:
    """Return a mixin and the rule files that it imports."""
    files = "".join(f"  importstr '{name}',\n" for name in pack)
    return {**prometheus(pack), "mixin.libsonnet": _MIXIN.replace("FILES\n", files)}


_MIXIN = """\
// laggard as a monitoring mixin: prometheusAlerts, prometheusRules and what both are made from.
local files = [
FILES
];

local groups = std.flattenArrays([std.parseYaml(file).groups for file in files]);

{
  _config+:: {
    // Threshold to value, as in thresholds*.yml: { straggler_score: 1.3 }.
    thresholds: {},
    // Labels that every rule gets, such as that of a cluster.
    labels: {},
  },

  local config = self._config,
  local unknown = [
    name
    for name in std.objectFields(config.thresholds)
    if !std.member([
      rule.labels.name
      for group in groups
      for rule in group.rules
      if std.get(rule, 'record') == 'laggard_threshold'
    ], name)
  ],
  assert unknown == [] : 'laggard has no threshold ' + std.join(', ', unknown),

  local configured(rule) =
    rule
    + (if config.labels == {} then {} else { labels+: config.labels })
    + (
      if std.get(rule, 'record') == 'laggard_threshold' && std.objectHas(config.thresholds, rule.labels.name)
      then { expr: 'vector(%s)' % config.thresholds[rule.labels.name] }
      else {}
    ),
  local chosen(kind) = [
    group { rules: [configured(rule) for rule in group.rules] }
    for group in groups
    if std.objectHas(group.rules[0], kind)
  ],

  prometheusAlerts+:: { groups+: chosen('alert') },
  prometheusRules+:: { groups+: chosen('record') },
}
"""

FORMATS = {"prometheus": prometheus, "operator": operator, "mimir": mimir, "jsonnet": jsonnet}


def _namespace(name: str) -> str:
    return f"laggard-{name.removesuffix('.yml')}"


#: In C where PyYAML has that: the same text in a third of the time.
_BASE: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def dump(content: Mapping[str, Any]) -> str:
    """Return data as YAML with expressions in blocks."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(_BASE):
    """Writes expressions of several lines as blocks, as a person would, and repeats what two places share."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is yaml's
        return True


def _represent_text(_: _Dumper, text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
