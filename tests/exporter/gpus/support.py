"""What the tests of every vendor's collector ask of the samples of its GPUs."""

from __future__ import annotations

import re
import time

from tests.exporter.support import GpuProbe, series_name

#: How long calls may take in the tests of faults, in seconds: long enough for a machine that does much else.
GROUP_SECONDS = 0.4
#: What a scrape may take with a fault or two in it.
SCRAPE_SECONDS = 5.5
#: Longer than any GPU is left alone.
LATER = 1300

_STATUS = re.compile(r'laggard_exporter_(?:nvml|amd_smi)_status{.*status="([^"]+)"}')
_FAILURES = re.compile(r'laggard_exporter_(?:nvml|amd_smi)_(?:errors|values_rejected)_total{\w+="([^"]+)"}')
_TIMEOUTS = re.compile(r'laggard_exporter_(?:nvml|amd_smi)_call_timeouts_total{\w+="([^"]+)"}')


def gpu(name: str, uuid: str, /, **labels: str) -> str:
    """Return the name of a GPU's series."""
    return series_name(name, {"uuid": uuid, **labels}.items())


def about(samples: dict[str, float], uuid: str) -> dict[str, float]:
    """Return the samples of one GPU."""
    return {series: value for series, value in samples.items() if f'uuid="{uuid}"' in series}


def _of(samples: dict[str, float], series: re.Pattern[str]) -> dict[str, float]:
    found = ((series.fullmatch(name), value) for name, value in samples.items())
    return {match[1]: value for match, value in found if match and value}


def status(samples: dict[str, float]) -> str:
    """Return the one state of the session that is 1."""
    (state,) = _of(samples, _STATUS)
    return state


def failures(samples: dict[str, float]) -> dict[str, float]:
    """Return the failed calls by function and the rejected values by metric, without zeros."""
    return _of(samples, _FAILURES)


def timeouts(samples: dict[str, float]) -> dict[str, float]:
    """Return the calls that never returned, by function, without zeros."""
    return _of(samples, _TIMEOUTS)


def timed(probe: GpuProbe, later: float = 0, limit: float = SCRAPE_SECONDS) -> dict[str, float]:
    """Scrape and check that it was answered in time."""
    started = time.monotonic()
    samples = probe.collect(later=later)
    assert time.monotonic() - started < limit
    return samples
