"""The first process of a container, from which the kernel keeps a SIGTERM that it leaves at its default action."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending

FIRST = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from laggard._exit import ExitHandling
from laggard._identity import from_environment
from laggard._wakeup import Wakeup
from laggard.shared.phases import RankState
from laggard.shared.statefile import STATE, StateWriter

file = StateWriter(Path(sys.argv[1]), from_environment().facts(0))
file.words[STATE] = RankState.RUNNING
ExitHandling(lambda *_, **__: None).install(Wakeup(), file)
assert os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
child = os.fork()
if child == 0:
    time.sleep(60)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
began = time.monotonic()
while time.monotonic() < began + 0.1:
    os.kill(1, signal.SIGTERM)
    time.sleep(0.01)
getattr(sys.modules[sys.argv[2]], sys.argv[3])(3)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open") or shutil.which("unshare") is None, reason="needs unshare")
@pytest.mark.parametrize(
    ("leave", "state", "ending"),
    [
        (("os", "_exit"), RankState.RUNNING, Ending()),
        (("sys", "exit"), RankState.FAILED, Ending(EndedBy.EXIT, 3)),
    ],
)
def test_a_signal_that_never_acts_is_noted(
    leave: tuple[str, str], state: RankState, ending: Ending, tmp_path: Path
) -> None:
    """It goes on, as its child does not; what it says of its own end later is known better."""
    pytest.importorskip("laggard._sigaction", reason="the native part is not compiled")
    if subprocess.run([*FIRST, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("no process namespace can be made here")
    done = subprocess.run([*FIRST, sys.executable, "-c", PROGRAM, tmp_path, *leave], timeout=60, check=False)
    assert done.returncode == 3
    (file,) = map(statefile.read, tmp_path.iterdir())
    assert (file.state, file.ending, bool(file.ended_ns)) == (state, ending, leave[0] == "sys")
    assert (file.asked_by, file.asked_ns > file.facts.start_boottime_ns) == (15, True)
