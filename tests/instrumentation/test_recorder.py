"""The hot path is bounded, counts what it loses and what it costs, and writes where the rank stands.

Each promise is held by the hot path in Python and by the native one.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns

import pytest

from laggard import _events, _hot_path, _recorder
from laggard._events import EVALUATION_FORWARD, OPTIMIZER_STEP
from laggard._hot_path import CAPACITY
from laggard._recorder import Recorder
from laggard.shared import statefile
from laggard.shared.phases import Phase
from tests.support.facts import FACTS


@pytest.fixture(autouse=True, params=["native", "python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which hot path a recorder of the test has."""
    monkeypatch.setenv("LAGGARD_HOT_PATH", request.param)
    assert (Recorder().native is not None) == (request.param == "native"), "python hatch_build.py compiles it"
    return request.param


def test_intervals_nest_and_the_state_file_follows(tmp_path: Path) -> None:
    """Inside a phase the state file shows it, inside a nested one that, and afterwards the one around it again."""
    recorder = Recorder()
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    recorder.words = writer.words

    def shown() -> Phase:
        return statefile.read(writer.path).phase

    outer = recorder.begin(Phase.BACKWARD)
    assert shown() is Phase.BACKWARD
    inner = recorder.begin(Phase.COMMUNICATION)
    assert shown() is Phase.COMMUNICATION
    inner_ended = recorder.end(inner)
    assert shown() is Phase.BACKWARD
    recorder.end(outer)
    assert shown() is Phase.OTHER
    recorder.end(recorder.begin(EVALUATION_FORWARD))
    entered = statefile.read(writer.path)
    assert abs(statefile.boottime_ns() - entered.phase_entered_ns) < 1e9
    assert entered.progress == 3
    (first, second, third) = recorder.drain()
    assert [event[0] for event in (first, second, third)] == [Phase.COMMUNICATION, Phase.BACKWARD, EVALUATION_FORWARD]
    assert second[1] <= first[1] <= first[2] == inner_ended <= second[2]
    writer.close(unlink=True)


def test_the_state_file_says_evaluation_until_the_next_backward(tmp_path: Path) -> None:
    """What the host does between and after forwards without gradients may take long, and is no part of training."""
    recorder = Recorder()
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    recorder.words = writer.words

    def shown() -> Phase:
        return statefile.read(writer.path).phase

    def trained() -> None:
        recorder.end(recorder.begin(Phase.FORWARD))
        recorder.trains()
        recorder.end(recorder.begin(Phase.BACKWARD))

    trained()
    assert shown() is Phase.OTHER
    for _ in range(2):
        fetch = recorder.begin(Phase.DATA)
        assert shown() is Phase.DATA
        recorder.end(fetch)
        recorder.end(recorder.evaluate())
        assert shown() is Phase.EVALUATION
    recorder.end(recorder.begin(Phase.DATA))
    assert shown() is Phase.EVALUATION
    recorder.synchronize_clock()
    recorder.end(recorder.begin(Phase.DATA))
    assert shown() is Phase.EVALUATION
    now = perf_counter_ns()
    assert abs(recorder.boottime(now) - statefile.boottime_ns()) < 1e9
    trained()
    assert shown() is Phase.OTHER
    recorder.synchronize_clock()
    recorder.end(recorder.begin(Phase.DATA))
    assert shown() is Phase.OTHER
    writer.close(unlink=True)


def test_an_update_ends_an_evaluation(tmp_path: Path) -> None:
    """Though no backward pass was seen: the phase that goes on is training's, from the update's time on."""
    recorder = Recorder()
    recorder.end(recorder.evaluate())
    recorder.resume(perf_counter_ns())  # without a state file
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    recorder.words = writer.words
    recorder.end(recorder.evaluate())
    assert statefile.read(writer.path).phase is Phase.EVALUATION
    at = perf_counter_ns()
    recorder.resume(at)
    told = statefile.read(writer.path)
    assert (told.phase, told.phase_entered_ns) == (Phase.OTHER, recorder.boottime(at))
    recorder.resume(at + 10**9)  # in training it says nothing
    assert statefile.read(writer.path).phase_entered_ns == told.phase_entered_ns
    writer.close(unlink=True)


