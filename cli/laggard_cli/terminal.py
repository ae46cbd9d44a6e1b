"""Text from elsewhere, for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text in which nothing but line ends and printable characters is left as it is.

    The name of a run, a group or a file may come from somebody else, and a terminal obeys what is hidden in it.
    """
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
