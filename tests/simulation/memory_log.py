"""A fake log in memory, for faults that a real one cannot be made to show on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from claimlet.events.errors import FencedError
from claimlet.events.log import Fold
from claimlet.events.record import Draft, Record, Stamp, decode, encode, stamp
from claimlet.events.subjects import subject
from claimlet.events.world import World

__all__ = ["MemoryLog", "Storage"]


class Storage:
    """What outlives a process: the stored bytes."""

    def __init__(self, records: Sequence[bytes] = ()) -> None:
        self.records = list(records)
        self.writer = ""

    def replay(self, fold: Fold) -> None:
        """Fold everything that is stored."""
        for sequence, data in enumerate(self.records, 1):
            fold(decode(data, sequence=sequence))

    def decoded(self) -> list[Record]:
        """Return everything that is stored, decoded."""
        return [decode(data, sequence=n) for n, data in enumerate(self.records, 1)]


class MemoryLog:
    """An `EventLog` over `Storage`, with a delay for each append and switches for faults."""

    def __init__(self, storage: Storage, by: Stamp, *, world: World, fold: Fold) -> None:
        self.storage = storage
        self.delay_seconds = 0.0005
        #: While set, the server is down: what was issued waits.
        self.is_down = False
        #: Called with each record before it is stored; True kills the process there.
        self.cut: Callable[[Record], bool] = lambda _: False
        self.last_sequence = len(storage.records)
        self._by = by
        self._world = world
        self._fold = fold
        self._queue = asyncio.Lock()
        #: The process was killed at a record.
        self.is_dead = False
        storage.writer = by.writer

    @property
    def is_available(self) -> bool:
        """Return whether an append can be expected to succeed now."""
        return not self.is_down

    async def append(self, drafts: Sequence[Draft]) -> int:
        """Store and fold *drafts* one by one, in order of asking."""
        records = [self._stamped(draft) for draft in drafts]
        async with self._queue:
            for record in records:
                await self._store(record)
        return self.last_sequence

    def _stamped(self, draft: Draft) -> Record:
        record = stamp(
            draft,
            self._by,
            sequence=0,
            record_id=self._world.new_id(),
            wall_time_ns=self._world.wall_time_ns(),
        )
        subject(record)
        encode(record)
        return record

    async def _store(self, record: Record) -> None:
        await self._world.sleep(self.delay_seconds)
        while self.is_down:
            await self._world.sleep(0.01)
        if self.storage.writer != self._by.writer:
            raise FencedError("another writer has taken the log over")
        if self.is_dead or self.cut(record):
            self.is_dead = True
            await asyncio.get_running_loop().create_future()
        data = encode(record)
        self.storage.records.append(data)
        self.last_sequence = len(self.storage.records)
        self._fold(decode(data, sequence=self.last_sequence))
