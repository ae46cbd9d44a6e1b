"""Events become steps whose phases add up."""

from __future__ import annotations

import pytest

from laggard._events import (
    COMPILATION,
    ENDING,
    EVALUATION_FORWARD,
    EXHAUSTED,
    FIRST_BATCH,
    IDENTITY_SHIFT,
    ITERATOR,
    LOST,
    NO_GRAD_FORWARD,
    OPTIMIZER_STEP,
    RESUME,
    SKIPPED,
    STEP_BEGIN,
    STEP_END,
    UPDATE,
    Event,
)
from laggard._partition import StepPartition
from laggard._steps import Step
from laggard.shared.phases import Phase

DATA, FORWARD, BACKWARD, OPTIMIZER = Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
COMMUNICATION, CHECKPOINT, EVALUATION, OTHER = (
    Phase.COMMUNICATION,
    Phase.CHECKPOINT,
    Phase.EVALUATION,
    Phase.OTHER,
)


def plain_step(start: int) -> list[Event]:
    """A step of 100: data 10, forward 20, backward 40 with a wait of 15 at its end, optimizer 5, other 25."""
    return [
        (DATA, start, start + 10),
        (FORWARD, start + 12, start + 32),
        (COMMUNICATION, start + 65, start + 80),
        (BACKWARD, start + 40, start + 80),
        (OPTIMIZER, start + 82, start + 87),
        (UPDATE, start + 87, start + 87),
    ]


def phases(step: Step) -> dict[Phase, int]:
    """The phases that a step has time in."""
    return {phase: step.phases[phase] for phase in Phase if step.phases[phase]}


def test_step_runs_from_fetch_to_fetch_and_every_nanosecond_has_one_phase() -> None:
    """The wait inside backward is communication only, what no interval covers is other, and all add up to the step."""
    partition = StepPartition(warmup_steps=0)
    steps = partition.feed([*plain_step(0), *plain_step(100), (DATA, 200, 210)])
    assert [(step.number, step.started, step.ended, step.excluded) for step in steps] == [
        (1, 0, 100, ""),
        (2, 100, 200, ""),
    ]
    expected = {DATA: 10, FORWARD: 20, BACKWARD: 25, COMMUNICATION: 15, OPTIMIZER: 5, OTHER: 25}
    assert [phases(step) for step in steps] == [expected, expected]
    assert [(step.duration, step.own) for step in steps] == [(100, 85), (100, 85)]
    assert steps[0].intervals == (
        (DATA, 0, 10),
        (FORWARD, 12, 32),
        (BACKWARD, 40, 65),
        (COMMUNICATION, 65, 80),
        (OPTIMIZER, 82, 87),
    )


def test_to_stop_the_workers_of_a_loader_is_data_and_begins_no_step() -> None:
    """Of a training loop that is left early; inside an evaluation it is evaluation, as all of that is."""
    partition = StepPartition(warmup_steps=0)
    first, second = partition.feed([*plain_step(0), (ENDING, 88, 98), *plain_step(100), (DATA, 200, 210)])
    assert [phases(step)[DATA] for step in (first, second)] == [20, 10]
    assert (first.duration, first.first_batch, second.first_batch) == (100, 0, 0)


def test_events_may_arrive_in_any_pieces() -> None:
    """A drain in the middle of a step changes nothing."""
    events = [event for number in range(5) for event in plain_step(100 * number)]
    whole = StepPartition(warmup_steps=0).feed(events)
    partition = StepPartition(warmup_steps=0)
    assert [step for event in events for step in partition.feed([event])] == whole
    assert len(whole) == 4


def test_accumulation_is_one_step_and_several_optimizers_are_one_step() -> None:
    """Fetches before an update belong to the step; updates before the next fetch are one."""
    events: list[Event] = []
    for start in (0, 100):
        for micro in (start, start + 40):
            events += [(DATA, micro, micro + 10), (FORWARD, micro + 10, micro + 20), (BACKWARD, micro + 20, micro + 30)]
        events += [(OPTIMIZER, start + 80, start + 85), (UPDATE, start + 85, start + 85)]
        events += [(OPTIMIZER, start + 85, start + 90), (UPDATE, start + 90, start + 90)]
    (step,) = StepPartition(warmup_steps=0).feed(events)
    assert phases(step) == {DATA: 20, FORWARD: 20, BACKWARD: 20, OPTIMIZER: 10, OTHER: 30}


