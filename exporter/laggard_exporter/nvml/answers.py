"""What one GPU is asked in a scrape, all of it at once, and its raw answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laggard_exporter.gpus.child_process import Batch, Request
from laggard_exporter.gpus.readings import Call
from laggard_exporter.nvml import nvlink, table
from laggard_exporter.nvml.devices import NvidiaDevice
from laggard_exporter.nvml.library import FIELD_VALUES, FieldValues, Nvml
from laggard_exporter.nvml.plan import Plan
from laggard_exporter.nvml.table import Field, Source, part

#: NVML's type of a field that counts in 32 bits.
_UNSIGNED_INT = 1

# The driver's utilization is over a sixth of a second to a second (nvml.h, nvmlUtilization_t); half of it is no noise.
_UTILIZATION_SECONDS = 1.0
_BUSY_PERCENT = 50

#: The functions of nvidia-ml-py that a GPU is read with.
FUNCTIONS = (FIELD_VALUES, table.GPM, table.FAN, nvlink.STATE_FUNCTION, *Plan(details=True).functions)


class Inquiry:
    """What one GPU is asked in every scrape: made once, and again where what it depends on changes.

    All calls go to the other process together: each way there costs more than most calls.
    """

    def __init__(
        self, plan: Plan, device: NvidiaDevice, index: int, driver_release: int, further: Sequence[Request]
    ) -> None:
        table_fields, self.places = plan.fields_of(driver_release)
        self.index = index
        self.wanted = (*table_fields, *device.links.fields)
        self.calls = (*plan.first_calls, *device.substitutes)
        fans = [Request(table.FAN, index, (fan,)) for fan in range(device.fans)]
        links = device.links.requests(index)
        self.counts = (len(self.calls), len(fans), len(links))
        self.batch = Batch(
            [
                Request(FIELD_VALUES, index, (self.wanted,)),
                Request(table.GPM, index, (plan.gpm_numbers, None)),
                *(call.on(index) for call in self.calls),
                *fans,
                *links,
                *further,
            ]
        )


class Answers:
    """What one GPU answers in one scrape; several readings share one call. Construction asks, without waiting."""

    def __init__(self, plan: Plan, nvml: Nvml, device: NvidiaDevice, inquiry: Inquiry) -> None:
        self._plan = plan
        self._nvml = nvml
        self._device = device
        self._inquiry = inquiry
        self.index = inquiry.index
        self._question = nvml.send(inquiry.batch)
        #: By the places of the plan.
        self.raws: list[float | None] = [None] * len(plan.places)
        #: In the order of the links' fields.
        self.link_values: Sequence[float | None] = ()
        self.fans: list[int | None] = []
        self.links: list[Any] = []
        self.further: list[Any] = []
        #: Seconds of the performance monitor's window, 0 where a first one begins, None without a monitor.
        self.window: float | None = None
        self.is_new_window = False
        self._calls: dict[Call, Any] = {}
        self._activity: dict[int, float] = {}
        self._types: dict[int, int] = {}

    def receive(self) -> None:
        """Wait for the answers. Raises as :meth:`laggard_exporter.gpus.session.Session.queries`."""
        fields, activity, *answers = self._nvml.receive(self._question)
        calls, fans, links = self._inquiry.counts
        self._store_calls(answers[:calls])
        answers = answers[calls:]
        self.fans, self.links, self.further = answers[:fans], answers[fans : fans + links], answers[fans + links :]
        if activity is not None:
            self.window, self._activity, self.is_new_window = activity
            for number, place in self._plan.metric_places:
                self.raws[place] = self._activity.get(number)
        if fields is not None:
            self._store_fields(fields)

    def _store_calls(self, answers: list[Any]) -> None:
        answers = [table.answered(answer) if isinstance(answer, dict) else answer for answer in answers]
        self._calls = dict(zip(self._inquiry.calls, answers, strict=True))
        for parts, answer in zip(self._plan.parts, answers, strict=False):
            if answer is not None:
                for place, attribute in parts:
                    self.raws[place] = answer if attribute is None else answer[attribute]

    def _store_fields(self, answer: FieldValues) -> None:
        places = self._inquiry.places
        values = self._nvml.fields(answer, self._inquiry.wanted)
        self.link_values = values[len(places) :]
        self._types = dict(zip(places, answer[1], strict=False))
        for place, value in zip(places, values, strict=False):
            self.raws[place] = value

    def call(self, source: Call) -> Any:
        """Return what a call answers, or the part of it that the source names."""
        whole = source.whole
        if whole not in self._calls:
            # From now on it is asked together with the others.
            self._device.substitutes.add(whole)
            self._calls[whole] = table.answered(self._nvml.query(whole.on(self.index)))
        return part(self._calls[whole], source)

    def raw(self, source: Source) -> float | None:
        """Return the raw value of a source, None where there is none."""
        return self.call(source) if isinstance(source, Call) else self.raws[self._plan.places[source]]

    def is_word(self, source: Field) -> bool:
        """Return whether a field that has a value counts in 32 bits."""
        return self._types[self._plan.places[source]] == _UNSIGNED_INT

    def reject_activity(self) -> bool:
        """Forget what the performance monitor says where it cannot be true; return whether that is so.

        It may say that nothing runs while kernels do: DCGM's monitor after an XID 31 (NVIDIA/DCGM#303). Utilization is
        that of at most the last second, so a longer window without any activity contradicts it.
        """
        if self.is_new_window and (self.window or 0) >= _UTILIZATION_SECONDS:
            busy = (self.call(table.UTILIZATION) or 0) >= _BUSY_PERCENT
            self._device.is_monitor_dead = busy and not any(self._activity.get(number) for number in table.BUSY_METRICS)
        if self._activity and self._device.is_monitor_dead:
            self._activity = {}
            for _, place in self._plan.metric_places:
                self.raws[place] = None
            return True
        return False

    def rate(self, metric: int) -> float | None:
        """Return a metric of the performance monitor."""
        return self._activity.get(metric)
