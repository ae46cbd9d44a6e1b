"""``laggard kubernetes FILE``: a job's manifest so that its pods run instrumented, without a webhook and a new image.

Whatever has a pod template is found by its shape: Job, JobSet, PyTorchJob, StatefulSet and kinds that nobody knows. An
init container brings laggard into the pod, environment variables load it. It is meant for a pipe into ``kubectl``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from laggard.shared import environment
from laggard.version import __version__
from laggard_cli.errors import CommandError
from laggard_cli.manifests import Manifest, extend, put
from laggard_cli.run import defaults

Object = dict[str, Any]
"""A mapping of a manifest, by the word that Kubernetes has for it."""

_IMAGE = f"laggard-instrumentation:{__version__}"
#: Where the packages lie in the pod, and what of them Python imports at its start.
_FOLDER = "/laggard"
_PYTHON_PATH = f"{_FOLDER}/opentelemetry/instrumentation/auto_instrumentation:{_FOLDER}"
#: The node exporter's manifest has the same.
_STATE = "/run/laggard"
_VOLUME, _STATE_VOLUME, _PORT = "laggard", "laggard-state", "laggard"
#: Who a container runs as.
_USER = ("runAsNonRoot", "runAsUser", "runAsGroup")
#: What a job's controller writes on its pods, the same on all of a job and of no other; the last is only a name.
_RUN_LABELS = {
    "Job": "batch.kubernetes.io/controller-uid",
    "JobSet": "jobset.sigs.k8s.io/jobset-uid",
    "PyTorchJob": "training.kubeflow.org/job-name",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Example:\n  laggard kubernetes job.yaml | kubectl apply --filename -"
    parser.add_argument("file", metavar="FILE", help="a manifest with one or several documents; - is standard input")
    parser.add_argument("--image", default=_IMAGE, help="image of the init container (default %(default)s)")
    parser.add_argument("--container", metavar="NAME", help="container that trains (default: the first of each pod)")
    parser.add_argument("--run", dest="name", metavar="NAME", help="name of the run (default: the job's uid)")
    parser.add_argument(
        "--workload", metavar="NAME", help="what is trained, stable over runs (default: the job's name)"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=8,
        metavar="NUMBER",
        help="ranks in a pod, each of which has a port for its metrics (default %(default)s)",
    )
    parser.add_argument(
        "--otlp-endpoint", metavar="URL", help="send metrics and traces there, and open no port; $(NODE_IP) is the node"
    )
    parser.add_argument(
        "--no-host-path",
        action="store_true",
        help="leave out the node's folder of state files where Pod Security forbids it; the node exporter sees no rank",
    )


def run(options: argparse.Namespace) -> int:
    """Print the changed manifest. Raises :class:`CommandError` where it has nothing to instrument."""
    source = "standard input" if options.file == "-" else options.file
    if not 1 <= options.ranks <= 64:  # noqa: PLR2004 - no machine has more
        raise CommandError(f"--ranks {options.ranks}: not between 1 and 64")
    manifest = _read(options.file, source)
    pods = list(_pods(manifest.documents, {}))
    if not pods:
        raise CommandError(f"{source}: no document has a pod template (spec.containers)")
    for owner, pod in pods:
        _instrument(owner, pod, options, source)
    if options.image == _IMAGE:
        print(
            f"laggard kubernetes: warning: image {_IMAGE} is only an example that no registry has; build it with "
            "deploy/docker/instrumentation.Dockerfile and name it by --image",
            file=sys.stderr,
        )
    if not manifest.with_comments:
        print("laggard kubernetes: anchors are written out at each place, without comments", file=sys.stderr)
    sys.stdout.flush()
    sys.stdout.buffer.write(manifest.text())
    sys.stdout.buffer.flush()
    return 0


def _read(file: str, source: str) -> Manifest:
    try:
        text = sys.stdin.buffer.read().decode() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"{source}: {reason}") from error
    return Manifest(text, source)


def _pods(value: Any, owner: Object) -> Iterator[tuple[Object, Object]]:
    """Yield each pod's specification with the resource that it is part of, the innermost that has a kind."""
    if isinstance(value, list):
        for entry in cast("list[Any]", value):
            yield from _pods(entry, owner)
    elif isinstance(value, dict):
        node = cast(Object, value)
        owner = node if "kind" in node else owner
        spec = node.get("spec")
        if isinstance(spec, dict) and isinstance(cast(Object, spec).get("containers"), list):
            yield owner, cast(Object, spec)
            return
        for entry in node.values():
            yield from _pods(entry, owner)


