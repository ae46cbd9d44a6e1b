"""Reads one dump, from standard input, and prints its facts: in a process of its own, with limits.

A dump is somebody else's file: what it costs to read is the child's to bear, and it cannot do more than read.
Arguments: the folder of laggard_exporter, how many bytes a dump may have, and the rank that it is of.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Without site packages it is not found.
    sys.path.append(sys.argv[1])
    from laggard_exporter.hang.dump_file import DumpError, parse
    from laggard_exporter.hang.facts import as_json, facts
    from laggard_exporter.limits import limit

    limit()
    try:
        sys.stdout.write(as_json(facts(parse(sys.stdin.buffer.read(int(sys.argv[2])), int(sys.argv[3])))))
    except DumpError as error:
        sys.exit(str(error))
