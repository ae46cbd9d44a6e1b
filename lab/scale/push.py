"""Ranks that push by OTLP over HTTP, each over a connection of its own, as OpenTelemetry's SDK does."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field

from lab.scale.otlp import Content, Rank, Requests

#: `laggard run` gives a push so many seconds, in which the SDK tries again after one second, and two more.
_TIMEOUT, _PAUSES = 3.0, (1.0, 2.0)
_TRY_AGAIN = (429, 502, 503, 504)
_TAKEN = 200

Who = tuple[str, str]


@dataclass
class Tally:
    """What became of the pushes."""

    #: From the first push to the last.
    seconds: float = 0.0
    pushes: int = 0
    accepted: int = 0
    #: Answers that are no 200, and requests to which there was no answer: those may have been taken or not.
    refused: int = 0
    unanswered: int = 0
    #: Pushes that were given up; the next one has the same sums.
    given_up: int = 0
    points: int = 0
    #: Samples of what was accepted, by their names in Prometheus.
    samples: Counter[str] = field(default_factory=Counter[str])
    #: Times of what was accepted, in milliseconds, by run and rank.
    times: dict[Who, list[int]] = field(default_factory=dict[Who, "list[int]"])


class Pushers:
    """Pushes for all ranks until told to end.

    Args:
        requests: what they push.
        ports: of agents on loopback; a node's ranks push to the same one.
        interval: between two pushes of a rank, in seconds. Ranks share it out evenly.
    """

    def __init__(self, requests: Requests, ports: list[int], interval: float) -> None:
        self._requests = requests
        self._interval = interval
        self._tally = Tally()
        self._contents: Counter[Content] = Counter()
        self._ended = False
        self._began = asyncio.get_running_loop().time()
        hosts = {host: place for place, host in enumerate(sorted({rank.host for rank in requests.ranks}))}
        self._ports = {host: ports[place * len(ports) // len(hosts)] for host, place in hosts.items()}
        self._tasks = [
            asyncio.create_task(self._rank(rank, interval * place / len(requests.ranks)))
            for place, rank in enumerate(requests.ranks)
        ]

    async def end(self) -> Tally:
        """Push no more; return what became of all pushes, when those under way are answered."""
        self._ended = True
        self._tally.seconds = asyncio.get_running_loop().time() - self._began
        await asyncio.wait(self._tasks, timeout=self._interval + 2 * _TIMEOUT)
        return self.tally

    @property
    def tally(self) -> Tally:
        """What became of the pushes so far."""
        self._tally.points = sum(count * content.points for content, count in self._contents.items())
        samples: Counter[str] = Counter()
        for content, count in self._contents.items():
            samples.update({name: count * each for name, each in content.samples.items()})
        self._tally.samples = samples
        return self._tally

    async def _rank(self, rank: Rank, offset: float) -> None:
        connection = _Connection(self._ports[rank.host])
        clock = asyncio.get_running_loop().time
        due = clock() + offset
        while not self._ended:
            await asyncio.sleep(due - clock())
            if not self._ended:
                await self._push(rank, connection)
            # As the SDK: who is late leaves out what is past.
            while due <= clock():
                due += self._interval
        connection.close()

    async def _push(self, rank: Rank, connection: _Connection) -> None:
        made = self._requests.make(rank)
        if made is None:
            connection.close()
            return
        body, milliseconds = made
        content = rank.content
        self._tally.pushes += 1
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._try(connection, body, rank, content, milliseconds), _TIMEOUT)
            return
        connection.close()
        self._tally.given_up += 1

    async def _try(self, connection: _Connection, body: bytes, rank: Rank, content: Content, at: int) -> None:
        for pause in (*_PAUSES, None):
            try:
                status = await connection.post(body)
            except (OSError, asyncio.IncompleteReadError):
                self._tally.unanswered += connection.written
                connection.close()
                status = _TRY_AGAIN[0]
            except asyncio.CancelledError:
                self._tally.unanswered += connection.written
                raise
            else:
                self._tally.refused += status != _TAKEN
            if status == _TAKEN:
                self._tally.accepted += 1
                self._contents[content] += 1
                self._tally.times.setdefault((rank.run, rank.rank), []).append(at)
                return
            if status not in _TRY_AGAIN or pause is None:
                break
            await asyncio.sleep(pause)
        self._tally.given_up += 1


class _Connection:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: Whether a request was written that has no answer yet.
        self.written = False

    async def post(self, body: bytes) -> int:
        """Send a request and return the status of its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(
            b"POST /v1/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        self.written = True
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, found, rest = head.partition(b"content-length:")
        if found:
            await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
        self.written = False
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        self.written = False
