"""A server that rounds begin and end of a range down to multiples of its step, as query frontends do."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator

import pytest

from laggard_cli.clusters import Run
from laggard_cli.diagnose import ended
from laggard_cli.errors import CommandError
from laggard_cli.prometheus import Prometheus
from laggard_cli.report.span import find
from tests.support.answering import Answer, answering

RUN = Run("", "a")
_WINDOW = re.compile(r"present_over_time\(.*\[(\d+)s\]")


@pytest.fixture
def lived(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Prometheus, float, float]]:
    """Yield the server, and since and until when its only run was there: for the last minutes before now."""
    now = 1_800_000_000.0 + 290.0  # ten seconds before a multiple of 300
    monkeypatch.setattr(time, "time", lambda: now)
    begin, end = now - 150, now - 20

    def answer(path: str, asked: dict[str, str]) -> Answer:
        window = _WINDOW.search(asked["query"])
        found: list[dict[str, object]] = []
        if path.endswith("query_range") and window:
            step = float(asked["step"])
            first, last = (math.floor(float(asked[edge]) / step) for edge in ("start", "end"))
            there = [
                moment
                for moment in (number * step for number in range(first, last + 1))
                if moment - float(window[1]) < end and moment >= begin
            ]
            found = [{"metric": {}, "values": [[moment, "1"] for moment in there]}] if there else []
        kind = "matrix" if path.endswith("query_range") else "vector"
        return Answer(json.dumps({"status": "success", "data": {"resultType": kind, "result": found}}).encode())

    with answering() as server, contextlib.closing(Prometheus(server.url)) as client:
        server.answer = answer
        yield client, begin, end


def test_a_report_has_all_of_a_young_run(lived: tuple[Prometheus, float, float]) -> None:
    """It is found, from its first second to its last."""
    server, begin, end = lived
    span = find(server, RUN, None, None, None)
    assert begin - span.step - 1 <= span.begin <= begin
    assert end <= span.end <= end + 2
    assert span.times[-1] == pytest.approx(span.end)


def test_a_time_before_the_run_has_none_of_it(lived: tuple[Prometheus, float, float]) -> None:
    """Nor has one that ends a few seconds before it begins."""
    server, begin, _ = lived
    with pytest.raises(CommandError, match="is not in Prometheus"):
        find(server, RUN, begin - 3600, begin - 5, None)


def test_the_end_of_a_run_is_its_last_second(lived: tuple[Prometheus, float, float]) -> None:
    """Of one that ended less than five minutes ago, too."""
    server, _, end = lived
    last = ended._last(server, RUN)
    assert last == pytest.approx(end, abs=1)
