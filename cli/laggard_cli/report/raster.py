"""Tables of numbers as pictures: one pixel a cell, so that a heat map of thousands of ranks stays small."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from laggard_cli.report.arrays import Array

#: Anchors of viridis (by Stéfan van der Walt and Nathaniel Smith, CC0): dark is little, bright is much. It reads alike
#: with every kind of colour blindness, and in grey.
ANCHORS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
#: What reports and ends no step. What does not report at all is transparent.
STILL = (150, 158, 166, 255)
#: Of places of a rank, in the order of history.PLACES: from a palette that colour-blind people tell apart.
PLACE_COLOURS = ("#0072b2", "#f0c75e", "#a2388c", "#c3381a", "#9aa3ad")

Pixels = NDArray[np.uint8]


def shaded(values: Array, low: float, high: float, reports: Array) -> Pixels:
    """Return colours for numbers, row by column: the palette from ``low`` to ``high``; no number, no colour."""
    palette = np.array([[int(each[at : at + 2], 16) for at in (1, 3, 5)] for each in ANCHORS], dtype=float)
    known = np.isfinite(values)
    place = np.minimum(np.maximum((np.where(known, values, low) - low) / (high - low), 0), 1) * (len(ANCHORS) - 1)
    first = np.minimum(place.astype(int), len(ANCHORS) - 2)
    part = (place - first)[..., None]
    pixels = np.zeros((*values.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.rint(palette[first] * (1 - part) + palette[first + 1] * part)
    pixels[..., 3] = 255
    pixels[~known] = np.where(np.isfinite(reports[~known])[:, None], np.array(STILL), 0)
    return pixels


def placed(places: Array) -> Pixels:
    """Return colours for places of ranks."""
    colours = np.array([[int(each[at : at + 2], 16) for at in (1, 3, 5)] for each in PLACE_COLOURS], dtype=np.uint8)
    pixels = np.zeros((*places.shape, 4), dtype=np.uint8)
    known = np.isfinite(places)
    pixels[known, :3] = colours[places[known].astype(np.int64)]
    pixels[known, 3] = 255
    return pixels


def data_uri(pixels: Pixels) -> str:
    """Return a picture as PNG, in an address that needs no network."""
    height, width = pixels.shape[:2]
    # Before each row stands how it is filtered: not at all.
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
