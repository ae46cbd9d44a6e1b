"""``laggard-exporter``: exports a node's GPUs and training ranks to Prometheus."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from laggard_exporter import flags
from laggard_exporter.collection import Collection, Collector
from laggard_exporter.flags import Options
from laggard_exporter.nvml import NvmlCollector
from laggard_exporter.server import Address, Application, Server, make_application
from laggard_exporter.state import StateCollector
from laggard_exporter.workload import Workloads

#: Every collector by its name in flags and metrics.
COLLECTORS: dict[str, Callable[[Options], Collector]] = {
    "nvml": lambda options: NvmlCollector(workloads=_workloads(options), kernel_log=options.kernel_log),
    "state": lambda options: StateCollector(options.state_directory),
}

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT.

    Raises :class:`SystemExit`: with code 0 after a signal, with code 2 for bad input.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    options = flags.parse(arguments, COLLECTORS)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    servers = _servers(options)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _logger.info("serving metrics at %s%s", server.url, options.telemetry_path)
    try:
        while True:
            signal.pause()
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _workloads(options: Options) -> Workloads:
    # The collector of states says what is wrong with a file; saying it twice helps nobody.
    return Workloads(StateCollector(options.state_directory, log=_silence).ranks)


def _silence(_level: int, _message: str) -> None:
    """Log nothing."""


def _servers(options: Options) -> list[Server]:
    collection = Collection([COLLECTORS[name](options) for name in options.collectors])
    application = make_application(collection, options.telemetry_path)
    return [_listen(address, application) for address in options.addresses]


def _listen(address: Address, application: Application) -> Server:
    try:
        return Server(address, application)
    except OSError as error:
        flags.reject(f"--web.listen-address {address}: {error.strerror}; free the address or give another")


def _exit(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
