"""The faults of a job: data that :mod:`lab.chaos.play` walks, and that docs/reliability.md shows as a table."""

from __future__ import annotations

from dataclasses import dataclass

#: What a fault is found by: no other alert is about a rank that stands still.
HANG_ALERTS = ("TrainingStalled", "TrainingRankFrozen", "TrainingRankDied", "TrainingRankMissing")

#: In what time: a dead or stopped process has no limit to wait for.
PROCESS_SECONDS = 20.0
STALL_MARGIN_SECONDS = 15.0


@dataclass(frozen=True)
class Fault:
    """One way in which a job stands still.

    ``act`` is a breakage inside the rank (:mod:`lab.chaos.breakages`), or what is done to it from outside
    (:mod:`lab.chaos.outside`).
    """

    name: str
    title: str
    act: str
    #: The verdict, of which one is enough; each names the culprit, or nobody where ``culprit`` is false.
    alerts: tuple[str, ...] = ("TrainingStalled",)
    culprit: bool = True
    #: The process is dead or stopped, which needs no limit of a stall.
    process: bool = False
    #: All ranks break, or something between them.
    all_ranks: bool = False
    #: Flags of the rank's program.
    flags: tuple[str, ...] = ()
    #: Seconds for which nothing must be said, where nothing is wrong.
    silent: float | None = None


_DEAD = ("TrainingRankDied",)
_STOPPED = ("TrainingRankFrozen",)


def _dead(name: str, title: str, act: str) -> Fault:
    return Fault(name, title, act, _DEAD, process=True)


def _silent(name: str, title: str, act: str = "", seconds: float = 30.0, **more: bool | tuple[str, ...]) -> Fault:
    return Fault(name, title, act, (), silent=seconds, culprit=False, **more)  # pyright: ignore[reportArgumentType] - by name


FAULTS = (
    Fault("stopped", "a rank's process is stopped (SIGSTOP)", "stop", _STOPPED, process=True),
    Fault("traced", "a debugger holds a rank's process", "trace", _STOPPED, process=True),
    _dead("killed", "a rank is killed (SIGKILL)", "kill"),
    _dead(
        "out-of-memory", "the kernel kills a rank for lack of memory, in a control group with a limit", "out-of-memory"
    ),
    _dead("aborted", "a rank aborts in native code (SIGABRT)", "abort"),
    _dead("crashed", "a rank reads memory that is not there (SIGSEGV)", "crash"),
    _dead("raised", "a rank raises and ends, the others wait", "raise"),
    _dead("exited", "a rank leaves through os._exit", "exit-at-once"),
    Fault("finished-early", "a rank ends cleanly (sys.exit) in the middle, the others wait", "exit-cleanly"),
    Fault("native-sleep", "native code holds the interpreter's lock", "native-sleep"),
    Fault(
        "regular-expression", "a regular expression that never ends holds the interpreter's lock", "regular-expression"
    ),
    Fault("native-lock", "a deadlock in native code", "native-lock"),
    Fault("lock", "a lock is taken twice", "lock"),
    Fault("two-locks", "two threads of a rank take two locks in different order", "two-locks"),
    Fault("worker-lock", "a data worker is deadlocked", "worker-lock"),
    Fault("worker-stopped", "a data worker is stopped (SIGSTOP)", "stop-worker"),
    Fault("worker-storage", "storage does not answer a data worker", "worker-storage"),
    Fault("storage", "storage does not answer a rank", "storage"),
    Fault("checkpoint-storage", "storage does not answer a checkpoint", "checkpoint-storage"),
    Fault("forward-loop", "an endless loop in forward", "forward-loop"),
    Fault("backward-loop", "an endless loop in a hook of backward", "backward-loop"),
    Fault("optimizer-loop", "an endless loop in a hook of the optimizer", "optimizer-loop"),
    Fault("between-loop", "an endless loop between two steps", "between-loop"),
    Fault("finalizer-loop", "a finalizer that never ends", "finalizer-loop"),
    Fault("evaluation-sleep", "one rank's evaluation never ends", "evaluation-sleep"),
    Fault("server", "a server that a rank asks never answers", "server"),
    Fault("child", "a rank waits for a program that never ends", "child"),
    Fault("queue", "a rank waits for a thread that never answers", "queue"),
    Fault("receive", "a rank waits for a message that nobody sends", "receive"),
    Fault("left-early", "a rank has less data and leaves the loop early", "left-early"),
    Fault("raise-linger", "a rank raises and lingers in the handler", "raise-linger"),
    Fault("mismatch", "a rank calls another collective than the others", "mismatch"),
    Fault("other-size", "a rank brings another size to a collective than the others", "other-size"),
    Fault("link-down", "the link between two nodes is down", "link-down", culprit=False),
    Fault("link-lossy", "packets from one node to the other are dropped", "link-lossy", culprit=False),
    _silent("healthy", "nothing is wrong"),
    _silent("ending", "the ranks end one after another", seconds=40, flags=("--steps", "300", "--linger", "6")),
    _silent("slow", "steps of two seconds", seconds=40, flags=("--pause", "2")),
    _silent("link-slow", "the link between two nodes carries 100 kbit/s", "link-slow", seconds=40),
    _silent("link-delayed", "the link between two nodes delays all by 200 ms", "link-delayed", seconds=40),
    _silent("checkpointing", "a checkpoint takes longer than a stall may", "checkpoint-slow"),
    _silent("evaluating", "an evaluation takes longer than a stall may", "evaluation-slow", all_ranks=True),
    _silent("hiccup", "a rank is stopped for two seconds", "hiccup"),
)