def test_without_a_loader_a_forward_begins_the_step() -> None:
    """A loop that fetches nothing has its boundary at the first training forward after an update."""
    events: list[Event] = []
    for start in (0, 100, 200):
        # The buffer broadcast inside the forward arrives before the forward that begins the step.
        events += [
            (COMMUNICATION, start + 1, start + 3),
            (FORWARD, start, start + 20),
            (BACKWARD, start + 20, start + 50),
        ]
        events += [(OPTIMIZER, start + 50, start + 60), (UPDATE, start + 60, start + 60)]
    steps = StepPartition(warmup_steps=0).feed(events)
    # Before the first step there is none that an event inside its first forward could belong to.
    assert [phases(step) for step in steps] == [
        {FORWARD: 20, BACKWARD: 30, OPTIMIZER: 10, OTHER: 40},
        {COMMUNICATION: 2, FORWARD: 18, BACKWARD: 30, OPTIMIZER: 10, OTHER: 40},
    ]


def test_evaluation_between_steps_is_evaluation_with_its_fetches_and_host_work() -> None:
    """Batches that see only forwards without gradients are evaluation as a whole, up to the next training fetch."""
    evaluation: list[Event] = []
    for start in (100, 130, 160):
        evaluation += [(DATA, start, start + 5), (EVALUATION_FORWARD, start + 5, start + 20)]
    evaluation += [(DATA, 190, 191), (EXHAUSTED, 191, 191)]
    events = [*plain_step(0), *evaluation, *plain_step(200), (DATA, 300, 310)]
    before, after = StepPartition(warmup_steps=0).feed(events)
    assert phases(before) == {DATA: 10, FORWARD: 20, BACKWARD: 25, COMMUNICATION: 15, OPTIMIZER: 5, OTHER: 25}
    assert phases(after) == {
        EVALUATION: 100,
        DATA: 10,
        FORWARD: 20,
        BACKWARD: 25,
        COMMUNICATION: 15,
        OPTIMIZER: 5,
        OTHER: 25,
    }
    assert (after.own, after.intervals[0]) == (85, (EVALUATION, 100, 200))


def test_a_teacher_inside_a_training_batch_is_a_forward() -> None:
    """A forward without gradients in a batch that is trained on is the rank's own work."""
    events: list[Event] = [
        (DATA, 0, 10),
        (EVALUATION_FORWARD, 10, 30),
        (FORWARD, 30, 50),
        (BACKWARD, 50, 90),
        (UPDATE, 95, 95),
        (DATA, 100, 110),
    ]
    (step,) = StepPartition(warmup_steps=0).feed(events)
    assert phases(step) == {DATA: 10, FORWARD: 40, BACKWARD: 40, OTHER: 10}


def test_excluded_steps_say_why() -> None:
    """Warm-up, the first batch of an epoch and lost events keep a step out of the histograms, and it is counted."""
    partition = StepPartition(warmup_steps=1)
    events = [*plain_step(0), *plain_step(100), *plain_step(200)]
    events.insert(7, (FIRST_BATCH, 110, 110))
    steps = partition.feed(events)
    steps += partition.feed([(LOST, 0, 0), *plain_step(300), *plain_step(400)])
    steps += partition.finish()
    assert [(step.number, step.excluded) for step in steps] == [
        (1, "warmup"),
        (2, "first_batch"),
        (3, "incomplete"),
        (4, ""),
        (5, "incomplete"),
    ]
    assert partition.finish() == []


