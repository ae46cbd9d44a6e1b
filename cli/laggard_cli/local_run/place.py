"""Where a local run keeps what it writes: a folder that stays, and what is gone at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from laggard.shared import environment, statefile
from laggard_cli.errors import CommandError
from laggard_cli.live import PREFIX, SERVERS, abandoned

#: Beneath the working folder, as trainers have theirs.
DEFAULT_FOLDER = "laggard-runs"
#: What a name of a run may have in the name of its folder.
_FOREIGN = re.compile(r"[^\w.+@=-]+")
_LONGEST = 100
_TRIES = 1000
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Place:
    """The folder of one run."""

    folder: Path
    shared: Path
    """In shared memory, gone at the end: says that the run is at work; its state files unless others are named."""
    state_directory: Path

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.folder / "report.html"

    @property
    def servers(self) -> Path:
        """Configuration, rules, data and logs of the servers."""
        return self.folder / SERVERS

    def clean(self, *, keep: bool) -> None:
        """Remove what only the servers needed, unless it is to be kept, and a folder in which nothing is left."""
        _remove(self.shared)
        if not keep:
            _remove(self.servers)
        _remove_empty(self.folder)


def make(parent: Path | None, run: str) -> Place:
    """Make the folder of a run in ``parent``, under a name that none there has; remove what killed runs left.

    State files are mapped into the ranks' memory, so their folder is in shared memory: a disk could hold a rank up.

    Raises:
        CommandError: it cannot be made.
    """
    parent = parent or Path(DEFAULT_FOLDER)
    name = _FOREIGN.sub("-", run).strip(".-")[:_LONGEST] or "run"
    given = environment.text(environment.LAGGARD_STATE_DIR)
    for left, servers in abandoned():
        shutil.rmtree(left, ignore_errors=True)
        if servers:
            shutil.rmtree(servers, ignore_errors=True)
            _remove_empty(Path(servers).parent)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = _new(parent.resolve(), name)
        (folder / SERVERS).mkdir()
        shared = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=statefile.default_directory().parent))
    except OSError as error:
        where = error.filename or parent
        raise CommandError(f"--folder {parent}: {where}: {error.strerror}; name a folder to write to") from error
    return Place(folder, shared, Path(given).absolute() if given else shared)


def _new(parent: Path, name: str) -> Path:
    for number in range(1, _TRIES):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise CommandError(f"--folder {parent}: it has {_TRIES} runs called {name}; name another one")


def _remove_empty(folder: Path) -> None:
    """Remove the folder of a run, and the one around it, where nothing is in them."""
    # There may be something in them, or they are somebody else's.
    with contextlib.suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _remove(folder: Path) -> None:
    """Remove a folder in which a process may write for a moment yet."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE_SECONDS)
