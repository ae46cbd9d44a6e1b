"""A real API server takes what is deployed, and shows what is promised: the exporter has no rights."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard.version import __version__
from laggard_cli.main import main
from tests.collector.support import ROOT, TIMEOUT
from tests.deploy.cluster import Cluster, accepted, refused, running
from tests.deploy.manifests import (
    CHART,
    DASHBOARDS,
    MANIFESTS,
    NAMESPACE,
    WITH_GPUS,
    Manifest,
    by_identity,
    definition,
    helm,
    rendered,
    rules,
    template,
    tool,
)
from tests.support.waiting import until

#: One process for all of them: their fixture is dear.
pytestmark = pytest.mark.xdist_group("apiserver")

#: What is applied, by the way in which it is made; a folder is given for files.
SOURCES: dict[str, Callable[[Path], list[Manifest]]] = {
    "base": lambda _: rendered(MANIFESTS),
    "gpu": lambda _: rendered(WITH_GPUS),
    "dashboards": lambda _: rendered(DASHBOARDS),
    "rules": rules,
    "helm": lambda _: template(),
    "helm with GPUs": lambda _: template("--set", "gpu.enabled=true"),
}
_BASELINE = 'violates PodSecurity "baseline:latest": host namespaces (hostPID=true), hostPath volumes (volume "state")'
ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/laggard-exporter"

POD: Manifest = {
    "metadata": {"labels": {"app": "train"}},
    "spec": {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "pytorch",
                "image": "registry.example/train:1",
                "command": ["torchrun", "train.py"],
                "securityContext": {
                    "runAsNonRoot": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}
_JOB: dict[str, Any] = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": POD}
_SERVICE: dict[str, Any] = {
    "selector": {"matchLabels": {"app": "train"}},
    "template": {**POD, "spec": {**POD["spec"], "restartPolicy": "Always"}},
}
#: Version and specification of each kind of job.
JOBS: dict[str, tuple[str, Any]] = {
    "Job": ("batch/v1", _JOB),
    "Deployment": ("apps/v1", _SERVICE),
    "JobSet": ("jobset.x-k8s.io/v1alpha2", {"replicatedJobs": [{"name": "workers", "template": {"spec": _JOB}}]}),
    "PyTorchJob": (
        "kubeflow.org/v1",
        {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"replicas": 3, "template": POD}}},
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster, None, None]:
    """Run a server that knows the custom resources, with what is deployed in it."""
    with running(tmp_path_factory.mktemp("cluster")) as started:
        for name in (
            "monitoring.coreos.com_podmonitors.yaml",
            "monitoring.coreos.com_prometheusrules.yaml",
            "jobset.x-k8s.io_jobsets.yaml",
            "kubeflow.org_pytorchjobs.yaml",
        ):
            started.define(definition(name))
        for manifest in rendered(MANIFESTS):
            accepted(started.apply(manifest))
        yield started


def namespace(cluster: Cluster, name: str, account: str = "default", **levels: str) -> str:
    """Make a namespace with levels of Pod Security, and the account that pods in it have."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    accepted(cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}))
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": name}}
    accepted(cluster.apply(owner))
    return name


def daemon(folder: Path) -> Manifest:
    """Return the exporter's DaemonSet."""
    return by_identity(rendered(folder))["DaemonSet/laggard-exporter"]


