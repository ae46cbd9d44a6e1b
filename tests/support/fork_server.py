"""Forks training processes that have torch already: its import takes three seconds of a processor in each of them.

A process begins as under ``opentelemetry-instrument``, but that torch is there before laggard's hooks are, as in a
notebook. So tests of how a process begins start theirs themselves.

Argument: the descriptor of the socket that it listens on. The server ends when its standard input does, and removes the
socket's folder. A client (`fork_client.py`) sends a request in JSON with its standard files. It is answered with the
processes' ids and, when all have ended, with their exit codes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

#: What the programs import. Nothing of laggard's, which is loaded in each process, with its own environment.
USUAL = (
    "opentelemetry.instrumentation.auto_instrumentation",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._configuration",
    "requests",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.utils.data",
)


def serve(listener: socket.socket) -> Path:
    """Fork processes until standard input ends; in each of them, return the program that it runs."""
    # On processors nothing uses it, and it complains at the end that it has not been freed.
    sys.modules["triton"] = None  # pyright: ignore[reportArgumentType] - keeps it from being found
    logging.disable()  # torch says that it is not there
    for module in USUAL:
        importlib.import_module(module)
    logging.disable(logging.NOTSET)
    # The processes' garbage collectors need not go through it.
    gc.collect()
    gc.freeze()
    # Nobody asks for the end of the processes that wait for the ranks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll = select.poll()
    poll.register(0)
    poll.register(listener, select.POLLIN)
    while True:
        if any(descriptor == 0 for descriptor, _ in poll.poll()):
            shutil.rmtree(Path(listener.getsockname()).parent)
            sys.exit()
        client, _ = listener.accept()
        message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
        request = json.loads(message)
        if os.fork() == 0:
            break
        client.close()
        for file in files:
            os.close(file)
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    processes: list[int] = []
    for rank in _ranks(request["size"]):
        if (process := os.fork()) == 0:
            client.close()
            return _begin(request, rank, files)
        processes.append(process)
    for file in files:
        os.close(file)
    _wait(client, processes)
    os._exit(0)


def _ranks(size: int | None) -> list[dict[str, str]]:
    """Return what torchrun tells each of its processes; without a size there is one that it knows nothing of."""
    if size is None:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "none"}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes, **address} for rank in range(size)]


def _begin(request: dict[str, Any], rank: dict[str, str], files: list[int]) -> Path:
    """Become a process of its own."""
    os.setsid()
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"] | rank)
    os.chdir(request["folder"])
    program, *_ = sys.argv = request["command"]
    sys.path[:1] = [str(Path(program).parent), *os.environ["PYTHONPATH"].split(os.pathsep)]
    return program


def _wait(client: socket.socket, processes: list[int]) -> None:
    """Report the ends of the processes; with the client, or the first that fails, the others end too."""
    client.send(json.dumps(processes).encode())
    poll = select.poll()
    poll.register(client, 0)  # only that it hangs up
    running = {os.pidfd_open(process): process for process in processes}
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    codes: list[int] = []
    while running:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            if descriptor in running:
                _, status = os.waitpid(running.pop(descriptor), 0)
                codes.append(os.waitstatus_to_exitcode(status))
            if descriptor == client.fileno() or codes[-1]:
                for process in running.values():
                    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError):  # it was killed
        client.send(json.dumps(codes).encode())


if __name__ == "__main__":
    _program = serve(socket.socket(fileno=int(sys.argv[1])))
    from opentelemetry.instrumentation.auto_instrumentation import initialize

    initialize()
    runpy.run_path(str(_program), run_name="__main__")
