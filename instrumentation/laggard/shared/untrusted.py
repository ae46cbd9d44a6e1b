"""Files in folders that anybody may write to. Only the standard library is imported, since all packages use it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Permissions with which others than its owner may have written a file.
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

#: Windows has none of them: no FIFO that could block, and descriptors that a child does not get.
_ALONE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


def open_file(path: Path) -> int:
    """Return a descriptor to read a file that anybody may have put there. Raises :class:`OSError`.

    A FIFO does not block the reader, and a symbolic link does not lead it elsewhere. What it is, and whose, is still to
    be asked of the descriptor.
    """
    return os.open(path, os.O_RDONLY | _ALONE | getattr(os, "O_BINARY", 0))


def open_folder(path: Path) -> int:
    """Return a descriptor of a folder, to remove files relative to it. Raises :class:`OSError`.

    By its path a file may be another one a moment later: the name of the folder may be swapped.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
