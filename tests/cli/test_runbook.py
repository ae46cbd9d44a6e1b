"""``laggard runbook``: the page of an alert, ready to be copied from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import promql_parser as promql
import pytest
import yaml

from laggard_cli.main import main
from laggard_cli.pack import pack_folder
from laggard_cli.runbook import PLACEHOLDERS, filled
from tests.support.fake_prometheus import fake_prometheus, firing

PAGES = sorted(pack_folder("rules/runbooks").glob("*.md"))
#: What somebody may call things: as PromQL, a shell and YAML write it, it is the same text.
HOSTILE = {word: f"{word.lower()} \"'\\ $(x) #" for word in PLACEHOLDERS}
NAMES = {"cluster": "k8s_cluster", "training_run": "run_id"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_page_is_filled_in(page: Path) -> None:
    """No word is left; queries parse and ask for the run of the cluster; YAML and commands have the text as it is."""
    text = page.read_text(encoding="utf-8")
    given = filled(text, HOSTILE, cluster='ea"st', names=NAMES)
    assert not re.search(rf"\b({'|'.join(PLACEHOLDERS)})\b", given)
    queries = re.findall(r"^```promql\n(.*?)^```$", given, re.MULTILINE | re.DOTALL)
    originals = re.findall(r"^```promql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(queries) == len(originals) >= 2
    for query, original in zip(queries, originals, strict=True):
        promql.parse(query)
        about_run, about_host = original.count('training_run="RUN"'), original.count('host_name="HOST"')
        matcher = 'k8s_cluster="ea\\"st", run_id="run \\"\'\\\\ $(x) #"'
        assert query.count(matcher) == about_run
        assert query.count("k8s_cluster=") == about_run + about_host
        assert not re.search(r"\b(training_run|cluster)\b", query.replace("k8s_cluster", ""))
    for block in re.findall(r"^```yaml\n(.*?)^```$", given, re.MULTILINE | re.DOTALL):
        assert [rule["labels"]["run_id"] for rule in yaml.safe_load(block)] == [HOSTILE["RUN"]]
    simple = filled(text, {**HOSTILE, "RUN": "a b"})
    for command in re.findall(r"`(laggard .+?--run .+?)`", simple):
        assert "a b" in shlex.split(command)
    # Nothing else changes.
    assert filled(text, {}) == text


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The page with run and rank; what nobody said is named beside it."""
    assert main(["runbook", "TrainingContention", "--run", "llama", "--rank", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# TrainingContention\n")
    assert '{training_run="llama", training_rank="3", training_quantile=~"p50|p95"}' in printed.out
    assert printed.err == ""
    assert main(["runbook", "gpulost", "--run", "llama"]) == 0
    assert capsys.readouterr().err == "laggard runbook: left to fill in: UUID by --uuid\n"


def test_all_alerts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name: each alert in a line, with what it says."""
    assert main(["runbook"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [page.stem for page in PAGES]
    assert "TrainingGpuLost                   " in "\n".join(lines)
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stragler", "no alert 'stragler'; did you mean TrainingStraggler?"),
        ("TrainingStaled", "no alert 'TrainingStaled'; did you mean TrainingStalled?"),
        ("qqq", "no alert 'qqq'; laggard runbook lists all"),
        ("../../README", "no alert '../../README'; laggard runbook lists all"),
    ],
)
def test_a_name_that_is_not_known(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with what may have been meant."""
    assert main(["runbook", name]) == 2
    assert capsys.readouterr() == ("", f"laggard runbook: error: {said}\n")


def test_a_firing_alert_says_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """Run, rank and address are those of the alert; of several alerts what they have in common, which names nobody."""
    alerts = [
        firing("TrainingStraggler", "llama", "3"),
        firing("TrainingStraggler", "other", "1"),
        firing("TrainingStraggler", "other", "2"),
        {**firing("TrainingContention", "llama", "5"), "state": "pending"},
    ]

    def printed(*arguments: str) -> tuple[str, str]:
        with fake_prometheus({}, alerts) as address:
            assert main(["runbook", *arguments, "--prometheus", address]) == 0
        found = capsys.readouterr()
        return found.out.replace(address, "ADDRESS"), found.err

    page, notes = printed("TrainingStraggler", "--run", "llama")
    assert notes == ""
    assert "`laggard profile --prometheus ADDRESS --run llama`" in page
    assert 'run_rank:training_straggler_score:last{training_run="llama", training_rank="3"}' in page
    page, notes = printed("TrainingStraggler", "--run", "other")
    assert 'training_run="other", training_rank="RANK"' in page
    assert notes.splitlines() == [
        "laggard runbook: 2 alerts fire; what they have in common is filled in",
        "laggard runbook: left to fill in: RANK by --rank",
    ]
    page, notes = printed("TrainingContention")
    assert 'training_run="RUN"' in page
    assert notes.splitlines() == [
        "laggard runbook: TrainingContention does not fire there",
        "laggard runbook: left to fill in: RUN by --run, RANK by --rank",
    ]
