"""Which values of a matrix are tested: those that differ from each other in what is tested, or all before a release."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

_Case = TypeVar("_Case")

#: Set by `make test-all`.
EVERY_CASE = bool(os.environ.get("EVERY_CASE"))


def usual(cases: Iterable[_Case], *chosen: _Case) -> list[_Case]:
    """Return the chosen cases, or all of them before a release: other tests promise what the others repeat."""
    found = list(cases)
    assert set(chosen) <= set(found), chosen
    return found if EVERY_CASE else [case for case in found if case in chosen]
