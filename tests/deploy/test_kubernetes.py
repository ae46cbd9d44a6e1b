"""The manifests for Kubernetes, and the command that instruments those of jobs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import opentelemetry.instrumentation.auto_instrumentation as opentelemetry_start
import pytest
import yaml

from laggard.shared import statefile
from laggard.shared.phases import RankState
from laggard_cli.main import main
from laggard_cli.ways import direct
from laggard_exporter import flags
from tests.deploy.manifests import DASHBOARDS, MANIFESTS, WITH_GPUS, rendered, rules, validate
from tests.rules.engine import free_address

JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "pretrain"},
    "spec": {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "trainer",
                        "image": "registry.example/train:1",
                        "command": ["torchrun", "train.py"],
                        "env": [{"name": "PYTHONPATH", "value": "/code"}, {"name": "LAGGARD_TEAM", "value": "vision"}],
                    },
                    {"name": "sidecar", "image": "registry.example/logs:1"},
                ],
            }
        },
    },
}


def instrumented(capsys: pytest.CaptureFixture[str], folder: Path, document: Any, *options: str) -> dict[str, Any]:
    """Return the first document that the command prints for a manifest."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    assert main(["kubernetes", str(file), *options]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def by_name(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return entries of a list in a manifest by their name."""
    return {entry["name"]: entry for entry in entries}


@pytest.mark.parametrize("folder", [MANIFESTS, WITH_GPUS, DASHBOARDS], ids=lambda path: path.name)
def test_every_manifest_passes_its_schema(folder: Path) -> None:
    """What kustomize renders is what Kubernetes and the operator know, in the oldest and the newest version."""
    documents = rendered(folder)
    for document in documents:
        validate(document)
    kinds = {document["kind"] for document in documents}
    expected = {"ConfigMap"} if folder.name == "dashboards" else {"DaemonSet", "NetworkPolicy", "PodMonitor"}
    assert expected <= kinds


