"""
Snapshots of the fold, in a stream of their own: a cache of the log that may be lost at any time.

A snapshot lies in chunks on `snapshots.<node>.<slot>.<number>`; each subject keeps its last message
only, and the two slots are taken in turn, so that the last two snapshots are kept and nothing ever
has to be deleted.  What counts is the fact `snapshot_taken` in the log: it is stored after the
chunks, and a slot that does not fit it is not used.  The stream holds what private facts hold; only
writer and admin may read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Literal

import msgspec

from ..errors import ClaimletError, InvalidSnapshotError, LogUnavailableError
from ..facts import SnapshotTaken
from ..log import Head
from ..record import decode
from ..subjects import node_token
from .connection import Answer, Connection
from .stored import Message, message_at, message_last
from .stream import STREAM

__all__ = [
    "CHUNK_BYTES_MAX",
    "SNAPSHOT_STREAM",
    "Slot",
    "SnapshotStore",
    "Taken",
    "has_snapshot_stream",
    "make_snapshot_stream",
]

SNAPSHOT_STREAM = "SNAPSHOTS"

#: Servers that others run take a megabyte at most by default.
CHUNK_BYTES_MAX = 512 * 1024
#: Far above a node with ten thousand live claims.
_CONTENT_BYTES_MAX = 64 * 1024**2

_WRITE_SECONDS = 10.0
_ALREADY_THERE = 10058

Slot = Literal["a", "b"]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that the log tells of, and the sequence of the fact that does."""

    fact: SnapshotTaken
    sequence: int


class _Info(Answer, frozen=True, kw_only=True):
    pass


class _PubAck(Answer, frozen=True, kw_only=True):
    stream: str = ""


class SnapshotStore:
    """Reads and writes the snapshots of *node* as the log's writer."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self._prefix = f"snapshots.{node_token(node)}"
        self._facts = f"dra.{node_token(node)}.node.{SnapshotTaken.word}"

    async def newest(self) -> Taken | None:
        """
        Return the snapshot that the log tells of last.

        Raises:
            LogUnavailableError: The log does not tell.
        """
        return _taken(await message_last(self._connection, STREAM, self._facts))

    async def before(self, taken: Taken) -> Taken | None:
        """
        Return the one that was taken before *taken*.

        Raises:
            LogUnavailableError: The log does not tell.
        """
        if not taken.fact.previous:
            return None
        message = await message_at(self._connection, STREAM, taken.fact.previous)
        return _taken(message) if message and message.subject == self._facts else None

    async def read(self, taken: Taken) -> bytes:
        """
        Return the content of *taken*, which is what was written.

        Raises:
            InvalidSnapshotError: It is not.
            LogUnavailableError: The server does not tell.
        """
        fact = taken.fact
        if fact.size_bytes > _CONTENT_BYTES_MAX or fact.chunks > _CONTENT_BYTES_MAX // 1024:
            raise InvalidSnapshotError(f"{fact.size_bytes} bytes are more than a snapshot takes")
        chunks = []
        for number in range(fact.chunks):
            subject = f"{self._prefix}.{fact.slot}.{number}"
            message = await message_last(self._connection, SNAPSHOT_STREAM, subject)
            if message is None:
                raise InvalidSnapshotError(f"chunk {number} of {fact.chunks} is not there")
            chunks.append(message.data)
        content = b"".join(chunks)
        if len(content) != fact.size_bytes or sha256(content).hexdigest() != fact.content_digest:
            raise InvalidSnapshotError("its content is not what was written")
        return content

    async def check_place(self, head: Head) -> None:
        """
        Raise unless the log holds at *head* the record that a snapshot says it does.

        Raises:
            InvalidSnapshotError: It holds none, or another one.
            LogUnavailableError: The log does not tell.
        """
        message = await message_at(self._connection, STREAM, head.sequence)
        if message is None or (message.id, message.link) != (head.id, head.link):
            raise InvalidSnapshotError(f"record {head.sequence} of the log is not the one it names")

    async def write(self, slot: Slot, content: bytes) -> int:
        """
        Store *content* in *slot*, in place of what was there, and return the number of chunks.

        Raises:
            InvalidSnapshotError: It is too large.
            LogUnavailableError: The server does not take it.
        """
        if len(content) > _CONTENT_BYTES_MAX:
            raise InvalidSnapshotError(f"{len(content)} bytes are more than a snapshot may take")
        count = 0
        for chunk in _chunks(content):
            await self._write(f"{self._prefix}.{slot}.{count}", chunk)
            count += 1
        return count

    async def _write(self, subject: str, chunk: bytes) -> None:
        message = await self._connection.request(subject, chunk, timeout_seconds=_WRITE_SECONDS)
        try:
            answer = msgspec.json.decode(message.data, type=_PubAck)
        except msgspec.DecodeError:
            raise LogUnavailableError(f"nobody keeps {SNAPSHOT_STREAM}") from None
        if answer.error is not None:
            raise LogUnavailableError(f"a snapshot is not stored: {answer.error.description}")


async def has_snapshot_stream(connection: Connection) -> bool:
    """
    Return whether there is a stream for snapshots.

    Raises:
        LogUnavailableError: The server does not tell.
    """
    answer = await connection.api(f"STREAM.INFO.{SNAPSHOT_STREAM}", None, answer=_Info)
    return answer.error is None


async def make_snapshot_stream(admin: Connection, node: str, *, bytes_max: int) -> None:
    """
    Make the stream of *node*'s snapshots, unless there is one.

    Raises:
        InvalidSnapshotError: The server refuses.
        LogUnavailableError: The server does not answer.
    """
    config = {
        "name": SNAPSHOT_STREAM,
        "subjects": [f"snapshots.{node_token(node)}.>"],
        "storage": "file",
        "retention": "limits",
        # The next snapshot always finds room, where need be in place of the other one.
        "discard": "old",
        "max_msgs_per_subject": 1,
        "max_bytes": bytes_max,
        "max_consumers": 0,
        "num_replicas": 1,
        "compression": "s2",
    }
    answer = await admin.api(f"STREAM.CREATE.{SNAPSHOT_STREAM}", config, answer=_Info)
    if answer.error is not None and answer.error.err_code != _ALREADY_THERE:
        raise InvalidSnapshotError(f"the server keeps none: {answer.error.description}")


def _taken(message: Message | None) -> Taken | None:
    if message is None:
        return None
    try:
        fact = decode(message.data, sequence=message.sequence).fact
    except ClaimletError:
        return None  # a replay comes upon it and says what is wrong
    if not isinstance(fact, SnapshotTaken):
        return None
    return Taken(fact=fact, sequence=message.sequence)


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), CHUNK_BYTES_MAX):
        yield content[start : start + CHUNK_BYTES_MAX]
