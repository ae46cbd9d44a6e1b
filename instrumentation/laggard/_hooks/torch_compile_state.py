"""What the hooks tell ``torch.compile``, and what the code that it compiles tells the hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Traced:
    """What is known of the compiled function that runs.

    To the compiler the assignment of an attribute is something that the compiled code has to do, each time it runs, and
    it costs neither a graph, a break nor a guard. So code that is traced once tells what happens in every call.
    """

    def __init__(self) -> None:
        #: A function that was compiled is running, with graphs that are called like modules.
        self.running = False
        #: It took an optimizer's step. Assigned by the compiled code.
        self.updated = False


def show_compiler(shown: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Have the compiler find ``shown`` where it comes upon ``function`` in code that it traces."""
    vars(function)["_torchdynamo_inline"] = shown
