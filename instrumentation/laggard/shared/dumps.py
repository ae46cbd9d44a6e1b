"""Dumps of torch's flight recorder that a stalled rank leaves for the node exporter: where, and whose they are.

One file a rank in the state folder. Its name says of which process and of which moment in its life it is: whoever knows
the rank's state file knows the name, and no dump of an earlier process or of an earlier stall has it. It ends with the
rank, so that ``laggard hang`` reads it too. Only the standard library is imported, since both sides use this module.
"""

from __future__ import annotations

from laggard.shared.control import stem

PREFIX = "hang-"
SUFFIX = ".json"
#: A larger dump is neither written nor read; 2000 entries, torch's default, are about 1 MB.
MAX_BYTES = 16 * 2**20


def file_name(run: str, rank: int, start_ns: int, progress: int, phase_word: int) -> str:
    """Return the name of a rank's dump.

    Args:
        run: of the rank.
        rank: its number.
        start_ns: when its process started, as its state file says.
        progress: its signs of progress by then; any further one makes the dump a thing of the past.
        phase_word: the state file's word of the phase and of the time at which it was entered.
    """
    return f"{PREFIX}{start_ns:x}-{progress:x}-{phase_word:x}-{stem(run, rank)}{SUFFIX}"
