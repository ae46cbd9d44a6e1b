"""Mutation tests: makes one small mistake after the other in a module, and counts those that its tests notice.

    python scripts/tests/mutants.py                     every module
    python scripts/tests/mutants.py partition           one
    python scripts/tests/mutants.py partition --lines 120-180

Each mutant is a fork that imports the changed module instead of the real one and runs the module's fast tests up to the
first that fails. Nothing is written. The known programs for this name modules after their folders, or change
the sources where they are: they do not suit three roots of packages, or a checkout that somebody works in.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, cast

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

#: Of each module's mutants, so many per cent must be noticed.
LIMIT = 85

_MEMORY = 8 << 30
_KILLED = 3
#: What is imported before the fork is not rewritten, which pytest warns of.
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


_KINDS_OF_DUMPS = ("calls", "counters", "moments", "partial", "remarks", "transfers")


class Target(NamedTuple):
    """A module, and the tests that must notice its mutants."""

    module: str
    file: str
    tests: tuple[str, ...]


TARGETS = {
    "recorder": Target(
        "laggard._hot_path",
        "instrumentation/laggard/_hot_path.py",
        ("tests/instrumentation/test_recorder.py", "tests/instrumentation/test_partition.py"),
    ),
    "partition": Target(
        "laggard._partition",
        "instrumentation/laggard/_partition.py",
        ("tests/instrumentation/test_partition.py", "tests/instrumentation/test_whose.py"),
    ),
    "steps": Target(
        "laggard._steps",
        "instrumentation/laggard/_steps.py",
        ("tests/instrumentation/test_steps.py", "tests/instrumentation/test_partition.py"),
    ),
    "hang": Target(
        "laggard_exporter.hang.verdict",
        "exporter/laggard_exporter/hang/verdict.py",
        (
            *(f"tests/exporter/hang/test_{name}.py" for name in ("verdict", *_KINDS_OF_DUMPS)),
            "tests/cli/test_hang.py",
            # They take long and look at something else: what cannot be parsed, and a real job.
            "--deselect=tests/exporter/hang/test_verdict.py::test_damaged_dumps_are_refused_or_read_and_raise_nothing_else",
            "--deselect=tests/exporter/hang/test_moments.py::test_a_dump_of_an_earlier_attempt_is_never_the_culprit",
            "--deselect=tests/cli/test_hang.py::test_dumps_of_a_real_hang_name_the_real_culprit",
        ),
    ),
}

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Mutant(NamedTuple):
    """A module with a mistake, the line that it is in, and how that line was and is."""

    tree: ast.Module
    line: int
    before: str
    after: str


def mistakes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - a table of cases
    """Give what could stand in the place of a node by mistake."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = _COMPARISONS[type(operator)]()
            yield changed
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        changed = copy.deepcopy(node)
        changed.op = _OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        changed = copy.deepcopy(node)
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed


def _other_constants(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    # A sentence is documentation.
    elif isinstance(value, str) and not value.endswith("."):
        yield ast.Constant(f"{value}?")


def mutants(source: str) -> Iterator[Mutant]:
    """Give every mutant of a module."""
    lines = source.splitlines()
    for place, _ in _places(ast.parse(source)):
        for number in range(len(list(mistakes(place)))):
            tree = ast.parse(source)
            node, put = next((other, put) for other, put in _places(tree) if _same(other, place))
            changed = list(mistakes(node))[number]
            line: int = getattr(node, "lineno", 0)
            put(ast.fix_missing_locations(ast.copy_location(changed, node)))
            head = changed if not isinstance(changed, ast.If | ast.While) else changed.test
            yield Mutant(tree, line, lines[line - 1].strip(), ast.unparse(head).splitlines()[0])


def _same(one: ast.AST, other: ast.AST) -> bool:
    names = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return type(one) is type(other) and all(getattr(one, name, 0) == getattr(other, name, 0) for name in names)


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    """Give each node below one where a mistake may be, with what puts another into its place."""
    for name, value in ast.iter_fields(node):
        # Types do nothing.
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"Callable", "tuple"}
        ):
            continue
        if isinstance(value, ast.AST):
            yield value, lambda other, name=name: setattr(node, name, other)
            yield from _places(value)
        elif isinstance(value, list):
            among = cast("list[Any]", value)
            for child in list(among):
                documentation = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
                if documentation or not isinstance(child, ast.AST):
                    continue

                def put(other: ast.AST, child: ast.AST = child, among: list[ast.AST] = among) -> None:
                    among[next(place for place, each in enumerate(among) if each is child)] = other

                yield child, put
                yield from _places(child)


class _Changed(SourceFileLoader):
    """Loads a module from a tree instead of its file."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._code = compile(tree, path, "exec")

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - there is one
        return self._code


class _Finder(MetaPathFinder):
    def __init__(self, target: Target, tree: ast.Module) -> None:
        self._target, self._tree = target, tree

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - what is asked of every finder
        target: ModuleType | None = None,  # noqa: ARG002 - the same
    ) -> ModuleSpec | None:
        if fullname != self._target.module:
            return None
        file = str(ROOT / self._target.file)
        return importlib.util.spec_from_file_location(fullname, file, loader=_Changed(fullname, file, self._tree))


def noticed(target: Target, tree: ast.Module, seconds: float) -> bool:
    """Return whether the tests fail, or do not come to an end, with a tree in the place of the module."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        with contextlib.suppress(BaseException):
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            sys.meta_path.insert(0, _Finder(target, tree))
            code = pytest.main([*_OPTIONS, *target.tests])
            os._exit(0 if code == pytest.ExitCode.OK else _KILLED)
        os._exit(_KILLED)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def run(name: str, first: int, last: int) -> bool:
    """Run the mutants of a module, print those that nothing notices, and return whether enough are noticed."""
    target = TARGETS[name]
    source = (ROOT / target.file).read_text(encoding="utf-8")
    begun = time.monotonic()
    if noticed(target, ast.parse(source), 300):
        print(f"mutants: {name}: its tests fail as it is", file=sys.stderr)
        return False
    seconds = 10 + 5 * (time.monotonic() - begun)
    killed = total = 0
    for mutant in mutants(source):
        if first <= mutant.line <= last:
            total += 1
            if noticed(target, mutant.tree, seconds):
                killed += 1
            else:
                print(f"{target.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
    share = 100 * killed / total if total else 100
    print(f"{name}: {killed} of {total} mutants killed, {share:.1f} % (limit {LIMIT} %)", flush=True)
    return share >= LIMIT


def main() -> int:
    """Run the mutants of the modules that are named."""
    parser = argparse.ArgumentParser(prog="mutants", description="Mutation tests.")
    parser.add_argument("module", nargs="*", metavar="MODULE", help=f"{', '.join(TARGETS)} (default: all of them)")
    parser.add_argument("--lines", default="1-1000000", metavar="FIRST-LAST", help="mutants in these lines alone")
    options = parser.parse_args()
    first, last = map(int, options.lines.split("-"))
    os.chdir(ROOT)
    # What takes long to import is there in each fork; what may be changed is not.
    for name in ("hypothesis", "laggard_cli.hang.command", "laggard._process", "tests.instrumentation.conftest"):
        importlib.import_module(name)
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("laggard", "laggard_exporter", "laggard_cli", "tests")
    ]:
        del sys.modules[name]
    enough = [run(name, first, last) for name in options.module or TARGETS]
    return 0 if all(enough) else 1


if __name__ == "__main__":
    sys.exit(main())
