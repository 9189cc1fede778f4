"""
What goes over the wire between the append pipe and the log, without a word about NATS.

`Wire` is what the pipe asks for; the answers come back through `AppendPipe`'s own methods.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from ..log import Head

__all__ = ["Ack", "Condition", "Head", "Sent", "Stored", "Wire"]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it lies in the log."""

    id: str
    link: bytes
    data: bytes


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A record on its way to the log."""

    sequence: int
    #: 0 at first, one more each time it is sent again.
    attempt: int
    subject: str
    id: str
    #: The record right before, where it is under way too: this one may only follow that one.
    follows_id: str
    link: bytes
    data: bytes


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What the log answers to a record: where it is stored, or why it is not."""

    sequence: int = 0
    error: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How the log is, for whoever listens."""

    kind: Literal["available", "unavailable", "fenced", "damaged"]
    reason: str = ""


class Wire(Protocol):
    """How the pipe reaches the log; the other way are `AppendPipe`'s methods of the wire."""

    @property
    def is_connected(self) -> bool:
        """Return whether something can be sent now."""
        ...

    async def send(self, sent: Sent) -> None:
        """
        Send a record without waiting for its answer.

        Raises:
            LogUnavailableError: It may or may not have been sent.
        """
        ...

    async def read(self, sequence: int) -> Stored | None:
        """
        Return what is stored at *sequence*.

        Raises:
            LogUnavailableError: The log does not tell.
            LogDamagedError: There is no log any more.
        """
        ...

    async def last_sequence(self) -> int:
        """
        Return the log's last sequence.

        Raises:
            LogUnavailableError: The log does not tell.
            LogDamagedError: There is no log any more.
        """
        ...
