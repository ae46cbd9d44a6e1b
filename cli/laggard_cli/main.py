"""``laggard``: one sub-command a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from laggard.shared.names import run_name
from laggard_cli.commands import parser
from laggard_cli.errors import CommandError
from laggard_cli.terminal import print_plainly, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    print_plainly(sys.stdout, sys.stderr)
    name = next((word for word in given if not word.startswith("-")), "")
    try:
        options = parser({name}).parse_args(given)
        # A run is looked for under the name that its ranks report, however long --run is.
        if getattr(options, "name", None):
            options.name = run_name(options.name)
        return int(options.run(options))
    except CommandError as error:
        print(printable(f"laggard {name}: error: {error}"), file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough; what is left in the buffer must not fail at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
