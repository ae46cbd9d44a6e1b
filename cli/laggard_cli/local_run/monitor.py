"""The monitor of a local run: watches the job from outside, prints verdicts as they come, and the card at the end.

No signal ends it, since what ends the job must not end the card. It ends with the job.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Generator

from laggard_cli.diagnose.gather import firing
from laggard_cli.errors import CommandError
from laggard_cli.live import Announcement, LiveRun
from laggard_cli.local_run import card_view
from laggard_cli.local_run.card import Card
from laggard_cli.local_run.ending import Ending
from laggard_cli.local_run.plan import Plan
from laggard_cli.local_run.verdicts import Verdicts
from laggard_cli.local_run.voice import Voice
from laggard_cli.local_run.watchers import Watchers
from laggard_cli.local_servers.processes import wake_late
from laggard_cli.prometheus import Prometheus
from laggard_cli.terminal import to_json

#: The servers give way to the training.
_NICE = 5
#: For which no scrape, no evaluation and no verdict is late; it saves a quarter of what they take.
_LATE_SECONDS = 0.05
#: Evaluations without anything new after which Prometheus is held to write nothing.
_STALE_ROUNDS = 12
#: How long the job's end may be known before how it ended is.
_STATUS_SECONDS = 1.0
_AGE = "time() - max(timestamp(laggard_rules_info))"


class Monitor:
    """Watches one job, from its start.

    Args:
        plan: what is wanted.
        job: the job's process.
        channel: on which the process that stands for the job says how the job ended, as waitpid has it.
    """

    def __init__(self, plan: Plan, job: int, channel: socket.socket) -> None:
        self._plan = plan
        self._channel = channel
        self._job = _watched(job)
        self._status: int | None = None
        self._began = time.time()
        self._servers: Watchers | None = None
        self._prometheus: Prometheus | None = None
        self._verdicts = Verdicts(plan.run)
        self._voice = Voice()
        self._answered = False
        self._lost = ""
        """How the server ended that was restarted, until that one answers."""
        self._fresh = time.monotonic()
        self._blind = ""
        """Why there are no verdicts, while there are none."""
        self._announcement: Announcement | None = None

    def run(self) -> None:
        """Watch until the job has ended and the card is printed."""
        try:
            _let_go_of_input_and_output()
            with contextlib.suppress(OSError):
                os.nice(_NICE)
            wake_late(_LATE_SECONDS)
            with self._guarded("no verdicts"):
                self._start()
            while not self._job_ended():
                with self._guarded("no verdicts"):
                    self._watch()
            self._finish(time.time())
        finally:
            self._end_servers()
            self._plan.place.clean(keep=self._plan.keep)

    def _start(self) -> None:
        place = self._plan.place
        servers = Watchers(place.servers, place.state_directory, self._plan.profile, self._plan.prometheus)
        servers.write_rules()
        servers.start()
        self._servers = servers
        self._connect(servers)
        self._say(f"run {self._plan.run}: verdicts come here; more: laggard top in another terminal, {servers.address}")

    def _watch(self) -> None:
        """Print what began or ended since the last time; restart the servers where one has ended."""
        servers = self._servers
        if servers is None:
            return
        if how := servers.ended():
            self._lost = self._blind = how
            if servers.start_again():
                self._connect(servers)
            else:
                self._servers = None
                self._warn(f"{how}; given up: the job goes on without verdicts")
        else:
            self._update(servers)

    def _update(self, servers: Watchers) -> None:
        """Ask what fires. A server that does not answer is starting, or has ended, which the next round sees."""
        if self._prometheus is None:
            return
        try:
            found = firing(self._prometheus)
            age = self._prometheus.query(_AGE)
        except CommandError:
            return
        # Before that it has not evaluated the rules.
        self._answered = self._answered or bool(age)
        if self._lost and age:
            self._warn(f"{self._lost}; restarted at {servers.address}")
            self._lost = ""
        limit = _STALE_ROUNDS * servers.interval
        if age and age[0].value < limit:
            self._fresh, self._blind = time.monotonic(), ""
        elif not self._blind and time.monotonic() - self._fresh > limit:
            self._blind = f"prometheus records nothing: {servers.last_words()}"
            self._warn(f"no verdicts: {self._blind}")
        for line in self._verdicts.update(found, time.time()):
            self._say(line)

    def _finish(self, ended: float) -> None:
        plan = self._plan
        ending = Ending(plan, self._began, ended, self._status)
        if self._servers is not None:
            with self._guarded("no verdicts"):
                self._update(self._servers)
        # Of a job that ends before Prometheus answers there is nothing to ask.
        if self._servers is not None and self._prometheus is not None and self._answered:
            with self._guarded("the card lacks what Prometheus knows"):
                ending.ask(self._prometheus, self._servers)
            with self._guarded("no report"):
                ending.write_report(self._prometheus)
        self._end_servers()
        card = ending.card(self._verdicts.all, self._blind)
        if plan.json is not None:
            with self._guarded(f"--json {plan.json}"):
                plan.json.write_text(to_json(card.plain(), indent=2) + "\n", encoding="utf-8")
        if not plan.quiet:
            self._print(card)

    def _print(self, card: Card) -> None:
        self._voice.write(card_view.lines(card, self._voice.width, colour=self._voice.colour))

    def _connect(self, servers: Watchers) -> None:
        if self._prometheus is not None:
            self._prometheus.close()
        self._prometheus = Prometheus(servers.address)
        with self._guarded("laggard top does not find this run by itself"):
            place = self._plan.place
            self._announcement = self._announcement or Announcement(place.shared)
            self._announcement.say(
                LiveRun(
                    self._plan.run,
                    str(place.folder),
                    str(place.state_directory),
                    servers.address,
                    "" if self._plan.keep else str(place.servers),
                    self._began,
                )
            )

    def _end_servers(self) -> None:
        if self._announcement is not None:
            self._announcement.end()
        if self._servers is not None:
            self._servers.end()

    def _job_ended(self) -> bool:
        """Wait for the job's end, until the next round is due."""
        ends = [self._channel, *([] if self._job is None else [self._job])]
        ready, _, _ = select.select(ends, [], [], self._servers.interval if self._servers else None)
        if ready and self._channel not in ready:
            # Only the process that stands for the job knows how it ended, and that one may have been killed.
            ready, _, _ = select.select([self._channel], [], [], _STATUS_SECONDS)
        if self._channel in ready:
            said = self._channel.recv(64)
            if said:
                self._status = int(said)
            elif self._job is not None and not select.select([self._job], [], [], 0)[0]:
                # It was killed, and its job has yet to end.
                select.select([self._job], [], [])
        return bool(ready) or (self._job is not None and bool(select.select([self._job], [], [], 0)[0]))

    def _say(self, text: str) -> None:
        if not self._plan.quiet:
            self._voice.say(text)

    def _warn(self, text: str) -> None:
        self._voice.say(text)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Generator[None]:
        """Have a step that fails cost itself alone."""
        try:
            yield
        except OSError as error:
            self._warn(f"{what}: {error.filename or ''} {error.strerror or error}".replace("  ", " "))
        except CommandError as error:
            self._warn(f"{what}: {error}")
        except Exception as error:
            # A fault of ours: the job is not to blame for it, and the next round may do better.
            self._warn(f"{what}: {type(error).__name__}: {error}")
            with contextlib.suppress(OSError):
                (self._plan.place.folder / "monitor.log").write_text(traceback.format_exc(), encoding="utf-8")


def _watched(job: int) -> int | None:
    """Return a descriptor that can be read once the process has ended; None where the kernel knows none."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(job)
    return None


def _let_go_of_input_and_output() -> None:
    """Leave the job's input to the job, and let who reads its output see the end of it."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for stream, number in ((sys.stdin, 0), (sys.stdout, 1)):
            if stream is not None:
                os.dup2(null, number)
        os.close(null)
