"""Errors of the command line: one line for the user, and the exit code."""

from __future__ import annotations

#: Exit code of bad input: a wrong flag, a name that does not exist, a server that does not answer.
BAD_INPUT = 2


class CommandError(Exception):
    """What was asked cannot be done. The message names the thing, its value and what to do."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code
