"""``laggard runbook``: the page of an alert, with what it is about filled in."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping

from laggard_cli.clusters import add_cluster
from laggard_cli.errors import CommandError
from laggard_cli.labels import CLUSTER, parse_names, renamed
from laggard_cli.pack import alert, pack_folder
from laggard_cli.prometheus import quoted
from laggard_cli.servers import add_server, address, connect, is_named
from laggard_cli.terminal import printable_lines

#: Word of a page to the label of an alert that says it.
PLACEHOLDERS = {
    "RUN": "training_run",
    "RANK": "training_rank",
    "HOST": "host_name",
    "UUID": "uuid",
    "WORKLOAD": "training_workload",
}
_HELP = {
    "RUN": "the run that it is about",
    "RANK": "the rank",
    "HOST": "the host, as host_name of the alert",
    "UUID": "the GPU, as uuid of the alert",
    "WORKLOAD": "what is trained",
}
#: Filled in by what the command was given.
_SERVER = "URL"
_WORD = re.compile(rf"\b(?:{'|'.join((*PLACEHOLDERS, _SERVER))})\b")
#: A block of code with its language, or a piece of it in a line.
_CODE = re.compile(r"^```(?P<language>\w*)\n.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"\b\w+(?=:)")
#: How a text is written in a language; a shell reads what has none.
_FORMS: dict[str, Callable[[str], str]] = {"promql": lambda text: quoted(text)[1:-1], "yaml": json.dumps}
_PREFIX = "training"
#: What says of whom a query is, before which the cluster goes.
_WHOSE = re.compile(r'(?=\b(?:training_run="RUN"|host_name="HOST"))')


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Examples:\n  laggard runbook TrainingStraggler --run llama-7b-17 --rank 3\n"
        "  laggard runbook TrainingStraggler --prometheus http://localhost:9090\nWithout ALERT: all alerts."
    )
    parser.add_argument("alert", nargs="?", metavar="ALERT", help="an alert by its name, such as TrainingStraggler")
    for word, text in _HELP.items():
        parser.add_argument(f"--{word.lower()}", dest=word, metavar=word, help=text)
    add_cluster(parser, "the cluster of the run, where a server has several")
    add_server(parser, "a server whose alert of this name says the rest")


def run(options: argparse.Namespace) -> int:
    """Print the page, or the list of all alerts."""
    names = parse_names(options.label)
    if options.alert is None:
        for name in _names():
            print(f"{name:32}  {alert(name)['annotations']['title']}")
        return 0
    name = _known(options.alert)
    asked: dict[str, str | None] = {word: getattr(options, word) for word in PLACEHOLDERS}
    given = {word: text for word, text in asked.items() if text is not None}
    cluster = options.cluster or ""
    if is_named(options):
        labels = _firing(options, name, given)
        given = {**{word: labels[label] for word, label in PLACEHOLDERS.items() if labels.get(label)}, **given}
        given[_SERVER] = address(options)[0]
        cluster = cluster or labels.get(CLUSTER, "")
    page = (pack_folder("rules/runbooks") / f"{name}.md").read_text(encoding="utf-8")
    print(printable_lines(filled(page, given, cluster, names)), end="")
    left = [word for word in PLACEHOLDERS if re.search(rf"\b{word}\b", page) and word not in given]
    if left:
        flags = ", ".join(f"{word} by --{word.lower()}" for word in left)
        print(f"laggard runbook: left to fill in: {flags}", file=sys.stderr)
    return 0


def filled(page: str, given: Mapping[str, str], cluster: str = "", names: Mapping[str, str] | None = None) -> str:
    """Return a page with what is given in the place of words such as ``RUN``.

    Args:
        page: in Markdown, as it stands in the pack.
        given: text by the word that it replaces; a word that is missing stays.
        cluster: that queries ask for, if any.
        names: label to the name that the rules were rendered with.
    """

    def fill(text: str, form: Callable[[str], str] = str) -> str:
        return _WORD.sub(lambda word: form(given[word[0]]) if word[0] in given else word[0], text)

    def parts() -> Iterator[str]:
        end = 0
        for code in _CODE.finditer(page):
            yield fill(page[end : code.start()])
            text, language = code[0], code["language"] or ""
            if language == "promql" and cluster:
                text = _WHOSE.sub(lambda _: f"{CLUSTER}={quoted(cluster)}, ", text)
            if language == "promql":
                text = renamed(text, names or {})
            elif language == "yaml":
                text = _KEY.sub(lambda key: (names or {}).get(key[0], key[0]), text)
            yield fill(text, _FORMS.get(language, shlex.quote))
            end = code.end()
        yield fill(page[end:])

    return "".join(parts())


def _names() -> list[str]:
    return sorted(path.stem for path in pack_folder("rules/runbooks").glob("*.md"))


def _known(name: str) -> str:
    """Return an alert's name as the pack has it."""
    names = {each.lower().removeprefix(_PREFIX): each for each in _names()}
    wanted = name.lower().removeprefix(_PREFIX)
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, 1)
        hint = f"did you mean {names[near[0]]}?" if near else "laggard runbook lists all"
        raise CommandError(f"no alert {name!r}; {hint}")
    return names[wanted]


def _firing(options: argparse.Namespace, name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that all alerts of this name have in common, of those that fit what was given."""
    server = connect(options)
    try:
        alerts = server.alerts_in_clusters()
    finally:
        server.close()
    wanted = {PLACEHOLDERS[word]: text for word, text in given.items()}
    if options.cluster is not None:
        wanted[CLUSTER] = options.cluster
    found = [
        each["labels"]
        for each in alerts
        if each["labels"].get("alertname") == name
        and each["state"] == "firing"
        and all(each["labels"].get(label, "") == text for label, text in wanted.items())
    ]
    if not found:
        print(f"laggard runbook: {name} does not fire there{' for this' if wanted else ''}", file=sys.stderr)
        return {}
    common = {label: text for label, text in found[0].items() if all(labels.get(label) == text for labels in found[1:])}
    if len(found) > 1:
        print(f"laggard runbook: {len(found)} alerts fire; what they have in common is filled in", file=sys.stderr)
    return common
