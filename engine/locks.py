"""
Locks on sets of keys, granted whole and in the order of asking.

A set is taken at once, so two holders can never wait for each other; a later asker does not
overtake an earlier one whose keys it shares (rule 7).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager

__all__ = ["KeyCounts", "KeyLocks"]


class KeyLocks:
    """Exclusive locks on strings."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._waiting: list[tuple[frozenset[str], asyncio.Future[None]]] = []

    def __contains__(self, key: object) -> bool:
        """Return whether somebody holds *key*."""
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        """Return the keys that are held."""
        return iter(self._held)

    def try_take(self, keys: Collection[str]) -> bool:
        """Take all of *keys* now, or none."""
        if not self._is_free(frozenset(keys), len(self._waiting)):
            return False
        self._held.update(keys)
        return True

    async def take(self, keys: Iterable[str]) -> frozenset[str]:
        """Wait until all of *keys* are free, take and return them."""
        wanted = frozenset(keys)
        if self.try_take(wanted):
            return wanted
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (wanted, future)
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()
            else:
                self.release(wanted)
            raise
        return wanted

    def release(self, keys: Iterable[str]) -> None:
        """Give *keys* back and let the next ones have them."""
        self._held.difference_update(keys)
        self._grant()

    @asynccontextmanager
    async def hold(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Hold *keys* for the body."""
        taken = await self.take(keys)
        try:
            yield
        finally:
            self.release(taken)

    def _is_free(self, keys: frozenset[str], before: int) -> bool:
        if self._held & keys:
            return False
        return not any(keys & waiting for waiting, _ in self._waiting[:before])

    def _grant(self) -> None:
        index = 0
        while index < len(self._waiting):
            keys, future = self._waiting[index]
            if self._is_free(keys, index):
                del self._waiting[index]
                self._held.update(keys)
                if future.cancelled():
                    self._held.difference_update(keys)
                else:
                    future.set_result(None)
            else:
                index += 1


class KeyCounts:
    """How many calls are in flight for each key: the call lock, shared by an operation's calls."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, key: object) -> bool:
        """Return whether a call is in flight for *key*."""
        return key in self._counts

    def __iter__(self) -> Iterator[str]:
        """Return the keys with calls in flight."""
        return iter(self._counts)

    def __len__(self) -> int:
        """Return how many keys have calls in flight."""
        return len(self._counts)

    def add(self, keys: Iterable[str]) -> None:
        """Count one more call for each of *keys*."""
        self._counts.update(keys)

    def remove(self, keys: Iterable[str]) -> None:
        """Count one call less for each of *keys*."""
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
