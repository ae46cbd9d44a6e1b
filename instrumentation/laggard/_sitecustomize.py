"""The ``sitecustomize`` that OpenTelemetry's launcher hides: of modules with this name Python imports the first.

Sites keep settings and import hooks in theirs. ``ddtrace-run`` and ``newrelic-admin`` start from one of their own.
"""

from __future__ import annotations

import site
import sys
from pathlib import Path


def run_shadowed() -> None:
    """Run the next one on the path as Python does at its start, where the newest one is the launcher's."""
    launcher = sys.modules.get("opentelemetry.instrumentation.auto_instrumentation")
    folder = str(Path(getattr(launcher, "__file__", None) or "").parent)
    newest = sys.modules.get("sitecustomize")
    file = getattr(newest, "__file__", None)
    if newest is None or file != str(Path(folder, "sitecustomize.py")) or folder not in sys.path:
        return
    # One that looks for the next itself, as other launchers' do, must not find OpenTelemetry's again.
    index = sys.path.index(folder)
    del sys.path[index], sys.modules["sitecustomize"]
    try:
        site.execsitecustomize()  # prints what fails in it
    finally:
        sys.path.insert(index, folder)
        sys.modules.setdefault("sitecustomize", newest)
