"""A simulated world: an event loop whose clock jumps, seeded randomness, ids that count."""

from __future__ import annotations

import asyncio
import functools
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["SimulatedWorld", "StuckError", "simulate", "simulated"]

P = ParamSpec("P")
T = TypeVar("T")


class StuckError(RuntimeError):
    """Nothing is left to do and somebody still waits."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, move the clock to when the next timer is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise StuckError("nothing is left to do and somebody still waits")
        self.now += max(timeout, 0.0)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class SimulatedWorld:
    """The `World` of a simulated process; tasks that are alive can all be killed at once."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._ids = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []

    def wall_time_ns(self) -> int:
        """Return virtual time, counted from a fixed day."""
        return 1_800_000_000_000_000_000 + int(self.monotonic() * 1e9)

    def monotonic(self) -> float:
        """Return the loop's virtual time in seconds."""
        return asyncio.get_running_loop().time()

    def random(self) -> float:
        """Return a number in [0, 1) from the seed."""
        return self._random.random()

    def new_id(self) -> str:
        """Return the next id of this process."""
        self._ids += 1
        return f"{self._seed:08d}-0000-4000-8000-{self._ids:012d}"

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """Return a timeout in virtual time."""
        return asyncio.timeout(seconds)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run *work*; its error is kept for the test to raise."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    async def kill(self) -> None:
        """End every task at once, as SIGKILL would."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def simulate(play: Callable[[], Awaitable[T]]) -> T:
    """Run *play* to its end in virtual time."""

    async def run() -> T:
        return await play()

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(run())


def simulated(play: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Let an async test run in virtual time; for pytest it is a plain one."""

    @functools.wraps(play)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return simulate(lambda: play(*args, **kwargs))

    return run