def test_a_closed_state_file_costs_one_failure_and_no_event(tmp_path: Path) -> None:
    """When the file's memory goes away under a hook, recording goes on without it."""
    recorder = Recorder()
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    recorder.words = writer.words
    token = recorder.begin(Phase.DATA)
    writer.close(unlink=True)
    recorder.end(token)
    recorder.end(recorder.begin(Phase.FORWARD))
    assert (recorder.failures, recorder.words) == (1, None)
    assert [code for code, _, _ in recorder.drain()] == [Phase.DATA, Phase.FORWARD]
    recorder.words = writer.words
    token = recorder.begin(Phase.DATA)
    assert (recorder.failures, recorder.words) == (2, None)
    recorder.end(token)
    assert recorder.failures == 2


def test_the_buffer_is_bounded_and_counts_what_it_drops() -> None:
    """An event that finds no room is counted, and there is room again after a drain."""
    recorder = Recorder()
    recorder.capacity = 3
    for _ in range(5):
        recorder.end(recorder.begin(Phase.DATA))
    assert recorder.dropped == 2
    assert len(recorder.drain()) == 3
    recorder.end(recorder.begin(Phase.DATA))
    assert len(recorder.drain()) == 1
    assert CAPACITY > 10_000


def test_other_threads_are_not_recorded_once_the_training_thread_is_known() -> None:
    """A loader that another thread reads ahead is not time that the training thread waits."""
    recorder = Recorder()
    recorder.thread = threading.get_ident()
    thread = threading.Thread(target=lambda: recorder.end(recorder.begin(Phase.DATA)))
    thread.start()
    thread.join()
    assert recorder.drain() == []
    recorder.end(recorder.begin(Phase.DATA))
    assert len(recorder.drain()) == 1


def test_appends_during_a_drain_are_kept() -> None:
    """Whatever the interleaving of the training thread and the drain, each event is taken exactly once."""
    recorder = Recorder()
    recorder.capacity = 10**6
    taken: list[int] = []
    done = threading.Event()

    def train() -> None:
        for number in range(100_000):
            recorder.add(Phase.DATA, number, number)
        done.set()

    thread = threading.Thread(target=train)
    thread.start()
    while not done.is_set():
        taken += [started for _, started, _ in recorder.drain()]
    thread.join()
    taken += [started for _, started, _ in recorder.drain()]
    assert taken == list(range(100_000))


def test_self_time_is_what_the_hooks_took() -> None:
    """One call in 13 is timed and stands for 13; what happens between the calls is not in it."""
    recorder = Recorder()
    edges = 0

    def slow(_at: int) -> None:
        nonlocal edges
        edges += 1
        until = perf_counter_ns() + 1_000_000
        while perf_counter_ns() < until:
            pass

    recorder.device = slow
    longest = 0
    for _ in range(13):
        began = perf_counter_ns()
        token = recorder.begin(Phase.DATA)
        entered = perf_counter_ns()
        threading.Event().wait(0.02)
        left = perf_counter_ns()
        recorder.end(token)
        longest = max(longest, entered - began, perf_counter_ns() - left)
    assert edges == 26
    # Two calls are timed. A busy machine may stop the thread in one of them, so the bound is what a call took here.
    assert 26_000_000 <= recorder.self_time_ns <= 2 * 13 * longest


def test_a_recorder_that_is_off_records_nothing() -> None:
    """In a data worker, and after uninstrument, begin and end do nothing, whatever thread says that it trains."""
    recorder = Recorder()
    recorder.disable()
    recorder.end(recorder.begin(Phase.DATA))
    recorder.thread = threading.get_ident()
    recorder.end(recorder.begin(Phase.DATA))
    assert recorder.drain() == []
    assert (recorder.begin(Phase.DATA), recorder.end(None)) == (None, 0)
    assert recorder.enabled is False
    assert recorder.thread == -1


