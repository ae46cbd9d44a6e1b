"""The random numbers of the training process: OpenTelemetry's libraries draw theirs from elsewhere.

The SDK takes the ids of spans from Python's global generator, and the exporters the pauses between two tries. OTLP over
HTTP draws at each export, on its own thread, so that the next numbers of a data set depend on the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import ModuleType

from laggard._hooks.base import Hook

_EXPORTERS = "opentelemetry.exporter.otlp"
#: Modules that draw, in one version of OpenTelemetry or another.
_MODULES = (
    "opentelemetry.sdk.trace.id_generator",
    "opentelemetry.sdk.metrics._internal.exemplar.exemplar_reservoir",
    f"{_EXPORTERS}.common.http",
    f"{_EXPORTERS}.proto.grpc.exporter",
    f"{_EXPORTERS}.proto.http._log_exporter",
    f"{_EXPORTERS}.proto.http.metric_exporter",
    f"{_EXPORTERS}.proto.http.trace_exporter",
)
#: The system's, which has no state that a forked child could share.
_SYSTEM = random.SystemRandom()
#: What a module holds of the global generator, and what stands in its place.
_REPLACEMENTS = ((random, _SYSTEM), (random.randrange, _SYSTEM.randrange))


class RandomnessHook(Hook):
    """Gives OpenTelemetry's modules a generator of their own."""

    name = "randomness"

    def targets(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Wait for each module that draws."""
        return dict.fromkeys(_MODULES, self._patch)

    def _patch(self, module: ModuleType) -> None:
        for original, replacement in _REPLACEMENTS:
            name = original.__name__
            if vars(module).get(name) == original:
                self.replace(module, name, lambda _, replacement=replacement: replacement)
