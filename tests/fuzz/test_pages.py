"""Whatever a rank serves, the page of all ranks is one that Prometheus takes, with all that the other ranks serve."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard_exporter.ranks.merge import InvalidPageError, Merged
from tests.exporter.ranks.serving import PAGE
from tests.exporter.support import parse
from tests.fuzz.test_parsers import fuzz, outcome

_GOOD = PAGE.format(rank=0, run="run-1", steps=1)
_PIECES = st.one_of(
    st.sampled_from([*PAGE.format(rank=1, run="run-1", steps=1).splitlines(keepends=True), *'{}",=#\\ \n', "1", "NaN"]),
    st.sampled_from(
        ["# TYPE ", "# HELP ", "gauge\n", "x", 'a="b"', "training_rank=", '"1"', "1e999", "-Inf", "\r", "\0"]
    ),
    st.text(max_size=4),
)


@fuzz
@given(st.lists(_PIECES, max_size=12).map("".join))
def test_a_page_costs_no_other(page: str) -> None:
    """A page is merged or refused; no series comes twice, and the good page is there as it was."""
    merged = Merged()
    merged.add(_GOOD, "run-1", 0)
    before = parse(merged.text())
    outcome(lambda: merged.add(page, "run-1", 1), InvalidPageError)
    # A rank may serve a series twice: Prometheus takes the first.
    lines = list(dict.fromkeys(merged.text().splitlines()))
    unique = {line.rpartition(" ")[0]: line for line in reversed(lines) if not line.startswith("#")}
    after = parse("".join(f"{line}\n" for line in unique.values()))
    assert before.items() <= after.items()
