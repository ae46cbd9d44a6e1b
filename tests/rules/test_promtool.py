"""The rules load, and do what their unit tests say, in every version of Prometheus."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from laggard_cli.rules.render import rule_files
from tests.rules.conftest import FRUGAL, NEWEST, TOOLS, VERSIONS, by_age
from tests.rules.pack import ROOT, RULES

SCENARIOS = ROOT / "promtool-tests"
PLAYS = sorted(path.stem for path in (SCENARIOS / "plays").glob("*.py"))

#: The version in which the order of groups is turned round, where they are evaluated after each scrape.
REVERSED_IN = "2.42"

#: Everything in every version takes half an hour of a processor, so that is for a release.
EVERYTHING = bool(os.environ.get("EVERY_PATH"))

#: The version in which every play is played, and in which wording.yaml was written. Another one may round otherwise:
#: since 3.0 a rate leaves out the sample at its window's beginning.
COMPLETE_IN = NEWEST if NEWEST in TOOLS else VERSIONS[0]

#: Modules of plays that ask for most of what versions differ in.
DIFFERENT = ("everything", "failures", "numbers", "processes", "uncompared")

#: Modules that are played with a second path and beside another cluster. Lints hold both promises for each rule:
#: `once.py` that a second path changes nothing, `lint.py` that clusters do not meet. These plays show that both hold.
DOUBLED = PLAYS if EVERYTHING else ["everything", "gpu", "numbers", "straggler", "uncompared"]


#: Modules with scenarios in which an alert fires for the first time.
SPOKEN = sorted(yaml.load((SCENARIOS / "wording.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader))


def _alone(version: str) -> Iterable[str]:
    """Return the modules that a version plays by themselves."""
    if version == COMPLETE_IN:
        return (name for name in PLAYS if name not in DOUBLED or name in SPOKEN)
    if EVERYTHING:
        return PLAYS
    return DIFFERENT if version == REVERSED_IN else ("everything",)


ALONE = [(version, name) for version in sorted({*VERSIONS, *TOOLS}, key=by_age) for name in _alone(version)]

#: By which second path plays come, and in which versions: each by one of them in the newest, or all by each in all.
SECOND = ("job", "replica") if EVERYTHING else ("turns",)
DOUBLED_IN = VERSIONS if EVERYTHING else (COMPLETE_IN,)

pytestmark = pytest.mark.patient


def _run(*command: str | Path) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=FRUGAL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with promtool's files, which the first process writes for all of them."""
    return _generated(
        tmp_path_factory, "promtool", *sorted({name for version, name in ALONE if version != COMPLETE_IN})
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the files that expect what alerts say as well."""
    names = sorted({name for version, name in ALONE if version == COMPLETE_IN})
    options = ("--said",) if COMPLETE_IN == NEWEST else ()
    return _generated(tmp_path_factory, "promtool-said", *names, options=options)


@pytest.fixture(scope="module", params=SECOND)
def doubled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the files in which every series comes twice, beside another cluster."""
    options = (f"--second={request.param}", "--clusters")
    return _generated(tmp_path_factory, f"promtool-{request.param}", *DOUBLED, options=options)


def _generated(factory: pytest.TempPathFactory, name: str, *modules: str, options: tuple[str, ...] = ()) -> Path:
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _run(sys.executable, SCENARIOS / "generate.py", *options, f"{folder}.new", *modules)
            Path(f"{folder}.new").rename(folder)
    return folder


def test_the_readme_lists_the_versions() -> None:
    """The table of engines promises the versions that are tested, and no other."""
    text = (RULES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| Prometheus(?:, newest)? \| ([\d., ]+) \|", text, re.MULTILINE)
    assert tuple(", ".join(rows).split(", ")) == VERSIONS


def test_rules_load(promtool: Path) -> None:
    """Every rule file passes promtool with every lint as an error."""
    _run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *(RULES / name for name in rule_files()))


def test_who_is_played_side_by_side_has_runs_of_its_own(said: Path, doubled: Path) -> None:
    """What must be silent is asked of runs that are there: nothing fires of a run that nobody has."""
    mine = re.compile(r'training_run=~"\|(.+?)"')
    places = set[str]()
    for file in (*said.glob("*.yml"), *doubled.glob("*.yml")):
        # To read all of them as YAML takes half a minute.
        for test in file.read_text(encoding="utf-8").split("\n- name: ")[1:]:
            series, _, questions = test.partition("_test:\n")
            runs = set(re.findall(r'training_run="(.+?)"', series))
            asked = set(mine.findall(questions))
            places |= asked
            found = {pattern: {run for run in runs if re.fullmatch(pattern, run)} for pattern in asked}
            assert all(found.values()), f"{file.name}: {test[:100]}"
            assert not asked or sorted(run for own in found.values() for run in own) == sorted(runs)
    assert len(places) > 50


@pytest.mark.parametrize(
    ("promtool", "name"), [each for each in ALONE if each[0] == COMPLETE_IN], indirect=["promtool"]
)
def test_verdicts_and_what_alerts_say(promtool: Path, said: Path, name: str) -> None:
    """Every play comes out, and each alert says, to the letter, what a person has read, where it first fires."""
    _run(promtool, "test", "rules", said / f"{name}.yml")


@pytest.mark.parametrize(
    ("promtool", "name"), [each for each in ALONE if each[0] != COMPLETE_IN], indirect=["promtool"]
)
def test_verdicts_in_other_versions(promtool: Path, generated: Path, name: str, tmp_path: Path) -> None:
    """Verdicts are the same.

    In one version the last layer is evaluated first, so verdicts come some scrapes later, and within the same limits:
    what takes minutes anyway is played at the pace of its groups, and that order would cost it hours.
    """
    file = generated / f"{name}.yml"
    _run(promtool, "test", "rules", _reversed(file, tmp_path) if promtool == TOOLS.get(REVERSED_IN) else file)


@pytest.mark.parametrize("promtool", DOUBLED_IN, indirect=True)
@pytest.mark.parametrize("name", DOUBLED)
def test_neither_a_second_path_nor_another_cluster_changes_anything(promtool: Path, doubled: Path, name: str) -> None:
    """Every play comes out the same where each series comes twice, from a pair of servers or by two jobs.

    So it does beside another cluster, in which something else happens under the same names of runs, ranks and hosts;
    and what happens there comes out as it does alone.
    """
    _run(promtool, "test", "rules", doubled / f"{name}.yml")


def _reversed(file: Path, folder: Path) -> Path:
    head, _, tests = file.read_text(encoding="utf-8").partition("\ntests:")
    settings = yaml.safe_load(head)
    scraped = min(map(int, re.findall(r"^  interval: (\d+)s$", tests, re.MULTILINE)))
    if settings["evaluation_interval"] != f"{scraped}s":
        return file
    settings["group_eval_order"].reverse()
    written = folder / file.name
    written.write_text(f"{yaml.safe_dump(settings)}\ntests:{tests}", encoding="utf-8")
    return written
