"""Whose a fetch is and where a step ends: loops of every shape, made at random, and what is right known beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard._events import (
    EVALUATION_FORWARD,
    EXHAUSTED,
    FIRST_BATCH,
    GRADIENT,
    IDENTITY_SHIFT,
    ITERATOR,
    NO_GRAD_FORWARD,
    OPTIMIZER_STEP,
    STEP_BEGIN,
    STEP_END,
    Event,
)
from laggard._partition import StepPartition
from laggard.shared.phases import Phase

#: Numbers of the loaders.
LABELLED, UNLABELLED, VALIDATION, TEST = 1, 2, 3, 4


@dataclass(frozen=True)
class Loop:
    """How a loop is written."""

    epochs: int
    batches: int
    """Updates of an epoch."""
    accumulated: int
    """Batches of an update."""
    fetches_first: bool
    """Whether all batches of an update are fetched before the first of them is used, as Hugging Face's Trainer does."""
    two_loaders: bool
    labels: str
    """Where pseudo-labels are made: not at all, between the fetches of the two loaders, or after both."""
    optimizers: int
    """Each has a forward and a backward of its own on the same batch."""
    evaluates_every: int
    evaluated: int
    """Batches of an evaluation."""
    collects: bool
    """Whether an evaluation fetches all of its batches, and finds their end, before it uses the first."""
    leaves_early: bool
    two_evaluated: bool
    """Whether an evaluation goes through two loaders side by side."""
    in_training_mode: bool
    """Whether the evaluation leaves the module's mode as it is."""
    gradients: bool
    """Whether the forwards of the evaluation have gradients, as where a script forgets to switch them off."""
    forces: bool
    """Whether the evaluation takes gradients, and accumulates none."""
    sanity_check: bool
    """Whether an evaluation comes before all training."""
    makes: str
    """How iterators are made: in no time, each before its first fetch, or all of a loop before the first fetch."""
    gap: int
    """Host work behind each call."""


LOOPS = (
    st.builds(
        Loop,
        epochs=st.integers(1, 3),
        batches=st.integers(2, 5),
        accumulated=st.integers(1, 3),
        fetches_first=st.booleans(),
        two_loaders=st.booleans(),
        labels=st.sampled_from(["", "between", "after"]),
        optimizers=st.integers(1, 2),
        evaluates_every=st.integers(1, 4),
        evaluated=st.integers(1, 4),
        collects=st.booleans(),
        leaves_early=st.booleans(),
        two_evaluated=st.booleans(),
        in_training_mode=st.booleans(),
        gradients=st.booleans(),
        forces=st.booleans(),
        sanity_check=st.booleans(),
        makes=st.sampled_from(["", "each", "together"]),
        gap=st.integers(0, 3),
        # A single batch is an evaluation's where training is known, and has no gradients.
    )
    .filter(lambda loop: loop.evaluated > 1 or loop.collects or not (loop.sanity_check or loop.gradients))
    .filter(lambda loop: not (loop.collects and (loop.leaves_early or loop.two_evaluated or loop.gradients)))
)


