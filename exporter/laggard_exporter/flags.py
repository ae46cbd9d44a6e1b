"""The command line, in the style of node_exporter. Bad input is one line that says what to do, and exit code 2."""

from __future__ import annotations

import argparse
import os
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol

from laggard.shared import environment
from laggard.shared.names import clip_name
from laggard.version import VERSIONS
from laggard_exporter import argument_types
from laggard_exporter.filters import Filter
from laggard_exporter.kernel_log import KERNEL_LOG, KernelLog
from laggard_exporter.web.address import PORT, Address, parse_address

PROGRAM = "laggard-exporter"
DEFAULT_ADDRESS = f"localhost:{PORT}"
LOG_LEVELS = ("debug", "info", "warning", "error")

#: Collectors with devices to choose from, and what they leave out unless told otherwise: RAM disks and partitions.
DEVICE_FILTERS = {"disk": r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+", "infiniband": ""}


@dataclass(frozen=True)
class Options:
    """What the command line says, checked."""

    command: str
    """Empty to serve, ``doctor`` to look at the node."""
    json: bool
    addresses: tuple[Address, ...]
    """Empty: the default, which depends on the web configuration."""
    telemetry_path: str
    max_requests: int
    web_configuration: Path | None
    profiling: bool
    """Whether callers may have ranks profiled."""
    targets_host: str
    """What ranks are called as targets; empty: as the exporter is called by who asks."""
    targets_file: Path | None
    state_directory: Path
    kernel_log: Path
    procfs: Path
    sysfs: Path
    host: str
    devices: Mapping[str, Filter]
    """By collector."""
    nvml_details: bool
    collectors: tuple[str, ...]
    """Names of the collectors that are on."""
    otlp_endpoint: str
    """Empty: what the variables of OpenTelemetry say."""
    log_level: str

    @cached_property
    def shared_kernel_log(self) -> KernelLog:
        """The kernel's log, one for all collectors."""
        return KernelLog(self.kernel_log)


def default_address(*, closed: bool) -> Address:
    """Return where to listen when no flag says so; ``closed`` means encrypted, with strangers kept out."""
    return parse_address(f":{PORT}" if closed else DEFAULT_ADDRESS)


def reject(problem: str) -> NoReturn:
    """End the process with one line about bad input. Raises :class:`SystemExit` with code 2."""
    print(f"{PROGRAM}: error: {problem}", file=sys.stderr)  # noqa: T201 - the console is where a user looks
    raise SystemExit(2)


class _Add(Protocol):
    """Adds a flag: its name without dashes, what it does, and what argparse takes."""

    def __call__(self, name: str, text: str, **more: Any) -> None: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        reject(message)


def parse(arguments: Sequence[str] | None, collectors: Mapping[str, str]) -> Options:
    """Return the options. ``collectors`` says what each of those that exist tells.

    Raises :class:`SystemExit` with code 2 for bad input, and with code 0 for ``--help`` and ``--version``.
    """
    known = tuple(collectors)
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words.pop(0) if words[:1] == ["doctor"] else ""
    values, unknown = parser(collectors).parse_known_args(words)
    if unknown:
        reject(_unknown(unknown[0], known))
    options = vars(values)
    if options["json"] and not command:
        reject("--json belongs to the command doctor: laggard-exporter doctor --json")
    directory: Path = options["state.directory"] or environment.state_directory()
    if problem := _directory_problem(directory):
        reject(problem)
    default = not options["collector.disable-defaults"]
    return Options(
        command=command,
        json=options["json"],
        addresses=tuple(options["web.listen-address"] or ()),
        telemetry_path=options["web.telemetry-path"],
        max_requests=options["web.max-requests"],
        web_configuration=options["web.config.file"],
        profiling=options["web.enable-profiling"],
        targets_host=options["sd.address"] or "",
        targets_file=options["sd.file"],
        state_directory=directory,
        kernel_log=options["path.kernel-log"],
        procfs=options["path.procfs"],
        sysfs=options["path.sysfs"],
        host=clip_name(options["host.name"] or socket.gethostname()),
        devices={name: _devices(options, name) for name in DEVICE_FILTERS},
        nvml_details=options["collector.nvml.details"],
        collectors=tuple(
            name
            for name in known
            if (default if options[f"collector.{name}"] is None else options[f"collector.{name}"])
        ),
        otlp_endpoint=options["otlp.endpoint"],
        log_level=options["log.level"],
    )


def parser(collectors: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser; ``docs/exporter.md`` lists its flags."""
    result = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [doctor] [flags]",
        description="Exports a node's GPUs and training ranks to Prometheus. "
        "With doctor it tells what works on this node, what does not, and why.",
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"{PROGRAM} {VERSIONS}")

    def add(name: str, text: str, **more: Any) -> None:
        result.add_argument(f"--{name}", dest=name, help=text, **more)

    add("json", "doctor alone: a JSON document instead of a table", action="store_true")
    _add_serving(add)
    _add_node(add)
    _add_collectors(add, collectors)
    add(
        "otlp.endpoint",
        "push the same facts by OTLP to this URL as well (default: OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or "
        "OTEL_EXPORTER_OTLP_ENDPOINT, else no push)",
        type=argument_types.url,
        default="",
        metavar="URL",
    )
    add(
        "log.level",
        "what to log: debug, info, warning or error (default %(default)s)",
        choices=LOG_LEVELS,
        default="info",
    )
    return result


def _add_serving(add: _Add) -> None:
    """Add the flags of what is served and told to Prometheus."""
    add(
        "web.listen-address",
        "address to serve on; may be repeated; :PORT is every address of the node (default "
        f"{DEFAULT_ADDRESS}, or :{PORT} where the web configuration file demands encryption and a password or client "
        "certificate)",
        action="append",
        type=argument_types.address,
        metavar="HOST:PORT",
    )
    add(
        "web.telemetry-path",
        "path of the metrics (default %(default)s)",
        type=argument_types.path,
        default="/metrics",
        metavar="PATH",
    )
    add(
        "web.max-requests",
        "scrapes at the same time; 0 is any number (default %(default)s)",
        type=argument_types.count,
        default=40,
        metavar="NUMBER",
    )
    add(
        "web.config.file",
        "file with TLS and authentication, in the format of exporter-toolkit; read again when it changes",
        type=argument_types.file,
        metavar="FILE",
    )
    add(
        "web.enable-profiling",
        "callers may have ranks of this node profiled and read what they wrote (POST /-/profile); only with TLS and "
        "passwords or client certificates",
        action="store_true",
    )
    add(
        "sd.address",
        "name or address by which Prometheus reaches this node, for the targets at /sd (default: as the exporter was "
        "called) and in --sd.file (default: localhost)",
        type=argument_types.host,
        metavar="HOST",
    )
    add(
        "sd.file",
        "keep a file of the ranks that serve metrics, for Prometheus' file_sd_configs; it has no targets once the "
        "exporter ends",
        type=argument_types.targets_file,
        metavar="FILE",
    )


def _add_node(add: _Add) -> None:
    """Add the flags of where things are on the node, and what it is called."""
    add(
        "state.directory",
        f"folder of the state files (default {environment.LAGGARD_STATE_DIR}, else laggard in shared memory)",
        type=argument_types.directory,
        metavar="FOLDER",
    )
    add(
        "path.kernel-log",
        "kernel log, for XID errors and kills for lack of memory (default %(default)s)",
        type=Path,
        default=KERNEL_LOG,
        metavar="FILE",
    )
    add(
        "path.procfs",
        "where procfs is (default %(default)s)",
        type=argument_types.root,
        default=Path("/proc"),
        metavar="FOLDER",
    )
    add(
        "path.sysfs",
        "where sysfs is (default %(default)s)",
        type=argument_types.root,
        default=Path("/sys"),
        metavar="FOLDER",
    )
    add(
        "host.name",
        "value of the label host_name; must be what the ranks call this host (default: the host's name)",
        default="",
        metavar="NAME",
    )


def _add_collectors(add: _Add, collectors: Mapping[str, str]) -> None:
    """Add the flags of the collectors."""
    for name, excluded in DEVICE_FILTERS.items():
        add(
            f"collector.{name}.device-include",
            f"devices that the collector {name} looks at",
            type=argument_types.expression,
            metavar="REGEX",
        )
        add(
            f"collector.{name}.device-exclude",
            f"devices that the collector {name} leaves out (default '{excluded}')",
            type=argument_types.expression,
            metavar="REGEX",
        )
    add(
        "collector.nvml.details",
        "the collector nvml also tells kinds of PCIe errors, pipes, clocks, thresholds and clock events that only a "
        "search for a fault in hardware needs",
        action="store_true",
    )
    add("collector.disable-defaults", "switch off every collector that no flag switches on", action="store_true")
    for name, text in collectors.items():
        add(
            f"collector.{name}",
            f"{text} (default on)",
            action=argparse.BooleanOptionalAction,
        )


def _devices(options: Mapping[str, Any], name: str) -> Filter:
    include, exclude = (options[f"collector.{name}.device-{kind}"] for kind in ("include", "exclude"))
    if include and exclude:
        reject(f"--collector.{name}.device-include and --collector.{name}.device-exclude exclude each other; give one")
    return Filter(include or "", (exclude if exclude is not None else DEVICE_FILTERS[name]) if not include else "")


def _unknown(argument: str, collectors: tuple[str, ...]) -> str:
    flag = argument.partition("=")[0]
    for prefix in ("--collector.", "--no-collector."):
        if flag.startswith(prefix):
            return f"{flag}: no collector {flag.removeprefix(prefix)!r}; there are {', '.join(collectors)}"
    return f"unknown argument {argument!r}; {PROGRAM} --help lists all"


def _directory_problem(directory: Path) -> str | None:
    name = f"--state.directory (or {environment.LAGGARD_STATE_DIR}) {str(directory)!r}"
    try:
        mode = os.lstat(directory).st_mode
    except FileNotFoundError:
        return None  # normal: the first rank makes it
    except OSError as error:
        return f"{name}: {error.strerror}; name the folder that the ranks write to"
    if not stat.S_ISDIR(mode):
        return f"{name} is not a folder; name the one that the ranks write to (symbolic links are not followed)"
    return None
