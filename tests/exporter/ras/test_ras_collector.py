"""Collector ras: it asks a real service on a port, only where a run stands still, and no scrape waits for it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.shared import statefile
from laggard.shared.phases import Phase
from laggard_exporter.ras import client, question
from laggard_exporter.ras.answer import MAX_BYTES, RasError
from laggard_exporter.ras.collector import AGAIN_SECONDS, SUSPECT_SECONDS, RasCollector
from laggard_exporter.ras.facts import Facts
from tests.exporter.support import NANOSECONDS, as_dict, fresh, live_rank
from tests.support import fake_ras
from tests.support.fake_ras import answer, process, serving, world
from tests.support.waiting import until

PROCFS = Path("/proc")
COMMUNICATOR = "0xf00d 0xb7e7187447156001:0xb8242ed28a71381e"
#: The environment is of the rank's process alone.
PORT_VARIABLE = client.ADDRESS_VARIABLE


def at_once(asked: question.Question) -> Facts:
    """Ask as the collector does, twice without a pause."""
    return question.ask(replace(asked, between=0.0))


class Node:
    """The collector of a node whose ranks stand still, and a clock that goes as a test says."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.collector = RasCollector(directory, ask=at_once, clock=lambda: self.now)

    def scrape(self) -> dict[str, float]:
        """What is exported, with names cut short and without questions that were not asked."""
        found: dict[str, float] = {}
        for series, value in as_dict(self.collector.collect()).items():
            name = series.replace("training_process_ras_", "").replace('training_run="run-1"', "")
            name = name.replace("laggard_exporter_ras_questions_total", "questions").replace("training_", "")
            if not name.startswith("questions") or value:
                found[name.replace(",}", "}").replace(",,", ",")] = value
        return found

    def asked(self, result: str, times: int) -> dict[str, float]:
        """Wait until a number of questions have this result, and return what is exported then."""
        series = f'questions{{result="{result}"}}'
        until(lambda: self.scrape().get(series) == times)
        return self.scrape()


@contextlib.contextmanager
def rank(
    directory: Path, number: int, port: int, still: float = 60, world_size: int = 8
) -> Generator[None, None, None]:
    """Run a rank that has stood still for a time, in seconds."""
    now = statefile.boottime_ns()
    start = now - 600 * NANOSECONDS
    facts = fresh(start_boottime_ns=start, rank=number, pid=process(number)["pid"], world_size=world_size)
    word = statefile.pack(Phase.COMMUNICATION, now - int(still * NANOSECONDS))
    environment = {PORT_VARIABLE: f"localhost:{port}"}
    with live_rank(directory, facts, {statefile.PHASE: word}, environment):
        yield


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node without ranks."""
    return Node(tmp_path)


def test_what_two_answers_say_is_exported(tmp_path: Path, node: Node) -> None:
    """Of ranks of other hosts too, by NCCL's protocol, in a process of its own; until the next question."""
    said = answer(world([812] * 16, {5: False, 6: True}))
    with serving(said) as service, rank(tmp_path, 0, service.port, world_size=16):
        assert node.scrape() == {}
        missing = {'missing{rank="5"}': 1, 'missing{rank="6"}': 2}
        assert node.asked("answered", 1) == {**missing, 'questions{result="answered"}': 1}
        assert service.commands == 2 * ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "STATUS"]
        node.now += 1000
        # A minute later RAS gives up rank 5 too; rank 6 it had given up before the run stood still.
        service.answer = answer(world([812] * 16, {5: True, 6: True}))
        assert node.asked("answered", 2) == {**missing, 'questions{result="answered"}': 2}
        node.now += 1000
        service.answer = answer(world([812] * 12 + [811] * 4))
        behind = {f'behind{{communicator="{COMMUNICATOR}",rank="{late}"}}': 1 for late in range(12, 16)}
        assert node.asked("answered", 3) == {**behind, 'questions{result="answered"}': 3}