@dataclass
class Script:
    """Runs a loop: makes the events, and counts what each moment was for."""

    loop: Loop
    now: int = 0
    events: list[Event] = field(default_factory=list[Event])
    spent: Counter[str] = field(default_factory=Counter[str])
    evaluating: bool = False
    updated: bool = False
    whole: Counter[str] = field(default_factory=Counter[str])
    """What was spent until the newest step ended: at the first fetch after its update."""

    def call(self, code: int, duration: int, phase: Phase) -> None:
        """Call something, and do some host work behind it."""
        self.events.append((int(code), self.now, self.now + duration))
        self.now += duration
        self.spent["evaluation" if self.evaluating else phase.label] += duration
        self.work()

    def work(self) -> None:
        """Do host work. Behind the last batch of an evaluation it is the evaluation's, until training goes on."""
        self.now += self.loop.gap
        self.spent["evaluation" if self.evaluating else "other"] += self.loop.gap

    def make(self, *loaders: int) -> None:
        """Make iterators, which starts workers."""
        self.start_over()
        for loader in loaders:
            self.events.append((ITERATOR | loader << IDENTITY_SHIFT, self.now, self.now + 19))
            self.now += 19
            self.spent["evaluation" if self.evaluating else "data"] += 19
            self.work()

    def start_over(self) -> None:
        """The step ends here if it has its update."""
        if self.updated:
            self.updated = False
            self.whole = self.spent.copy()

    def fetch(self, loader: int, mark: int = 0) -> None:
        """Fetch a batch, or find the end."""
        if mark == FIRST_BATCH and self.loop.makes == "each":
            self.make(loader)
        self.start_over()
        self.events.append((Phase.DATA | loader << IDENTITY_SHIFT, self.now, self.now + 7))
        self.now += 7
        self.spent["evaluation" if self.evaluating else "data"] += 7
        if mark:
            self.events.append((mark, self.now, self.now))
        self.work()

    def evaluate(self) -> None:
        """Go through the validation set, or the beginning of it."""
        loop = self.loop
        loaders = [VALIDATION, TEST] if loop.two_evaluated else [VALIDATION]
        self.evaluating = True
        if loop.makes == "together":
            self.make(*loaders)
        if loop.collects:
            for number in range(loop.evaluated):
                self.fetch(VALIDATION, 0 if number else FIRST_BATCH)
            self.fetch(VALIDATION, EXHAUSTED)
        for number in range(loop.evaluated):
            for loader in [] if loop.collects else loaders:
                self.fetch(loader, 0 if number else FIRST_BATCH)
            without = NO_GRAD_FORWARD if loop.in_training_mode else EVALUATION_FORWARD
            self.call(Phase.FORWARD if loop.gradients else without, 11, Phase.EVALUATION)
            if loop.forces:
                self.call(GRADIENT, 5, Phase.EVALUATION)
        if not (loop.leaves_early or loop.collects):
            self.fetch(loaders[0], EXHAUSTED)

    def use(self) -> None:
        """Train on a batch."""
        self.evaluating = False
        if self.loop.labels == "after":
            self.call(NO_GRAD_FORWARD, 3, Phase.FORWARD)
        self.call(Phase.FORWARD, 13, Phase.FORWARD)
        self.call(Phase.BACKWARD, 17, Phase.BACKWARD)

    def batch(self, *, first: bool) -> None:
        """Fetch what one forward needs."""
        self.evaluating = False
        if first and self.loop.makes == "together":
            self.make(*[LABELLED, UNLABELLED][: 1 + self.loop.two_loaders])
        self.fetch(LABELLED, FIRST_BATCH if first else 0)
        if self.loop.two_loaders:
            if self.loop.labels == "between":
                self.call(NO_GRAD_FORWARD, 3, Phase.FORWARD)
            self.fetch(UNLABELLED, FIRST_BATCH if first else 0)

    def update(self, *, first: bool) -> None:
        """Make one step."""
        loop = self.loop
        ahead = loop.accumulated if loop.fetches_first else 1
        for number in range(loop.accumulated):
            if number % ahead == 0:
                for fetched in range(ahead):
                    self.batch(first=first and number == fetched == 0)
            for _ in range(loop.optimizers):
                self.use()
        for optimizer in range(loop.optimizers):
            self.call(OPTIMIZER_STEP | (optimizer + 1) << IDENTITY_SHIFT, 2, Phase.OPTIMIZER)
        self.updated = True

    def run(self) -> Iterator[int]:
        """Train; yield the number of each update."""
        loop = self.loop
        if loop.sanity_check:
            self.evaluate()
        number = 0
        for _ in range(loop.epochs):
            for step in range(loop.batches):
                self.update(first=step == 0)
                number += 1
                yield number
                if number % loop.evaluates_every == 0:
                    self.evaluate()
            self.evaluating = False
            self.fetch(LABELLED, EXHAUSTED)


@given(LOOPS)
@settings(max_examples=400, deadline=None)
def test_steps_are_the_updates_and_each_moment_is_what_it_was_for(loop: Loop) -> None:
    """However a loop fetches, labels, accumulates and evaluates: steps and phases are those of the script, exactly."""
    script = Script(loop)
    updates = max(script.run())
    partition = StepPartition(warmup_steps=0)
    steps = [step for event in script.events for step in partition.feed([event])]
    assert len(steps) == updates
    spent: Counter[str] = Counter()
    for step in steps:
        assert sum(step.phases) == step.duration
        spent.update({phase.label: step.phases[phase] for phase in Phase if step.phases[phase]})
    assert spent == +script.whole