def _entries(node: Object, name: str, source: str) -> list[Object]:
    """Return a list of a manifest to add to, whose entries are mappings; a new one where there is none."""
    if node.get(name) is None:
        put(node, name, [])
    value: Any = node[name]
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in cast("list[Any]", value)):
        raise CommandError(f"{source}: {name} must be a list of mappings")
    return cast("list[Object]", value)


def _instrument(owner: Object, pod: Object, options: argparse.Namespace, source: str) -> None:
    container = _container(pod, options.container, source)
    initial = _entries(pod, "initContainers", source)
    if any(entry.get("name") == _VOLUME for entry in initial):
        raise CommandError(f"{source}: container {container.get('name')!r} is instrumented already")
    extend(
        initial,
        [
            {
                "name": _VOLUME,
                "image": options.image,
                "command": ["cp", "-r", f"{_FOLDER}/.", "/target"],
                "volumeMounts": [{"name": _VOLUME, "mountPath": "/target"}],
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                "securityContext": _security(container),
            }
        ],
    )
    volumes: list[Object] = [{"name": _VOLUME, "emptyDir": {}}]
    mounts: list[Object] = [{"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}]
    if not options.no_host_path:
        # The folder is made where no node exporter has made it: then it is nobody's, and a rank does without.
        volumes.append({"name": _STATE_VOLUME, "hostPath": {"path": _STATE, "type": "DirectoryOrCreate"}})
        mounts.append({"name": _STATE_VOLUME, "mountPath": _STATE})
    extend(_entries(pod, "volumes", source), volumes)
    extend(_entries(container, "volumeMounts", source), mounts)
    pushes = _add_environment(owner, container, options, source)
    if not pushes:
        ports: list[Object] = [
            {"name": f"{_PORT}-{rank}", "containerPort": environment.PROMETHEUS_PORT + rank}
            for rank in range(options.ranks)
        ]
        extend(_entries(container, "ports", source), ports)


def _security(container: Object) -> Object:
    """Return what the init container may: nothing, as the user of the container that trains."""
    own = container.get("securityContext")
    named: Object = cast(Object, own) if isinstance(own, dict) else {}
    return {
        **{name: named[name] for name in _USER if name in named},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(pod: Object, name: str | None, source: str) -> Object:
    containers = _entries(pod, "containers", source)
    if not containers:
        raise CommandError(f"{source}: a pod has no container")
    for container in containers:
        if name is None or container.get("name") == name:
            return container
    names = ", ".join(str(container.get("name")) for container in containers)
    raise CommandError(f"{source}: no container is called {name!r}; there are {names}")


def _add_environment(owner: Object, container: Object, options: argparse.Namespace, source: str) -> bool:
    """Add what loads laggard; return whether the ranks send their metrics, and serve none."""
    entries = _entries(container, "env", source)
    present = {str(entry.get("name")): entry for entry in entries}
    values = {name: str(entry.get("value", "")) for name, entry in present.items()}
    metadata = owner.get("metadata")
    name = str(cast(Object, metadata).get("name", "")) if isinstance(metadata, dict) else ""
    wanted: Object = {}
    if options.otlp_endpoint:
        wanted["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.otlp_endpoint
    wanted |= defaults({**values, **wanted}, options.name, options.workload)
    pushes = {**wanted, **values}["OTEL_METRICS_EXPORTER"] != "laggard_prometheus"
    if not pushes:
        wanted[environment.OTEL_EXPORTER_PROMETHEUS_HOST] = "0.0.0.0"  # noqa: S104 - the pod's own address
    if not options.no_host_path:
        wanted[environment.LAGGARD_STATE_DIR] = _STATE
    if not options.workload and name:
        wanted[environment.LAGGARD_WORKLOAD] = name
    # What Kubernetes knows, and those first that others refer to.
    fields = {"NODE_IP": "status.hostIP", environment.LAGGARD_HOST: "spec.nodeName"}
    fields |= {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    label = _RUN_LABELS.get(str(owner.get("kind")))
    if label and environment.LAGGARD_RUN not in wanted:
        fields["KUBERNETES_JOB_UID"] = f"metadata.labels['{label}']"
    added: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    added += [{"name": name, "value": value} for name, value in wanted.items()]
    extend(entries, [entry for entry in added if entry["name"] not in present], first=True)
    _extend_python_path(entries, present.get("PYTHONPATH"), source)
    return pushes


def _extend_python_path(entries: list[Object], entry: Object | None, source: str) -> None:
    if entry is None:
        extend(entries, [{"name": "PYTHONPATH", "value": _PYTHON_PATH}])
    elif "value" in entry:
        entry["value"] = f"{_PYTHON_PATH}:{entry['value']}"
    else:
        raise CommandError(f"{source}: PYTHONPATH comes from elsewhere (valueFrom) and cannot be extended")