def started(cluster: Cluster, template: Manifest, where: str) -> Any:
    """Ask for a pod as a controller would, but that it is not kept."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", **template.get("metadata", {})},
        "spec": template["spec"],
    }
    return cluster.request("POST", f"/api/v1/namespaces/{where}/pods", pod, dryRun="All", fieldValidation="Strict")


def instrumented(capsys: pytest.CaptureFixture[str], folder: Path, kind: str, *options: str) -> Manifest:
    """Return what the command makes of a job of this kind."""
    version, spec = JOBS[kind]
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "pretrain"}, "spec": copy.deepcopy(spec)}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    assert main(["kubernetes", str(file), *options]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("source", SOURCES)
def test_it_is_accepted_and_stays(source: str, cluster: Cluster, tmp_path: Path) -> None:
    """The server takes each manifest without a warning, and applying it again changes nothing."""
    for manifest in SOURCES[source](tmp_path):
        first = accepted(cluster.apply(manifest, NAMESPACE))
        again = accepted(cluster.apply(manifest, NAMESPACE))
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], manifest["metadata"]


@pytest.mark.parametrize(
    ("kind", "misspelt"), [("DaemonSet", "hostPid"), ("PodMonitor", "selektor"), ("NetworkPolicy", "egres")]
)
def test_what_it_does_not_know_is_refused(kind: str, misspelt: str, cluster: Cluster) -> None:
    """The check can fail: a field that does not exist is an error with its name."""
    manifest = next(each for each in rendered(MANIFESTS) if each["kind"] == kind)
    manifest["spec"][misspelt] = True
    assert f".spec.{misspelt}: field not declared in schema" in refused(cluster.apply(manifest), 500)


@pytest.mark.parametrize("kind", JOBS)
def test_an_instrumented_job_is_accepted(
    kind: str, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server takes what the command prints, with the same container as before it."""
    where = namespace(cluster, "train", enforce="privileged")
    kept = accepted(cluster.apply(instrumented(capsys, tmp_path, kind), where))
    templates = list(pod_templates(kept["spec"]))
    assert len(templates) == len(list(pod_templates(JOBS[kind][1])))
    for pod in templates:
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["torchrun", "train.py"]
        assert [port["name"] for port in container["ports"]] == [f"laggard-{rank}" for rank in range(8)]
        accepted(started(cluster, pod, where))


