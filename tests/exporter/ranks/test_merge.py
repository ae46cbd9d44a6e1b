"""Pages of ranks are one valid page, whatever one of them holds."""

from __future__ import annotations

import pytest

from laggard_exporter.ranks.merge import InvalidPageError, Merged
from tests.exporter.ranks.serving import PAGE
from tests.exporter.support import parse, promtool_check


def page(rank: int, run: str = "run-1") -> str:
    """Return the page of a rank."""
    return PAGE.format(rank=rank, run=run, steps=10 + rank)


def test_families_stand_once_with_the_series_of_all() -> None:
    """Names, labels and values are those of the pages; what does not say whose it is gets run and rank."""
    merged = Merged()
    for rank in (0, 1):
        assert merged.add(page(rank), "run-1", rank) == ""
    text = merged.text()
    expected = {
        series if "training_rank" in series else f'{series[:-1]},training_rank="{rank}",training_run="run-1"}}': value
        for rank in (0, 1)
        for series, value in parse(page(rank)).items()
    }
    assert parse(text) == expected
    assert len(expected) == 2 * 8
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in page(0).splitlines() if line.startswith("#")
    ]
    assert promtool_check(text.replace('le="1.0"', 'le="1"')) == ""


def test_a_name_of_several_types_has_none() -> None:
    """Two ranks that serve a name as different types lose their metadata and no series."""
    merged = Merged()
    merged.add("# TYPE a histogram\na_sum 1\na_count 1\n", "r", 0)
    merged.add('# TYPE a summary\na_sum 2\na_count 1\n# TYPE b gauge\nb{c="d"} 1\n', "r", 1)
    assert merged.text() == (
        'a_sum{training_run="r",training_rank="0"} 1\n'
        'a_count{training_run="r",training_rank="0"} 1\n'
        'a_sum{training_run="r",training_rank="1"} 2\n'
        'a_count{training_run="r",training_rank="1"} 1\n'
        "# HELP b \n# TYPE b gauge\n"
        'b{c="d",training_run="r",training_rank="1"} 1\n'
    )


def test_a_rank_speaks_of_itself() -> None:
    """A series of another rank or run is left out and named; names that need escapes are the rank's own."""
    merged = Merged()
    run = 'a"b\\c\nd'
    own = r'training_run="a\"b\\c\nd"'
    text = f'x{{training_rank="1",{own}}} 1\ny{{training_rank="2",{own}}} 1\nz{{training_run="run-2"}} 1\n'
    assert merged.add(text, run, 1) == "z"
    assert merged.text() == f'x{{training_rank="1",{own}}} 1\n'


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "x 1 1700000000000",
        "x one",
        "x 1e999",
        'x{a="b} 1',
        'x{a="b",a="c"} 1',
        'x{__name__="up"} 1',
        r'x{a="\q"} 1',
        'x{a="b"}1',
        "x{a=b} 1",
        "laggard_exporter_build_info 1",
        "# TYPE training_steps_total counter\n# TYPE x gauge\nx 1\n# TYPE x counter",
    ],
)
def test_a_bad_line_costs_its_page_alone(line: str) -> None:
    """A page with a line that Prometheus would refuse, or that is not the rank's to say, is refused as a whole."""
    merged = Merged()
    merged.add(page(0), "run-1", 0)
    before = merged.text()
    with pytest.raises(InvalidPageError):
        merged.add(f"{page(1)}{line}\n", "run-1", 1)
    assert merged.text() == before
