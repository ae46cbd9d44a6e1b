"""Rules: loaded, of this version, evaluated in time; and whom their alerts reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from promql_parser import display_duration, parse_duration

from laggard.version import PACK_VERSION
from laggard_cli.doctor.findings import FAULT, UNKNOWN, WORKS, Finding, count, some
from laggard_cli.doctor.server import Group
from laggard_cli.pack import pack_folder, read_yaml
from laggard_cli.rules.formats import MERGED
from laggard_cli.rules.profiles import PRODUCTION, Profile, load_profile

_PREFIX = "laggard-"
#: The rule that says which version the pack has.
INFO = "laggard_rules_info"
_RENDER = "laggard rules render"
#: Of a server to which another one writes what it records, or that federates it.
ELSEWHERE = Finding(
    "rules",
    UNKNOWN,
    "evaluated elsewhere: this server has what they record, and does not know which alerts fire",
    "give laggard doctor and diagnose the server that evaluates them",
)
#: How long Prometheus looks back for a sample by default.
_LOOKBACK = timedelta(minutes=5)
#: Features of Prometheus, of which either does no harm alone.
_UNDIVIDED = ("type-and-unit-labels", "promql-delayed-name-removal")
#: Characters of a server's own words: some servers quote the whole rule.
_MOST_WORDS = 300
#: What the error of a rule holds, and what to do.
_ADVICE = {
    "query timed out": "raise --query.timeout, or give the server more processors",
    "%!q(": "vmalert 1.90 or newer: an older one has no text for a label that a series lacks",
    "too many samples": "raise --query.max-samples: 50000000 is the default",
    # Of Mimir, Thanos and VictoriaMetrics, which each have several.
    "exceed": "raise the limit that the error names, in Mimir for the tenant",
}
_ELSE = "two series where one must be, or a server older than 2.42: the server's log has all"


@cache
def _shipped() -> dict[str, tuple[timedelta, tuple[str, ...]]]:
    """Return the interval in production and the rules of each group of the pack."""
    found: dict[str, tuple[timedelta, tuple[str, ...]]] = {}
    for path in sorted(pack_folder("rules").glob("*.yml")):
        for group in read_yaml(path)["groups"]:
            names = tuple(str(rule.get("record") or rule.get("alert")) for rule in group["rules"])
            found[group["name"]] = parse_duration(group["interval"]), names
    return found


def ours(found: Sequence[Group]) -> list[Group]:
    """Return the groups of this pack, and of another version of it."""
    return [group for group in found if group.name in _shipped() or group.name.startswith(_PREFIX)]


def of_local_run(found: Sequence[Group]) -> bool:
    """Return whether ``laggard run --local`` wrote the rules."""
    return any(group.name.startswith(MERGED) for group in found)


def profile_of(found: Sequence[Group]) -> Profile:
    """Return the profile whose intervals most of the groups have; production where there is none."""
    folder = pack_folder("rules")
    if of_local_run(found):
        return load_profile(folder, found[0].name.removeprefix(MERGED).partition("-")[0])
    names: Mapping[str, Any] = read_yaml(folder / "profiles.yaml")["profiles"]
    profiles = [load_profile(folder, name) for name in names]

    def fits(profile: Profile) -> tuple[int, bool]:
        same = sum(
            group.interval == profile.interval(_shipped()[group.name][0], group.name)
            for group in found
            if group.name in _shipped()
        )
        return same, profile.name == PRODUCTION

    return max(profiles, key=fits)


def check(found: Sequence[Group], profile: Profile) -> Iterator[Finding]:
    """Yield what is said of the groups of the pack."""
    if not found:
        yield Finding(
            "rules",
            FAULT,
            "not loaded: no group of laggard's rules",
            f"{_RENDER} --output FOLDER, list FOLDER/*.yml under rule_files, reload the server",
        )
        return
    others = () if of_local_run(found) else (*_missing(found, profile), *_twice(found))
    faults = [*_versions(found, profile), *others, *_failing(found)]
    yield from faults
    never = [group for group in found if not group.evaluated]
    if never:
        yield Finding(
            "rules",
            FAULT if len(never) == len(found) else UNKNOWN,
            f"{len(never)} of {count(len(found), 'group')} not evaluated yet: {some(group.name for group in never)}",
            f"wait {display_duration(max(group.interval for group in never))} after a start; later, the server's log",
        )
    slow = [group for group in found if timedelta(seconds=group.seconds) > group.interval > timedelta()]
    if slow:
        faults.append(
            Finding(
                "rules",
                FAULT,
                f"evaluated too slowly, and so left out at times: {some(map(_pace, slow))}",
                "give the server more processors, or its rules the profile large; docs/deploy.md has shards",
            )
        )
        yield faults[-1]
    if not faults and not never:
        rules = sum(len(group.rules) for group in found)
        yield Finding(
            "rules", WORKS, f"{count(rules, 'rule')} of version {PACK_VERSION} are evaluated, profile {profile.name}"
        )


def _pace(group: Group) -> str:
    return f"{group.name} ({group.seconds:.1f} s every {display_duration(group.interval)})"


def _again(found: Sequence[Group], profile: Profile) -> str:
    folder = next((str(Path(group.file).parent) for group in found if Path(group.file).is_absolute()), "FOLDER")
    return f"{_RENDER} --profile {profile.name} --output {folder}, then reload the server"


def _versions(found: Sequence[Group], profile: Profile) -> Iterator[Finding]:
    versions = sorted({rule.labels.get("version", "") for group in found for rule in group.rules if rule.name == INFO})
    if versions not in ([], [PACK_VERSION]):
        yield Finding(
            "rules",
            FAULT,
            f"of version {' and '.join(versions)}, and this laggard has {PACK_VERSION}",
            _again(found, profile),
        )


def _missing(found: Sequence[Group], profile: Profile) -> Iterator[Finding]:
    loaded: dict[str, set[str]] = {}
    for group in found:
        loaded.setdefault(group.name, set()).update(rule.name for rule in group.rules)
    shipped = {name: set(rules) for name, (_, rules) in _shipped().items()}
    if absent := sorted(shipped.keys() - loaded.keys()):
        yield Finding(
            "rules",
            FAULT,
            f"{len(absent)} of {count(len(shipped), 'group')} not loaded: {some(absent)}",
            f"{_again(found, profile)}; the server's log names a file that it refuses",
        )
    lacks = [
        f"{name} lacks {some(sorted(rules - loaded[name]))}"
        for name, rules in shipped.items()
        if name in loaded and rules - loaded[name]
    ]
    lacks += [f"{name} is none of this version" for name in sorted(loaded.keys() - shipped.keys())]
    lacks += [
        f"{name} has {some(sorted(loaded[name] - rules))} more"
        for name, rules in shipped.items()
        if loaded.get(name, set[str]()) - rules
    ]
    if lacks:
        yield Finding("rules", FAULT, f"other rules than this laggard's: {some(lacks)}", _again(found, profile))


def _twice(found: Sequence[Group]) -> Iterator[Finding]:
    files: dict[str, list[str]] = {}
    for group in found:
        files.setdefault(group.name, []).append(group.file)
    doubled = {name: each for name, each in files.items() if len(each) > 1}
    if doubled:
        places = dict.fromkeys(file for each in doubled.values() for file in each)
        yield Finding(
            "rules",
            FAULT,
            f"{count(len(doubled), 'group')} loaded several times, from {some(places)}",
            "leave the files of one version under rule_files, and reload the server",
        )


def _failing(found: Sequence[Group]) -> Iterator[Finding]:
    failing = [(group, rule) for group in found for rule in group.rules if rule.health == "err"]
    if failing:
        group, rule = failing[0]
        more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        yield Finding(
            "rules",
            FAULT,
            f"{rule.name} of group {group.name} fails{more}: {rule.error[:_MOST_WORDS] or 'without a reason'}",
            next((do for words, do in _ADVICE.items() if words in rule.error), _ELSE),
        )


def flags(given: Mapping[str, str], profile: Profile) -> Iterator[Finding]:
    """Yield what is said of a server that forgets what is recorded before it is recorded again, or cannot divide."""
    try:
        allowed = parse_duration(given.get("query.lookback-delta", ""))
    except ValueError:
        allowed = None
    longest = max(profile.interval(interval, name) for name, (interval, _) in _shipped().items())
    if allowed is not None and allowed < longest:
        yield Finding(
            "rules",
            FAULT,
            f"series are recorded every {display_duration(longest)} at the longest, and queries look back "
            f"{display_duration(allowed)}: verdicts are missing",
            f"start the server with --query.lookback-delta={display_duration(max(longest, _LOOKBACK))}",
        )
    if set(_UNDIVIDED) <= set(given.get("enable-feature", "").split(",")):
        yield Finding(
            "rules",
            FAULT,
            f"with {' and '.join(_UNDIVIDED)} Prometheus divides no metric by one of another type, and verdicts are "
            "missing or wrong",
            "take one of the two from --enable-feature",
        )


def alertmanagers(found: Sequence[str], groups: Sequence[Group]) -> Finding:
    """Return what is said of who is told of alerts."""
    if of_local_run(groups):
        return Finding("alerts", WORKS, "go to the terminal of laggard run --local")
    if found:
        return Finding("alerts", WORKS, f"go to {some(found)}")
    return Finding(
        "alerts",
        FAULT,
        "no Alertmanager is configured or found: alerts reach nobody",
        "list it under alerting: alertmanagers; laggard init DIR writes both configurations",
    )
