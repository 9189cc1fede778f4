"""
The log as its users see it: append and replay, nothing about NATS.

`EventLog` is what the engine writes to; `Fold` is what it gives the log to call.  Whoever
implements the log keeps three promises: a record is folded only after it is stored, records are
folded in the order of their sequences without a hole, and an issued fact is never dropped
(events/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from .record import Draft, Record

__all__ = ["EventLog", "Fold", "Head", "Snapshots"]

#: Called once for each stored record, in order; it must not await and must not fail.
Fold = Callable[[Record], None]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A record's place in the log: its sequence, its id, its link of the chain."""

    sequence: int
    id: str
    link: bytes


class Snapshots(Protocol):
    """A fold that can be written down whole, and read back instead of a replay."""

    @property
    def fold_version(self) -> int:
        """Return the version of the fold; what another one has written is not read."""
        ...

    def dump(self, head: Head) -> bytes:
        """Return the fold as it is; *head* is the place of the last record in it."""
        ...

    def place(self, content: bytes) -> Head:
        """
        Return the place of the last record that is folded in *content*.

        Raises:
            InvalidSnapshotError: It is no snapshot of this fold.
        """
        ...

    def restore(self, content: bytes) -> Head:
        """
        Let the empty fold be what *content* holds, and return from where it goes on.

        Raises:
            InvalidSnapshotError: It cannot; the fold is still empty.
        """
        ...


class EventLog(Protocol):
    """The append-only log of one node; it alone knows and owns the fence."""

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record that was folded."""
        ...

    @property
    def is_available(self) -> bool:
        """Return whether an append can be expected to succeed now."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> int:
        """
        Append *drafts* in order, fold them, and return the last one's sequence.

        A caller that is cancelled stops waiting; what was issued is folded when it lands.

        Raises:
            LogUnavailableError: Unresolved in time; the facts are folded if they land after all.
            InvalidRecordError: A fact is too large; nothing was issued.
            InvalidTokenError: A name cannot stand in a subject; nothing was issued.
            FencedError: Another writer has taken the log over.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        ...
