"""
The real world: the machine's clocks, its randomness, and tasks of this process.

Tasks belong to the world: an exception that leaves one ends them all and is raised where the world
is left, so that no failure is lost.  Whoever leaves a world leaves no task of it behind.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from ..events.world import Task

__all__ = ["RealWorld"]

_IDS_AT_ONCE = 64


class RealWorld:
    """Time, randomness and ids anywhere; tasks only inside of `async with`."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._random_bytes = b""
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        if isinstance(error, Exception):
            kind = error = traceback = None  # it goes on as it is, not wrapped into a group
        await self._group.__aexit__(kind, error, traceback)

    def wall_time_ns(self) -> int:
        """Return Unix time in nanoseconds; shown to people, never compared."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()  # noqa: S311 -- spreads retries, guards nothing

    def new_id(self) -> str:
        """Return an id that nobody else has: a UUID in its usual form."""
        # Each fact has one, and a system call for each was seen in profiles.
        if not (taken := self._random_bytes[:16]):
            self._random_bytes = os.urandom(16 * _IDS_AT_ONCE)
            taken = self._random_bytes[:16]
        self._random_bytes = self._random_bytes[16:]
        digits = taken.hex()
        variant = "89ab"[taken[8] & 3]
        return (
            f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
        )

    async def sleep(self, seconds: float) -> None:
        """Wait *seconds*."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """Return a context that raises `TimeoutError` when its body takes longer than *seconds*."""
        return asyncio.timeout(seconds)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> Task:
        """
        Run *work* beside the caller; an exception that leaves it ends the whole world.

        Raises:
            RuntimeError: The world is ending: nobody would end this task any more.
        """
        try:
            if self._is_ending:
                raise RuntimeError(f"{name}: the world is ending")
            task = self._group.create_task(work, name=name)
        except RuntimeError:
            work.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
