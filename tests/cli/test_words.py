"""The words of the command line: what a person may leave out, and what is said of a wrong one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import pytest

from laggard.version import PACK_VERSION, __version__
from laggard_cli.commands import COMMANDS, parser
from laggard_cli.errors import CommandError
from laggard_cli.local import rank_numbers, spans
from laggard_cli.main import main
from laggard_cli.nearby import did_you_mean, listed
from tests.support.fake_prometheus import fake_prometheus

LIVE = {"run:training_ranks_live:count": [({"training_run": "llama-7b-17"}, 1.0), ({"training_run": "bert"}, 1.0)]}


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Every command and those below it."""
    rest: list[argparse.ArgumentParser] = [parser(COMMANDS)]
    for each in rest:
        yield each
        for action in each._actions:
            choices: Any = action.choices
            if isinstance(choices, dict):
                values = cast("dict[str, object]", choices).values()
                rest += [value for value in values if isinstance(value, argparse.ArgumentParser)]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("alone", ["", "rules", "slurm"])
def test_a_command_that_has_others_prints_its_help_alone(alone: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked for, so nothing is wrong: the help, and exit code 0; --help and help say the same."""
    words = alone.split()
    code, out, err = said(capsys, *words)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {' '.join(['laggard', *words])} [-h]")
    assert said(capsys, *words, "--help") == said(capsys, "help", *words) == (0, out, "")


def test_version_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways to ask print one line."""
    expected = (0, f"laggard {__version__} (rules {PACK_VERSION})\n", "")
    assert said(capsys, "version") == said(capsys, "--version") == expected


def test_every_option_with_a_typing_error_is_named_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each command, also where an argument that it requires is missing because of that."""
    seen = 0
    for each in parsers():
        words = each.prog.split()[1:]
        for option in [name for name in each._option_string_actions if name.startswith("--") and len(name) > 5]:
            wrong = f"{option}{option[-1]}"
            if any(name.startswith(wrong) for name in each._option_string_actions):
                continue
            seen += 1
            expected = f"{each.prog}: error: unknown option {wrong}; did you mean {option}?\n"
            assert said(capsys, *words, f"{wrong}=1") == (2, "", expected)
    assert seen > 60


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["diagnos"], "laggard: error: unknown command 'diagnos'; did you mean diagnose?"),
        (["rules", "chekc"], "laggard rules: error: unknown action 'chekc'; did you mean check?"),
        (["help", "diagnos"], "laggard: error: unknown command 'diagnos'; did you mean diagnose?"),
        (["completion", "bsh"], "laggard completion: error: argument shell: invalid choice: 'bsh'; did you mean bash?"),
        (["stacks", "r"], "laggard stacks: error: unexpected argument 'r'; laggard stacks --help shows the usage"),
        (["stacks", "--zz"], "laggard stacks: error: unknown option --zz; laggard stacks --help lists them"),
        (["\x1b[2J"], f"laggard: error: unknown command '\\x1b[2J'; there are {', '.join(COMMANDS)}"),
        (["run", "--rn", "x", "true"], "laggard run: error: unknown option --rn; did you mean --run?"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong, and the nearest right word or where they are listed."""
    assert said(capsys, *arguments) == (2, "", f"{line}\n")


def test_options_of_another_program_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands behind the command of ``laggard run`` is not laggard's."""
    line = "laggard run: error: command 'no-such-command' is not on PATH\n"
    assert said(capsys, "run", "no-such-command", "--rn", "x") == (2, "", line)


def test_a_wrong_run_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever its case and however much of it was typed; the server comes from the environment."""
    with fake_prometheus(LIVE, []) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAGGARD_PROMETHEUS", address)
        for typed in ("llama", "Llama-7B-71"):
            line = (
                f"laggard diagnose: error: --run {typed!r} is not in Prometheus at {address}; "
                "runs now: bert, llama-7b-17; did you mean llama-7b-17?\n"
            )
            assert said(capsys, "diagnose", "--run", typed) == (2, "", line)
        assert "did you mean" not in said(capsys, "diagnose", "--run", "zzz")[2]


def test_a_run_is_found_by_the_name_that_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks report 128 bytes of a name, without blanks around it, and whoever asks need not know that."""
    live = {"run:training_ranks_live:count": [({"training_run": "é" * 64}, 1.0)]}
    with fake_prometheus(live, []) as address:
        for given in ("é" * 100, f" {'é' * 64}", "é" * 64):
            code, printed, error = said(capsys, "diagnose", "--prometheus", address, "--run", given)
            assert (code, error) == (0, "")
            assert printed.startswith(f"run {'é' * 64}")


def test_which_server_is_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument goes before the environment, and that before the usual address; an error names what it read."""
    monkeypatch.setattr("laggard_cli.servers.DEFAULT", "http://127.0.0.1:1")
    monkeypatch.delenv("LAGGARD_PROMETHEUS", raising=False)
    refused = "cannot be reached: Connection refused"
    assert said(capsys, "diagnose")[2] == (
        f"laggard diagnose: error: Prometheus at http://127.0.0.1:1 {refused}; --prometheus or LAGGARD_PROMETHEUS "
        "names another\n"
    )
    monkeypatch.setenv("LAGGARD_PROMETHEUS", "http://127.0.0.1:2")
    assert said(capsys, "diagnose")[2] == f"laggard diagnose: error: Prometheus at http://127.0.0.1:2 {refused}\n"
    assert "at http://127.0.0.1:3 cannot" in said(capsys, "diagnose", "--prometheus", "http://127.0.0.1:3")[2]
    monkeypatch.setenv("LAGGARD_PROMETHEUS", "prometheus")
    assert "error: LAGGARD_PROMETHEUS must be a URL, got 'prometheus'; try" in said(capsys, "diagnose")[2]


def test_ranks_are_numbers_and_spans() -> None:
    """Both are read and written; what is none says what was meant, and fills no memory."""
    assert rank_numbers("3, 0-2,12") == [0, 1, 2, 3, 12]
    assert spans([0, 1, 2, 3, 5, 6, 12]) == "0-3, 5, 6, 12"
    usual = "try 0,3 or 0-7"
    for text, hint in (("rank3", "did you mean 3?"), ("3-1", usual), ("0-9999999", usual), ("-1", usual)):
        with pytest.raises(CommandError, match=f"--ranks must be numbers, got '{text}'; {hint}".replace("?", r"\?")):
            rank_numbers(text)


def test_nearby_names() -> None:
    """A list in an error is bounded; two names that go on with a word are none that was meant."""
    assert listed(map(str, range(10, 40))) == "10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21 and 18 more"
    assert did_you_mean("x", ["x-long-name-1", "x-long-name-2"], "neither") == "; neither"
    assert did_you_mean("", ["a"]) == ""
