"""One question to the RAS service of a job, and its answer's facts, as they pass between the exporter and its child."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laggard_exporter.ras import client
from laggard_exporter.ras.answer import RasError, parse
from laggard_exporter.ras.child import NOBODY
from laggard_exporter.ras.facts import Behind, Facts, Missing, agreed, facts, known_places

#: A list that is longer tells nobody apart and is left out.
MAX_RANKS = 64
#: What the facts of an answer take at most, as JSON.
MAX_BYTES = 32768
#: What a process takes beyond the questions itself, in seconds: its start, and reading the answer.
_MORE_SECONDS = 5.0

_PROGRAM = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Question:
    """Whom to ask, and what is known of the job."""

    procfs: str
    pid: int
    """A process of the job on this host, as the exporter's own process namespace numbers it."""
    user: int
    """Who it belongs to, and who has to own the port."""
    world_size: int
    ranks: tuple[tuple[int, int], ...]
    """The processes of the job on this host, as each numbers itself, and their ranks."""
    between: float = 2.0
    """Seconds until RAS is asked again, since what it says of ranks that go on is another thing a moment later."""

    @classmethod
    def from_json(cls, text: str) -> Question:
        """Return the question that :meth:`as_json` has written."""
        found: dict[str, Any] = json.loads(text)
        found["ranks"] = tuple((pid, rank) for pid, rank in found["ranks"])
        return cls(**found)

    def as_json(self) -> str:
        """Return the question as text."""
        return json.dumps(asdict(self))


def answer(question: Question) -> str:
    """Ask twice, and return the facts on which the answers agree, as text.

    Raises:
        RasError: nobody answers, or with what says nothing of the job.
    """
    port = client.port(_environment(Path(question.procfs), question.pid))
    first = _once(question, port)
    time.sleep(question.between)
    told = agreed(first, _once(question, port))
    return json.dumps([each if len(each) <= MAX_RANKS else () for each in (told.behind, told.missing)])


def _once(question: Question, port: int) -> Facts:
    found = parse(client.ask(Path(question.procfs), port, question.user))
    known = known_places(found, dict(question.ranks), client.is_here)
    if not known:
        raise RasError("RAS answered for another job: none of its processes is a rank of this one")
    return facts(found, question.world_size, known)


def _environment(procfs: Path, pid: int) -> bytes:
    try:
        return (procfs / str(pid) / "environ").read_bytes()
    except OSError:  # another user's, and no right to read it
        return b""


def ask(question: Question) -> Facts:
    """Have a child ask, and return the facts.

    Raises:
        NobodyError: no process of the job's user listens on its port.
        RasError: nobody answers, or with what says nothing of the job.
    """
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(_PROGRAM.parents[2])]
    try:
        done = subprocess.run(
            command,
            input=question.as_json().encode(),
            capture_output=True,
            timeout=2 * client.QUESTION_SECONDS + question.between + _MORE_SECONDS,
            check=False,
            env={},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise RasError("RAS was not asked: its process did not end") from error
    except OSError as error:
        raise RasError(f"no process to ask in: {error.strerror}") from error
    last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if done.returncode == NOBODY:
        raise client.NobodyError(last)
    if done.returncode or len(done.stdout) > MAX_BYTES:
        raise RasError(last or f"the process that asks RAS ended with {done.returncode}")
    behind, missing = json.loads(done.stdout)
    return Facts(tuple(Behind(*each) for each in behind), tuple(Missing(*each) for each in missing))
