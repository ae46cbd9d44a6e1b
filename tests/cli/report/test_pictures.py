"""``laggard report``: pictures of ranks over time."""

from __future__ import annotations

import base64
import dataclasses
import zlib

import numpy as np

from laggard_cli.report import costs, heat, raster
from laggard_cli.report.page import page
from tests.cli.report.runs import run


def test_missing_is_said_and_is_not_zero() -> None:
    """A time without data is transparent in the picture, left out of means, and told; one without steps is grey."""
    report = run()
    assert any("Pictures show gaps" in said and "of rank 1 8%" in said for said in report.missing)
    history = report.history
    pixels = raster.shaded(costs.excess(history), 0.95, 1.5, history.reports)
    assert (pixels[1, 30:40, 3] == 0).all()
    assert (pixels[0, :, 3] == 255).all()
    still = dataclasses.replace(history, own=np.full_like(history.own, np.nan))
    assert raster.shaded(costs.excess(still), 0.95, 1.5, still.reports)[0, 0].tolist() == list(raster.STILL)


def test_the_culprit_is_brightest() -> None:
    """Its pixels in the second half, and no others, are at the upper end of the palette."""
    history = run().history
    pixels = raster.shaded(costs.excess(history), 0.95, 1.5, history.reports).astype(int)
    bright = pixels[..., 1] > 200
    assert bright[5, 60:].all()
    assert bright.sum() == bright[5, 60:].sum()


def test_a_picture_is_a_png() -> None:
    """Its header and pixels are those that were given."""
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    content = base64.b64decode(raster.data_uri(pixels).removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[16:24] == (3).to_bytes(4, "big") + (2).to_bytes(4, "big")
    place = content.index(b"IDAT")
    length = int.from_bytes(content[place - 4 : place], "big")
    rows = zlib.decompress(content[place + 4 : place + 4 + length])
    assert rows == b"\0" + pixels[0].tobytes() + b"\0" + pixels[1].tobytes()


def test_of_many_ranks_the_culprit_has_a_row_of_its_own() -> None:
    """512 ranks: the named one first, then groups, of which the one with the culprit shows its worst; below 3 MB."""
    report = run(512, 301, columns=240)
    rows = heat.rows_of(report.history, [each.problem for each in report.told])
    assert (rows[0].label, rows[0].marked) == ("rank 301", True)
    assert len(rows) < 64
    (group,) = (row for row in rows[1:] if row.marked)
    assert 301 in group.members
    values = heat.pooled(costs.excess(report.history), rows)
    assert values[rows.index(group), -1] == values[0, -1] > 1.6
    assert len(page(report).encode()) < 3e6 / 4