def test_an_evaluation_before_all_training_is_none_of_it_though_a_batch_is_out() -> None:
    """Nanochat fetches its first batch, evaluates, and trains on that batch: it is the one that leads to the update."""
    partition = StepPartition(warmup_steps=0)
    events: list[Event] = []
    now = 0

    def call(code: int, loader: int = 0) -> None:
        nonlocal now
        events.append((code | loader << IDENTITY_SHIFT, now, now + 10))
        now += 10

    call(Phase.DATA, LABELLED)
    for _ in range(3):
        call(Phase.DATA, VALIDATION)
        call(EVALUATION_FORWARD)
    call(Phase.DATA, VALIDATION)
    events.append((EXHAUSTED, now, now))
    call(EVALUATION_FORWARD)
    for code in (Phase.FORWARD, Phase.BACKWARD):
        call(code)
    call(OPTIMIZER_STEP)
    call(Phase.DATA, LABELLED)
    (step,) = partition.feed(events)
    spent = {phase: step.phases[phase] for phase in Phase if step.phases[phase]}
    assert spent == {
        Phase.DATA: 10,
        Phase.EVALUATION: 80,
        Phase.FORWARD: 10,
        Phase.BACKWARD: 10,
        Phase.OPTIMIZER: 10,
    }


@pytest.mark.parametrize("validates", [False, True])
def test_a_pass_whose_loss_is_summed_is_training(validates: bool) -> None:  # noqa: FBT001 - of pytest
    """Its backward follows its end, so no batch is out; an evaluation of the same kind ends without one."""
    events: list[Event] = []
    now = 0

    def call(code: int, loader: int = 0) -> None:
        nonlocal now
        events.append((code | loader << IDENTITY_SHIFT, now, now + 10))
        now += 10

    def go_through(loader: int) -> None:
        for batch in range(3):
            call(Phase.DATA, loader)
            if not batch:
                events.append((FIRST_BATCH, now, now))
            call(Phase.FORWARD)
        call(Phase.DATA, loader)
        events.append((EXHAUSTED, now, now))

    for _ in range(3):
        go_through(LABELLED)
        call(Phase.BACKWARD)
        call(OPTIMIZER_STEP)
        if validates:
            go_through(VALIDATION)
    steps = StepPartition(warmup_steps=0).feed([*events, (Phase.DATA | LABELLED << IDENTITY_SHIFT, now, now + 10)])
    spent = [{phase: step.phases[phase] for phase in Phase if step.phases[phase]} for step in steps]
    trained = {Phase.DATA: 40, Phase.FORWARD: 30, Phase.BACKWARD: 10, Phase.OPTIMIZER: 10}
    assert spent[:2] == [trained, {**trained, Phase.EVALUATION: 70} if validates else trained]


@pytest.mark.parametrize("teachers", [0, 1])
def test_what_an_evaluation_has_read_is_trained_on_later(teachers: int) -> None:
    """Folds, clients of a federation, data of a next task: an iterator is training data from its first batch on."""
    events: list[Event] = []
    now = 0

    def go_through(loader: int, *codes: int) -> None:
        nonlocal now
        for code in (Phase.DATA | loader << IDENTITY_SHIFT, *codes):
            events.append((code, now, now + 10))
            if code & 15 == Phase.DATA:
                events.append((FIRST_BATCH, now + 10, now + 10))
            now += 10
        events.extend([(Phase.DATA | loader << IDENTITY_SHIFT, now, now + 5), (EXHAUSTED, now + 5, now + 5)])
        now += 5

    training = (*[EVALUATION_FORWARD] * teachers, Phase.FORWARD, Phase.BACKWARD, OPTIMIZER_STEP)
    go_through(LABELLED, *training)
    go_through(VALIDATION, EVALUATION_FORWARD)
    for _ in range(2):
        go_through(VALIDATION, *training)
    steps = StepPartition(warmup_steps=0).feed([*events, (Phase.DATA | VALIDATION << IDENTITY_SHIFT, now, now + 10)])
    assert [step.phases[Phase.EVALUATION] for step in steps] == [0, 25, 0]
    assert [step.phases[Phase.FORWARD] for step in steps] == [10 + 10 * teachers] * 3


def test_a_named_step_trains_whatever_it_updates_with() -> None:
    """Gradients of torch.func and an update by hand leave no trace but forwards, as an evaluation of forces does."""
    events: list[Event] = []
    for now in range(0, 120, 40):
        fetch = (Phase.DATA | LABELLED << IDENTITY_SHIFT, now, now + 10)
        calls = [(Phase.FORWARD, now + 10, now + 20), (GRADIENT, now + 20, now + 30)]
        events += [(STEP_BEGIN, now, now), fetch, *calls, (STEP_END, now + 35, now + 35)]
    steps = StepPartition(warmup_steps=0).feed(events)
    spent = [{phase: step.phases[phase] for phase in Phase if step.phases[phase]} for step in steps]
    assert spent == [{Phase.DATA: 10, Phase.FORWARD: 10, Phase.BACKWARD: 10, Phase.OTHER: 5}] * 3
