"""Rules that no linter knows: where time may come from, how long things may be, what tests say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from claimlet.config.settings import setting_types

from .house import FOLDERS, ROOT, functions, modules, tree

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600

#: Only the World gives time, randomness, ids and tasks to the engine and the append pipe.
WORLDLY_MODULES = {"random", "secrets", "sched", "threading", "time", "uuid"}
WORLDLY_NAMES = {
    "call_at",
    "call_later",
    "create_task",
    "ensure_future",
    "getrandom",
    "now",
    "run_coroutine_threadsafe",
    "sleep",
    "TaskGroup",
    "timeout",
    "timeout_at",
    "today",
    "urandom",
    "utcnow",
    "wait_for",
}
#: They only read, also in other people's processes, and wait for the network with its own clock.
READERS = {"public.py", "pull.py"}
#: The objects of which these names are worldly; `world.sleep` is the way it should be.
WORLDLY_OWNERS = {"asyncio", "date", "datetime", "loop", "os"}


def worldly_uses(module: ast.Module) -> Iterator[str]:
    """Yield each direct way to time, randomness, ids or tasks in *module*."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in WORLDLY_MODULES)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if node.module in WORLDLY_MODULES:
                yield f"from {node.module}"
            if node.module in ("asyncio", "datetime", "os"):
                yield from (name.name for name in node.names if name.name in WORLDLY_NAMES)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner.rpartition(".")[2] in WORLDLY_OWNERS and node.attr in WORLDLY_NAMES:
                yield f"{owner}.{node.attr}"
            if "get_running_loop()" in owner and node.attr in WORLDLY_NAMES | {"time"}:
                yield f"{owner}.{node.attr}"


class TestWorld:
    @pytest.mark.parametrize(
        "path",
        [path for path in modules("engine", "events/jetstream") if path.name not in READERS],
        ids=lambda path: str(path.relative_to(ROOT)),
    )
    def test_is_the_only_way_out(self, path: Path) -> None:
        """The engine and the append pipe run whole on a simulated world."""
        assert list(worldly_uses(tree(path))) == []

    @pytest.mark.parametrize(
        "source",
        [
            "import time",
            "from uuid import uuid4",
            "from asyncio import sleep",
            "async def f(): await asyncio.sleep(1)",
            "async def f(): asyncio.get_running_loop().call_later(1, f)",
            "async def f(): asyncio.get_running_loop().time()",
            "async def f():\n  async with asyncio.TaskGroup(): ...",
            "datetime.datetime.now()",
            "os.urandom(8)",
        ],
    )
    def test_its_guard_sees_the_direct_ways(self, source: str) -> None:
        """The check above finds what it looks for."""
        assert list(worldly_uses(ast.parse(source)))

    def test_its_guard_lets_the_world_pass(self) -> None:
        """What the world offers is allowed."""
        source = "async def f(world): await world.sleep(1); asyncio.Event(); self._world.timeout(2)"

        assert list(worldly_uses(ast.parse(source))) == []


class TestSizes:
    def test_no_function_is_longer_than_sixty_lines(self) -> None:
        """What does not fit a screen is split; docstrings do not count."""
        too_long = [
            f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            for path in modules(*FOLDERS, "tests")
            for function in functions(path)
            if lines_of(function) > FUNCTION_LINES_MAX
        ]

        assert too_long == []

    def test_no_file_is_longer_than_six_hundred_lines(self) -> None:
        """A module is about one thing."""
        too_long = [
            str(path.relative_to(ROOT))
            for path in modules(*FOLDERS, "tests")
            if len(path.read_text("utf-8").splitlines()) > FILE_LINES_MAX
        ]

        assert too_long == []


class TestSettings:
    def test_each_is_read_by_something(self) -> None:
        """A setting that nothing reads promises what nobody does."""
        read = {
            node.attr
            for path in modules("adapters")
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute)
        }

        assert {name for name in setting_types() if name.rpartition(".")[2] not in read} == set()


class TestDocstrings:
    def test_every_module_says_what_it_is(self) -> None:
        """A module opens with what it is, the rule it keeps, and what it does not do."""
        silent = [
            path
            for path in modules(*FOLDERS, "tests")
            if tree(path).body and not ast.get_docstring(tree(path))
        ]

        assert silent == []

    def test_every_test_says_what_it_shows(self) -> None:
        """A test's docstring is the requirement."""
        silent = [
            f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            for path in modules("tests")
            if path.name.startswith("test_")
            for function in functions(path)
            if function.name.startswith("test_") and not ast.get_docstring(function)
        ]

        assert silent == []


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of *function* without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines
