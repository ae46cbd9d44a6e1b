"""Whatever a file of ours contains, its parser ends soon, with a result or with the one error that it promises.

``FUZZ_EXAMPLES=20000 pytest tests/fuzz`` looks for longer, each time at other examples. State files stand in
tests/exporter/ranks/test_hostile_files.py, control files in tests/instrumentation/test_control.py.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from laggard_cli.errors import CommandError
from laggard_cli.kineto.run import read_run
from laggard_cli.kineto.verdicts import Judgement
from laggard_cli.kineto.verdicts import judge as judge_traces
from laggard_cli.rules.check import mistakes
from laggard_exporter.hang.dump import Dump
from laggard_exporter.hang.dump_file import DumpError, parse
from laggard_exporter.hang.facts import as_json, facts, from_json
from laggard_exporter.hang.verdict import Verdict, judge
from laggard_exporter.kernel_log import KernelLog
from laggard_exporter.nvml.xid import XidErrors
from laggard_exporter.ras import answer as ras
from laggard_exporter.ras.facts import facts as ras_facts
from laggard_exporter.web.configuration import ConfigurationError, WebConfiguration, load
from tests.support import fake_ras
from tests.support.cases import EVERY_CASE
from tests.support.kineto import Job, Work, write
from tests.support.recorded_job import RecordedJob

_Result = TypeVar("_Result")
_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
fuzz = settings(
    max_examples=_EXAMPLES or (150 if EVERY_CASE else 50),
    deadline=2000,
    derandomize=not _EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)


def outcome(call: Callable[[], _Result], refusal: type[Exception]) -> _Result | str:
    """Return what a parser makes of its input, or in one line why it refuses it."""
    try:
        return call()
    except refusal as error:
        said = str(error)
    assert said
    assert "\n" not in said
    return said


#: What YAML, JSON and pickles can hold, keys of ours among it.
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["1s", "-1", "all_reduce", "scheduled", "nccl:barrier", "[0, 1]", "[[[", "vector(2)", "1" * 5000]),
)


def trees(keys: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Nested lists and mappings, whose keys are mostly those that the parser knows."""
    names = st.one_of(st.sampled_from(keys), st.text(max_size=4))
    return st.recursive(
        _scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=6)),
        max_leaves=25,
    )


def _dumps(*, as_pickle: bool) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        RecordedJob({"0": (0, 1, 2)}, [("0", "all_reduce")] * 3, stops={1: 1}).write(Path(folder), as_pickle=as_pickle)
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


_WHOLE = [*_dumps(as_pickle=True), *_dumps(as_pickle=False)]
_ENTRY: dict[str, Any] = json.loads(_dumps(as_pickle=False)[0])["entries"][0]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real dump in which some bytes are others, more or fewer."""
    content = bytearray(draw(st.sampled_from(_WHOLE)))
    for offset, length, data in draw(
        st.lists(st.tuples(st.integers(0, len(content)), st.integers(0, 8), st.binary(max_size=8)), max_size=6)
    ):
        content[offset : offset + length] = data
    return bytes(content)


entries = st.fixed_dictionaries(
    {}, optional={key: st.one_of(st.just(value), _scalars) for key, value in _ENTRY.items()}
)
documents = st.one_of(
    trees(("entries", "pg_config", "ranks", *_ENTRY)),
    st.fixed_dictionaries({"entries": st.lists(entries, max_size=5), "pg_config": trees(("0", "ranks", "desc"))}),
)


@fuzz
@given(
    content=st.one_of(
        damaged(), st.binary(max_size=200), documents.map(pickle.dumps), documents.map(json.dumps).map(str.encode)
    )
)
# A list that contains itself, and depth.
@example(b"\x80\x02]q\x00h\x00a.")
@example(b"[" * 100_000)
def test_a_dump(content: bytes) -> None:
    """A dump or a DumpError of one line; and a dump can be judged, and exported or refused."""
    # A pickle may ask for a memo of gigabytes by one number; the command line reads in a process with a limit.
    if content[:1] == b"\x80":
        content = content.replace(b"r", b"q")
    found = outcome(lambda: parse(content, 1), DumpError)
    if isinstance(found, Dump):
        assert isinstance(judge({1: found}), Verdict)
        told = outcome(lambda: facts(found), DumpError)
        assert isinstance(told, str) or from_json(as_json(told)) == told


_ANSWER = fake_ras.answer(fake_ras.world([2, 2, 1], {2: False}), fake_ras.world([1, 2, 2], name=7))


def _pieces(found: Any) -> list[tuple[Any, Any]]:
    """Return each mapping or list with each of its keys, at any depth."""
    inner: list[tuple[Any, Any]] = list(found.items() if isinstance(found, dict) else enumerate(found))
    nested = [pair for _, value in inner if isinstance(value, (dict, list)) for pair in _pieces(value)]
    return [*((found, key) for key, _ in inner), *nested]


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer of NCCL RAS in which some values are others, or some bytes are gone."""
    document = json.loads(_ANSWER)
    for _ in range(draw(st.integers(0, 3))):
        holder, key = draw(st.sampled_from(_pieces(document)))
        holder[key] = draw(_scalars)
    content = json.dumps(document).encode()
    return content[draw(st.integers(0, 40)) : draw(st.integers(len(content) - 40, len(content)))]


@fuzz
@given(content=st.one_of(answers(), documents.map(json.dumps).map(str.encode), st.binary(max_size=200)))
def test_an_answer_of_nccl_ras(content: bytes) -> None:
    """An answer or a RasError of one line; and an answer has facts, of ranks of the job alone."""
    found = outcome(lambda: ras.parse(content), ras.RasError)
    if isinstance(found, ras.Answer):
        told = ras_facts(found, 3, {})
        assert {each.rank for each in (*told.behind, *told.missing)} <= {0, 1, 2}


_records = st.one_of(
    st.binary(max_size=80),
    st.builds(
        lambda head, text: f"{head};{text}".encode(),
        st.one_of(st.just("6,1,99,-"), st.text("0123456789,-", max_size=30)),
        st.one_of(
            st.just("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."),
            st.text(max_size=30).map(lambda text: f"NVRM: Xid (PCI:0000:1b:00): {text}"),
            st.text(max_size=60),
        ),
    ),
)


@fuzz
@given(records=st.lists(_records, max_size=10))
def test_the_kernel_log(records: list[bytes]) -> None:
    """Every record is read or passed over; a good one after them is counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kmsg"
        path.touch()
        log = KernelLog(path)
        lines = log.reader(re.compile("the last one"))
        errors = XidErrors(log)
        errors.read_log()
        with path.open("ab") as file:
            file.write(b"\n".join(records) + b"\n6,1,5000000,-;this is the last one\n")
        errors.read_log()
        assert [message.since_boot for message in lines.read()] == [5.0]
        assert not log.problem


_web = trees(
    (
        "tls_server_config",
        "http_server_config",
        "basic_auth_users",
        "rate_limit",
        "interval",
        "burst",
        "headers",
        "X-Frame-Options",
        "cert_file",
        "key_file",
        "min_version",
        "cipher_suites",
        "client_auth_type",
        "client_allowed_sans",
    )
)


@fuzz
@given(
    content=st.one_of(
        _web.map(json.dumps).map(str.encode), st.binary(max_size=100), st.text(max_size=100).map(str.encode)
    )
)
@example(b"a: &a [*a, *a]\n")
@example(b"rate_limit: {interval: 1e999s, burst: 1}\n")
@example(b'{"\\n": null}')
@example(b"tls_server_config: {cert_file: a, key_file: b, client_auth_type: [x]}\n")
@example(b"tls_server_config: {cert_file: a, key_file: b, min_version: {a: 1}}\n")
def test_the_web_configuration_file(content: bytes) -> None:
    """A configuration, or a ConfigurationError of one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "web.yml"
        path.write_bytes(content)
        assert isinstance(outcome(lambda: load(path), ConfigurationError), WebConfiguration | str)


@fuzz
@given(
    text=st.one_of(
        trees(("groups", "rules", "record", "expr", "labels", "name", "training_run", "interval")).map(json.dumps),
        st.text(max_size=100),
    )
)
@example("groups: [{name: [1], rules: [{record: laggard_threshold_override, labels: {name: [1], training_run: {}}}]}]")
@example('groups: [{name: a, rules: [{record: laggard_threshold_override, expr: "' + "(" * 20_000 + '"}]}]')
def test_a_file_of_overrides(text: str) -> None:
    """Its mistakes, a line each, and nothing else."""
    assert all("\n" not in mistake for mistake in mistakes(text, frozenset({"straggler_score"})))


def _trace() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write(Job([Work()], steps=3, kernels=1), Path(folder))
        return json.loads(path.read_bytes())


_TRACE = _trace()
_EVENTS: list[dict[str, Any]] = _TRACE["traceEvents"]


@st.composite
def traces(draw: st.DrawFn) -> bytes:
    """A trace of torch's profiler with other values, and then perhaps with other bytes."""
    events = [dict(event) for event in _EVENTS]
    for _ in range(draw(st.integers(0, 4))):
        event = draw(st.sampled_from(events))
        event[draw(st.sampled_from(sorted(event)))] = draw(trees(("correlation", "Sequence number")))
    facts = {key: draw(st.one_of(st.just(value), _scalars)) for key, value in _TRACE.items()}
    content = json.dumps({**facts, "traceEvents": events}).encode()
    cut = draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    place = draw(st.integers(0, cut))
    return content[:place] + draw(st.one_of(st.just(b""), st.binary(max_size=4))) + content[place:cut]


@settings(fuzz, max_examples=_EXAMPLES or (50 if EVERY_CASE else 20))
@given(content=traces())
@example(b'{"schemaVersion": 1, "traceEvents": [' + b"[" * 100_000)
def test_a_trace_of_the_profiler(content: bytes) -> None:
    """A trace is judged, or refused in one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_bytes(content)
        found = outcome(lambda: judge_traces(read_run([path])), CommandError)
    assert isinstance(found, str | Judgement)
