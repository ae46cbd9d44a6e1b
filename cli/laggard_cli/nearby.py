"""What a person may have meant: the nearest of the names that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Names that an error lists; of more it says how many there are.
_LISTED = 12


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a word, or an empty text where none is.

    Neither case nor what a name goes on with matters: people type the beginning of a long name.
    """
    names = {name.lower(): name for name in known}
    given = word.lower()
    close = difflib.get_close_matches(given, names, 1)
    longer = [name for name in names if given and given in name]
    found = close or (longer if len(longer) == 1 else [])
    # A name that there is was meant: what is wrong is something else.
    return names[found[0]] if found and names[found[0]] != word else ""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the question as the end of an error, or what is said where nothing is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else f"; {otherwise}" if otherwise else ""


def listed(names: Iterable[str]) -> str:
    """Return names as an error lists them: sorted, and of very many the first."""
    ordered = sorted(names)
    more = len(ordered) - _LISTED
    return ", ".join(ordered[:_LISTED]) + (f" and {more} more" if more > 0 else "")
