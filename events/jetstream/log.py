"""
The log of one node for its writer: opened, replayed into a fold, appended to.

`open_log` is the way in: whoever gets a `JetStreamLog` has folded every record that was stored,
with every link of the chain checked, and appends after exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

import msgspec
from nats.aio.msg import Msg

from ..address import ServerAddress
from ..chain import CHAIN_HEADER
from ..errors import InvalidSnapshotError, LogDamagedError, LogSetupError, LogUnavailableError
from ..log import Fold, Snapshots
from ..record import Draft, Stamp
from ..subjects import LIVE_PREFIX, node_token
from ..world import World
from .connection import Answer, Connection, Events, status_of
from .pipe import AppendPipe, PipeSettings
from .snapshots import SnapshotStore, has_snapshot_stream, make_snapshot_stream
from .start import FULL_REPLAY_FACTS_MAX, Start, fold_log
from .stored import NotShownError, message_at
from .stream import STREAM, check_server, check_stream, create_stream, stream_info
from .wire import Ack, Condition, Head, Sent, Stored

__all__ = ["JetStreamLog", "LogSettings", "Usage", "open_log"]

#: A full window on a slow disk takes a few seconds.
_STRAGGLERS_SECONDS = 30.0

#: With the pipe's growing delays: after some three seconds.
_MISSED_COUNT_MAX = 6


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a log can be told."""

    pipe: PipeSettings = PipeSettings()
    #: The most that the stream may take; below the server's own bound, to leave room to archive.
    stream_bytes_max: int = 768 * 1024**2
    #: The most that both snapshots may take.
    snapshot_bytes_max: int = 128 * 1024**2
    #: A log with fewer facts is replayed whole, whatever snapshots there are.
    full_replay_facts_max: int = FULL_REPLAY_FACTS_MAX


#: Nothing is decided on a log that lost facts until somebody says that it is so.
_LOST_HINT = (
    "bring the store back from a copy; or, if what was lost is known and accepted, remove the file"
    " anchor in the state directory, and the log goes on from where it ends"
)


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How much the log's stream holds, and may hold; -1: whatever there is room for."""

    used_bytes: int
    bytes_max: int


class _PubAck(Answer, frozen=True, kw_only=True):
    stream: str = ""
    seq: int = 0


