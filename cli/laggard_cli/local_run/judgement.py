"""Why a local run has no verdict: not every run without one is healthy."""

from __future__ import annotations

from collections.abc import Iterator

from laggard_cli.diagnose.model import Diagnosis
from laggard_cli.diagnose.view import why_healthy, why_not_yet


def why_no_verdict(diagnosis: Diagnosis | None, ranks: int, compared: float, needed: float) -> str:
    """Return what is said of a run without a verdict.

    Args:
        diagnosis: of the last moment of the job; None where Prometheus knows nothing of the run.
        ranks: that were seen on this machine.
        compared: seconds for which ranks were compared.
        needed: seconds that a verdict on all ranks together needs, as that they wait for data.
    """
    if diagnosis is not None and diagnosis.standing_out:
        held_back = diagnosis.held_back
        return held_back.said() if held_back is not None else why_not_yet(diagnosis.standing_out)
    reasons = list(_unjudged(diagnosis, ranks, compared, needed))
    return f"not judged: {reasons[0]}" if reasons or diagnosis is None else why_healthy(diagnosis)


def _unjudged(diagnosis: Diagnosis | None, ranks: int, compared: float, needed: float) -> Iterator[str]:
    if not ranks:
        yield "no training was seen; it is seen from the first optimizer step of torch, or from laggard.step() on"
    if diagnosis is None:
        yield "too short to compare; nothing of the run was recorded"
        return
    if not diagnosis.ranks:
        yield "too short to compare; own times need 16 steps of every rank after the warm-up, and half a minute"
    yield from diagnosis.unjudged
    if compared < needed:
        found = f"; waiting for data was {share:.0%} of a step" if (share := diagnosis.facts.get("data_share")) else ""
        yield (
            f"too short to compare; own times were known for {compared:.0f} s, and a verdict on the run as a whole "
            f"needs {needed:.0f} s; no rank stood out{found}"
        )
