"""Where metrics go, and the process's OpenTelemetry providers at its end: what is left is sent, but never waited for.

Metrics go to the meter provider of the process. ``laggard.instrument()`` makes one for a process without, and keeps it
to itself until the script sets its own. Under ``laggard run`` OpenTelemetry's launcher makes providers, by variables
that say where a site reads ranks: where the script sets its own, as a library may for itself, metrics go to both.

The SDK sends what it holds when the interpreter exits, and tries for 10 seconds and more where nobody listens. Here
all providers flush at once, within a time limit. Where that works at once, everything else is left to the SDK. Where
it does not, the providers are shut down here, within what is left of the time, and the SDK's own handlers, which
would try it all again, are taken out.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
import time
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.metrics import Meter, get_meter_provider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, TracerProvider, get_tracer_provider

from laggard.shared import environment

#: An endpoint that answers takes all within this time, and then once more when the SDK shuts down.
_PROMPT_SECONDS = 0.5

_EXPORT_MILLISECONDS = 15_000

_logger = logging.getLogger(__name__)

#: What :func:`make_own` made, while the process has no meter provider.
_own: Any = None
#: What the launcher made, where the script may set others: its meter provider, and its tracer provider if it sends.
_launched: Any = None
_launched_tracer: Any = None
#: What the script set beside it.
_beside: Any = None
#: Meter and tracer provider at the last call of :func:`renewed`.
_seen: tuple[Any, ...] = ()
#: Where OpenTelemetry keeps that a provider was set: it takes another one only where none was.
_SET_ONCE = (
    ("opentelemetry.metrics._internal", "_METER_PROVIDER_SET_ONCE"),
    ("opentelemetry.trace", "_TRACER_PROVIDER_SET_ONCE"),
    ("opentelemetry._logs._internal", "_LOGGER_PROVIDER_SET_ONCE"),
)


def make_own() -> None:
    """Make a meter provider for a process that has none, with the exporters that the environment names.

    Raises :class:`ImportError` without the SDK.
    """
    global _own  # noqa: PLW0603 - a process has one
    if _own is None and not _process_has_one() and not _switched_off():
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - the extra may not be installed

        readers = [_reader(name) for name in _exporters()]
        _own = MeterProvider([reader for reader in readers if reader is not None])


def yield_to_script() -> None:
    """Let the script set providers for itself beside those that the launcher made."""
    global _launched, _launched_tracer  # noqa: PLW0603 - a process has one
    if not _process_has_one():
        # The file that OTEL_CONFIG_FILE names has none, and variables are not read beside it.
        with contextlib.suppress(ImportError):
            make_own()
        return
    _launched = get_meter_provider()
    _launched_tracer = get_tracer_provider() if traces_arrive() else None
    for module, name in _SET_ONCE:
        once = getattr(sys.modules.get(module), name, None)
        if once is not None:
            setattr(sys.modules[module], name, type(once)())


def drop_own() -> bool:
    """Shut down what :func:`make_own` made, if it is there; return whether it was."""
    global _own
    own, _own = _own, None
    if own is not None:
        _call(own.shutdown)
    return own is not None


def script_has_set_one() -> bool:
    """Return, once, whether the script has set a meter provider: in place of what we made, or beside the launcher's."""
    global _launched, _beside  # noqa: PLW0603 - as above
    provider = get_meter_provider()
    if _launched is not None and provider not in (_launched, _beside):
        _beside = provider
        if _switched_off():
            _launched = None
        return True
    return _own is not None and _process_has_one() and drop_own()


def renewed() -> bool:
    """Return, once for each time, whether the process has set a provider since the last call."""
    global _seen
    before, _seen = _seen, (get_meter_provider(), get_tracer_provider())
    return any(one is not other for one, other in zip(before, _seen, strict=False))


def meters(name: str, version: str) -> list[Meter]:
    """Return a meter of each provider that metrics go to now: the launcher's, and beside it that of the script."""
    providers = {id(each): each for each in ([_own] if _own is not None else [_launched, get_meter_provider()])}
    return [each.get_meter(name, version) for each in providers.values() if each is not None and not _ended(each)]


def tracer_provider() -> TracerProvider:
    """Return the provider that spans go to now."""
    return get_tracer_provider() if _launched_tracer is None else _launched_tracer


def traces_arrive() -> bool:
    """Return whether anybody gets our spans: without an SDK, or a processor in it, nobody does."""
    provider = tracer_provider()
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
    return processors != () and not isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider))


