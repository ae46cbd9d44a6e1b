"""``laggard-exporter doctor``: what works on this node, what does not, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from laggard.version import __version__
from laggard_exporter.collection import Collection
from laggard_exporter.collectors import COLLECTORS
from laggard_exporter.conventions import PREFIX
from laggard_exporter.gpus import conventions as gpus
from laggard_exporter.ranks.state import STATE_DIRECTORY_EXISTS, STATE_FILES
from laggard_exporter.runner import Outcome
from laggard_exporter.samples import Grouped

#: A collector has so many seconds: no scrape waits for the answer.
TIMEOUT = 20.0

WORKS, ABSENT, FAILS = "works", "absent", "fails"

#: The worst first.
_TITLES = {
    FAILS: "Fails:",
    WORKS: "Works:",
    ABSENT: "Not on this node:",
}

#: Sessions that are normal: the library works, or the node has no driver.
_NORMAL = {"available", "library_not_found", "driver_not_loaded"}

#: By collector: what says the state of its session, what counts its GPUs on the PCI bus, and its library.
_GPUS = {"nvml": (gpus.NVML.status, "pci", "NVML"), "amd_smi": (gpus.AMD_SMI.status, "pci_amd", "AMD SMI")}


@dataclass(frozen=True)
class Finding:
    """What is to be said about a collector."""

    collector: str
    status: str
    series: int
    detail: str
    missing: tuple[str, ...] = ()
    """Metrics of the collector that have no series here."""


def examine(collection: Collection) -> list[Finding]:
    """Run every collector once and return what is to be said of each."""
    return [finding(name, outcome) for name, outcome in collection.outcomes(timeout=TIMEOUT).items()]


def finding(name: str, outcome: Outcome) -> Finding:
    """Return what is to be said of a collector whose run ended so."""
    series = sum(len(values) for values in outcome.samples.values())
    if outcome.problem:
        return Finding(name, FAILS, series, outcome.problem.removeprefix(f"collector {name} "))
    if outcome.unsupported:
        return Finding(name, ABSENT, 0, outcome.unsupported)
    status, detail = WORKS, ""
    families = COLLECTORS[name].families
    if name in _GPUS:
        status, detail = _gpus(name, outcome.samples)
    elif name == "state":
        status, detail = _state(outcome.samples)
    elif not series:
        detail = "nothing to say now: no rank runs"
    return Finding(
        name,
        status,
        series,
        "; ".join(filter(None, (detail, *outcome.notes))),
        # Where there is no GPU and no rank, all of their metrics are missing and none is missed.
        tuple(family.name for family in families if family not in outcome.samples) if _present(outcome) else (),
    )


def _present(outcome: Outcome) -> bool:
    return any(not family.name.startswith(PREFIX) for family in outcome.samples)


def _gpus(name: str, samples: Grouped) -> tuple[str, str]:
    family, source, library = _GPUS[name]
    status = next((labels[0] for labels, value in samples.get(family, {}).items() if value), "unknown")
    if status == "available":
        return WORKS, _count(samples, "gpu_up", "GPU")
    if count := int(samples.get(gpus.GPU_DEVICES, {}).get((source,), 0)):
        return FAILS, f"the PCI bus shows {count} GPUs, {library} says {status}: is the driver loaded and readable?"
    return (ABSENT if status in _NORMAL else FAILS), f"{library} says {status}"


def _state(samples: Grouped) -> tuple[str, str]:
    if not samples.get(STATE_DIRECTORY_EXISTS, {}).get((), 0):
        return WORKS, "the folder of state files does not exist yet: the first rank on this node makes it"
    rejected = int(samples.get(STATE_FILES, {}).get(("rejected",), 0))
    ranks = _count(samples, "training_process_up", "rank")
    return WORKS, f"{ranks}, {rejected} files that are no state files (see the log)" if rejected else ranks


def _count(samples: Grouped, name: str, thing: str) -> str:
    found = next((len(values) for family, values in samples.items() if family.name == name), 0)
    return f"{found} {thing}{'' if found == 1 else 's'}"


def as_json(findings: Iterable[Finding]) -> str:
    """Return the findings as a JSON document."""
    findings = list(findings)
    document: Mapping[str, object] = {
        "version": __version__,
        "ok": healthy(findings),
        "collectors": [asdict(found) for found in findings],
    }
    return json.dumps(document, indent=2)


def as_table(findings: Iterable[Finding]) -> str:
    """Return the result, then the collectors by their status, then what is missing."""
    findings = list(findings)
    name_width = max((len(found.collector) for found in findings), default=0)
    series_width = max((len(str(found.series)) for found in findings), default=0)
    lines = [_summary(findings)]
    for status, title in _TITLES.items():
        group = [found for found in findings if found.status == status]
        if group:
            lines += ["", title]
        for found in group:
            series = f"{found.series:>{series_width}} series"
            lines.append(f"  {found.collector:<{name_width}}  {series}  {found.detail}".rstrip())
    return "\n".join([*lines, *_missing(findings)])


def _missing(findings: list[Finding]) -> Iterator[str]:
    for found in findings:
        if found.missing:
            yield ""
            yield f"Not reported by the kernel, driver or hardware of this node ({found.collector}):"
            yield from (f"  {name}" for name in found.missing)


def _summary(findings: list[Finding]) -> str:
    bad = [found.collector for found in findings if found.status == FAILS]
    return f"Does not work and should: {', '.join(bad)}." if bad else "Everything that this node has works."


def healthy(findings: Iterable[Finding]) -> bool:
    """Return whether nothing fails that should work."""
    return all(found.status != FAILS for found in findings)
