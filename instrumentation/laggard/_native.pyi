# The hot path in C: see `_hot_path.py` for what the functions do.

from collections.abc import Callable
from types import ModuleType
from typing import Any

from laggard._events import Event, Token
from laggard._hooks.torch_compile_state import Traced

class HotPath:
    thread: int
    progress: int
    @property
    def offset(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    capacity: int
    phase: int
    dropped: int
    failures: int
    backwards: int
    self_time_ns: int
    contested: bool
    words: memoryview[int] | None
    device: Callable[[int], None] | None
    enabled: bool

    def __init__(
        self,
        *,
        share: int,
        phase_bits: int,
        code_shift: int,
        phase_word: int,
        progress_word: int,
        forward: int,
        evaluation: int,
        identity_shift: int,
        module_phases: int,
        swallows_fetch: int,
        capacity: int,
    ) -> None: ...
    def begin(self, code: int, /) -> Token | None: ...
    def end(self, token: Token | None, /) -> int: ...
    def evaluate(self) -> Token | None: ...
    def add(self, code: int, started: int, ended: int, /) -> None: ...
    def edge(self, at: int, /) -> None: ...
    def trains(self) -> bool: ...
    def claim(self) -> bool: ...
    def resume(self, at: int, /) -> None: ...
    def synchronize(self, offset: int, /) -> None: ...
    def drain(self) -> list[Event]: ...
    # False where it is not the usual case: then nothing was done.
    def step_begins(self, running: list[Any], optimizer: Any, code: int, /) -> bool: ...
    def step_ends(self, running: list[Any], optimizer: Any, /) -> bool: ...

    # Callables that stand in for `call`; as attributes of a class they are methods.
    def timed_fetch(
        self, call: Callable[..., Any], code: int, first: int, exhausted: int, adopt: Callable[[Any], int], /
    ) -> Callable[..., Any]: ...
    def around(
        self, call: Callable[..., Any], before: Callable[..., Any], after: Callable[[Any, bool, Any], object], /
    ) -> Callable[..., Any]: ...
    def timed_forward(
        self,
        call: Callable[..., Any],
        code: int,
        evaluation: int,
        no_grad: int,
        compiler: ModuleType,
        traced: Traced,
        graph: type,
        is_grad_enabled: Callable[[], bool],
        found: Callable[[Any], None] | None,
        base: type | None,
        evaluates: Callable[[Any], bool],
        trained: set[type],
        /,
    ) -> Callable[..., Any]: ...
    def timed_backward(
        self,
        call: Callable[..., Any],
        code: int,
        gradient: int,
        evidence: Callable[[], None],
        observers: list[Callable[[int, int], None]],
        /,
    ) -> Callable[..., Any]: ...
