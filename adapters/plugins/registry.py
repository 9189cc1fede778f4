"""
The drivers that are there now: a watched directory, one follower for each socket in it.

A driver is what answers on its socket, not the file: sockets that a killed driver left are asked
again and again and never removed.  Changes are seen at once through the kernel, and what was missed
by a full scan; a socket that was replaced in place is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from watchfiles import awatch

from ...engine.ports import DriverInstance, DriverListener
from ...events.errors import PermanentError
from ...events.values import DriverName
from ...events.world import World
from .channel import SocketKey
from .follower import Follower, SocketStatus
from .roster import Roster
from .sockets import check_directory, find_sockets

__all__ = ["DriverRegistry", "RegistryError"]

#: How long the kernel is waited for before the loop looks at the clock and the directory itself.
_WATCH_SECONDS = 1.0

_log: Any = structlog.get_logger()


class RegistryError(PermanentError):
    """The registry directory cannot be used."""

    exit_code = 4


class DriverRegistry:
    """
    The drivers of *root*, told to *listener* as they come and go; use it as `async with`.

    Raises:
        SocketPathError: On entry: *root* is so long that no driver's socket could be dialled.
        RegistryError: On entry: the directory cannot be made or read.
    """

    def __init__(
        self,
        root: Path,
        *,
        world: World,
        listener: DriverListener,
        endpoint_map: Mapping[str, str] | None = None,
        rescan_seconds: float = 30.0,
    ) -> None:
        self.directory = root.absolute() / "plugins_registry"
        self._world = world
        self._listener = listener
        self._endpoint_map = endpoint_map or {}
        self._rescan_seconds = rescan_seconds
        self._roster = Roster()
        self._order = count(1)
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self._followed: dict[str, tuple[SocketKey, Follower, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._problems: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        check_directory(self.directory)
        try:
            self._make_directories()
            find_sockets(self.directory)
        except OSError as error:
            raise RegistryError(
                f"{self.directory}: {error.strerror or error}",
                hint="the root directory must be writable for claimlet; see --root",
            ) from None
        await self._group.__aenter__()
        self._group.create_task(self._watch(), name="driver registry")
        # The watch begins in the task's first step: what the scan does not find, it announces.
        await asyncio.sleep(0)
        self._scan()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        if isinstance(error, Exception):
            kind = error = traceback = None  # it goes on as it is, not wrapped into a group
        await self._group.__aexit__(kind, error, traceback)

    def find(self, driver: DriverName) -> DriverInstance | None:
        """Return the newest connected instance of *driver*, else the newest, else None."""
        return self._roster.find(driver)

    def sockets(self) -> tuple[SocketStatus, ...]:
        """Return what is known about each registration socket, by path."""
        return tuple(follower.status for _, (_, follower, _) in sorted(self._followed.items()))

    async def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                await self._watch_directory()
                self._problems.pop("registry_unwatched", None)
            except (OSError, RuntimeError) as error:
                # Not there just now, or the kernel has no watches left: look oneself until it has.
                self._tell("registry_unwatched", error)
                with suppress(TimeoutError):
                    async with self._world.timeout(_WATCH_SECONDS):
                        await self._stop.wait()
                self._scan()

    async def _watch_directory(self) -> None:
        watched = self._identity()
        next_scan = self._world.monotonic()  # what came before the watch was not announced
        async for changes in awatch(
            self.directory,
            watch_filter=None,
            debounce=50,
            step=10,
            rust_timeout=int(min(_WATCH_SECONDS, self._rescan_seconds) * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
            ignore_permission_denied=True,
        ):
            if changes or self._world.monotonic() >= next_scan:
                next_scan = self._world.monotonic() + self._rescan_seconds
                self._scan()
            if self._identity() != watched:
                break  # the kernel watches a directory that is not there any more

    def _scan(self) -> None:
        try:
            self._make_directories()
            found = find_sockets(self.directory)
        except OSError as error:
            # What is known stays: the drivers are there, only the directory cannot be read.
            self._tell("registry_unreadable", error)
        else:
            self._problems.pop("registry_unreadable", None)
            self._follow(found)

    def _tell(self, event: str, error: Exception) -> None:
        if self._problems.get(event) != str(error):
            self._problems[event] = str(error)
            _log.error(event, directory=str(self.directory), error=str(error))

    def _make_directories(self) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self.directory.parent / "plugins").mkdir(mode=0o750, exist_ok=True)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.directory.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _follow(self, found: Mapping[str, SocketKey]) -> None:
        for path, (key, follower, task) in list(self._followed.items()):
            if found.get(path) != key:
                del self._followed[path]
                follower.reason = "socket replaced" if path in found else "socket removed"
                task.cancel()
        for path, key in found.items():
            if path not in self._followed:
                self._followed[path] = (key, *self._start(path))

    def _start(self, path: str) -> tuple[Follower, asyncio.Task[None]]:
        follower = Follower(
            path,
            world=self._world,
            roster=self._roster,
            listener=self._listener,
            endpoint_map=self._endpoint_map,
            next_order=self._order.__next__,
        )
        task = self._group.create_task(follower.run(), name=f"driver socket {path}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return follower, task
