"""The ``opentelemetry_instrumentor`` named ``laggard``, which ``opentelemetry-instrument`` loads.

It has the two methods that OpenTelemetry's loader calls and inherits nothing, so the training process needs no more
than the OpenTelemetry API. It never raises: an exception here would stop every other instrumentation too.
"""

from __future__ import annotations

import logging
from typing import Any

from laggard import _process, _providers, _sitecustomize
from laggard.shared import environment

_logger = logging.getLogger(__name__)


class LaggardInstrumentor:
    """Instruments PyTorch training in this process."""

    def instrument(self, **_kwargs: Any) -> None:
        """Install the hooks. The keyword arguments of OpenTelemetry's loader are accepted and not needed."""
        try:
            if environment.choice(environment.LAGGARD_PROVIDERS, "fixed", "replaceable") == "replaceable":
                _providers.yield_to_script()
            _process.instrument()
            _sitecustomize.run_shadowed()
        except Exception:
            _logger.exception("laggard could not instrument this process")

    def uninstrument(self, **_kwargs: Any) -> None:
        """Take the hooks out."""
        try:
            _process.uninstrument()
        except Exception:
            _logger.exception("laggard could not undo its instrumentation")
