"""Modules that are waited for: who is called back, and that others' hooks for imports work beside ours."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard import _imports


@pytest.fixture(autouse=True)
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Wait for a module that exists; the names of the modules that came."""
    tmp_path.joinpath("awaited.py").write_text("LOADER = type(__spec__.loader).__name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    came: list[str] = []
    monkeypatch.setattr(_imports, "_waiting", {})
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not _imports._finder])
    _imports.when_imported("awaited", lambda module: came.append(module.LOADER))
    yield came
    sys.modules.pop("awaited", None)


def test_an_import_calls_back_once_and_sees_its_own_loader(waiting: list[str]) -> None:
    """To look for the module is no import; a reload calls nobody; what is there already calls at once."""
    assert importlib.util.find_spec("awaited") is not None
    assert waiting == []
    module = importlib.import_module("awaited")
    assert (waiting, type(module.__loader__).__name__) == (["SourceFileLoader"], "SourceFileLoader")
    importlib.reload(module)
    assert waiting == ["SourceFileLoader"]
    _imports.when_imported("awaited", lambda module: waiting.append(module.__name__))
    assert waiting == ["SourceFileLoader", "awaited"]


def test_a_failed_import_calls_back_at_the_next(waiting: list[str], tmp_path: Path) -> None:
    """Nobody is called with half a module."""
    source = tmp_path / "awaited.py"
    good = source.read_text()
    source.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("awaited")
    assert waiting == []
    source.write_text(f"{good}# written again\n")
    importlib.import_module("awaited")
    assert waiting == ["SourceFileLoader"]


def test_nobody_is_called_back_after_all_is_forgotten(waiting: list[str]) -> None:
    """No finder of ours stays."""
    assert _imports._finder in sys.meta_path
    _imports.forget()
    importlib.import_module("awaited")
    assert (waiting, _imports._finder in sys.meta_path) == ([], False)


def test_a_hook_that_replaces_what_every_loader_runs(waiting: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As marimo does: each finder's specs have a loader whose `exec_module` is another. Each runs the one before it."""
    ran: list[str] = []

    def patch(finder: Any) -> None:
        find = finder.find_spec

        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            spec = find(name, path, target)
            if spec is not None and name == "awaited":
                run = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    run(module)
                    ran.append(module.__name__)

                spec.loader.exec_module = exec_module
            return spec

        monkeypatch.setattr(finder, "find_spec", find_spec)

    for finder in sys.meta_path:
        patch(finder)
    importlib.import_module("awaited")
    assert waiting == ["SourceFileLoader"]
    assert set(ran) == {"awaited"}
