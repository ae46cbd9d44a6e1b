"""Asks the RAS service of one job and prints what it says: in a process of its own, with limits.

Who answers is a program of a user: what it costs to ask is the child's to bear, and a process whose environment cannot
be read without hanging holds nobody but it. Argument: the folder of laggard_exporter. Standard input has the question.
"""

from __future__ import annotations

import sys

#: Exit code where nobody listens.
NOBODY = 3

if __name__ == "__main__":
    # Without site packages it is not found.
    sys.path.append(sys.argv[1])
    from laggard_exporter.limits import limit
    from laggard_exporter.ras.answer import RasError
    from laggard_exporter.ras.client import NobodyError
    from laggard_exporter.ras.question import Question, answer

    limit()
    try:
        sys.stdout.write(answer(Question.from_json(sys.stdin.read())))
    except NobodyError as error:
        sys.stderr.write(str(error))
        sys.exit(NOBODY)
    except RasError as error:
        sys.exit(str(error))