def test_a_list_of_many_ranks_tells_nobody_apart(tmp_path: Path, node: Node) -> None:
    """64 are exported, 65 are not."""
    many = answer(world([812] * 100 + [811] * 65))
    with serving(many) as service, rank(tmp_path, 0, service.port, world_size=165):
        assert node.asked("answered", 1) == {'questions{result="answered"}': 1}
        service.answer = answer(world([812] * 101 + [811] * 64))
        node.now += 1000
        assert len(node.asked("answered", 2)) == 65


def test_nobody_is_asked_while_a_rank_goes_on(tmp_path: Path, node: Node) -> None:
    """One sign of progress on this host is enough, and what was said of the standstill before is forgotten."""
    with serving(answer(world([812] * 7 + [811]))) as service, rank(tmp_path, 0, service.port):
        with rank(tmp_path, 1, service.port, still=SUSPECT_SECONDS - 5):
            assert node.scrape() == {}
            assert service.commands == []
        assert f'behind{{communicator="{COMMUNICATOR}",rank="7"}}' in node.asked("answered", 1)
        with rank(tmp_path, 2, service.port, still=SUSPECT_SECONDS - 5):
            assert node.scrape() == {'questions{result="answered"}': 1}


def test_a_few_hosts_of_a_job_ask(tmp_path: Path, node: Node) -> None:
    """Each answer is of all ranks: of 64 those that have a rank in sixteen."""
    with (
        serving() as service,
        rank(tmp_path, 24, service.port, world_size=64),
        rank(tmp_path, 31, service.port, world_size=64),
    ):
        assert node.scrape() == {}
        with rank(tmp_path, 32, service.port, world_size=64):
            node.asked("rejected", 1)


def test_a_job_is_asked_about_again_after_half_of_the_time_that_it_has_stood_still(tmp_path: Path, node: Node) -> None:
    """Not sooner than after 15 seconds, and one question at a time."""
    with serving(answer(world([1] * 8)), delay=0.2) as service, rank(tmp_path, 0, service.port, still=100):
        for _ in range(5):
            node.scrape()
        node.asked("answered", 1)
        node.now += AGAIN_SECONDS + 30
        node.scrape()
        assert service.commands.count("STATUS") == 2
        node.now += 30
        node.asked("answered", 2)
        assert service.commands.count("STATUS") == 4


def test_no_scrape_waits(tmp_path: Path, node: Node) -> None:
    """However slowly RAS answers."""
    with serving(answer(world([1] * 8)), delay=0.7) as service, rank(tmp_path, 0, service.port):
        begin = time.monotonic()
        node.scrape()
        node.scrape()
        assert time.monotonic() - begin < 1
        node.asked("answered", 1)


def test_a_stopped_process_of_the_job_does_not_answer_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still listens, as all of them do on one port; each connection reaches another."""
    monkeypatch.setattr(client, "GREET_SECONDS", 0.1)
    monkeypatch.setattr(client, "ATTEMPTS", 50)
    with serving(answer(world([1] * 8))) as service, fake_ras.listening(service.port):
        for _ in range(5):
            assert client.ask(PROCFS, service.port, os.getuid()) == service.answer


def test_nobody_listens(tmp_path: Path, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """NCCL has RAS switched off, or there is none."""
    with serving() as service:
        port = service.port
    with caplog.at_level("INFO"), rank(tmp_path, 0, port):
        node.asked("nobody", 1)
    assert caplog.messages == [f"NCCL RAS: no process of user {os.getuid()} listens on port {port}"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"old": True}, "RAS answered 'ERROR: Unknown command SET FORMAT json'; NCCL writes JSON since 2.28.7"),
        ({"said": answer(world([1] * 8))[:900]}, "malformed JSON: "),
        ({"said": answer(world([1] * 8, {3: False}), version="2.28.9", comma=False)}, "malformed JSON, as NCCL 2.28 "),
        ({"said": b""}, "no JSON"),
        ({"said": b" " * (1 << 20), "endless": True}, f"RAS answered with more than the {MAX_BYTES} bytes"),
        ({"said": answer(world([1] * 8)).replace(b'"pid": 4', b'"pid": 7')}, "RAS answered for another job"),
    ],
    ids=["old", "cut", "2.28", "nothing", "endless", "another job"],
)
def test_what_cannot_be_used_is_nothing(
    tmp_path: Path, node: Node, caplog: pytest.LogCaptureFixture, how: dict[str, object], why: str
) -> None:
    """One line says why, and no series of a rank."""
    with serving(**how) as service, rank(tmp_path, 0, service.port):  # pyright: ignore[reportArgumentType] - as the table has it
        assert node.asked("rejected", 1) == {'questions{result="rejected"}': 1}
    (message,) = caplog.messages
    assert message.startswith(f"NCCL RAS: {why}")


def test_nobody_who_never_greets_is_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four connections, each for two seconds at most."""
    monkeypatch.setattr(client, "GREET_SECONDS", 0.05)
    with fake_ras.listening() as silent:
        port = silent.getsockname()[1]
        with pytest.raises(RasError) as caught:
            client.ask(PROCFS, port, os.getuid())
    assert str(caught.value) == f"127.0.0.1 port {port}: timed out"
    assert client.ATTEMPTS * 2 < client.QUESTION_SECONDS


