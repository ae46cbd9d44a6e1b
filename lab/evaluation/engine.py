"""Runs the rule engine over jobs: writes what they expose, tick by tick, and reads what fired."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import promql_parser as promql
import yaml

from lab.evaluation.model.exposition import incarnations
from lab.evaluation.model.job import Job
from lab.evaluation.model.target import EPOCH, Target
from laggard_cli.replay.truth import Fired
from laggard_cli.rules import rules_folder

ROOT = Path(__file__).resolve().parents[2]
#: Built by scripts/tools/build_rule_engine.sh.
BINARY = ROOT / ".cache" / "tools" / "bin" / "laggard-rule-engine"
INTERVAL = 15.0


@dataclass
class Result:
    """What the engine said of a batch."""

    fired: list[Fired] = field(default_factory=list[Fired])
    #: Rules that failed, with the first error.
    failed: dict[str, str] = field(default_factory=dict[str, str])
    #: What the evaluation cost, as the engine says it (`cost` in lab/evaluation/engine/stream.go).
    cost: dict[str, Any] = field(default_factory=dict[str, Any])
    answers: list[tuple[float, dict[str, str], float]] = field(
        default_factory=list[tuple[float, dict[str, str], float]]
    )
    series: int = 0


def rule_files(folder: Path | None = None) -> list[Path]:
    """Return the shipped rule files."""
    return sorted((folder or rules_folder()).glob("*.yml"))


def read_by_rules(files: Iterable[Path]) -> frozenset[str]:
    """Return the names of all series that the rules of some files read."""
    names: set[str] = set()

    def visit(node: promql.Expr) -> None:
        selector = node.vector_selector if isinstance(node, promql.MatrixSelector) else node
        if isinstance(selector, promql.VectorSelector) and selector.name:
            names.add(selector.name)

    for path in files:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                promql.walk(promql.parse(rule["expr"]), visit)
    return frozenset(names)


def run(
    jobs: list[Job],
    seed: int,
    *,
    files: list[Path] | None = None,
    ask: str = "",
) -> Result:
    """Evaluate the rules over some jobs that one Prometheus scrapes.

    Args:
        jobs: the jobs, with the earlier runs of theirs; what fires after a job's horizon is left out.
        seed: decides when in an interval each group is evaluated.
        files: rule files, the shipped ones by default.
        ask: an expression to answer each time the first target of all is scraped.
    """
    files = rule_files() if files is None else files
    names = read_by_rules(files)
    everyone = [each for job in jobs for each in (*job.earlier, job)]
    targets = [
        (target, min(target.end, job.horizon))
        for job in everyone
        for each in incarnations(job)
        for target in each.targets(names)
    ]
    horizons = {job.run: job.horizon for job in jobs}
    return evaluate(targets, seed, files=files, horizons=horizons, ask=ask)


def evaluate(
    targets: list[tuple[Target, float]],
    seed: int,
    *,
    files: list[Path],
    horizons: dict[str, float],
    ask: str = "",
    blocks: Path | None = None,
    collection: int = 400,
) -> Result:
    """Evaluate rule files over targets that are scraped until a time each.

    Args:
        targets: what is scraped, and until when.
        seed: decides when in an interval each group is evaluated.
        files: rule files; without any the samples are stored and nothing else.
        horizons: until when what fires for a run counts; for ever if it is not among them.
        ask: an expression to answer each time the first target of all is scraped.
        blocks: a folder into which all series are written, recorded ones and ALERTS too, for a Prometheus to serve.
        collection: by how many percent the engine's heap grows before it is collected (``GOGC``).
    """
    command: list[str | Path] = [BINARY, "-seed", str(seed), *(["-ask", ask] if ask else [])]
    command += [*(["-blocks", blocks] if blocks else []), *files]
    with tempfile.TemporaryFile() as events:
        # Half of a machine is often somebody else's: the engine's garbage collector takes one core, not all.
        environment = {**os.environ, "GOMAXPROCS": "2", "GOGC": str(collection)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=events, env=environment)
        try:
            assert process.stdin is not None
            with process.stdin as stream:
                _write(stream, targets)
        except BrokenPipeError:
            pass
        finally:
            code = process.wait()
        if code != 0:
            raise RuntimeError(f"laggard-rule-engine ended with code {code}")
        events.seek(0)
        result = _read(events, horizons)
    result.series = sum(len(target.series) for target, _ in targets)
    return result


def _write(stream: Any, targets: list[tuple[Target, float]]) -> None:
    lines = [json.dumps({"runs": [len(target.series) for target, _ in targets]})]
    for target, _ in targets:
        lines += target.series
    stream.write(("\n".join(lines) + "\n").encode())
    order = sorted(range(len(targets)), key=lambda index: targets[index][0].offset)
    for tick in range(int(max(until for _, until in targets) / INTERVAL) + 1):
        for index in order:
            target, until = targets[index]
            time = tick * INTERVAL + target.offset
            if tick % target.every or not target.begin <= time <= until:
                continue
            values = target.sample(time)
            stream.write(np.array([round((EPOCH + time) * 1000), index], dtype="<i8").tobytes())
            stream.write(values.astype("<f8", copy=False).tobytes())


#: What an alert names beside its run: the first label that it has, of each row.
_CULPRIT = ("training_rank", "host_name", "training_peer_group")
_DETAIL = ("training_phase", "training_memory_kind", "training_reference")


def _read(events: Any, horizons: dict[str, float]) -> Result:
    result = Result()
    open_alerts: dict[str, Fired] = {}
    for line in events:
        event = json.loads(line)
        time = event["time_ms"] / 1000 - EPOCH
        labels = event.get("labels", {})
        key = json.dumps(labels, sort_keys=True)
        # A GPU that no run uses has a number behind those of the ranks of the run on whose host it is.
        run, culprit = labels.get("training_run", ""), ""
        if not run:
            run, _, culprit = labels.get("uuid", "").removeprefix("GPU-").rpartition("-")
        match event["state"]:
            case "firing" if time <= horizons.get(run, np.inf):
                open_alerts[key] = Fired(
                    labels["alertname"], labels["severity"], run,
                    _first(labels, _CULPRIT) or culprit, _first(labels, _DETAIL), begin=time,
                )  # fmt: skip
            case "resolved" if key in open_alerts:
                begun = open_alerts.pop(key)
                result.fired.append(Fired(**{**begun.__dict__, "end": time}))
            case "failed":
                result.failed[labels["rule"]] = event["error"]
            case "answer":
                result.answers.append((time, labels, event.get("value", 0.0)))
            case "end":
                result.cost = event["cost"]
            case _:
                pass
    result.fired += open_alerts.values()
    return result


def _first(labels: dict[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