def test_named_steps_are_the_contexts_and_their_batch() -> None:
    """With ``laggard.step()`` nothing else counts, and no fetch ends a step.

    A loop over a loader fetches outside of the context. What was fetched before that batch, and a loader's end, is not
    the step's.
    """
    events: list[Event] = []
    for start in (0, 100):
        events += [(STEP_BEGIN, start, start), (DATA, start, start + 10), (UPDATE, start + 20, start + 20)]
        events += [(DATA, start + 20, start + 30), (STEP_END, start + 50, start + 50), (DATA, start + 60, start + 90)]
    partition = StepPartition(warmup_steps=0)
    steps = partition.feed(events)
    assert [(step.started, step.ended, phases(step)) for step in steps] == [
        (0, 50, {DATA: 20, OTHER: 30}),
        (60, 150, {DATA: 50, OTHER: 40}),
    ]
    assert partition.finish() == []
    evaluated: list[Event] = [(DATA, 200, 210), (EVALUATION_FORWARD, 210, 220)]
    fetched: list[Event] = [(DATA, 240, 250), (STEP_BEGIN, 260, 260), (FORWARD, 260, 270), (STEP_END, 280, 280)]
    exhausted: list[Event] = [(DATA, 300, 310), (EXHAUSTED, 310, 310)]
    named: list[Event] = [(STEP_BEGIN, 360, 360), (FORWARD, 360, 370), (STEP_END, 380, 380)]
    steps = partition.feed([*evaluated, *fetched, *exhausted, *named])
    assert [(step.started, step.ended, phases(step)) for step in steps] == [
        (240, 280, {DATA: 10, FORWARD: 10, OTHER: 20}),
        (360, 380, {FORWARD: 10, OTHER: 10}),
    ]


def test_marks_belong_to_the_step_in_whose_time_they_are() -> None:
    """What happens inside the interval that begins a step arrives before it and is that step's all the same."""
    events: list[Event] = []
    for start in (0, 100, 200):
        if start == 100:
            events += [(COMPILATION, 105, 105)]  # while the forward below runs
        events += [(FORWARD, start, start + 20), (BACKWARD, start + 20, start + 50)]
        events += [(SKIPPED, start + 55, start + 55)] * (start == 100)
        events += [(OPTIMIZER, start + 50, start + 60), (UPDATE, start + 60, start + 60)]
    events += [(FORWARD, 300, 320)]
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [(step.started, step.excluded, step.skipped) for step in steps] == [
        (0, "", False),
        (100, "compile", True),
        (200, "", False),
    ]


def test_updates_inside_the_backward_that_begins_a_step_are_of_that_step() -> None:
    """Without loader and module, optimizers that run in backward end the step that this backward begins."""
    events: list[Event] = []
    for start in (0, 100, 200):
        events += [(OPTIMIZER, start + 20, start + 30), (UPDATE, start + 30, start + 30), (BACKWARD, start, start + 50)]
    partition = StepPartition(warmup_steps=0)
    steps = partition.feed(events) + partition.finish()
    assert [(step.started, phases(step)) for step in steps] == [
        (0, {BACKWARD: 50, OTHER: 50}),  # before the first step there is none that its optimizer could belong to
        (100, {BACKWARD: 40, OPTIMIZER: 10, OTHER: 50}),
        (200, {BACKWARD: 40, OPTIMIZER: 10}),
    ]


def test_all_of_a_checkpoint_is_checkpoint() -> None:
    """Waits for peers inside it are of it, from its first nanosecond on; a wait before it is not."""
    inside = [(COMMUNICATION, 86, 89), (COMMUNICATION, 90, 92), (COMMUNICATION, 92, 94), (CHECKPOINT, 90, 98)]
    (step,) = StepPartition(warmup_steps=0).feed([*plain_step(0)[:-2], (UPDATE, 85, 85), *inside, (DATA, 100, 110)])
    assert phases(step) == {DATA: 10, FORWARD: 20, BACKWARD: 25, COMMUNICATION: 18, CHECKPOINT: 8, OTHER: 19}
    assert step.intervals[-1] == (CHECKPOINT, 90, 98)


def test_the_first_batch_counts_wherever_it_is_in_the_step() -> None:
    """With accumulation the first fetch of an epoch is followed by others before the update."""
    events: list[Event] = [(DATA, 0, 5), (FIRST_BATCH, 5, 5), (FORWARD, 5, 9), (DATA, 10, 15), *plain_step(20)[1:]]
    (step,) = StepPartition(warmup_steps=0).feed([(FIRST_BATCH, 0, 0), *events, (DATA, 120, 125)])
    assert (step.excluded, step.first_batch) == ("first_batch", 5)


