"""The drain: one daemon thread per rank that turns events into steps and reports them, about once a second."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from laggard import _identity, _providers, _runtime
from laggard._events import LOST
from laggard._hooks import DeviceHook
from laggard._hot_path import CAPACITY
from laggard._part import Part
from laggard._partition import StepPartition
from laggard._publisher import Publisher
from laggard._rank_file import RankFile
from laggard._script import Script
from laggard._steps import Step
from laggard._wakeup import AT_ONCE, LOOK, STOP
from laggard.shared import environment, statefile
from laggard.shared.phases import RankState
from laggard.shared.statefile import EndedBy, Ending

if TYPE_CHECKING:
    from laggard._events import Event
    from laggard._exit import ExitHandling
    from laggard._identity import Identity
    from laggard._recorder import Recorder
    from laggard._wakeup import Wakeup
    from laggard.shared.peers import PeerGroup
    from laggard.shared.statefile import Facts

_logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 1.0
_FLUSH_SECONDS = 1.5
#: Less than SIGTERM's default action is delayed.
_TERMINATION_SECONDS = 0.3
#: Until the first step has ended, reporting waits so long for the script to make the layout of its ranks.
_LAYOUT_SECONDS = 30.0
#: Events kept before a thread is known to train.
_KEPT_BEFORE_TRAINING = CAPACITY // 2
#: So long a rank waits for the others of its process group to say what all have to know: the run, and who is where.
_AGREE_SECONDS = 10.0
#: Events turned into steps at a time: in between the training thread may have the interpreter, and what was made of
#: them is freed before the garbage collector counts it.
_SLICE = 256


class Drain:
    """Owns everything of a rank that is not on the hot path, and the thread that works on it."""

    def __init__(
        self,
        recorder: Recorder,
        parts: list[Part],
        identity: Identity,
        wakeup: Wakeup,
        ending: ExitHandling,
        *,
        peers: PeerGroup,
        slow_collectives: deque[tuple[str, int, int]],
    ) -> None:
        self._recorder = recorder
        self._parts = parts
        # Wrapped once: this is called dozens of times a second.
        looking_on = [part for part in parts if type(part).steps_ended is not Part.steps_ended]
        self._look_on = [part.guarded(part.steps_ended) for part in looking_on]
        self._device = next((part for part in parts if isinstance(part, DeviceHook)), None)
        self._script = Script(threading.get_ident())
        self._identity = identity = replace(identity, workload=_identity.workload(self._script.code))
        self._peers = peers
        self._report_by = time.monotonic() + _LAYOUT_SECONDS
        #: Whether run and local rank are final, and until when they may become so; 0 before there is a process group.
        self._settled = False
        self._settle_by = 0.0
        self._wakeup = wakeup
        self._ending = ending
        self._publisher = Publisher(recorder, parts, slow_collectives)
        self._partition = StepPartition(environment.whole_number(environment.LAGGARD_WARMUP_STEPS, 3))
        self._file = RankFile(recorder, parts, identity.facts(metrics_port=0))
        self._lost_events = 0
        self._state = RankState.STARTING
        #: When training ended in a process that goes on; 0 before.
        self._training_ended = 0
        #: When its process group was taken from it; 0 before, and once it goes on.
        self._aborted = 0
        self._flush = False
        self._failed_before = False
        #: Set at the end of a drain that has begun after they came.
        self._awaited: deque[threading.Event] = deque()
        self._started_on = threading.get_native_id()
        self._thread = threading.Thread(target=self._run, name="laggard-drain", daemon=True)
        self._thread.start()

    def part_failed(self) -> None:
        """Count a part that was taken out of service. On any thread."""
        self._publisher.drop("hook_failed")

    def training_ended(self) -> None:
        """Take note that training is over for now. On any thread."""
        self._training_ended = time.perf_counter_ns()
        self._state = RankState.FINISHED
        self._file.write(self._state)
        # Whoever started this process may kill it now.
        self._wakeup.send(AT_ONCE)

    def training_aborted(self) -> None:
        """Take note that the rank was asked to end, as by SIGTERM, unless it goes on. On any thread."""
        self._aborted = time.perf_counter_ns()
        self._file.note_end()
        self._file.write_ending(Ending(EndedBy.SIGNAL, signal.SIGTERM))

    @property
    def identity(self) -> Identity:
        """Which rank this is, as far as it is known."""
        return self._identity

    @property
    def steps(self) -> int:
        """Steps that have ended so far."""
        return self._partition.steps

    def catch_up(self, seconds: float) -> None:
        """Wait until what has been recorded until now is drained, at most ``seconds``. On any other thread."""
        done = threading.Event()
        self._awaited.append(done)
        self._wakeup.send(LOOK)
        done.wait(seconds)

    @property
    def state_file(self) -> statefile.StateWriter | None:
        """The state file of this process, if it could be made."""
        return self._file.writer

    def stop(self, ending: Ending, timeout: float, *, flush: bool) -> None:
        """Report all that is left and the final state, and end the thread. On any other thread.

        With ``flush`` the providers send it too: where the process ends in a way that the SDK does not notice.
        Waits at most ``timeout`` seconds; the state file says the final state in any case.
        """
        self._state = RankState.FAILED if ending.failed else RankState.FINISHED
        self._file.note_end()
        self._flush |= flush
        self._wakeup.send(STOP)
        self._thread.join(timeout)
        self._file.write(self._state)
        self._file.write_ending(ending)

    def close(self) -> None:
        """Remove the state file. A process that only ends leaves it: the kernel drops the lock, the state stays."""
        self._file.detach(unlink=True)

    def abandon(self) -> None:
        """Leave the state file as it is: the parent's in a forked child, or one that says how training failed."""
        self._file.detach(unlink=False)

    def _run(self) -> None:
        if threading.get_native_id() == self._started_on:
            _logger.warning(
                "threads of this process are greenlets, as of gevent or eventlet: nothing is reported while the script "
                "computes. Patch all but threads and queues: gevent.monkey.patch_all(thread=False, queue=False)"
            )
        self._file.remove_old()
        while True:
            woken_by = self._wakeup.wait(_INTERVAL_SECONDS)
            if signal.SIGTERM in woken_by:
                self._terminate()
                return
            last = STOP in woken_by
            if not last:
                self._ending.delay_default()
            if woken_by:
                for part in self._parts:
                    part.guarded(part.woken)(woken_by)
            self._try_to_drain(last=last)
            if AT_ONCE in woken_by or (last and self._flush):
                _providers.flush(_FLUSH_SECONDS)
            if last:
                return

    def _terminate(self) -> None:
        """Report all that is left, while the main thread stands still, and let the process end."""
        self._ending.hold()
        if self._state is not RankState.FINISHED:
            self._state = RankState.FAILED
        self._try_to_drain(last=True)
        _providers.flush(_TERMINATION_SECONDS)
        self._ending.end()

    def _try_to_drain(self, *, last: bool) -> None:
        awaited = [self._awaited.popleft() for _ in range(len(self._awaited))]
        try:
            self._drain(last=last)
        except Exception:
            self._publisher.drop("report_failed")
            if not self._failed_before:
                self._failed_before = True
                _logger.exception("a report failed; training goes on, further failures are only counted")
        for done in awaited:
            done.set()

    def _drain(self, *, last: bool) -> None:
        recorder = self._recorder
        recorder.synchronize_clock()
        events = self._read_events()
        if recorder.dropped != self._lost_events:
            # What finds no room comes after what was taken, so it is the step still open that is not whole.
            events.append((LOST, 0, 0))
            self._publisher.drop("buffer_full", recorder.dropped - self._lost_events)
            self._lost_events = recorder.dropped
        if self._device is not None:
            events = self._device.translate(events)
            self._publisher.dropped_so_far("device_edge", self._device.dropped)
        self._publisher.begin_drain()
        self._publisher.note(events)
        for start in range(0, max(1, len(events)), _SLICE):
            self._record(self._partition.feed(events[start : start + _SLICE]), last=last)
            time.sleep(0)  # lets the training thread have the interpreter
        if last:
            self._record(self._partition.finish(), last=True)
        elif self._state is RankState.RUNNING and self._script.returned(recorder.thread):
            self.training_ended()
            self._record(self._partition.finish(), last=False)
        if _providers.renewed() and not last:
            self._ending.come_first()
        if _providers.script_has_set_one() or not self._publisher.open:
            self._identify(last=last)
        elif self._peers.name(self._identity.peer_group) != self._identity.peer_group:
            self._change_peers()
        self._publisher.end_drain(self._state, last=last)

    def _read_events(self) -> list[Event]:
        """Take the events since the last drain, once it is known which thread's they are."""
        recorder = self._recorder
        if recorder.thread:
            return recorder.drain()
        if recorder.waiting > _KEPT_BEFORE_TRAINING:  # a long evaluation before training: of no step
            recorder.drain()
        return []

    def _record(self, steps: list[Step], *, last: bool) -> None:
        if not last:
            self._follow(steps)
        self._file.write(self._state, steps[-1] if steps else None, self._partition.steps)
        for look_on in self._look_on:
            look_on(steps)
        self._publisher.report(steps)

    def _follow(self, steps: list[Step]) -> None:
        """Follow the steps from one state to the next, while the process lives."""
        if self._aborted and steps and steps[-1].ended > self._aborted:
            self._aborted = 0
            self._file.forget_end()
        if steps:
            self._script.train(self._recorder.thread, steps)
        if steps and steps[-1].ended > self._training_ended:
            self._state = RankState.RUNNING
            self._training_ended = 0
        elif self._training_ended:
            self._state = RankState.FINISHED

    def _identify(self, *, last: bool) -> None:
        if not self._settled:
            self._identity, self._settled = _identity.resolve(self._identity, self._file.claim)
        if not self._identity.run or not (last or (self._peers_settled() and not self._agreeing())):
            return
        self._script.look(self._recorder.thread)
        self._identity = replace(
            self._identity,
            peer_group=self._peers.name(self._identity.peer_group),
            workload=_identity.workload(self._script.code),
        )
        port = _start_metrics_endpoint(self._identity.local_rank)
        facts = self._identity.facts(port, _runtime.hardware_id())
        self._file.write_facts(facts)
        self._publisher.begin(self._identity, facts, self._peers.layout())

    def _agreeing(self) -> bool:
        """Return whether the ranks may still say what is not known yet."""
        if self._settled or not _identity.has_group():
            return False
        now = time.monotonic()
        self._settle_by = self._settle_by or now + _AGREE_SECONDS
        return now < self._settle_by

    def _peers_settled(self) -> bool:
        # The peer group is part of every series, so it must not change once there are some.
        return bool(
            self._identity.world_size <= 1
            or self._peers.named
            or self._identity.peer_group
            or self._partition.steps
            or time.monotonic() > self._report_by
        )

    @property
    def _facts(self) -> Facts:
        return self._file.facts

    def _change_peers(self) -> None:
        group = self._peers.name(self._identity.peer_group)
        if self._file.writer is None or group == self._facts.peer_group:
            return
        _logger.warning(
            "the peer group %r became known after reporting began: the state file says it, the metrics keep %r",
            group,
            self._identity.peer_group,
        )
        self._file.write_facts(replace(self._facts, peer_group=group))


def _start_metrics_endpoint(local_rank: int) -> int:
    """Start the Prometheus endpoint where OpenTelemetry was told to use ours; return its port, else 0."""
    prometheus = sys.modules.get("laggard.prometheus")
    return 0 if prometheus is None else prometheus.serve(local_rank)
