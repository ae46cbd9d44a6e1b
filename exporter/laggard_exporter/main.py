"""``laggard-exporter``: exports a node's GPUs and training ranks to Prometheus."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

from laggard_exporter import doctor, flags
from laggard_exporter.collection import Collection, Collector
from laggard_exporter.collectors import COLLECTORS
from laggard_exporter.conventions import WEB_CONFIGURATION_VALID
from laggard_exporter.flags import Options
from laggard_exporter.gpus.collector import GpuCollector
from laggard_exporter.otlp.settings import OtlpError
from laggard_exporter.otlp.settings import settings as otlp_settings
from laggard_exporter.profiling import Profiling
from laggard_exporter.ranks.discovery import TargetFile, Targets
from laggard_exporter.ranks.endpoints import Endpoints
from laggard_exporter.samples import Sample
from laggard_exporter.web import profile, ranks
from laggard_exporter.web.address import Address
from laggard_exporter.web.application import Application
from laggard_exporter.web.configuration import ConfigurationError, WebConfiguration
from laggard_exporter.web.server import Server
from laggard_exporter.web.watch import ConfigurationFile, ConfigurationSource

_logger = logging.getLogger(__name__)

_DRIVER_SIGNALS = {signal.SIGUSR1, signal.SIGUSR2}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT. SIGUSR1 lets the GPUs' driver go, SIGUSR2 takes it up again.

    Raises :class:`SystemExit`: with code 0 after a signal, with code 2 for bad input.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    # Blocked in all threads and in the process of NVML: :func:`_follow_signals` waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _DRIVER_SIGNALS)
    options = flags.parse(arguments, {name: entry.text for name, entry in COLLECTORS.items()})
    # The table is what a user of the doctor reads.
    level = "critical" if options.command else options.log_level
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    source = _source(options)
    collectors = [COLLECTORS[name].make(options) for name in options.collectors]
    collection = Collection(collectors, lambda: _own_samples(source))
    if options.command == "doctor":
        _doctor(collection, as_json=options.json)
    servers = _servers(options, collection, source)
    _push(options, collection)
    # What is loaded by now stays: a scrape must not wait until the collector of garbage has looked at all of it.
    gc.collect()
    gc.freeze()
    with contextlib.ExitStack() as at_end:
        if file := _target_file(options):
            at_end.callback(file.close)
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            at_end.callback(_close, server)
            _logger.info("serving metrics at %s%s", server.url, options.telemetry_path)
        _follow_signals(collection, collectors)


def _close(server: Server) -> None:
    server.shutdown()
    server.server_close()


def _follow_signals(collection: Collection, collectors: Sequence[Collector]) -> NoReturn:
    """Let the GPUs' driver go and take it up again: at once, not with the next scrape."""
    gpus = [collector for collector in collectors if isinstance(collector, GpuCollector)]
    while True:
        released = signal.sigwaitinfo(_DRIVER_SIGNALS).si_signo == signal.SIGUSR1
        for collector in gpus:
            collector.released = released
            collection.outcomes({collector.name})


def _doctor(collection: Collection, *, as_json: bool) -> NoReturn:
    """Print what works; exit with code 1 where something does not that should."""
    findings = doctor.examine(collection)
    print(doctor.as_json(findings) if as_json else doctor.as_table(findings))  # noqa: T201 - what was asked for
    raise SystemExit(0 if doctor.healthy(findings) else 1)


def _push(options: Options, collection: Collection) -> None:
    try:
        settings = otlp_settings(options.otlp_endpoint)
        if settings is not None:
            # Imported only here: half of the process's memory is OpenTelemetry's then.
            push = importlib.import_module("laggard_exporter.otlp.push")
            push.make_pusher(collection, options.host, settings).start()
    except OtlpError as error:
        flags.reject(str(error))
    except ImportError as error:
        problem = f"to push by OTLP {error.name} is needed; pip install 'laggard[otel]'"
        if options.otlp_endpoint:
            flags.reject(problem)
        # The variables may be meant for all that runs on the node, and the metrics are served in any case.
        _logger.warning("%s", problem)


def _source(options: Options) -> ConfigurationSource:
    if options.web_configuration is None:
        return ConfigurationSource(WebConfiguration())
    try:
        return ConfigurationFile(options.web_configuration)
    except ConfigurationError as error:
        flags.reject(str(error))


def _own_samples(source: ConfigurationSource) -> Iterator[Sample]:
    if source.valid is not None:
        yield Sample(WEB_CONFIGURATION_VALID, (), source.valid)


def _target_file(options: Options) -> TargetFile | None:
    if options.targets_file is None:
        return None
    targets = Targets(Endpoints(options.state_directory, options.procfs, options.sysfs))
    file = TargetFile(options.targets_file, targets, options.targets_host or "localhost")
    try:
        file.start()
    except OSError as error:
        flags.reject(f"--sd.file {str(options.targets_file)!r}: {error.strerror}; name a file in a folder to write to")
    return file


def _servers(options: Options, collection: Collection, source: ConfigurationSource) -> list[Server]:
    closed = source.current().closed
    if options.profiling and not closed:
        flags.reject(
            "--web.enable-profiling needs a --web.config.file with TLS and passwords or client certificates: who may "
            "connect may slow training down"
        )
    actions = {profile.PATH: profile.ProfilePage(Profiling(options.state_directory))} if options.profiling else {}
    endpoints = Endpoints(options.state_directory, options.procfs, options.sysfs)
    pages = {
        ranks.METRICS_PATH: ranks.RanksPage(endpoints),
        ranks.TARGETS_PATH: ranks.TargetsPage(Targets(endpoints), options.targets_host),
    }
    application = Application(collection, options.telemetry_path, options.max_requests, actions, pages)
    addresses = options.addresses or (flags.default_address(closed=closed),)
    if not closed and not all(address.local for address in addresses):
        _logger.warning(
            "the metrics are served to all who reach this node: --web.config.file gives encryption and passwords"
        )
    return [_listen(address, application, source) for address in addresses]


def _listen(address: Address, application: Application, source: ConfigurationSource) -> Server:
    try:
        return Server(address, application, source)
    except OSError as error:
        flags.reject(f"--web.listen-address {address}: {error.strerror}; free the address or give another")


def _exit(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