def test_a_step_begins_with_what_the_loop_begins_its_steps_with() -> None:
    """A forward after the update of a loop with a loader, and a backward where there are forwards, begin none."""
    with_loader = [*plain_step(0), (FORWARD, 90, 95), (BACKWARD, 95, 98), *plain_step(100), (DATA, 200, 210)]
    steps = StepPartition(warmup_steps=0).feed(with_loader)
    assert [(step.started, step.ended) for step in steps] == [(0, 100), (100, 200)]
    without: list[Event] = []
    for start in (0, 100):
        without += [(FORWARD, start, start + 20), (BACKWARD, start + 20, start + 40), (UPDATE, start + 50, start + 50)]
        without += [(BACKWARD, start + 60, start + 70)]
    steps = StepPartition(warmup_steps=0).feed([*without, (FORWARD, 200, 210)])
    assert [(step.started, step.ended) for step in steps] == [(0, 100), (100, 200)]


def test_the_step_of_an_optimizer_is_an_update_at_its_end() -> None:
    """Nothing else need say so, and its time is the optimizer's."""
    partition = StepPartition(warmup_steps=0)
    events: list[Event] = [(DATA, 0, 10), (FORWARD, 10, 30), (BACKWARD, 30, 60), (OPTIMIZER_STEP, 60, 70)]
    (step,) = partition.feed([*events, (DATA, 100, 110)])
    assert phases(step) == {DATA: 10, FORWARD: 20, BACKWARD: 30, OPTIMIZER: 10, OTHER: 30}
    assert (step.duration, step.own, partition.steps) == (100, 100, 1)


def test_the_step_after_a_restart_stays_out() -> None:
    """Once: it loads a checkpoint; the next is one like any other. Lost events are worse, a warm-up is less."""
    partition = StepPartition(warmup_steps=1)
    steps = partition.feed([(RESUME, 0, 0), *plain_step(0), *plain_step(100), *plain_step(200), (DATA, 300, 310)])
    assert [step.excluded for step in steps] == ["resume", "", ""]


def test_a_loop_that_loads_state_in_each_step_is_measured() -> None:
    """Of eight steps one at most is left out for that: one that adapts to each sample and resets has no others."""
    events = [event for start in range(0, 1800, 100) for event in [(RESUME, start, start), *plain_step(start)]]
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [step.number for step in steps if step.excluded == "resume"] == [1, 9, 17]
    assert [step.number for step in steps if step.excluded] == [1, 9, 17]


def test_what_was_updated_and_has_not_ended_ends_with_its_last_interval() -> None:
    """Without an update there is no step; with one it is incomplete, and what comes later begins anew."""
    partition = StepPartition(warmup_steps=0)
    partition.feed(plain_step(0)[:3])
    assert partition.finish() == []
    partition.feed(plain_step(100))
    (step,) = partition.finish()
    assert (step.number, step.started, step.ended, step.excluded) == (1, 100, 187, "incomplete")
    assert partition.finish() == []


def test_what_happens_at_the_very_boundary() -> None:
    """A mark of that time is of the step that ends, an interval that begins then of the one that begins."""
    events = [*plain_step(0), (SKIPPED, 100, 100), (COMMUNICATION, 100, 104), (DATA, 100, 110), *plain_step(100)[1:]]
    steps = StepPartition(warmup_steps=0).feed([*events, (DATA, 200, 210)])
    assert [step.skipped for step in steps] == [True, False]
    assert [step.phases[COMMUNICATION] for step in steps] == [15, 19]
    assert [step.phases[DATA] for step in steps] == [10, 6]


