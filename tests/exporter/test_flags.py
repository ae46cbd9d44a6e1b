"""The command line: what it takes, and what it says to bad input."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.version import PACK_VERSION, __version__
from laggard_exporter import flags, main
from laggard_exporter.collection import Collection
from laggard_exporter.filters import Filter
from laggard_exporter.flags import Options
from laggard_exporter.web.address import Address
from laggard_exporter.web.configuration import WebConfiguration
from laggard_exporter.web.watch import ConfigurationSource
from tests.exporter.support import EXPORTER, TIMEOUT

COLLECTORS = {"nvml": "GPUs", "state": "ranks"}


def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command and return exit code, standard output and standard error."""
    result = subprocess.run([str(EXPORTER), *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    return result.returncode, result.stdout, result.stderr


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without flags everything is on and only this machine can connect."""
    monkeypatch.delenv("LAGGARD_STATE_DIR", raising=False)
    assert flags.parse([], COLLECTORS) == Options(
        command="",
        json=False,
        addresses=(),
        telemetry_path="/metrics",
        max_requests=40,
        web_configuration=None,
        profiling=False,
        targets_host="",
        targets_file=None,
        state_directory=statefile.default_directory(),
        kernel_log=Path("/dev/kmsg"),
        procfs=Path("/proc"),
        sysfs=Path("/sys"),
        host=socket.gethostname(),
        devices={"disk": Filter(exclude=flags.DEVICE_FILTERS["disk"]), "infiniband": Filter()},
        nvml_details=False,
        collectors=("nvml", "state"),
        otlp_endpoint="",
        log_level="info",
    )


def test_every_flag(tmp_path: Path) -> None:
    """Each flag sets its option; addresses may be several."""
    arguments = [
        "--web.listen-address=:9000",
        "--web.listen-address=[::1]:9001",
        "--web.listen-address=10.0.0.7:9002",
        "--web.telemetry-path=/m",
        f"--state.directory={tmp_path}",
        "--path.kernel-log=/log",
        "--no-collector.nvml",
        "--collector.state",
        "--log.level=debug",
        "--web.max-requests=3",
        f"--web.config.file={tmp_path / 'web.yml'}",
        "--web.enable-profiling",
        "--sd.address=[2001:db8::7]",
        "--sd.file=targets.json",
        f"--path.procfs={tmp_path}",
        f"--path.sysfs={tmp_path}",
        "--host.name=node-7",
        "--collector.disk.device-include=nvme.*",
        "--collector.infiniband.device-exclude=mlx5_1",
        "--collector.nvml.details",
        "--otlp.endpoint=http://localhost:4317",
    ]
    assert flags.parse(["doctor", "--json", *arguments], COLLECTORS) == Options(
        command="doctor",
        json=True,
        addresses=(Address("", 9000), Address("::1", 9001), Address("10.0.0.7", 9002)),
        telemetry_path="/m",
        max_requests=3,
        web_configuration=tmp_path / "web.yml",
        profiling=True,
        targets_host="2001:db8::7",
        targets_file=Path("targets.json"),
        state_directory=tmp_path,
        kernel_log=Path("/log"),
        procfs=tmp_path,
        sysfs=tmp_path,
        host="node-7",
        devices={"disk": Filter(include="nvme.*"), "infiniband": Filter(exclude="mlx5_1")},
        nvml_details=True,
        collectors=("state",),
        otlp_endpoint="http://localhost:4317",
        log_level="debug",
    )


def test_where_to_listen() -> None:
    """Without flags only this machine can connect, unless the connection is encrypted and strangers are kept out."""
    assert flags.default_address(closed=False) == Address("localhost", 9495)
    assert flags.default_address(closed=True) == Address("", 9495)
    local = ["localhost", "127.0.0.1", "127.8.9.1", "::1"]
    assert [Address(host, 1).local for host in (*local, "", "0.0.0.0", "::", "10.0.0.7", "node-7")] == [True] * 4 + [
        False
    ] * 5


@pytest.mark.parametrize(("address", "warnings"), [("127.0.0.1:0", 0), ("0.0.0.0:0", 1)])
def test_an_open_port_is_said(
    address: str, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Metrics for everybody without encryption and password are logged as such; for this machine alone they are not."""

    def listen(*_: object) -> None:
        """Listen nowhere."""

    monkeypatch.setattr(main, "Server", listen)
    options = flags.parse([f"--web.listen-address={address}"], COLLECTORS)
    main._servers(options, Collection([]), ConfigurationSource(WebConfiguration()))
    assert [record.getMessage() for record in caplog.records] == [
        "the metrics are served to all who reach this node: --web.config.file gives encryption and passwords"
    ] * warnings


def test_collectors_that_are_off() -> None:
    """With --collector.disable-defaults only what a flag switches on is on."""
    assert flags.parse(["--collector.disable-defaults"], COLLECTORS).collectors == ()
    only = ["--collector.state", "--collector.disable-defaults"]
    assert flags.parse(only, COLLECTORS).collectors == ("state",)


def test_devices() -> None:
    """A device is looked at when its whole name matches; partitions and RAM disks are left out of the default."""
    disks = flags.parse([], COLLECTORS).devices["disk"]
    names = ["sda", "sda1", "nvme0n1", "nvme0n1p2", "loop0", "ram3", "zram0", "vdb", "vdb2", "dm-0", "md127"]
    assert [name for name in names if disks.admits(name)] == ["sda", "nvme0n1", "vdb", "dm-0", "md127"]
    assert flags.parse(["--collector.disk.device-exclude="], COLLECTORS).devices["disk"].admits("loop0")
    only = flags.parse(["--collector.disk.device-include=sd"], COLLECTORS).devices["disk"]
    assert [only.admits("sd"), only.admits("sda")] == [True, False]


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LAGGARD_STATE_DIR is the folder where no flag names one."""
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "env"))
    assert flags.parse([], COLLECTORS).state_directory == tmp_path / "env"
    assert flags.parse([f"--state.directory={tmp_path}"], COLLECTORS).state_directory == tmp_path


NO_ADDRESS = "argument --web.listen-address: must be HOST:PORT, got"
ADDRESSES = "; try localhost:9495, :9495 or [::1]:9495"
BAD_INPUT = {
    "--nonsense=1": "unknown argument '--nonsense=1'; laggard-exporter --help lists all",
    "stray": "unknown argument 'stray'; laggard-exporter --help lists all",
    "--collector.gpu": "--collector.gpu: no collector 'gpu'; there are nvml, state",
    "--no-collector.gpu": "--no-collector.gpu: no collector 'gpu'; there are nvml, state",
    "--web.listen-address=9495": f"{NO_ADDRESS} '9495'{ADDRESSES}",
    "--web.listen-address=host:": f"{NO_ADDRESS} 'host:'{ADDRESSES}",
    "--web.listen-address=host:65536": f"{NO_ADDRESS} 'host:65536'{ADDRESSES}",
    "--web.listen-address=::1:9495": f"{NO_ADDRESS} '::1:9495'{ADDRESSES}",
    "--web.telemetry-path=metrics": "argument --web.telemetry-path: 'metrics' cannot be served; "
    "give a path such as /metrics",
    "--web.telemetry-path=/": "argument --web.telemetry-path: '/' cannot be served; give a path such as /metrics",
    "--web.telemetry-path=/a b": "argument --web.telemetry-path: '/a b' cannot be served; give a path such as /metrics",
    "--web.max-requests=many": "argument --web.max-requests: must be a whole number, got 'many'",
    "--path.procfs=/missing": "argument --path.procfs: must be a folder, got '/missing'; "
    "name the root of the file system as it is mounted here",
    "--collector.disk.device-include=(": "argument --collector.disk.device-include: must be a regular "
    "expression, got '(': missing ), unterminated subpattern at position 0",
    "--collector.infiniband.device-exclude=*": "argument --collector.infiniband.device-exclude: must be a regular "
    "expression, got '*': nothing to repeat at position 0",
    "--otlp.endpoint=collector:4317": "argument --otlp.endpoint: must be a URL, got 'collector:4317'; "
    "try http://localhost:4317",
    "--json": "--json belongs to the command doctor: laggard-exporter doctor --json",
    "--state.directory=": "argument --state.directory: is empty; name the folder that the ranks write to",
    "--log.level=loud": "argument --log.level: invalid choice: 'loud' "
    "(choose from 'debug', 'info', 'warning', 'error')",
}


@pytest.mark.parametrize(("argument", "message"), BAD_INPUT.items())
def test_bad_input(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input ends with exit code 2 and one line that names the thing, the value and what to do."""
    with pytest.raises(SystemExit) as end:
        flags.parse([argument], COLLECTORS)
    assert end.value.code == 2
    # Python releases quote the choices differently.
    assert capsys.readouterr().err.replace(
        "choose from debug, info, warning, error", "choose from 'debug', 'info', 'warning', 'error'"
    ) == (f"laggard-exporter: error: {message}\n")


def test_devices_in_and_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Devices cannot be both chosen and left out."""
    with pytest.raises(SystemExit) as end:
        flags.parse(["--collector.disk.device-include=a", "--collector.disk.device-exclude=b"], COLLECTORS)
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "laggard-exporter: error: --collector.disk.device-include and --collector.disk.device-exclude "
        "exclude each other; give one\n"
    )


def test_a_broken_web_configuration(tmp_path: Path) -> None:
    """A web configuration file that cannot be used ends the command with exit code 2 and one line."""
    path = tmp_path / "web.yml"
    assert run(f"--web.config.file={path}") == (
        2,
        "",
        f"laggard-exporter: error: web configuration file {path}: No such file or directory\n",
    )


def test_a_state_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a link or a path through a file is refused as folder of state files; a missing folder is fine."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path)
    for path, reason in (
        (file, " is not a folder; name the one that the ranks write to (symbolic links are not followed)"),
        (link, " is not a folder; name the one that the ranks write to (symbolic links are not followed)"),
        (file / "below", ": Not a directory; name the folder that the ranks write to"),
    ):
        with pytest.raises(SystemExit) as end:
            flags.parse([f"--state.directory={path}"], COLLECTORS)
        assert end.value.code == 2
        message = f"--state.directory (or LAGGARD_STATE_DIR) '{path}'{reason}"
        assert capsys.readouterr().err == f"laggard-exporter: error: {message}\n"
    assert flags.parse([f"--state.directory={tmp_path / 'missing'}"], COLLECTORS)


def test_a_port_in_use() -> None:
    """An address that another process listens on ends the command with exit code 2 and one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, output, error = run(f"--web.listen-address={address}")
    assert (code, output) == (2, "")
    assert error == (
        f"laggard-exporter: error: --web.listen-address {address}: Address already in use; "
        "free the address or give another\n"
    )


def test_version() -> None:
    """``--version`` prints the version, and that of the rules it belongs to."""
    assert run("--version") == (0, f"laggard-exporter {__version__} (rules {PACK_VERSION})\n", "")