def _process_has_one() -> bool:
    return type(get_meter_provider()).__name__ != "_ProxyMeterProvider"


def _switched_off() -> bool:
    return environment.text("OTEL_SDK_DISABLED").lower() == "true" or "none" in _exporters()


def _exporters() -> list[str]:
    otlp = any(environment.text(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT") for kind in ("", "METRICS_"))
    names = environment.text("OTEL_METRICS_EXPORTER") or ("otlp" if otlp else "laggard_prometheus")
    return [name.strip() for name in names.split(",") if name.strip()]


def _reader(exporter: str) -> Any:
    """Return a reader for the exporter that OpenTelemetry knows by this name; ``None`` with a warning if it fails."""
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415 - as above

    if exporter == "otlp":
        protocols = [environment.text(f"OTEL_EXPORTER_OTLP_{kind}PROTOCOL") for kind in ("METRICS_", "")]
        exporter = "otlp_proto_http" if next(filter(None, protocols), "grpc").startswith("http") else "otlp_proto_grpc"
    try:
        (entry,) = entry_points(group="opentelemetry_metrics_exporter", name=exporter)
        made = entry.load()()
    except Exception as error:
        _logger.warning("OTEL_METRICS_EXPORTER=%s cannot be used: %r; nothing is exported to it", exporter, error)
        return None
    if isinstance(made, MetricReader):
        return made
    # As under ``laggard run``: the rules need a value every 15 seconds, and the SDK's own default is a minute.
    interval = None if environment.text("OTEL_METRIC_EXPORT_INTERVAL") else _EXPORT_MILLISECONDS
    return PeriodicExportingMetricReader(made, export_interval_millis=interval)


def silence_parent() -> None:
    """Keep a forked child of a rank from exporting the rank's metrics as its own.

    The SDK restarts its export thread in the child, with all that the parent has accumulated. Its locks may have
    been held at the fork, so shutting readers down could block the child for ever; a method that does nothing cannot.
    Readers that the child makes work.
    """
    sdk: Any = sys.modules.get("opentelemetry.sdk.metrics")
    readers: Any = getattr(getattr(sdk, "MeterProvider", None), "_all_metric_readers", ())
    for reader in list(readers):
        reader.collect = _collect_nothing


def _collect_nothing(*_args: Any, **_kwargs: Any) -> None:
    pass


def flush(seconds: float) -> bool:
    """Have all providers send what they hold; return whether they did so within the time."""
    return _all_at_once("force_flush", seconds)


def end(seconds: float) -> None:
    """Send what is left at the end of the process, and see to it that nobody tries longer than ``seconds``."""
    prometheus = sys.modules.get("laggard.prometheus")
    if prometheus is not None:
        prometheus.leave()
    deadline = time.monotonic() + seconds
    if flush(min(_PROMPT_SECONDS, seconds)) or _all_at_once("shutdown", deadline - time.monotonic()):
        return
    for provider in _providers():
        shutdown = getattr(provider, "shutdown", None)
        if shutdown is not None:
            atexit.unregister(shutdown)
    # Threads that still try must not be inside a write to stderr when the interpreter ends: that aborts the process.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    _logger.warning("the last metrics or spans could not be sent within %.1f s", seconds)


def _providers() -> list[Any]:
    providers: list[Any] = [get_meter_provider(), get_tracer_provider()]
    for ours in (_own, _launched, _launched_tracer):
        if ours is not None and ours not in providers:
            providers.append(ours)
    logs: Any = sys.modules.get("opentelemetry._logs")
    if logs is not None:
        providers.append(logs.get_logger_provider())
    return [provider for provider in providers if not _ended(provider)]


def _ended(provider: Any) -> bool:
    """Return whether a provider has been shut down: one that the script set last may end before the last report."""
    return getattr(provider, "_shutdown", False) is True


def _all_at_once(method: str, seconds: float) -> bool:
    """Call a method of every provider that has it, each on a thread of its own, since not all keep to a time limit."""
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_call, args=(call,), name=f"laggard-{method}", daemon=True)
        for call in (getattr(provider, method, None) for provider in _providers())
        if call is not None
    ]
    for thread in threads:
        # At the end of a process threads cannot always be started.
        with contextlib.suppress(RuntimeError):
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _call(method: Any) -> None:
    with contextlib.suppress(Exception):
        method()