def test_a_job_needs_no_folder_of_the_node(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an instrumented job the level baseline refuses one thing; without it even restricted takes the job."""
    (pod,) = pod_templates(instrumented(capsys, tmp_path, "Job"))
    where = namespace(cluster, "closed", enforce="baseline")
    assert refused(started(cluster, pod, where), 403).partition("violates PodSecurity ")[2] == (
        '"baseline:latest": hostPath volumes (volume "laggard-state")'
    )
    (pod,) = pod_templates(instrumented(capsys, tmp_path, "Job", "--no-host-path"))
    where = namespace(cluster, "closed", enforce="restricted", warn="restricted")
    kept = accepted(started(cluster, pod, where))
    assert {volume["name"] for volume in kept["spec"]["volumes"]} == {"laggard"}
    assert "LAGGARD_STATE_DIR" not in {entry["name"] for entry in kept["spec"]["containers"][0]["env"]}


def pod_templates(value: Any) -> Generator[Manifest, None, None]:
    """Yield the pod templates of a job."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        else:
            for entry in value.values():
                yield from pod_templates(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from pod_templates(entry)


def test_the_exporter_may_do_nothing(cluster: Cluster) -> None:
    """With its own token it sees nothing of the cluster; the same token sees pods once somebody lets it."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = accepted(cluster.request("POST", f"{ACCOUNT}/token", request))["status"]["token"]

    def code(path: str) -> int:
        return cluster.request("GET", path, token=token).status_code

    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    closed = [pods, f"/api/v1/namespaces/{NAMESPACE}/secrets", "/api/v1/nodes", "/api/v1/pods", ACCOUNT]
    assert {path: code(path) for path in closed} == dict.fromkeys(closed, 403)
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": NAMESPACE}}
    review = cluster.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, token=token)
    allowed = {resource for rule in accepted(review)["status"]["resourceRules"] for resource in rule["resources"]}
    # What everybody may: ask who he is, and what he may.
    assert allowed == {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}

    api = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "probe", "namespace": NAMESPACE},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "laggard-exporter", "namespace": NAMESPACE}],
    }
    accepted(cluster.apply(binding))
    until(lambda: code(pods) == 200, "the check cannot fail")
    accepted(cluster.request("DELETE", cluster.path(binding)))
    until(lambda: code(pods) == 403, "a right stays")


@pytest.mark.parametrize("folder", [MANIFESTS, WITH_GPUS], ids=lambda path: path.name)
def test_its_namespace_lets_the_exporter_in(folder: Path, cluster: Cluster) -> None:
    """Its label lets the pod in where others are closed to it; GPUs need the runtime that the GPU operator brings."""
    template = daemon(folder)["spec"]["template"]
    if folder == WITH_GPUS:
        assert 'RuntimeClass "nvidia" not found' in refused(started(cluster, template, NAMESPACE), 403)
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        accepted(cluster.apply(runtime | {"handler": "nvidia"}))
    pod = accepted(started(cluster, template, NAMESPACE))
    assert pod["spec"]["priority"] == 2_000_001_000


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        ({}, _BASELINE),
        ({"enforce": "baseline"}, _BASELINE),
        ({"enforce": "restricted"}, 'violates PodSecurity "restricted:latest"'),
    ],
    ids=["unlabelled", "baseline", "restricted"],
)
def test_other_namespaces_keep_it_out(level: dict[str, str], reason: str, cluster: Cluster) -> None:
    """The level baseline refuses two things of the exporter and no third: the node's processes and folder."""
    where = namespace(cluster, level.get("enforce", "unlabelled"), "laggard-exporter", **level)
    message = refused(started(cluster, daemon(MANIFESTS)["spec"]["template"], where), 403)
    assert message.endswith(reason) if reason == _BASELINE else reason in message


def test_helm_installs_upgrades_and_removes(cluster: Cluster, tmp_path: Path) -> None:
    """By the real server a release comes, changes with a value, says what to do next, and leaves nothing."""
    where = namespace(cluster, "by-helm", enforce="privileged")
    account = {"KUBECONFIG": str(cluster.kubeconfig()), "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}

    def run(*arguments: str | Path) -> str:
        done = helm(*arguments, "--namespace", where, environment=account)
        assert done.returncode == 0, done.stderr
        assert "arning" not in done.stderr
        return done.stdout

    def found() -> set[str]:
        return {
            name for name, manifest in expected.items() if cluster.request("GET", cluster.path(manifest)).is_success
        }

    expected = by_identity(template("--namespace", where))
    notes = run("install", "laggard", CHART)
    assert f"kubectl --namespace {where} rollout status daemonset/laggard-exporter" in notes
    assert f"laggard-instrumentation:{__version__}" in notes
    assert "No rules" not in notes
    assert found() == expected.keys()
    (release,) = accepted(cluster.request("GET", f"/api/v1/namespaces/{where}/secrets"))["items"]
    assert len(release["data"]["release"]) < 700_000, "a release is kept in a secret, which ends at a mebibyte"
    notes = run("upgrade", "laggard", CHART, "--set", "gpu.enabled=true,rules.enabled=false,monitors.enabled=false")
    assert all(text in notes for text in ("with NVIDIA GPUs", "No rules", "No monitors"))
    kept = accepted(cluster.request("GET", cluster.path(expected["DaemonSet/laggard-exporter"])))
    assert kept["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert {name.partition("/")[0] for name in found()} == {"ServiceAccount", "DaemonSet", "NetworkPolicy", "ConfigMap"}
    run("uninstall", "laggard")
    assert found() == set()


def test_the_commands_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    """kubectl, helm and kustomize run what docs/kubernetes.md has, and job and exporter are there as it promises."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    first, by_helm, by_kustomize, job = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = first.splitlines()
    assert len(lines) < 10
    assert job.strip() == lines[6].replace("deploy/kubernetes/job.yaml", "job.yaml")
    elsewhere = ("pip ", "docker ", "kubectl --namespace monitoring port-forward ", "laggard diagnose ")
    kept = [line for line in lines if not line.startswith(elsewhere)]
    assert len(kept) == 4

    for name in ("deploy", "dashboards", "rules"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    (tmp_path / "train.py").write_text("import torch\n")
    namespace(cluster, "monitoring")
    # Not by helm as well what the fixture has applied in the page's own namespace.
    where = namespace(cluster, "page", enforce="privileged")
    path = [Path(sys.executable).parent, *{Path(tool(name)).parent for name in ("kubectl", "helm", "kustomize")}]
    environment = {
        "PATH": os.pathsep.join(map(str, [*path, "/usr/bin", "/bin"])),
        "HOME": str(tmp_path),
        "KUBECONFIG": str(cluster.kubeconfig()),
        "NO_PROXY": "127.0.0.1",
    }

    def run(text: str) -> str:
        done = subprocess.run(
            ["sh", "-eu", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for text in (*kept, by_helm):
        run(text.replace("--namespace laggard", f"--namespace {where}") if text.startswith("helm ") else text)
    (pod,) = pod_templates(accepted(cluster.request("GET", "/apis/batch/v1/namespaces/default/jobs/first"))["spec"])
    (container,) = pod["spec"]["containers"]
    assert {"LAGGARD_HOST", "PYTHONPATH"} <= {entry["name"] for entry in container["env"]}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/train", "/laggard", "/run/laggard"}
    kept_exporter = accepted(cluster.request("GET", f"/apis/apps/v1/namespaces/{where}/daemonsets/laggard-exporter"))
    assert kept_exporter["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert "prometheusrule.monitoring.coreos.com/laggard-alert " in run(by_kustomize)
