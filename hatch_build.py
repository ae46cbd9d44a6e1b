"""Compiles the hot path and the actions of signals while a wheel is built.

Where that cannot be done, the wheel has the hot path in Python alone, and signals have their default action.

``LAGGARD_COMPILE`` says what is wanted: ``try`` (the default), ``no`` for a wheel of any platform, ``must`` to fail
instead; ``LAGGARD_PLATFORM`` how the wheel calls the platforms that it is for (by default that of this machine). For a
checkout: ``python hatch_build.py`` compiles it beside its source, if it is not there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
FOLDER = Path("instrumentation", "laggard")
#: A module each.
SOURCES = (FOLDER / "_native.c", FOLDER / "_sigaction.c")

#: Nothing of the machine gets in, so the same source and compiler give the same bytes.
FLAGS = ("-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--build-id=none")


class CompileError(Exception):
    """Why nothing is compiled, in one line."""


def module_name(source: Path) -> str:
    """Return the name by which the Python that runs this finds the module, and no other does."""
    return f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_all(folder: Path) -> list[Path]:
    """Compile all sources for the Python that runs this and return the modules, in ``folder``.

    Raises :class:`CompileError`.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CompileError("it relies on CPython's interpreter lock, which this Python lacks")
    if sys.platform != "linux":
        raise CompileError(f"it reads Linux's clock, and this is {sys.platform}")
    return [_compile(source, folder / module_name(source)) for source in SOURCES]


def _compile(source: Path, module: Path) -> Path:
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*shlex.split(compiler), *FLAGS, f"-I{sysconfig.get_path('include')}", str(source), "-o", str(module)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"no C compiler: {error}") from None
    if done.returncode:
        raise CompileError(next((line for line in done.stderr.splitlines() if "error" in line), done.stderr))
    return module


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the native hot path to a wheel, or to the checkout of an editable installation."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Where a wheel takes the module from.
        self._folder = TemporaryDirectory()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel say for which Python and platform it is."""
        wanted = os.environ.get("LAGGARD_COMPILE", "try")
        if wanted not in ("try", "no", "must"):
            raise SystemExit(f"LAGGARD_COMPILE={wanted}: must be try, no or must")
        if self.target_name != "wheel" or wanted == "no":
            return
        editable = version == "editable"
        try:
            modules = compile_all(ROOT / FOLDER if editable else Path(self._folder.name))
        except CompileError as error:
            if wanted == "must":
                raise SystemExit(f"the hot path cannot be compiled: {error}") from None
            self.app.display_warning(f"the hot path is not compiled, the one in Python is used: {error}")
            return
        if not editable:
            build_data["force_include"].update({str(module): f"laggard/{module.name}" for module in modules})
            build_data["pure_python"] = False
            if platform := os.environ.get("LAGGARD_PLATFORM"):
                python = f"cp{sys.version_info.major}{sys.version_info.minor}"
                build_data["tag"] = f"{python}-{python}-{platform}"
            else:
                build_data["infer_tag"] = True


if __name__ == "__main__":
    made = [(ROOT / FOLDER / module_name(source), ROOT / source) for source in SOURCES]
    if any(not module.exists() or module.stat().st_mtime < source.stat().st_mtime for module, source in made):
        try:
            compile_all(ROOT / FOLDER)
        except CompileError as error:
            sys.stderr.write(f"the hot path is not compiled, the one in Python is used: {error}\n")
