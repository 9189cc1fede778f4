"""
ResourceSlices in memory, per driver: what upstream's helper needs so that publishing succeeds.

Nobody schedules from them here, so they are not kept over a restart: versions then start higher, an
old watch is told so, and the driver publishes again.  A driver sees and writes its own slices only,
for this node only.  Everything is bounded: slices, bytes, history and watches.

A driver's slices are all of one encoding.  When it writes in the other one, what it had in the
first is dropped, and its watches end, so that it lists and publishes anew.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from ...events.world import World
from .limits import Limits
from .objects import (
    Media,
    Preconditions,
    Slice,
    Stamp,
    bookmark,
    slice_event,
    stamped,
)
from .status import ApiError

__all__ = ["Selector", "Shelf", "SliceStore", "WatchStart"]

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", re.ASCII)
_GENERATED_CHARACTERS = 5

#: Which slices somebody asks for.
Selector = Callable[[Slice], bool]


class WatchStart(msgspec.Struct, frozen=True, kw_only=True):
    """From where a watch tells: a version, or what there is now and all that follows."""

    version: int | None = None
    #: Whether a bookmark ends what there is now.
    mark_end: bool = False


class _Change(msgspec.Struct, frozen=True):
    version: int
    kind: str
    item: Slice


class SliceStore:
    """The shelves of all drivers of one node, with one counter of versions."""

    def __init__(self, world: World, *, node: str, limits: Limits) -> None:
        self.node = node
        self.limits = limits
        self._world = world
        self._shelves: dict[str, Shelf] = {}
        # Higher than anything that a former process of this node gave out.
        self._version = world.wall_time_ns() // 1_000_000

    @property
    def version(self) -> int:
        """Return the version of the last change."""
        return self._version

    def shelf(self, driver: str) -> Shelf:
        """Return the slices of *driver*."""
        if driver not in self._shelves:
            self._shelves[driver] = Shelf(self, driver)
        return self._shelves[driver]

    def close(self) -> None:
        """End all watches."""
        for shelf in self._shelves.values():
            shelf.close()

    def next_version(self) -> int:
        """Count one change."""
        self._version += 1
        return self._version

    def new_id(self) -> str:
        """Return an id that nobody else has."""
        return self._world.new_id()

    def now_seconds(self) -> int:
        """Return Unix time, to be shown."""
        return self._world.wall_time_ns() // 1_000_000_000

    async def wait(self, event: asyncio.Event, *, until: float) -> bool:
        """Wait for *event*; return False where it has not come by *until* (monotonic)."""
        try:
            async with self._world.timeout(max(0.0, until - self._world.monotonic())):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def deadline(self, seconds: float) -> float:
        """Return the monotonic time in *seconds*, at most the longest that a watch may take."""
        return self._world.monotonic() + min(seconds, self.limits.watch_seconds)


class Shelf:
    """The slices of one driver."""

    def __init__(self, store: SliceStore, driver: str) -> None:
        self._store = store
        self._limits = store.limits
        self._driver = driver
        self._items: dict[str, Slice] = {}
        self._history: deque[_Change] = deque()
        #: Changes up to this version are not in the history (any more).
        self._floor = store.version
        self._changed = asyncio.Event()
        self._closed = False
        self._watches = 0

    @property
    def media(self) -> Media | None:
        """Return the encoding of the slices; None while there are none."""
        return next((item.media for item in self._items.values()), None)

    def list(self, selector: Selector) -> list[Slice]:
        """Return the slices that *selector* wants."""
        return [item for item in self._items.values() if selector(item)]

    def get(self, name: str) -> Slice:
        """
        Return the slice *name*.

        Raises:
            ApiError: There is none.
        """
        if name not in self._items:
            raise ApiError(404, f'resourceslices.resource.k8s.io "{name[:253]}" not found')
        return self._items[name]

    def create(self, item: Slice) -> Slice:
        """
        Store a new slice and return it.

        Raises:
            ApiError: It is there already, not allowed, or too much.
        """
        self._check(item)
        name = item.name or self._generated(item.generate_name)
        if not _NAME.fullmatch(name):
            raise ApiError(422, "metadata.name must be a DNS subdomain")
        if name in self._items:
            text = f'resourceslices.resource.k8s.io "{name}" already exists'
            raise ApiError(409, text, reason="AlreadyExists")
        self._make_room(item, replaced=None)
        stored = stamped(
            item,
            Stamp(
                name=name,
                uid=self._store.new_id(),
                resource_version=self._store.next_version(),
                created_seconds=self._store.now_seconds(),
            ),
        )
        return self._put("ADDED", stored)

    def replace(self, name: str, item: Slice) -> Slice:
        """
        Store another content of the slice *name* and return it.

        Raises:
            ApiError: It is not there, is newer than the caller knows, not allowed, or too much.
        """
        current = self.get(name)
        if item.name != name:
            raise ApiError(400, "the name of the object is not the name in the path")
        self._check(item)
        self._hold(current, Preconditions(item.uid, item.resource_version))
        if item.pool != current.pool:
            raise ApiError(422, "spec.pool.name cannot be changed")
        self._make_room(item, replaced=current)
        stored = stamped(
            item,
            Stamp(
                name=name,
                uid=current.uid,
                resource_version=self._store.next_version(),
                created_seconds=current.created_seconds,
            ),
        )
        return self._put("MODIFIED", stored)

    def delete(self, name: str, wanted: Preconditions) -> Slice:
        """
        Remove the slice *name* and return its last content.

        Raises:
            ApiError: It is not there, or not as *wanted*.
        """
        current = self.get(name)
        self._hold(current, wanted)
        return self._drop(current)

    def watch(
        self, start: WatchStart, *, media: Media, selector: Selector, seconds: float
    ) -> AsyncIterator[bytes]:
        """
        Return the frames of a watch; it ends with the time, the gateway, or what it cannot tell.

        Raises:
            ApiError: There are too many, or the version is not in the history.
        """
        if self._watches >= self._limits.watches:
            raise ApiError(429, "this driver has too many watches", headers={"Retry-After": "1"})
        version = start.version
        if version is not None and not self._floor <= version <= self._store.version:
            raise ApiError(410, f"resource version {version} is not known any more: list again")
        return self._frames(start, media, (selector, self._store.deadline(seconds)))

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._wake()

    async def _frames(
        self, start: WatchStart, media: Media, bounds: tuple[Selector, float]
    ) -> AsyncIterator[bytes]:
        selector, deadline = bounds
        self._watches += 1
        try:
            cursor = self._store.version if start.version is None else start.version
            if start.version is None:
                for item in self.list(selector):
                    yield slice_event("ADDED", item)
                if start.mark_end:
                    yield bookmark(media, resource_version=cursor)
            while not self._closed:
                changed = self._changed
                # Too slow for the history: the next watch is told to list again.
                if cursor < self._floor:
                    return
                for change in [c for c in self._history if c.version > cursor]:
                    if change.item.media is not media:
                        return
                    cursor = change.version
                    if selector(change.item):
                        yield slice_event(change.kind, change.item)
                if changed is self._changed and not await self._store.wait(changed, until=deadline):
                    return
        finally:
            self._watches -= 1

    def _check(self, item: Slice) -> None:
        if item.driver != self._driver:
            raise ApiError(403, f"slices of {self._driver} only: spec.driver is another one")
        if item.node != self._store.node:
            raise ApiError(403, f"slices of node {self._store.node} only, by spec.nodeName")

    def _hold(self, current: Slice, wanted: Preconditions) -> None:
        if wanted.uid and wanted.uid != current.uid:
            raise ApiError(409, "the slice has another UID: it was deleted and made again")
        if wanted.resource_version and wanted.resource_version != current.resource_version:
            raise ApiError(409, "the slice was changed since: read it and try again")

    def _generated(self, prefix: str) -> str:
        if not prefix:
            raise ApiError(422, "metadata.name or metadata.generateName is required")
        prefix = prefix[: 253 - _GENERATED_CHARACTERS]
        name = prefix + self._store.new_id()[:_GENERATED_CHARACTERS]
        while name in self._items:
            name = prefix + self._store.new_id()[:_GENERATED_CHARACTERS]
        return name

    def _make_room(self, item: Slice, *, replaced: Slice | None) -> None:
        """Check the limits, then drop what is in another encoding."""
        kept = [
            other
            for other in self._items.values()
            if other.media is item.media and other is not replaced
        ]
        if len(kept) >= self._limits.slices:
            raise ApiError(403, f"a driver may have {self._limits.slices} slices, not more")
        if sum(len(other.data) for other in kept) + len(item.data) > self._limits.slices_bytes:
            raise ApiError(403, f"a driver's slices may take {self._limits.slices_bytes} bytes")
        for other in list(self._items.values()):
            if other.media is not item.media and other is not replaced:
                self._drop(other)

    def _put(self, kind: str, item: Slice) -> Slice:
        self._items[item.name] = item
        self._record(_Change(int(item.resource_version), kind, item))
        return item

    def _drop(self, item: Slice) -> Slice:
        version = self._store.next_version()
        last = stamped(
            item,
            Stamp(
                name=item.name,
                uid=item.uid,
                resource_version=version,
                created_seconds=item.created_seconds,
            ),
        )
        del self._items[item.name]
        self._record(_Change(version, "DELETED", last))
        return last

    def _record(self, change: _Change) -> None:
        self._history.append(change)
        size = sum(len(c.item.data) for c in self._history)
        while len(self._history) > self._limits.history or size > self._limits.history_bytes:
            oldest = self._history.popleft()
            size -= len(oldest.item.data)
            self._floor = oldest.version
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
