"""Has a program run by a fork server and stands for it: its signals go to the program, its exit code is the program's.

Arguments: the server's socket, a request in JSON; environment, folder and standard files are those of the client.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

HANDED_ON = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run the program."""
    path, request = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        message = {**json.loads(request), "environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(server, [json.dumps(message).encode()], [0, 1, 2])
        processes: list[int] = json.loads(server.recv(1 << 20))

        def hand_on(number: int, _: Any) -> None:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):  # it ends, and its exit code is on the way
                    os.kill(process, number)

        for number in HANDED_ON:
            signal.signal(number, hand_on)
        codes: list[int] = json.loads(server.recv(1 << 20))
    code = next(filter(None, codes), 0)
    if code < 0:
        for number in HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
