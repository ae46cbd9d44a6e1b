"""Renders the rule pack for a profile: the same rules with other intervals, windows, waits and links.

    >>> for name, text in render("fast").items():
    ...     Path(folder, name).write_text(text)

Expressions are changed in their syntax tree, so that nothing but a duration can be taken for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser
from promql_parser import Expr, MatrixSelector, SubqueryExpr, VectorSelector, display_duration, parse_duration

from laggard_cli.labels import rename
from laggard_cli.pack import pack_folder, read_yaml
from laggard_cli.rules.formats import FORMATS
from laggard_cli.rules.profiles import PRODUCTION, Profile, RulesError, load_profile

#: The layers; each reads those before it. ``LAYER.yml`` holds the core, ``LAYER-FAMILY.yml`` a family of verdicts. An
#: adapter gives what other exporters say the names of ours.
LAYERS = ("thresholds", "adapter", "normalise", "baseline", "score", "alert")

#: Longer than any window; see :func:`render_expression`.
_FINE_DAYS = 10_000

#: Fields of a rule that hold a duration.
WAITS = ("for", "keep_firing_for")


def rules_folder() -> Path:
    """Return the folder of the rule pack."""
    return pack_folder("rules")


def rule_files(folder: Path | None = None) -> tuple[str, ...]:
    """Return the names of the rule files, layer by layer and the core of a layer first.

    Raises:
        RulesError: a file that belongs to no layer.
    """
    names = [path.name for path in (folder or rules_folder()).glob("*.yml")]
    places: dict[str, tuple[int, str]] = {}
    for name in names:
        stem = name.removesuffix(".yml")
        layer = stem.partition("-")[0]
        if layer not in LAYERS:
            raise RulesError(f"{name}: belongs to no layer; call it LAYER-FAMILY.yml, with one of {', '.join(LAYERS)}")
        places[name] = LAYERS.index(layer), stem
    return tuple(sorted(names, key=places.__getitem__))


def render(
    profile: str | Profile = PRODUCTION,
    *,
    links: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    form: str = "prometheus",
    folder: Path | None = None,
) -> dict[str, str]:
    """Return the name and text of each file for a profile.

    Args:
        profile: a profile of ``profiles.yaml`` by its name, or one that is made up.
        links: annotation (``runbook_url``, ``dashboard_url``) to where its address begins instead.
        labels: label to its new name, see :func:`laggard_cli.labels.parse_names`.
        form: one of :data:`laggard_cli.rules.formats.FORMATS`.
        folder: where the rule pack lies, when not in :func:`rules_folder`.

    Raises:
        RulesError: no such profile, link or layer, or a rule has a duration that the profile does not know.
    """
    folder = folder or rules_folder()
    wanted = load_profile(folder, profile) if isinstance(profile, str) else profile
    pack = render_pack(wanted, links=links, labels=labels, folder=folder)
    texts = FORMATS[form](pack)
    return {name: _header(name, wanted.name) + text if name in pack else text for name, text in texts.items()}


def render_pack(
    profile: Profile,
    *,
    links: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the name and content of each file for a profile, layer by layer; see :func:`render`."""
    folder = folder or rules_folder()
    links = links or {}
    for annotation in links.keys() - profile.links.keys():
        raise RulesError(f"no link {annotation!r}; alerts have {', '.join(profile.links)}")
    pack: dict[str, dict[str, Any]] = {}
    for name in rule_files(folder):
        content: dict[str, list[dict[str, Any]]] = read_yaml(folder / name)
        for group in content["groups"]:
            place = f"{name}, group {group['name']}"
            group["interval"] = display_duration(profile.interval(parse_duration(group["interval"]), place))
            for rule in group["rules"]:
                _render_rule(rule, profile, links, f"{place}, {rule.get('record') or rule.get('alert')}")
                rename(rule, labels or {})
        pack[name] = content
    return pack


def _header(name: str, profile: str) -> str:
    return f"# laggard's {name} in the profile {profile}. Rendered: the reasons stand in the pack's own files.\n"


def _render_rule(rule: dict[str, Any], profile: Profile, links: Mapping[str, str], place: str) -> None:
    """Change one rule in place."""
    for field in WAITS:
        if field in rule:
            rule[field] = _duration(rule[field], profile, place)
    threshold = rule.get("labels", {}).get("name")
    if rule.get("record") == "laggard_threshold" and threshold in profile.thresholds:
        rule["expr"] = f"vector({profile.thresholds[threshold]:g})"
    else:
        rule["expr"] = render_expression(rule["expr"], profile, place)
    for annotation, base in links.items():
        if annotation in rule.get("annotations", {}):
            address: str = rule["annotations"][annotation]
            rule["annotations"][annotation] = base + address.removeprefix(profile.links[annotation])


def render_expression(text: str, profile: Profile, place: str) -> str:
    """Return a PromQL expression with the profile's windows.

    Raises:
        RulesError: it does not parse, has a window that the profile does not know, or one of a kind that the pack
            does not use: an offset, a fixed time or a subquery.
    """

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, SubqueryExpr):
            raise RulesError(f"{place}: a subquery has no place in a rule; record the inner expression")
        if isinstance(node, VectorSelector) and (node.offset is not None or node.at is not None):
            raise RulesError(f"{place}: offset and @ are not rendered: {node}")
        if not isinstance(node, MatrixSelector):
            return None
        length = profile.duration(node.range, place)
        if length % timedelta(seconds=1):
            # The parser writes whole seconds; what is finer travels as a number of days that no rule has.
            node.range = fine.setdefault(display_duration(length), timedelta(days=_FINE_DAYS + len(fine)))
        else:
            node.range = length
        return promql_parser.parse(str(node))

    fine: dict[str, timedelta] = {}
    try:
        tree = promql_parser.parse(text)
    except ValueError as error:
        raise RulesError(f"{place}: {error}") from None
    # Mimir's tool writes a block that begins with spaces so that Mimir cannot read it.
    rendered = promql_parser.transform(tree, post_visit=visit).prettify().lstrip()
    for length, stand_in in fine.items():
        rendered = rendered.replace(f"[{display_duration(stand_in)}]", f"[{length}]")
    return rendered


def _duration(text: str, profile: Profile, place: str) -> str:
    return display_duration(profile.duration(parse_duration(text), place))
