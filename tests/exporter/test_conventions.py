"""The tables of metrics are the truth about what a scrape holds."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from laggard.shared import dumps, statefile
from laggard.shared.names import prometheus_label, prometheus_name
from laggard.shared.phases import Phase
from laggard.shared.process_metrics import PROCESS_METRICS
from laggard_exporter.collectors import COLLECTORS, FAMILIES
from laggard_exporter.nvml.child.activity import SHORTEST_WINDOW
from laggard_exporter.ranks.files import NANOSECONDS
from laggard_exporter.ranks.state import PROCESS
from tests.exporter.support import dead_file, exporter, fresh, live_rank, open_metrics, promtool_check
from tests.exporter.trees import CGROUP_SYSFS, HOST_PROCFS, INFINIBAND_SYSFS, rank_procfs, write_tree
from tests.fake_amd_smi import fake as amd
from tests.fake_nvml.fake import EVERYTHING, Scenario
from tests.support.fake_ras import answer, process, serving, world
from tests.support.recorded_job import RecordedJob
from tests.support.waiting import until


def test_names_are_unique() -> None:
    """No two families share a name, also not without the suffix of a counter."""
    names = [family.name.removesuffix("_total") for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_names_are_ours() -> None:
    """No name is one that Prometheus reserves, none carries a target's labels, and no series has a crowd of labels."""
    assert [family.name for family in FAMILIES if family.name.startswith(("process_", "scrape_", "python_"))] == []
    reserved = {"job", "instance", "cluster", "hostname", "le", "quantile", "command", "cmdline", "user"}
    assert [family.name for family in FAMILIES if reserved & set(family.labels)] == []
    # One limit of Mimir is 30 labels, those of the target and of relabelling included.
    assert max(len(family.labels) for family in FAMILIES) <= 12


def test_rank_metrics_are_the_contract() -> None:
    """Name, type, labels and help of the rank metrics follow from the contract."""
    state = COLLECTORS["state"].families
    assert {family for family in state if family.name.startswith("training_")} == set(PROCESS.values())
    for metric in PROCESS_METRICS:
        family = PROCESS[metric]
        labels = ("training_run", "training_rank", *map(prometheus_label, metric.attributes))
        assert (family.name, family.kind, family.labels, family.help) == (
            prometheus_name(metric),
            metric.kind,
            labels,
            metric.description,
        )


def test_a_scrape_holds_what_the_tables_say(
    tmp_path: Path, fake_nvml: Path, scenario: Scenario, fake_amd_smi: Path, amd_scenario: amd.Scenario
) -> None:
    """With GPUs of both vendors and a rank every family is served once, as the tables say, and no other."""
    # Where a rank stands is said of one that stands still.
    facts = fresh(start_boottime_ns=statefile.boottime_ns() - 60 * NANOSECONDS, pid=process(3)["pid"], world_size=4)
    words = {
        statefile.LAST_STEP: facts.start_boottime_ns,
        statefile.GROUPS: 1,
        statefile.GROUPS + 1: statefile.pack(3, 1),
    }
    scenario.write(*EVERYTHING)
    (tmp_path / "log").write_text("4,1,2000000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    (tmp_path / "web.yml").touch()
    arguments = [f"--state.directory={tmp_path / 'ranks'}", f"--web.config.file={tmp_path / 'web.yml'}"]
    word = statefile.pack(Phase.OTHER, facts.start_boottime_ns)
    dump = dumps.file_name(facts.run, facts.rank, facts.start_boottime_ns, 0, word)
    # How a process ended that was the rank before.
    ended = {statefile.LAST_STEP: facts.start_boottime_ns, statefile.ENDED: facts.start_boottime_ns}
    dead_file(tmp_path / "ranks", replace(facts, start_boottime_ns=facts.start_boottime_ns - 1), ended)
    with (
        serving(answer(world([2, 2, 2, 1]))) as behind,
        serving(answer(world([2] * 4, {1: False}))) as missing,
        live_rank(tmp_path / "ranks", facts, words) as rank,
        live_rank(tmp_path / "ranks", replace(facts, run="run-2")) as other,
    ):
        job = RecordedJob({"0": (2, 3)}, [("0", "barrier")], stops={2: 0})
        recorded = job.dump(3)
        receive = {"record_id": 1, "profiling_name": "nccl:recv 1<-0", "is_p2p": True, "collective_seq_id": 2}
        recorded["entries"].append({**recorded["entries"][0], **receive})
        (tmp_path / "ranks" / dump).write_text(json.dumps(recorded))
        procfs = write_tree(tmp_path / "proc", {**HOST_PROCFS, **rank_procfs(rank.pid)})
        for process_id, service in ((rank.pid, behind), (other.pid, missing)):
            write_tree(procfs / str(process_id), {"environ": f"NCCL_RAS_ADDR=localhost:{service.port}\0"})
        (procfs / "self" / "net").mkdir(parents=True)
        (procfs / "self" / "net" / "tcp").symlink_to("/proc/self/net/tcp")
        sysfs = write_tree(tmp_path / "sys", {**INFINIBAND_SYSFS, **CGROUP_SYSFS})
        arguments += [f"--path.procfs={procfs}", f"--path.sysfs={sysfs}", f"--path.kernel-log={tmp_path / 'log'}"]
        amd.sysfs(tmp_path / "sys")
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        variables = amd_scenario.environment(fake_amd_smi) | scenario.environment(fake_nvml)
        variables["LD_LIBRARY_PATH"] = f"{fake_nvml.parent}:{fake_amd_smi.parent}"
        with exporter(*arguments, **variables) as node:
            until(lambda: node.scrape()['laggard_exporter_ras_questions_total{result="answered"}'] == 2)
            node.scrape()
            # The activity of a GPU, and of a process, is that since the scrape before.
            scenario.write(*EVERYTHING, "1 nvmlDeviceGetProcessUtilization 4294967294:25:2")
            time.sleep(SHORTEST_WINDOW)
            _, text = node.get(Accept="application/openmetrics-text;version=1.0.0")
            _, plain = node.get()
    served = {
        (family.name, family.type, family.documentation): {frozenset(sample.labels) for sample in family.samples}
        for family in open_metrics(text)
    }
    assert served == {
        (family.name.removesuffix("_total"), family.kind, family.help): {frozenset(family.labels)}
        for family in FAMILIES
    }
    if shutil.which("promtool"):
        assert promtool_check(plain) == ""