def test_the_old_name_of_the_hot_path_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who set ``compiled`` has the native one, and is told nothing."""
    monkeypatch.setenv("LAGGARD_HOT_PATH", "compiled")
    assert Recorder().native is not None
    assert caplog.messages == []


def test_every_code_says_one_thing() -> None:
    """No two marks and phases share a number, and the low bits of an interval's code are the phase that is shown."""
    names = ["UPDATE", "FIRST_BATCH", "STEP_BEGIN", "STEP_END", "RESUME", "LOST", "SKIPPED", "COMPILATION", "EXHAUSTED"]
    codes = [*map(int, Phase), OPTIMIZER_STEP, EVALUATION_FORWARD, *(getattr(_events, name) for name in names)]
    assert len(set(codes)) == len(codes)
    recorder = Recorder()
    for code, phase in ((OPTIMIZER_STEP, Phase.OPTIMIZER), (EVALUATION_FORWARD, Phase.EVALUATION)):
        token = recorder.begin(code)
        assert recorder.phase == phase
        recorder.end(token)
        assert recorder.phase == Phase.OTHER


def test_the_clock_is_read_once_a_call_and_once_more_in_13(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The first call that is timed is the 13th, then every 13th, begin and end alike; it stands for 13."""
    reads = itertools.count()
    if path == "python":
        monkeypatch.setattr(_hot_path, "perf_counter_ns", lambda: next(reads))
    recorder = Recorder()
    first = next(reads)
    timed: list[int] = []
    token = None
    for call in range(1, 40):
        before = recorder.self_time_ns
        if call % 2:
            token = recorder.begin(Phase.DATA)
        else:
            recorder.end(token)
        if recorder.self_time_ns != before:
            assert (recorder.self_time_ns - before) % 13 == 0
            timed.append(call)
    assert timed == [13, 26, 39]
    if path == "python":
        assert recorder.self_time_ns == 3 * 13
        assert next(reads) - first - 1 == 39 + 3


def test_the_first_backward_tells_which_thread_trains() -> None:
    """It is told once, each backward is counted, and from then on this thread alone is recorded."""
    recorder = Recorder()
    assert (recorder.thread, recorder.backwards, recorder.progress) == (0, 0, 0)
    assert [recorder.trains(), recorder.trains()] == [True, False]
    assert (recorder.thread, recorder.backwards) == (threading.get_ident(), 2)
    off = Recorder()
    off.disable()
    off.trains()
    assert (off.thread, off.backwards) == (-1, 1)


def in_turns(recorder: Recorder, *turns: tuple[int, list[Phase]]) -> list[bool]:
    """Have threads claim and go through phases, each turn on the thread of that number; return who is recorded."""
    pools = [ThreadPoolExecutor(1) for _ in range(1 + max(number for number, _ in turns))]

    def turn(phases: list[Phase]) -> bool:
        if not phases:
            recorder.trains()
        for phase in phases:
            recorder.end(recorder.begin(phase))
        return recorder.is_mine()

    recorded = [pools[number].submit(turn, phases).result() for number, phases in turns]
    for pool in pools:
        pool.shutdown()
    return recorded


def test_training_that_moves_to_another_thread_is_recorded_there_at_once() -> None:
    """As a notebook's or a server's does: the thread before is in no phase when the next one begins."""
    recorder = Recorder()
    step = [Phase.FORWARD, Phase.OPTIMIZER]
    assert in_turns(recorder, (0, []), (0, step), (1, []), (1, step), (0, []), (0, step)) == [True] * 6
    assert not recorder.contested
    # A forward without a length stands for that of the thread which was not known to train.
    assert [code for code, _, _ in recorder.drain()] == [*step, Phase.FORWARD, *step, Phase.FORWARD, *step]


def test_threads_that_train_in_turns_are_recorded_from_their_fetch_on() -> None:
    """Those of a pool, or learners with a lock: one that has trained goes on where the other is between its phases."""
    recorder = Recorder()
    step = [Phase.DATA, Phase.FORWARD, Phase.OPTIMIZER]
    turns = ((0, []), (1, []), (0, step), (1, step), (1, []), (0, step), (2, step))
    assert in_turns(recorder, *turns) == [True] * 6 + [False]
    assert not recorder.contested
    assert [code for code, _, _ in recorder.drain()] == [Phase.FORWARD, *step * 3]


def test_a_thread_goes_on_only_between_the_phases_of_another() -> None:
    """What it does meanwhile is not recorded, and it stays so once both have trained at once."""
    recorder = Recorder()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for thread in (first, second, first):
            thread.submit(recorder.trains).result()
        token = first.submit(recorder.begin, Phase.FORWARD).result()
        assert second.submit(recorder.begin, Phase.FORWARD).result() is None
        second.submit(recorder.trains).result()
        first.submit(recorder.end, token).result()
        assert recorder.contested
        assert second.submit(recorder.begin, Phase.FORWARD).result() is None


def test_of_two_threads_that_train_at_once_one_is_recorded() -> None:
    """Else their phases would be mixed up in the same steps. The other one is as soon as the first does nothing."""
    recorder = Recorder()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        assert first.submit(recorder.trains).result()
        token = first.submit(recorder.begin, Phase.FORWARD).result()
        assert token is not None
        second.submit(recorder.trains).result()
        assert (recorder.contested, second.submit(recorder.is_mine).result()) == (True, False)
        for _ in range(3):
            first.submit(recorder.end, token).result()
            token = first.submit(recorder.begin, Phase.BACKWARD).result()
            second.submit(recorder.trains).result()
            assert first.submit(recorder.is_mine).result()
        first.submit(recorder.end, token).result()
        second.submit(recorder.trains).result()
        assert second.submit(recorder.is_mine).result()
        first.submit(recorder.trains).result()
        assert second.submit(recorder.is_mine).result()
    # The last one stands for the forward of the second thread.
    assert [code for code, _, _ in recorder.drain()] == [Phase.FORWARD, *[Phase.BACKWARD] * 3, Phase.FORWARD]


def test_a_backward_of_a_thread_that_is_not_recorded_hides_none_of_the_other() -> None:
    """A backward inside a backward is part of the outer one, but on its own thread."""
    recorder = Recorder()
    inside, done = threading.Event(), threading.Event()

    def run(_arguments: tuple[()], kwargs: dict[str, bool]) -> None:
        if "waits" in kwargs:
            inside.set()
            assert done.wait(10)

    engine = recorder.path.timed_backward(lambda *args, **kwargs: run(args, kwargs), 2, 66, lambda: None, [])
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(engine, accumulate_grad=True).result()
        token = first.submit(recorder.begin, Phase.FORWARD).result()
        other = second.submit(engine, accumulate_grad=True, waits=True)
        assert inside.wait(10)
        first.submit(recorder.end, token).result()
        first.submit(engine, accumulate_grad=True).result()
        done.set()
        other.result()
    assert [code for code, _, _ in recorder.drain()] == [2, Phase.FORWARD, 2]


def test_marks_have_no_length_and_are_bounded_too() -> None:
    """A mark stands at one time, which the device's clock is told of; without room it is dropped and counted."""
    recorder = Recorder()
    edges: list[int] = []
    recorder.device = edges.append
    recorder.capacity = 1
    recorder.mark(_events.UPDATE)
    recorder.mark(_events.UPDATE)
    ((code, began, ended),) = recorder.drain()
    assert (code, began) == (_events.UPDATE, ended)
    assert edges[0] == began
    assert (len(edges), recorder.dropped) == (2, 1)


def test_a_device_that_fails_is_left_alone() -> None:
    """It is counted once; the recorder goes on by the host's clock."""
    recorder = Recorder()

    def fail(_at: int) -> None:
        raise RuntimeError

    recorder.device = fail
    recorder.end(recorder.begin(Phase.DATA))
    assert (recorder.device, recorder.failures) == (None, 1)
    assert len(recorder.drain()) == 1


def test_a_suspend_of_the_machine_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state file's clock moves on while the other stands: times are translated by the difference as it is now."""
    monkeypatch.setattr(_recorder, "boottime_ahead_ns", lambda: 4_000)
    recorder = Recorder()
    words = recorder.words = memoryview(bytearray(8 * (statefile.PHASE + statefile.PROGRESS + 1))).cast("Q")

    def shown() -> tuple[int, int]:
        return words[statefile.PHASE] >> 56, words[statefile.PHASE] & ((1 << 56) - 1)

    ended = recorder.end(recorder.evaluate())
    assert recorder.boottime(7) == 4_007
    assert shown() == (Phase.EVALUATION, ended + 4_000)
    monkeypatch.setattr(_recorder, "boottime_ahead_ns", lambda: 8_000)
    recorder.synchronize_clock()
    assert recorder.boottime(7) == 8_007
    # An evaluation that goes on stays one, and after it training is training.
    ended = recorder.end(recorder.begin(Phase.DATA))
    assert shown() == (Phase.EVALUATION, ended + 8_000)
    recorder.trains()
    recorder.synchronize_clock()
    ended = recorder.end(recorder.begin(Phase.DATA))
    assert shown() == (Phase.OTHER, ended + 8_000)


def test_an_exception_of_the_program_passes_through_a_device(path: str) -> None:
    """An interrupt that comes while the device's clock is read is the program's, and the phase ends all the same."""
    recorder = Recorder()
    token = recorder.begin(Phase.DATA)

    def interrupted(_at: int) -> None:
        raise KeyboardInterrupt

    recorder.device = interrupted
    with pytest.raises(KeyboardInterrupt):
        recorder.end(token)
    assert (recorder.device, recorder.failures) == (interrupted, 0)
    if path == "native":
        assert recorder.phase == Phase.OTHER


def test_a_recorder_is_collected_with_what_it_holds(path: str) -> None:
    """A device's clock holds its recorder, and is held by it."""

    class Clock:
        def __init__(self) -> None:
            self.recorder = Recorder()
            self.recorder.device = self.edge
            if self.recorder.native is not None:
                self.wrapper = self.recorder.native.timed_backward(self.edge, 1, 2, self.edge, [])

        def edge(self, _at: int = 0) -> None:
            pass

    clock = weakref.ref(Clock())
    gc.collect()
    assert (clock(), path) == (None, path)


def test_what_other_threads_did_before_training_is_forgotten() -> None:
    """The first backward tells whose the events are. A phase that another thread is in counts for nothing."""
    recorder = Recorder()
    begun, trained = threading.Event(), threading.Event()

    def read_ahead() -> None:
        recorder.end(recorder.begin(Phase.DATA))
        token = recorder.begin(Phase.DATA)
        begun.set()
        trained.wait()
        assert recorder.end(token) == 0

    reader = threading.Thread(target=read_ahead)
    recorder.end(recorder.begin(Phase.FORWARD))
    reader.start()
    begun.wait()
    assert recorder.trains()
    assert recorder.phase == Phase.OTHER
    recorder.end(recorder.begin(Phase.BACKWARD))
    trained.set()
    reader.join()
    assert recorder.phase == Phase.OTHER
    assert [code for code, _, _ in recorder.drain()] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_forward_with_gradients_ends_an_evaluation(tmp_path: Path) -> None:
    """In the state file; one of a teacher does not, nor a fetch."""
    recorder = Recorder()
    writer = statefile.StateWriter(tmp_path / "state", FACTS)
    recorder.words = writer.words
    recorder.end(recorder.evaluate())
    recorder.end(recorder.begin(_events.NO_GRAD_FORWARD))
    assert statefile.read(writer.path).phase is Phase.EVALUATION
    recorder.end(recorder.begin(Phase.FORWARD))
    assert statefile.read(writer.path).phase is Phase.OTHER
    writer.close(unlink=True)