def test_after_the_end_of_an_evaluation_loader_a_loop_without_one_goes_on() -> None:
    """Its forwards begin its steps as before: the batch of the evaluation is none of theirs."""
    events: list[Event] = [(FORWARD, 0, 10), (BACKWARD, 10, 20), (UPDATE, 25, 25)]
    events += [(DATA, 30, 35), (EVALUATION_FORWARD, 35, 40), (DATA, 40, 42), (EXHAUSTED, 42, 42)]
    events += [(FORWARD, 50, 60), (BACKWARD, 60, 70), (UPDATE, 75, 75), (FORWARD, 100, 110)]
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [(step.started, step.ended) for step in steps] == [(0, 30), (30, 100)]
    assert phases(steps[1]) == {FORWARD: 10, BACKWARD: 10, EVALUATION: 20, OTHER: 30}


def test_the_last_batch_is_judged_like_any_other() -> None:
    """At the end of a step that the script names: what follows it decides nothing."""
    named: list[Event] = [
        (STEP_BEGIN, 0, 0),
        (DATA, 5, 10),
        (FIRST_BATCH, 10, 10),
        (FORWARD, 10, 20),
        (STEP_END, 30, 30),
    ]
    named += [(STEP_BEGIN, 40, 40), (DATA, 45, 50), (EVALUATION_FORWARD, 50, 55)]
    named += [(DATA, 56, 57), (EXHAUSTED, 57, 57), (STEP_END, 60, 60)]
    steps = StepPartition(warmup_steps=0).feed(named)
    assert [step.excluded for step in steps] == ["first_batch", ""]
    assert phases(steps[1]) == {EVALUATION: 15, OTHER: 5}


def test_a_forward_without_gradients_after_the_update_is_evaluation_where_there_is_no_loader() -> None:
    """Before the update it is a teacher's, and so it is of a batch that came from a loader."""
    events: list[Event] = [(FORWARD, 0, 15), (EVALUATION_FORWARD, 15, 20), (BACKWARD, 20, 40), (UPDATE, 50, 50)]
    # From the first to the last, with what is between them.
    events += [(EVALUATION_FORWARD, 60, 70), (EVALUATION_FORWARD, 75, 80), (FORWARD, 100, 110), (UPDATE, 120, 120)]
    (step,) = StepPartition(warmup_steps=0).feed(events)
    assert (step.started, phases(step)) == (0, {FORWARD: 20, BACKWARD: 20, EVALUATION: 20, OTHER: 40})
    (step,) = StepPartition(warmup_steps=0).feed([*plain_step(0), (EVALUATION_FORWARD, 90, 95), (DATA, 100, 110)])
    assert (step.phases[FORWARD], step.phases[EVALUATION]) == (25, 0)


def test_a_loop_without_gradients_is_a_step_for_each_update() -> None:
    """Evolution strategies set gradients by hand: their forwards are work, in whatever mode, once a step has begun."""
    events: list[Event] = []
    for start in (0, 100, 200, 300):
        events += [(EVALUATION_FORWARD, start + 10, start + 40), (NO_GRAD_FORWARD, start + 50, start + 60)]
        events += [(OPTIMIZER_STEP | 5 << 8, start + 80, start + 90)]
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [(step.started, step.ended) for step in steps] == [(90, 190), (190, 290)]
    assert phases(steps[1]) == {FORWARD: 40, OPTIMIZER: 10, OTHER: 50}


def of(kind: int, thing: int) -> int:
    """The code of an interval that is of a loader or an optimizer."""
    return kind | thing << IDENTITY_SHIFT


def test_the_first_fetch_begins_where_its_iterator_is_made() -> None:
    """Workers are started there, and the wait for them is data of the step that trains on the batch."""
    first: list[Event] = [(of(ITERATOR, 7), 100, 130), (of(DATA, 7), 132, 140), (FIRST_BATCH, 140, 140)]
    _, step = StepPartition(warmup_steps=0).feed([*plain_step(0), *first, *plain_step(200)[1:], (DATA, 300, 310)])
    assert (step.started, step.first_batch, step.phases[DATA]) == (100, 38, 38)