class JetStreamLog:
    """Implements `EventLog` on JetStream; made by `open_log`, used as `async with`."""

    def __init__(self, wire: _NatsWire, pipe: AppendPipe, *, start: Start) -> None:
        self._wire = wire
        self._pipe = pipe
        #: How the log was folded when it was opened.
        self.start = start
        self.snapshots = SnapshotStore(wire.connection, wire.node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record that was folded."""
        return self._pipe.last_sequence

    @property
    def head(self) -> Head:
        """Return the place of the last record that was folded, with its link of the chain."""
        return self._pipe.head

    @property
    def is_available(self) -> bool:
        """Return whether an append can be expected to succeed now."""
        return self._pipe.is_available

    @property
    def condition(self) -> Condition:
        """Return how the log is, and why."""
        return self._pipe.condition

    def listen(self, listener: Callable[[Condition], None]) -> None:
        """Call *listener* whenever the condition changes; it must not block."""
        self._pipe.listen(listener)

    def retarget(self, url: str) -> None:
        """Look for the server at *url* from now on."""
        self._wire.connection.retarget(url)

    async def append(self, drafts: Sequence[Draft]) -> int:
        """
        Append *drafts* in order, fold them, and return the last one's sequence.

        Raises:
            LogUnavailableError: Unresolved in time; what was issued is folded if it lands.
            InvalidRecordError: A fact is too large; nothing was issued.
            InvalidTokenError: A name cannot stand in a subject; nothing was issued.
            FencedError: Another writer has taken the log over.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        return await self._pipe.append(drafts)

    async def usage(self) -> Usage:
        """
        Return how full the stream is.

        Raises:
            LogUnavailableError: The server does not tell.
        """
        info = await stream_info(self._wire.connection)
        if info is None:
            raise LogUnavailableError("the server shows no stream")
        return Usage(used_bytes=info.state.bytes, bytes_max=info.config.get("max_bytes", -1))

    async def close(self) -> None:
        """Stop appending and leave the server; who still waits hears that it is unknown."""
        self._pipe.close()
        await self._wire.connection.close()


async def open_log(
    address: ServerAddress,
    *,
    admin: ServerAddress,
    stamp: Stamp,
    fold: Fold,
    world: World,
    snapshots: Snapshots | None = None,
    anchor: Head | None = None,
    settings: LogSettings | None = None,
) -> JetStreamLog:
    """
    Open the log of `stamp.node` as its writer: make the stream if need be, replay it into *fold*.

    With *snapshots* a long log is folded from its newest snapshot on.  *admin* is used only where
    there is no stream yet.  A plain server asks for no seeds: give the same address twice.  The log
    must hold *anchor*, the last record that is known to have been acknowledged.

    Raises:
        LogSetupError: The server or its stream cannot be used for a log.
        LogDamagedError: The log has a hole, a broken chain, or lost what was acknowledged.
        InvalidRecordError: A record cannot be read.
        UnknownFactError: A critical fact is of a newer version.
        LogUnavailableError: The server does not answer.
    """
    settings = settings or LogSettings()
    node = stamp.node
    wire = _NatsWire(node)
    async with AsyncExitStack() as undo:
        connection = await Connection.open(address, name=f"claimlet {node}", events=wire.events)
        undo.push_async_callback(connection.close)
        check_server(connection)
        if await stream_info(connection) is None:
            if anchor is not None:
                raise _lost_end(0, anchor)  # nothing is made where something was
            await _make_stream(admin, node, bytes_max=settings.stream_bytes_max)
        info = await stream_info(connection)
        if info is None:
            raise LogSetupError(f"the server shows no stream {STREAM} after it was made")
        check_stream(info, node)
        if snapshots is not None:
            await _make_snapshots(connection, admin, node, bytes_max=settings.snapshot_bytes_max)
        await _wait_for_stragglers(connection, node)
        head, start = await fold_log(
            connection,
            node,
            fold=fold,
            snapshots=snapshots,
            world=world,
            full_replay_facts_max=settings.full_replay_facts_max,
        )
        if anchor is not None:
            await _check_anchor(connection, anchor, head)
        pipe = AppendPipe(
            wire, stamp=stamp, fold=fold, world=world, head=head, settings=settings.pipe
        )
        await wire.attach(connection, pipe)
        world.spawn(pipe.run(), name="log pipe")
        undo.pop_all()
    return JetStreamLog(wire, pipe, start=start)


async def _check_anchor(connection: Connection, anchor: Head, head: Head) -> None:
    """
    Raise unless the log, which ends at *head*, holds what is known to have been acknowledged.

    Raises:
        LogDamagedError: It does not.
    """
    if head.sequence < anchor.sequence:
        raise _lost_end(head.sequence, anchor)
    found = await message_at(connection, STREAM, anchor.sequence)
    if found is None or (found.id, found.link) != (anchor.id, anchor.link):
        raise LogDamagedError(
            f"record {anchor.sequence} is not the one that was acknowledged: this is another log,"
            " or it was written anew",
            sequence=anchor.sequence,
            hint=_LOST_HINT,
        )


def _lost_end(last_sequence: int, anchor: Head) -> LogDamagedError:
    what = f"ends at record {last_sequence}" if last_sequence else "is gone"
    return LogDamagedError(
        f"the log {what}, but record {anchor.sequence} was acknowledged",
        sequence=last_sequence + 1,
        hint=_LOST_HINT,
    )


async def _make_stream(address: ServerAddress, node: str, *, bytes_max: int) -> None:
    admin = await Connection.open(address, name=f"claimlet {node} admin")
    try:
        await create_stream(admin, node, bytes_max=bytes_max)
    finally:
        await admin.close()


async def _make_snapshots(
    connection: Connection, address: ServerAddress, node: str, *, bytes_max: int
) -> None:
    """Have a stream for snapshots; without one there are none, which whoever takes one tells."""
    with suppress(LogUnavailableError, LogSetupError, InvalidSnapshotError):
        if await has_snapshot_stream(connection):
            return
        admin = await Connection.open(address, name=f"claimlet {node} admin")
        try:
            await make_snapshot_stream(admin, node, bytes_max=bytes_max)
        finally:
            await admin.close()


async def _wait_for_stragglers(connection: Connection, node: str) -> None:
    """
    Wait until the server has stored what a killed writer had sent.

    Those records would come after our replay, and we would take them for another writer's.  A
    record that is refused for certain goes the same way as they do, behind them.
    """
    await connection.request(
        f"dra.{node_token(node)}.node.barrier",
        headers={"Nats-Expected-Last-Sequence": str(2**53)},
        timeout_seconds=_STRAGGLERS_SECONDS,
    )


class _NatsWire:
    """Implements `Wire` for the append pipe."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._announcements = f"{LIVE_PREFIX}.dra.{node_token(node)}.node.writer_started"
        self._connection: Connection | None = None
        self._pipe: AppendPipe | None = None
        self._inbox = ""
        #: How often in a row the connection was not there when it was needed.
        self._missed_count = 0
        self.events = Events(lost=self._lost, back=self._back, problem=self._warn)

    @property
    def connection(self) -> Connection:
        """Return the connection; there is one since `attach`."""
        assert self._connection is not None
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Return whether something can be sent now."""
        return self.connection.is_connected

    async def attach(self, connection: Connection, pipe: AppendPipe) -> None:
        """
        Bring the log's answers to *pipe* from now on.

        Raises:
            LogUnavailableError: There is no connection.
        """
        self._connection = connection
        self._pipe = pipe
        await self._subscribe()

    async def send(self, sent: Sent) -> None:
        """
        Send a record without waiting for its answer.

        Raises:
            LogUnavailableError: It may or may not have been sent.
        """
        headers = {
            "Nats-Msg-Id": sent.id,
            "Nats-Expected-Last-Sequence": str(sent.sequence - 1),
            CHAIN_HEADER: sent.link.hex(),
        }
        if sent.follows_id:
            headers["Nats-Expected-Last-Msg-Id"] = sent.follows_id
        reply = f"{self._inbox}.{sent.sequence}.{sent.attempt}"
        await self.connection.publish(sent.subject, sent.data, reply=reply, headers=headers)

    async def read(self, sequence: int) -> Stored | None:
        """
        Return what is stored at *sequence*, as the stream's leader has it.

        Raises:
            LogUnavailableError: The log does not tell.
            LogDamagedError: There is no log any more.
        """
        await self._revive()
        try:
            message = await message_at(self.connection, STREAM, sequence)
        except NotShownError:
            # Not this record, but the whole stream may be gone: that is told apart here.
            await self.last_sequence()
            raise
        if message is None:
            return None
        return Stored(id=message.id, link=message.link, data=message.data)

    async def last_sequence(self) -> int:
        """
        Return the log's last sequence.

        Raises:
            LogUnavailableError: The log does not tell.
            LogDamagedError: There is no log any more.
        """
        await self._revive()
        info = await stream_info(self.connection)
        if info is None:
            raise LogDamagedError(
                "the log's stream is gone",
                sequence=0,
                hint="it was deleted, or another server runs at its address",
            )
        return info.state.last_seq

    async def _revive(self) -> None:
        """
        Connect anew where the client does not come back by itself.

        It gives up when a server turns it away, and was seen to lose its way while it reconnects.
        """
        if self.is_connected:
            self._missed_count = 0
            return
        self._missed_count += 1
        if self.connection.client.is_closed or self._missed_count % _MISSED_COUNT_MAX == 0:
            await self.connection.revive()
            await self._subscribe()

    async def _subscribe(self) -> None:
        self._inbox = self.connection.client.new_inbox()
        await self.connection.subscribe(f"{self._inbox}.*.*", self._acknowledged)
        await self.connection.subscribe(self._announcements, self._announced)

    async def _acknowledged(self, message: Msg) -> None:
        *_, sequence, attempt = message.subject.split(".")
        if self._pipe is not None and sequence.isdecimal() and attempt.isdecimal():
            await self._pipe.acknowledged(int(sequence), int(attempt), _ack(message))

    async def _announced(self, message: Msg) -> None:
        """Look for another writer; the message itself proves nothing."""
        sequence = (message.headers or {}).get("Nats-Sequence", "")
        if self._pipe is not None and sequence.isdecimal():
            self._pipe.check_for_others(int(sequence))

    def _lost(self, reason: str) -> None:
        if self._pipe is not None:
            self._pipe.lost(reason)

    def _back(self) -> None:
        if self._pipe is not None:
            self._pipe.back()

    def _warn(self, text: str) -> None:
        if self._pipe is not None:
            self._pipe.warned(text)


def _ack(message: Msg) -> Ack:
    if status := status_of(message):
        return Ack(error=f"nobody keeps the log ({status})")
    try:
        answer = msgspec.json.decode(message.data, type=_PubAck)
    except msgspec.DecodeError:
        return Ack(error="the log's answer cannot be read")
    if answer.error is not None:
        return Ack(error=answer.error.description or str(answer.error.err_code))
    return Ack(sequence=answer.seq)