def test_a_schema_refuses_what_is_misspelt() -> None:
    """The check of the operator's resources can fail: a field that it does not know is an error."""
    monitor = next(document for document in rendered(MANIFESTS) if document["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError, match="intervall"):
        validate(monitor)


def test_rules_are_what_the_operator_knows(tmp_path: Path) -> None:
    """All rendered PrometheusRule manifests pass its schema, and fit into an annotation of kubectl."""
    manifests = rules(tmp_path)
    for manifest in manifests:
        validate(manifest)
        assert len(json.dumps(manifest)) < 262_144
    assert len(manifests) > 20


def test_the_exporter_runs_without_rights() -> None:
    """It is nobody, keeps no capability, writes nothing of the node, and is started with flags that exist."""
    daemon = next(document for document in rendered(MANIFESTS) if document["kind"] == "DaemonSet")
    pod = daemon["spec"]["template"]["spec"]
    (exporter,) = pod["containers"]
    security = exporter["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert (security["capabilities"], security["allowPrivilegeEscalation"]) == ({"drop": ["ALL"]}, False)
    assert pod["automountServiceAccountToken"] is False
    host_paths = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    assert all(mount["readOnly"] for mount in exporter["volumeMounts"] if mount["name"] in host_paths)
    options = flags.parse([argument.replace("$(NODE_NAME)", "node-1") for argument in exporter["args"]], {})
    assert (str(options.state_directory), options.host) == ("/run/laggard", "node-1")


def test_a_job_is_instrumented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first container gets packages, environment, state folder and ports; nothing of the job is lost."""
    job = instrumented(capsys, tmp_path, JOB)
    validate(job)
    pod = job["spec"]["template"]["spec"]
    trainer, sidecar = pod["containers"]
    assert sidecar == JOB["spec"]["template"]["spec"]["containers"][1]
    assert trainer["command"] == ["torchrun", "train.py"]
    variables = by_name(trainer["env"])
    assert variables["PYTHONPATH"]["value"].split(":")[-1] == "/code"
    assert variables["LAGGARD_TEAM"]["value"] == "vision"
    assert variables["LAGGARD_WORKLOAD"]["value"] == "pretrain"
    assert variables["LAGGARD_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    uid = variables["KUBERNETES_JOB_UID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert uid == "metadata.labels['batch.kubernetes.io/controller-uid']"
    daemon = next(document for document in rendered(MANIFESTS) if document["kind"] == "DaemonSet")
    shared = daemon["spec"]["template"]["spec"]["volumes"][0]["hostPath"]["path"]
    assert (
        variables["LAGGARD_STATE_DIR"]["value"]
        == shared
        == by_name(pod["volumes"])["laggard-state"]["hostPath"]["path"]
    )
    monitors = [document for document in rendered(MANIFESTS) if document["kind"] == "PodMonitor"]
    scraped = {endpoint["port"] for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert {port["name"] for port in trainer["ports"]} <= scraped


def test_the_labels_of_a_workload_are_kept() -> None:
    """Where the exporter names a GPU's pod, the operator's label of the exporter's own pod does not take its place."""
    (monitor,) = (
        each
        for each in rendered(MANIFESTS)
        if each["metadata"]["name"] == "laggard-exporter" and each["kind"] == "PodMonitor"
    )
    assert [endpoint["honorLabels"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == [True]


#: How the operator divides targets among shards, from prometheus-operator's pkg/prometheus/promcfg.go.
SHARDED: list[dict[str, Any]] = [
    {
        "source_labels": ["__address__", "__tmp_hash"],
        "target_label": "__tmp_hash",
        "regex": "(.+);",
        "action": "replace",
    },
    {"source_labels": ["__tmp_hash"], "target_label": "__tmp_hash", "modulus": 2, "action": "hashmod"},
    {"source_labels": ["__tmp_hash", "__tmp_disable_sharding"], "regex": "0;|.+;.+", "action": "keep"},
]
#: A rule of a monitor, as the operator writes it for Prometheus.
CONFIGURED = {"targetLabel": "target_label", "replacement": "replacement"}


def test_each_shard_has_all_targets(tmp_path: Path) -> None:
    """One shard of two, as the operator configures it, keeps every node and rank: half of a run would look broken."""
    endpoints = [
        endpoint
        for each in rendered(MANIFESTS)
        if each["kind"] == "PodMonitor"
        for endpoint in each["spec"]["podMetricsEndpoints"]
    ]
    assert len(endpoints) == 9
    addresses = [f"127.0.0.1:{port}" for port in range(1, 9)]
    jobs = [
        {
            "job_name": endpoint["port"],
            "static_configs": [{"targets": addresses}],
            "relabel_configs": [
                *({CONFIGURED[key]: text for key, text in rule.items()} for rule in endpoint.get("relabelings", ())),
                *SHARDED,
            ],
        }
        for endpoint in endpoints
    ]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": jobs}))
    address = free_address()
    command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={address}"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as server,
    ):
        try:
            kept: list[str] = []
            until = time.monotonic() + 30
            while len(kept) < len(addresses) * len(jobs) and time.monotonic() < until:
                time.sleep(0.2)
                try:
                    answer = direct().get(f"http://{address}/api/v1/targets", params={"state": "active"}).json()
                except httpx.HTTPError:
                    continue
                kept = [target["scrapePool"] for target in answer["data"]["activeTargets"]]
        finally:
            server.terminate()
    assert {name: kept.count(name) for name in set(kept)} == {job["job_name"]: len(addresses) for job in jobs}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("PyTorchJob", ("pytorchReplicaSpecs", "Worker", "template")),
        ("JobSet", ("replicatedJobs", 0, "template", "spec", "template")),
        ("Unheard", ("deep", "down", "template")),
    ],
)
def test_kinds_of_others_are_instrumented(
    kind: str, path: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod template is found wherever a custom resource has it."""
    value: Any = JOB["spec"]["template"]
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    document = {"apiVersion": "example/v1", "kind": kind, "metadata": {"name": "j"}, "spec": value}
    found = instrumented(
        capsys, tmp_path, document, "--container", "sidecar", "--otlp-endpoint", "http://$(NODE_IP):4318"
    )
    template: Any = found["spec"]
    for step in path:
        template = template[step]
    trainer, sidecar = template["spec"]["containers"]
    assert trainer == JOB["spec"]["template"]["spec"]["containers"][0]
    variables = by_name(sidecar["env"])
    assert variables["OTEL_METRICS_EXPORTER"]["value"] == "otlp"
    assert "ports" not in sidecar
    # Kubernetes fills in only what stands further up.
    names = [entry["name"] for entry in sidecar["env"]]
    assert names.index("NODE_IP") < names.index("OTEL_EXPORTER_OTLP_ENDPOINT")


def test_an_image_that_is_an_example_is_warned_of(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """On standard error, so that the manifest in a pipe stays one, which is UTF-8 in every locale."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**JOB, "metadata": {"name": "nächtlich"}}, allow_unicode=True), encoding="utf-8")
    assert main(["kubernetes", str(file)]) == 0
    said = capsysbinary.readouterr()
    assert said.err.startswith(b"laggard kubernetes: warning: image laggard-instrumentation:")
    assert said.err.count(b"\n") == 1
    assert "nächtlich".encode() in said.out
    assert main(["kubernetes", str(file), "--image", "registry.example/laggard:1"]) == 0
    assert capsysbinary.readouterr().err == b""


def test_a_list_of_resources_is_instrumented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In what kubectl prints each job is its own; one that sends metrics already gets no ports to be scraped."""
    sends = copy.deepcopy(JOB)
    container = sends["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}]
    sends["spec"]["template"]["spec"]["initContainers"] = None
    listed = {"apiVersion": "v1", "kind": "List", "items": [JOB, sends]}
    serving, sending = instrumented(capsys, tmp_path, listed)["items"]
    for job in (serving, sending):
        variables = by_name(job["spec"]["template"]["spec"]["containers"][0]["env"])
        assert {"KUBERNETES_JOB_UID", "LAGGARD_WORKLOAD"} <= set(variables)
    assert len(serving["spec"]["template"]["spec"]["containers"][0]["ports"]) == 8
    assert "ports" not in sending["spec"]["template"]["spec"]["containers"][0]
    validate(sending)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("kind: Service\nspec: {ports: []}", (), "job.yaml: no document has a pod template (spec.containers)"),
        ("a: [", (), "job.yaml: while parsing a flow node"),
        ("spec: &a {containers: [*a]}", (), "job.yaml: an anchor contains itself"),
        ("spec: {containers: [x]}", (), "job.yaml: containers must be a list of mappings"),
        ("spec: {containers: [{env: {A: b}}]}", (), "job.yaml: env must be a list of mappings"),
        (yaml.safe_dump(JOB), ("--container", "x"), "job.yaml: no container is called 'x'; there are trainer, sidecar"),
        (yaml.safe_dump(JOB), ("--ranks", "0"), "--ranks 0: not between 1 and 64"),
        (
            yaml.safe_dump(JOB).replace("value: /code", "valueFrom: {}"),
            (),
            "PYTHONPATH comes from elsewhere (valueFrom)",
        ),
    ],
)
def test_bad_input_is_one_line(
    text: str, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be instrumented says why, and prints no manifest."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert main(["kubernetes", str(file), *options]) != 0
    output, errors = capsys.readouterr()
    assert output == ""
    assert message in errors
    assert errors.count("\n") == 1


def test_replicas_may_share_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a manifest says once, by an anchor, is instrumented at each place that refers to it."""
    (tmp_path / "job.yaml").write_text(
        "kind: PyTorchJob\nmetadata: {name: j}\nspec:\n  pytorchReplicaSpecs:\n"
        "    Master: {template: &pod {spec: {containers: [{name: pytorch}]}}}\n    Worker: {template: *pod}\n"
    )
    assert main(["kubernetes", str(tmp_path / "job.yaml")]) == 0
    specs = yaml.safe_load(capsys.readouterr().out)["spec"]["pytorchReplicaSpecs"]
    assert specs["Master"] == specs["Worker"]
    assert [entry["name"] for entry in specs["Worker"]["template"]["spec"]["initContainers"]] == ["laggard"]


def test_an_instrumented_job_is_not_instrumented_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second time is an error and not a second copy of everything."""
    job = instrumented(capsys, tmp_path, JOB)
    (tmp_path / "twice.yaml").write_text(yaml.safe_dump(job))
    assert main(["kubernetes", str(tmp_path / "twice.yaml")]) != 0
    assert "container 'trainer' is instrumented already" in capsys.readouterr().err


TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def test_the_environment_of_the_manifest_instruments_a_plain_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing but the container's variables a script shows its steps, under the node's name, on the pod's port."""
    job = instrumented(capsys, tmp_path, JOB, "--run", "r")
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    fields = {"LAGGARD_HOST": "node-7", "NODE_IP": "127.0.0.1", "POD_NAME": "pretrain-0", "POD_NAMESPACE": "default"}
    fields["KUBERNETES_JOB_UID"] = "uid"
    variables = {
        entry["name"]: entry["value"] if "value" in entry else fields[entry["name"]] for entry in trainer["env"]
    }
    # What the init container copies lies here in the environment of the tests.
    start = Path(opentelemetry_start.__file__).parent
    port = free_address().rpartition(":")[2]
    changed = {
        "PYTHONPATH": variables["PYTHONPATH"].replace(
            "/laggard/opentelemetry/instrumentation/auto_instrumentation", str(start)
        ),
        "LAGGARD_STATE_DIR": str(tmp_path / "state"),
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": port,
    }
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with subprocess.Popen([sys.executable, str(script)], env={**inherited, **variables, **changed}) as process:
        try:
            deadline = time.monotonic() + 60
            steps = 0
            while steps < 5 and time.monotonic() < deadline:
                time.sleep(0.2)
                for file in (tmp_path / "state").glob("*"):
                    read = statefile.read(file)
                    steps = read.steps
                    assert (read.facts.run, read.facts.host) == ("r", "node-7")
                    assert read.state in (RankState.STARTING, RankState.RUNNING)
            assert steps >= 5
            text = direct().get(f"http://127.0.0.1:{port}/metrics").text
            assert 'training_run="r"' in text
            assert "training_steps_total" in text
        finally:
            process.kill()


COMMENTED = """\
# Our nightly run. Ask team-a before you change it.
apiVersion: batch/v1
kind: Job
metadata:
  name: "nightly"  # seen on the dashboard
  annotations: {note: "yes"}
spec:
  # One retry is enough.
  backoffLimit: 1
  template:
    spec:
      restartPolicy: Never
      containers:
        # The one that trains.
        - name: train
          args:
            - --mode=0644
            - 0o17
            - on
          # Eight of them.
          resources:
            limits:
              nvidia.com/gpu: 8
          image: registry.example/train:2  # pinned
        - name: sidecar  # uploads
          image: registry.example/sidecar:1
  # The whole job, in seconds.
  activeDeadlineSeconds: 3600
---
# Where it is reached.
apiVersion: v1
kind: Service
metadata:
  name: nightly
spec:
  clusterIP: None
# the end
"""


@pytest.mark.parametrize("last", ["sidecar", "train", "flat"])
def test_what_a_person_wrote_stays(last: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Each line of a manifest is in what is printed, in its order: comments, quotes, and words of YAML 1.1."""
    text = COMMENTED
    if last != "sidecar":
        # The comment on the job's deadline then follows what is added to.
        text = text.replace("        - name: sidecar  # uploads\n          image: registry.example/sidecar:1\n", "")
    if last == "flat":
        # Lists that stand where their name does.
        text = text.replace(
            "args:\n            - --mode=0644\n            - 0o17\n            - on\n", "args: [0o17, on]\n"
        )
        text = "".join(line[2:] if line.startswith(" " * 8) else line for line in text.splitlines(keepends=True))
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert main(["kubernetes", str(file), "--image", "i", "--run", "on", "--workload", "1e3", "--ranks", "1"]) == 0
    printed, errors = (each.decode() for each in capfdbinary.readouterr())
    assert errors == ""
    assert printed.endswith("# the end\n")
    left = iter(printed.splitlines())
    assert [line for line in text.splitlines() if line not in left] == []
    lines = printed.splitlines()
    assert lines[lines.index("  # The whole job, in seconds.") + 1] == "  activeDeadlineSeconds: 3600"
    job, service = yaml.safe_load_all(printed)
    original, unchanged = yaml.safe_load_all(text)
    assert service == unchanged
    container = job["spec"]["template"]["spec"]["containers"][0]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (values["LAGGARD_RUN"], values["LAGGARD_WORKLOAD"]) == ("on", "1e3")
    before = original["spec"]["template"]["spec"]["containers"][0]
    assert {name: container[name] for name in before} == before


def test_anchors_are_written_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is added to one place must not be added to the other; it is said that comments are gone."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "kind: Job\nspec:\n  containers:\n  - &one  # a comment\n    name: a\n    image: x\n"
        "---\nkind: Job\nspec: &spec\n  containers: [{name: b, image: &image y}, {name: c, image: *image}]\n"
    )
    assert main(["kubernetes", str(file), "--image", "i"]) == 0
    printed, errors = capfd.readouterr()
    assert errors == "laggard kubernetes: anchors are written out at each place, without comments\n"
    _, second = yaml.safe_load_all(printed)
    assert [entry["image"] for entry in second["spec"]["containers"]] == ["y", "y"]
    assert "env" not in second["spec"]["containers"][1]
