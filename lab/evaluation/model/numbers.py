"""What the script logs of a run: loss, gradients, and what of them was not finite."""

from __future__ import annotations

import numpy as np

from lab.evaluation.model.faults import NotFinite, Spike
from lab.evaluation.model.job import Job
from lab.evaluation.model.rows import Rows, add
from lab.evaluation.model.steps import Moment


def number_rows(job: Job, moment: Moment, random: np.random.Generator, *, start: float, time: float) -> Rows:
    """Return what the ranks logged last; nothing before the first step."""
    rows: Rows = {}
    numbers, ranks = job.numbers, len(moment.steps)
    if numbers is None:
        return rows
    loss = numbers.last + (numbers.first - numbers.last) * 0.5 ** ((time - start) / numbers.half)
    found = {"loss": loss, "gradient": numbers.norm}
    for spike in job.of(Spike):
        if spike.at(time):
            found[spike.number] *= spike.factor
    there = np.where(moment.steps > 0, 1.0, np.nan)
    for kind, name in (("loss", "training_loss"), ("gradient", "training_gradient_norm")):
        noise = np.exp(numbers.noise * (1 if kind == "loss" else 5) * random.standard_normal(ranks))
        add(rows, ranks, name, there * found[kind] * noise)
        count = 0.0
        for fault in job.of(NotFinite):
            if fault.number == kind and time >= fault.begin >= start:
                count += fault.times(time, fault.rate)
        add(rows, ranks, "training_nonfinite_total", count, training_value=kind)
        if kind == "gradient" and numbers.scaler:
            # A scaler tries a larger scale every so many steps, too.
            add(rows, ranks, "training_steps_skipped_total", count + np.floor(moment.steps / 2000))
    return rows
