"""A rank's process: keeps a state file as it is told over standard input, until that is closed.

The first line is a JSON object: the folder, the facts, the live words by index, and the exit code with which it
leaves, as subprocess has it: below 0 it is a signal. In place of a code it may be a program, which the process then
runs. Answers with the file's path.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from laggard.shared.statefile import Facts, StateWriter

request: dict[str, Any] = json.loads(sys.stdin.readline())
request["facts"]["boot_id"] = bytes.fromhex(request["facts"]["boot_id"])
if not request["facts"]["pid_start_ticks"]:  # its own
    request["facts"]["pid_start_ticks"] = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
writer = StateWriter(Path(request["directory"]), Facts(**request["facts"]))
for index, value in request["words"].items():
    writer.words[int(index)] = value
print(writer.path, flush=True)
sys.stdin.read()
end = request["ends"]
if isinstance(end, list):
    os.execv(end[0], end)
if end is not None and end < 0:
    os.kill(os.getpid(), -end)
elif end is not None:
    os._exit(end)
