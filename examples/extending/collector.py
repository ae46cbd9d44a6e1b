"""Collector ``descriptors``: open files of the host, of which loaders with many workers run out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from laggard_exporter.entry import Entry
from laggard_exporter.host.families import family
from laggard_exporter.runner import UnsupportedError
from laggard_exporter.samples import Sample

OPEN = family("file_descriptors", "gauge", "Open files of all processes. Source: /proc/sys/fs/file-nr.")
LIMIT = family("file_descriptors_limit", "gauge", "Files that may be open. Source: as above.")


class DescriptorsCollector:
    """Yields ``/proc/sys/fs/file-nr``."""

    name = "descriptors"

    def __init__(self, procfs: Path, host: str) -> None:
        self._path = procfs / "sys" / "fs" / "file-nr"
        self._host = host

    def collect(self) -> Iterator[Sample]:
        """Yield what is open and what may be. What else this raises counts as a failure of the collector alone."""
        try:
            opened, _unused, limit = self._path.read_text(encoding="ascii").split()
        except FileNotFoundError:
            raise UnsupportedError(f"{self._path} does not exist") from None
        yield Sample(OPEN, (self._host,), int(opened))
        yield Sample(LIMIT, (self._host,), int(limit))


#: For the table in ``laggard_exporter/collectors.py``, from which flags and documents are made.
ENTRY = Entry(
    "open files of the host, and how many there may be",
    (OPEN, LIMIT),
    lambda options: DescriptorsCollector(options.procfs, options.host),
)
