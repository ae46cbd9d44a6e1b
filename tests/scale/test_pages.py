"""Simulated nodes answer as real exporters do."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lab.scale.jobs import culprits, jobs
from lab.scale.server import Show, serve
from laggard.shared.metrics import STEP_BOUNDS

_RANKS, _FAULT = 64, 100.0
_NODES = 8


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of the pages of 64 ranks, and their paths."""
    ours, theirs = multiprocessing.Pipe()
    runs = [replace(job, startup=1.0, compile=0.0) for job in jobs(_RANKS, 0.5, _FAULT)]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(Show(runs), theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(60)
        port, paths, _ = ours.recv()
        yield f"http://127.0.0.1:{port}", paths
    finally:
        process.terminate()
        process.join(10)


def _samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_each_node_has_two_pages(served: tuple[str, list[str]]) -> None:
    """One of the exporter, one of its ranks; each rank is on one node."""
    address, paths = served
    assert len(paths) == 2 * _NODES
    ranks: list[tuple[str, str]] = []
    with httpx.Client(base_url=address) as client:
        for path in paths:
            samples = _samples(client.get(path).text)
            if path.endswith("/ranks/metrics"):
                ranks += [
                    (sample.labels["training_run"], sample.labels["training_rank"])
                    for sample in samples
                    if sample.name == "training_steps_total"
                ]
            else:
                assert sum(sample.name == "training_process_up" for sample in samples) == _NODES
                assert sum(sample.name == "gpu_up" for sample in samples) == _NODES
            assert all("instance" not in sample.labels for sample in samples)
    assert sorted(ranks) == sorted({*ranks})
    assert len(ranks) == _RANKS


def test_values_go_on_and_times_are_of_today(served: tuple[str, list[str]]) -> None:
    """Steps are counted as time passes, the buckets with them; a time stamp is one of now."""
    address, paths = served
    page = next(path for path in paths if path.startswith("/slow") and path.endswith("/ranks/metrics"))
    begun = time.monotonic()
    with httpx.Client(base_url=address) as client:
        while True:
            samples = _samples(client.get(page).text)
            steps = {
                sample.labels["training_rank"]: sample.value
                for sample in samples
                if sample.name == "training_steps_total"
            }
            if min(steps.values()) > 3 or time.monotonic() - begun > 60:
                break
            time.sleep(1)
    assert all(3 < count < 100 for count in steps.values())
    last = [sample.value for sample in samples if sample.name == "training_last_step_timestamp_seconds"]
    assert all(abs(time.time() - each) < 30 for each in last)
    buckets = [
        sample
        for sample in samples
        if sample.name == "training_step_duration_seconds_bucket" and sample.labels["training_rank"] == "0"
    ]
    counted = next(
        sample.value
        for sample in samples
        if sample.name == "training_step_duration_seconds_count" and sample.labels["training_rank"] == "0"
    )
    assert [sample.value for sample in buckets] == [
        counted if bound > 1 else 0.0 for bound in (*STEP_BOUNDS, float("inf"))
    ]


def test_who_is_to_blame() -> None:
    """Half of the ranks are one run with a slow rank, a quarter one that hangs, the rest begins anew or goes on."""
    runs = jobs(10_000, 0.5, _FAULT)
    assert sum(job.ranks for job in runs) == 10_000
    assert [(each.alert, each.run, each.rank) for each in culprits(runs)] == [
        ("TrainingStraggler", "slow", 1666),
        ("TrainingStalled", "hung", 833),
    ]
    assert [job.run for job in runs if job.restarts] == ["other-0"]
