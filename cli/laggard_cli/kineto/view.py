"""A judgement as text for a terminal: as a diagnosis, then what the devices did, then what was not judged."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from laggard_cli.console import hanging
from laggard_cli.diagnose.view import show
from laggard_cli.kineto.run import TracedRun
from laggard_cli.kineto.verdicts import Judgement
from laggard_cli.terminal import printable

_DEVICE = {
    "idle": "idle",
    "starved": "idle while the host computes",
    "collectives_exposed": "exposed collectives",
    "collectives_hidden": "hidden collectives",
    "copies_exposed": "exposed copies",
}
#: Ranks shown.
_MAX_RANKS = 8


def show_judgement(console: Console, run: TracedRun, judgement: Judgement) -> None:
    """Print a judgement."""
    steps = f"{run.steps} step{'s' * (run.steps != 1)}"
    fine = f"no verdict: what {steps} can show is within the limits"
    show(console, [judgement.diagnosis], fine if judgement.judged else f"nothing is judged: {judgement.open[0][1]}")
    shares = device_shares(run)
    if shares:
        console.print(Padding(_devices(shares), (0, 0, 1, 2)))
    for what, why in judgement.open:
        console.print(hanging(f"{printable(what)}: {printable(why)}", 2, "not judged: ", 2))


def device_shares(run: TracedRun) -> dict[str, dict[str, float]]:
    """Return by rank what its device did, as shares of the mean step; empty without devices."""
    return {
        str(rank.rank): {
            name: float(getattr(rank.steps.device, name).sum() / rank.steps.length.sum()) for name in _DEVICE
        }
        for rank in run.ranks
        if rank.steps.device is not None
    }


def _devices(shares: dict[str, dict[str, float]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("GPU of rank", justify="right")
    for title in _DEVICE.values():
        table.add_column(title, justify="right")
    for rank, each in list(shares.items())[:_MAX_RANKS]:
        table.add_row(rank, *(f"{each[name]:.0%}" for name in _DEVICE))
    if len(shares) > _MAX_RANKS:
        table.caption = f"the first {_MAX_RANKS} of {len(shares)} ranks"
    return table


def plain(run: TracedRun, judgement: Judgement) -> dict[str, Any]:
    """Return what stands beside the diagnosis in JSON."""
    return {
        "steps": run.steps,
        "ranks_absent": list(run.absent),
        "phases": {
            str(rank.rank): {phase.label: rank.mean(phase) for phase in rank.steps.phases} for rank in run.ranks
        },
        "device": device_shares(run),
        "not_judged": [{"what": what, "why": why} for what, why in judgement.open],
    }