def test_an_iterator_that_was_made_long_before_begins_no_step() -> None:
    """Something else was fetched, or trained, before its first fetch."""
    fetched: list[Event] = [(of(ITERATOR, 7), 100, 130), (DATA, 130, 140), (of(DATA, 7), 140, 150)]
    _, step = StepPartition(warmup_steps=0).feed([*plain_step(0), *fetched, *plain_step(200)[1:], (DATA, 300, 310)])
    assert (step.started, step.phases[DATA]) == (130, 20)
    trained: list[Event] = [(of(ITERATOR, 7), 20, 30), (FORWARD, 40, 50), (BACKWARD, 50, 60), (UPDATE, 70, 70)]
    first, second = StepPartition(warmup_steps=0).feed(
        [(FORWARD, 0, 5), *trained, (of(DATA, 7), 100, 110), *plain_step(110)[1:], (DATA, 200, 210)]
    )
    assert (first.ended, second.started, second.phases[DATA]) == (100, 100, 10)


def test_optimizers_that_take_turns_are_one_step_without_a_loader() -> None:
    """Once an optimizer has updated twice, all that update in a step are known."""
    events: list[Event] = []
    for start in range(0, 400, 100):
        for place, optimizer in ((start, 1), (start + 40, 2)):
            events += [(FORWARD, place, place + 10), (BACKWARD, place + 10, place + 20)]
            events.append((of(OPTIMIZER_STEP, optimizer), place + 20, place + 30))
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [(step.started, step.ended) for step in steps] == [(0, 100), (100, 200), (200, 300)]
    assert [phases(step) for step in steps] == [{FORWARD: 20, BACKWARD: 20, OPTIMIZER: 20, OTHER: 40}] * 3


@pytest.mark.parametrize(
    ("updates", "steps"),
    [
        # Tasks with an optimizer each, the third where the first one was in memory; epochs of an actor and its critic.
        ((1, 1, 1, 2, 2, 2, 1, 1, 1), 9),
        # A critic that updates three times for each update of a generator, which is of its last step.
        ((1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2), 9),
        ((1, 2, 1, 2, 1, 2), 3),
    ],
    ids=["each by itself", "one by itself", "in turns"],
)
def test_of_two_optimizers_that_go_on_by_themselves_each_update_is_a_step(updates: tuple[int, ...], steps: int) -> None:
    """Neither is of a step of the other. One that never updates twice in succession is."""
    events: list[Event] = []
    for place, optimizer in enumerate(updates):
        at = 100 * place
        events += [
            (FORWARD, at, at + 10),
            (BACKWARD, at + 10, at + 20),
            (of(OPTIMIZER_STEP, optimizer), at + 20, at + 30),
        ]
    partition = StepPartition(warmup_steps=0)
    assert len(partition.feed(events) + partition.finish()) == steps


def test_a_forward_behind_the_update_is_of_the_step_whose_batch_it_has() -> None:
    """Such as for a metric; where nothing is fetched, a forward begins the next step."""
    events: list[Event] = []
    for start in (0, 100, 200):
        events += [(of(DATA, 7), start, start + 10), (FORWARD, start + 10, start + 20)]
        events += [(BACKWARD, start + 20, start + 30), (of(OPTIMIZER_STEP, 1), start + 30, start + 40)]
        events.append((FORWARD, start + 50, start + 70))
    steps = StepPartition(warmup_steps=0).feed(events)
    assert [(step.started, step.ended, step.phases[FORWARD]) for step in steps] == [(0, 100, 30), (100, 200, 30)]


def test_an_evaluation_that_is_left_before_its_end_ends_where_training_goes_on() -> None:
    """In a loop without a loader, after whose update a few batches are evaluated."""
    events: list[Event] = []
    for start in (0, 200):
        events += [(FORWARD, start, start + 20), (BACKWARD, start + 20, start + 40), (UPDATE, start + 50, start + 50)]
        for place in (start + 100, start + 120):
            events += [(of(DATA, 7), place, place + 5), (EVALUATION_FORWARD, place + 5, place + 18)]
    events += [(FORWARD, 400, 420), (UPDATE, 430, 430), (DATA, 500, 510)]
    _, step, _ = StepPartition(warmup_steps=0).feed(events)
    assert (step.started, step.intervals[0]) == (100, (EVALUATION, 100, 200))
    assert phases(step) == {EVALUATION: 100, FORWARD: 20, BACKWARD: 20, OTHER: 60}
