"""A SIGTERM that a handler of the script's takes: the state file says that it came, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laggard.shared import statefile

PROGRAM = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from laggard._exit import ExitHandling
from laggard._identity import from_environment
from laggard._wakeup import Wakeup
from laggard.shared.statefile import ASKED, StateWriter, unpack

handled = []
def handler(number, frame):
    handled.append(number)

def terminate():
    file.words[ASKED] = 0
    handled.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    return handled, unpack(file.words[ASKED])[0]

file = StateWriter(Path(sys.argv[1]), from_environment().facts(0))
exits = ExitHandling(lambda *_, **__: None)
when = sys.argv[2]
if when == "before":
    signal.signal(signal.SIGTERM, handler)
exits.install(Wakeup(), file)
if when != "before":
    signal.signal(signal.SIGTERM, handler)
    assert terminate() == ([15], 0), "until the next drain"
exits.delay_default()
exits.delay_default()
assert signal.getsignal(signal.SIGTERM) is handler
assert terminate() == ([15], 15)
if when == "chained":  # a handler in native code that calls the one that it found
    faulthandler.register(signal.SIGTERM, file=open(os.devnull, "w"), chain=True)
    exits.delay_default()
    assert terminate() == ([15], 15)
    faulthandler.unregister(signal.SIGTERM)
child = os.fork()
if child == 0:
    os._exit(terminate() != ([15], 0))
assert os.waitpid(child, 0)[1] == 0, "a child says nothing of its parent"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
exits.delay_default()
assert terminate() == ([], 0)
signal.signal(signal.SIGTERM, handler)
exits.delay_default()
assert terminate() == ([15], 15)
exits.remove()
assert terminate() == ([15], 0), "after the end"
print("right")
"""


@pytest.mark.parametrize("when", ["before", "after", "chained"])
def test_a_signal_with_a_handler_is_noted(when: str, tmp_path: Path) -> None:
    """Its handler runs once and is what Python says it is; chained, ignored, in a child and once all is undone."""
    pytest.importorskip("laggard._sigaction", reason="the native part is not compiled")
    program = [sys.executable, "-c", PROGRAM, tmp_path, when]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("right\n", "")
    (file,) = map(statefile.read, tmp_path.iterdir())
    assert not file.alive
