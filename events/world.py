"""
The only way to time, randomness, ids and tasks.

The engine and the append pipe get a `World` and use nothing else for these four, so that a whole
service runs on a simulated one (engine/README.md).  An AST test forbids the direct ways.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

__all__ = ["Task", "World"]


class Task(Protocol):
    """A running task: it can be cancelled and awaited, no more."""

    def cancel(self) -> bool:
        """Ask the task to stop."""
        ...

    def done(self) -> bool:
        """Return whether the task has ended."""
        ...


class World(Protocol):
    """Time, randomness, ids and tasks of one process."""

    def wall_time_ns(self) -> int:
        """Return Unix time in nanoseconds; shown to people, never compared."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """Return an id that nobody else has: a UUID in its usual form."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait *seconds*."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """Return a context that raises `TimeoutError` when its body takes longer than *seconds*."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> Task:
        """Run *work* beside the caller; an exception that leaves it stops the service."""
        ...
