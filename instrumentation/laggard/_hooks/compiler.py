"""What the hooks and ``torch.compile`` see of one another.

The compiler follows whatever Python runs under it. It must neither find a hook in the code that it compiles, nor take
the hooks themselves for code to compile where they run between two compiled pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
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


def hide_from_compiler(dynamo: ModuleType, function: Any, *, callees: bool) -> None:
    """Keep a function that runs between compiled pieces of code from being compiled, with what it calls or without.

    Nothing changes where the compiler comes upon the function in code that it traces.
    """
    frames = dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    action = frames.FrameAction
    strategy = frames.FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, strategy)


def nothing() -> None:
    """Do nothing: for a wrapper that is made for its code alone."""