def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After twelve seconds, longer than RAS takes at most."""
    monkeypatch.setattr(client, "GREET_SECONDS", 0.5)
    monkeypatch.setattr(client, "QUESTION_SECONDS", 1.0)
    with serving(b"{", delay=60) as service, pytest.raises(RasError) as caught:
        client.ask(PROCFS, service.port, os.getuid())
    assert str(caught.value) == "RAS did not end its answer within 1 s"


def test_only_a_port_of_the_ranks_user_is_asked() -> None:
    """Anybody may listen on a port and accuse a rank; the kernel says whose it is."""
    with serving() as service:
        assert client.listeners(PROCFS, service.port, os.getuid()) == [
            client.Listener(socket.AF_INET, "127.0.0.1", service.port)
        ]
        assert client.listeners(PROCFS, service.port, os.getuid() + 1) == []
        with pytest.raises(client.NobodyError):
            client.ask(PROCFS, service.port, os.getuid() + 1)
        assert service.commands == []


@pytest.mark.parametrize(
    ("environment", "port"),
    [
        (b"A=1\0NCCL_RAS_ADDR=localhost:29029\0B=2\0", 29029),
        (b"NCCL_RAS_ADDR=[fe80::1]:29029%eth0\0", 29029),
        (b"NCCL_RAS_ADDR=0.0.0.0:1\0", 1),
        (b"NCCL_RAS_ADDR=localhost\0", 28028),
        (b"NCCL_RAS_ADDR=localhost:99999\0", 28028),
        (b"NCCL_RAS_ADDR=localhost:-1\0", 28028),
        (b"XNCCL_RAS_ADDR=localhost:29029\0", 28028),
        (b"", 28028),
    ],
)
def test_the_port_is_that_of_the_process(environment: bytes, port: int) -> None:
    """The variable's, else NCCL's own."""
    assert client.port(environment) == port


def test_addresses_of_this_host() -> None:
    """The kernel says which are."""
    assert [client.is_here(host) for host in ("127.0.0.1", "192.0.2.1", "0.0.0.0", "unknown", "")] == [
        True,
        *4 * [False],
    ]


def test_listeners_on_any_address_are_asked_on_loopback(tmp_path: Path) -> None:
    """The kernel's tables, IPv6 too; connections after them are not read."""
    net = tmp_path / "self" / "net"
    net.mkdir(parents=True)
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rest = "00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n"
    (net / "tcp").write_text(
        f"{head}   0: 00000000:6D7C 00000000:0000 0A {rest}   1: 0100007F:6D7C 0100007F:9000 01 {rest}"
        f"   2: 0100007F:6D7C 00000000:0000 0A {rest}"
    )
    zero = "0" * 32
    (net / "tcp6").write_text(f"{head}   0: 00000000000000000000000001000000:6D7C {zero}:0000 0A {rest}   bad\n")
    assert client.listeners(tmp_path, 28028, 1000) == [
        client.Listener(socket.AF_INET, "127.0.0.1", 28028),
        client.Listener(socket.AF_INET6, "::1", 28028),
    ]
    assert client.listeners(tmp_path / "missing", 28028, 1000) == []
