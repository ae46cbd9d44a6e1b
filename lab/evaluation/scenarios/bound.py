"""Runs that wait for data, or for the network."""

from __future__ import annotations

from typing import Any

from lab.evaluation.draw import Draw
from lab.evaluation.model.faults import Supply, Transfer
from lab.evaluation.model.job import Case, Expectation, Loader, Pause
from lab.evaluation.scenarios.healthy import well
from lab.evaluation.scenarios.registry import drawn, scenario
from laggard.shared.phases import Phase


def _input(draw: Draw, *, busy: bool | None = None, **changes: Any) -> Case:
    """Return a case in which loaders are slow, because their workers compute, or because they wait for storage."""
    factor, begin = draw.between(1.35, 3.0, evenly=False), draw.begin()
    workers, share = int(draw.random.integers(2, 9)), draw.between(0.3, 0.8)
    busy = draw.chance(0.5) if busy is None else busy
    computing = draw.between(0.82, 0.97) if busy else draw.between(0.1, 0.5)
    return Case(
        draw.job(
            begin + max(900.0, draw.patience(factor) + 600) + 480,
            loader=Loader(workers, share=share, computing=computing),
            faults=(Supply(begin=begin, factor=factor),),
            **changes,
        ),
        expected=(
            Expectation("TrainingInputBound", begin=begin),
            Expectation("TrainingInputWorkersBusy" if busy else "TrainingInputStorageSlow", begin=begin),
        ),
        near=(
            "TrainingStraggler",
            "TrainingCommunicationBound",
            "TrainingInputStorageSlow" if busy else "TrainingInputWorkersBusy",
        ),
        facts={"effect": factor},
    )


@scenario
def input_bound(draw: Draw) -> Case:
    """All loaders deliver too slowly."""
    return _input(draw)


@scenario
def input_bound_noisy(draw: Draw) -> Case:
    """All loaders deliver too slowly, and steps vary by 20 %."""
    return _input(draw, cv=0.2, common=0.1)


@scenario
def input_bound_pauses(draw: Draw) -> Case:
    """All loaders deliver too slowly, and checkpoints come often."""
    return _input(draw, pauses=(Pause(Phase.CHECKPOINT, draw.between(180, 300), draw.between(5, 30), alone=True),))


@scenario
def input_bound_pushed(draw: Draw) -> Case:
    """All loaders deliver too slowly, and no node exporter is there."""
    return _input(draw, push=True, exporter=False)


@drawn(8)
def workers_busy(draw: Draw) -> Case:
    """All loaders deliver too slowly, since decoding takes long."""
    return _input(draw, busy=True)


@drawn(8)
def storage_slow(draw: Draw) -> Case:
    """All loaders deliver too slowly, since they wait for storage."""
    return _input(draw, busy=False)


@scenario
def nearly_input_bound(draw: Draw) -> Case:
    """All loaders deliver a little too slowly: up to a tenth of the step."""
    return well(
        draw,
        near=("TrainingInputBound", "TrainingStraggler", "TrainingInputWorkersBusy", "TrainingInputStorageSlow"),
        minutes=14,
        loader=Loader(4, share=0.6, computing=draw.between(0.1, 0.97)),
        faults=(Supply(begin=draw.begin(), factor=draw.between(1.0, 1.1)),),
    )


def long_transfer(draw: Draw, *, slow: float = 1.0, **changes: Any) -> Case:
    """Return a case in which the transfer takes long, beside ranks that make the step so much longer."""
    draw.shorten(4.0)
    share, begin = draw.between(0.27, 0.67), draw.begin()
    step = draw.plain.own * slow / (1 - share)
    # The least wait of 256 steps tells, so as many must have gone by.
    horizon = begin + 256 * step + max(900.0, draw.patience(slow / (1 - share)) + 600) + 300
    return Case(
        draw.job(horizon, faults=(Transfer(begin=begin, share=share), *changes.pop("faults", ())), **changes),
        expected=(Expectation("TrainingCommunicationBound", begin=begin),),
        near=("TrainingStraggler", "TrainingInputBound"),
        facts={"effect": 1 / (1 - share)},
    )


@scenario
def communication_bound(draw: Draw) -> Case:
    """The transfer takes long."""
    return long_transfer(draw)


@scenario
def communication_bound_noisy(draw: Draw) -> Case:
    """The transfer takes long, and steps vary by 20 %."""
    return long_transfer(draw, cv=0.2)


@scenario
def communication_bound_pauses(draw: Draw) -> Case:
    """The transfer takes long, and checkpoints come often."""
    return long_transfer(
        draw, pauses=(Pause(Phase.CHECKPOINT, draw.between(180, 300), draw.between(5, 30), alone=True),)
    )


@scenario
def communication_bound_pushed(draw: Draw) -> Case:
    """The transfer takes long, and no node exporter is there."""
    return long_transfer(draw, push=True, exporter=False)


@scenario
def nearly_communication_bound(draw: Draw) -> Case:
    """The transfer takes up to 15 % of the step, now the same in each and now not."""
    share, cv = draw.between(0.12, 0.15), draw.between(0.01, 0.1)
    return well(draw, near=("TrainingCommunicationBound",), minutes=14, transfer=share, transfer_cv=cv)
