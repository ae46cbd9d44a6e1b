"""What scripts import by names of before is still there, and says where it is now."""

from __future__ import annotations

import importlib
import sys

import pytest

import laggard
from laggard import _events, _recorder
from laggard._moved import MOVED
from laggard.shared import statefile


@pytest.mark.parametrize("name", MOVED)
def test_an_old_name_has_what_the_new_ones_have(name: str) -> None:
    """With a warning that names them; functions and classes are the same, not copies."""
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"{name} has moved to {', '.join(MOVED[name])}"):
        module = importlib.import_module(name)
    new = [importlib.import_module(each) for each in MOVED[name]]
    public = {key: value for each in new for key, value in vars(each).items() if not key.startswith("_")}
    assert {key: vars(module)[key] for key in public} == public


def test_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script says it."""
    sys.modules.pop("laggard.statefile", None)
    monkeypatch.delattr(laggard, "statefile", raising=False)
    with pytest.warns(DeprecationWarning, match="statefile"):
        from laggard import statefile as old  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue] - it has moved
    assert old.read is statefile.read


def test_what_was_never_there_is_not_there() -> None:
    """Nor does a name within the package hide one outside."""
    with pytest.raises(ModuleNotFoundError, match=r"laggard\.conventionsx"):
        importlib.import_module("laggard.conventionsx")
    known, unknown = "UPDATE", "NOTHING"
    assert getattr(_recorder, known) == _events.UPDATE
    with pytest.raises(AttributeError):
        getattr(_recorder, unknown)
