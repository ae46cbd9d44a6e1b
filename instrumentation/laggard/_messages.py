"""What laggard says in a training process: through logging, and where the script has set none up, on stderr by name.

Without a handler logging prints warnings bare, and nobody knows whose they are. A script that configures logging
decides itself what it shows, and how.
"""

from __future__ import annotations

import logging
import sys

_OURS = logging.getLogger("laggard")


class _Stderr(logging.Handler):
    """Prints what no handler of the script's takes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on what is stderr now."""
        if logging.root.handlers or len(_OURS.handlers) > 1:
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def begin_with_our_name() -> None:
    """Have what reaches stderr begin with ``laggard:``."""
    if not any(isinstance(handler, _Stderr) for handler in _OURS.handlers):
        handler = _Stderr(logging.WARNING)
        handler.setFormatter(logging.Formatter("laggard: %(message)s"))
        _OURS.addHandler(handler)
