"""
The append pipe: one FIFO that owns the fence (events/README.md).

Every record is fenced on the sequence before its own and is given that place for good when it is
issued: the next record's chain link covers it.  So the pipe never drops, replaces or reorders what
was issued; it only finds out whether it landed.  After anything unclear it reads the log: its own
record at the place means landed, a foreign one means fenced, nothing means sent again, in order and
under the same id.  Records are folded in order, once they are stored, before their caller hears.

The pipe knows no NATS; it speaks through a `Wire` and uses only `World` for time, ids and tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from ..chain import link
from ..errors import ClaimletError, FencedError, LogDamagedError, LogUnavailableError
from ..log import Fold
from ..record import Draft, Record, Stamp, encode, stamp
from ..subjects import subject
from ..world import World
from .wire import Ack, Condition, Head, Sent, Stored, Wire

__all__ = ["AppendPipe", "PipeSettings"]

_BACKOFF_SECONDS_FIRST = 0.05
_BACKOFF_SECONDS_MAX = 2.0


class PipeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the pipe."""

    #: How long a caller waits.
    append_timeout_seconds: float = 5.0
    #: How long the oldest sent record may stay without an answer.
    ack_timeout_seconds: float = 2.0
    #: How many records may be under way at once, and how many bytes.
    window_length_max: int = 256
    window_bytes_max: int = 8 * 1024**2
    #: How many records may be in the pipe; further callers wait.
    queue_length_max: int = 4096
    queue_bytes_max: int = 64 * 1024**2


class _Entry:
    """An issued record; `waiter` is the caller, on the last record of its group."""

    __slots__ = (
        "attempt",
        "data",
        "follows_id",
        "has_landed",
        "link",
        "record",
        "sent_at",
        "subject",
        "waiter",
    )

    def __init__(self, record: Record, subject: str, data: bytes) -> None:
        self.record = record
        self.subject = subject
        self.data = data
        self.follows_id = ""
        self.link = b""
        self.attempt = 0
        self.sent_at = 0.0
        self.has_landed = False
        self.waiter: asyncio.Future[int] | None = None


class AppendPipe:
    """Implements `EventLog` over a `Wire`; `run` must run beside it."""

    def __init__(
        self,
        wire: Wire,
        *,
        stamp: Stamp,
        fold: Fold,
        world: World,
        head: Head,
        settings: PipeSettings | None = None,
    ) -> None:
        self._wire = wire
        self._stamp = stamp
        self._fold = fold
        self._world = world
        self._settings = settings or PipeSettings()
        self._head = head
        self._issued_sequence = head.sequence
        self._issued_id = head.id
        self._issued_link = head.link
        #: Issued and not sent, in order; what was sent and has no answer comes before it.
        self._queue: deque[_Entry] = deque()
        self._flying: dict[int, _Entry] = {}
        self._bytes_queued = 0
        self._bytes_flying = 0
        self._is_sending = False
        self._is_idle = False
        #: Something is unclear: nothing is sent until the log was read.
        self._is_unclear = False
        #: Setbacks since a record landed; the log counts as available only without any.
        self._setbacks = 0
        self._reason = ""
        self._condition = Condition(kind="available")
        self._listeners: list[Callable[[Condition], None]] = []
        self._final: ClaimletError | None = None
        self._bug: Exception | None = None
        self._gate = asyncio.Lock()
        self._room = asyncio.Event()
        self._wake = asyncio.Event()

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record that was folded."""
        return self._head.sequence

    @property
    def head(self) -> Head:
        """Return the place of the last record that was folded."""
        return self._head

    @property
    def issued_sequence(self) -> int:
        """Return the sequence of the last record that was issued; folded or not."""
        return self._issued_sequence

    @property
    def is_available(self) -> bool:
        """Return whether an append can be expected to succeed now."""
        return self._condition.kind == "available" and self._wire.is_connected

    @property
    def condition(self) -> Condition:
        """Return how the log is."""
        return self._condition

    def listen(self, listener: Callable[[Condition], None]) -> None:
        """Call *listener* whenever the condition changes; it must not block."""
        self._listeners.append(listener)

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
        was_issued = False
        try:
            async with self._world.timeout(self._settings.append_timeout_seconds):
                async with self._gate:
                    await self._wait_for_room()
                    waiter = self._issue(drafts)
                was_issued = True
                await self._send()
                return await waiter
        except TimeoutError:
            raise LogUnavailableError(
                f"the log did not answer in {self._settings.append_timeout_seconds:g} s"
                + (f" ({self._reason})" if self._reason else ""),
                hint="nothing is lost: it is recorded when the log is back"
                if was_issued
                else "nothing was recorded: the queue of facts that wait for the log is full",
            ) from None

    async def run(self) -> None:
        """Watch over what is under way and clear up what is unclear, until the log is closed."""
        while self._final is None:
            if self._is_unclear:
                await self._clear_up()
            else:
                await self._watch()
        if self._bug is not None:
            raise self._bug

    def close(self) -> None:
        """Give up: who still waits is told that the outcome is unknown."""
        if self._final is None:
            self._end(LogUnavailableError("the log was closed"))

    # --- called by the wire -----------------------------------------------------------------

    async def acknowledged(self, sequence: int, attempt: int, ack: Ack) -> None:
        """Take the answer to a record; answers come late, twice, and out of order."""
        entry = self._flying.get(sequence)
        if entry is None:
            return
        if ack.error or ack.sequence != sequence:
            # An older attempt's refusal says nothing about this one.
            if attempt == entry.attempt and not self._is_unclear:
                self._doubt(ack.error or f"stored at {ack.sequence}, not {sequence}")
            return
        entry.has_landed = True
        self._settle()
        if self._queue:
            await self._send()

    def lost(self, reason: str) -> None:
        """Hear that the connection is gone."""
        if self._final is None:
            self._setbacks = max(self._setbacks, 1)
            self._doubt(reason)
            self._change("unavailable", reason)

    def back(self) -> None:
        """Hear that the connection is there again."""
        self._wake.set()

    def warned(self, text: str) -> None:
        """Hear of a problem that belongs to no single record."""
        self._reason = text

    def check_for_others(self, sequence: int) -> None:
        """Hear that somebody says that *sequence* is stored; look, if it is none of ours."""
        if sequence > self._issued_sequence and self._final is None:
            self._doubt("another writer has announced itself")

    # --- issue and send ---------------------------------------------------------------------

    async def _wait_for_room(self) -> None:
        settings = self._settings
        while self._final is None and (
            len(self._queue) + len(self._flying) >= settings.queue_length_max
            or self._bytes_queued + self._bytes_flying >= settings.queue_bytes_max
        ):
            self._room.clear()
            await self._room.wait()

    def _issue(self, drafts: Sequence[Draft]) -> asyncio.Future[int]:
        """Give *drafts* their places in the log, all or none of them."""
        if self._final is not None:
            raise self._final
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entries: list[_Entry] = []
        for sequence, draft in enumerate(drafts, self._issued_sequence + 1):
            record = stamp(
                draft,
                self._stamp,
                sequence=sequence,
                record_id=self._world.new_id(),
                wall_time_ns=self._world.wall_time_ns(),
            )
            entries.append(_Entry(record, subject(record), encode(record)))
        if not entries:
            waiter.set_result(self.last_sequence)
            return waiter
        for entry in entries:
            entry.follows_id = self._issued_id
            entry.link = link(self._issued_link, entry.subject, entry.data)
            self._issued_id, self._issued_link = entry.record.id, entry.link
            self._bytes_queued += len(entry.data)
        entries[-1].waiter = waiter
        self._issued_sequence = entries[-1].record.sequence
        self._queue.extend(entries)
        return waiter

    async def _send(self) -> None:
        """Send what the window allows; whoever comes first sends for all."""
        if self._is_sending or self._is_unclear:
            return
        self._is_sending = True
        now = self._world.monotonic()
        try:
            while self._queue and self._may_send():
                entry = self._queue.popleft()
                entry.sent_at = now
                self._flying[entry.record.sequence] = entry
                self._bytes_queued -= len(entry.data)
                self._bytes_flying += len(entry.data)
                await self._wire.send(self._sent(entry))
        except LogUnavailableError as error:
            self._doubt(str(error))
            self._change("unavailable", str(error))
        finally:
            self._is_sending = False
        if self._is_idle and self._flying:
            self._wake.set()

    def _sent(self, entry: _Entry) -> Sent:
        # A fence on the sequence alone would let a record land behind a foreign one that took its
        # predecessor's place.  What the predecessor was is known for sure once it is folded.
        is_first = entry.record.sequence == self._head.sequence + 1
        return Sent(
            sequence=entry.record.sequence,
            attempt=entry.attempt,
            subject=entry.subject,
            id=entry.record.id,
            follows_id="" if is_first else entry.follows_id,
            link=entry.link,
            data=entry.data,
        )

    def _may_send(self) -> bool:
        return (
            not self._is_unclear
            and len(self._flying) < self._settings.window_length_max
            and self._bytes_flying < self._settings.window_bytes_max
        )

    def _settle(self) -> None:
        """Fold what has landed, in order, and tell the callers."""
        while self._flying:
            entry = next(iter(self._flying.values()))
            if not entry.has_landed:
                break
            del self._flying[entry.record.sequence]
            self._bytes_flying -= len(entry.data)
            self._head = Head(sequence=entry.record.sequence, id=entry.record.id, link=entry.link)
            try:
                self._fold(entry.record)
            except Exception as error:  # noqa: BLE001 -- `run` raises it, which ends the service
                self._bug = error
                self._end(LogDamagedError("a record cannot be folded", sequence=self.last_sequence))
                return
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_result(entry.record.sequence)
            self._setbacks = 0
            if not self._is_unclear:
                self._change("available")
        self._room.set()

    # --- watch and clear up -----------------------------------------------------------------

    async def _watch(self) -> None:
        """Wait until something is unclear, or the oldest record under way is overdue."""
        await self._send()
        self._wake.clear()
        if self._is_unclear or self._final is not None:
            return
        if not self._flying:
            self._is_idle = True
            await self._wake.wait()
            self._is_idle = False
            return
        patience_seconds = self._settings.ack_timeout_seconds
        with suppress(TimeoutError):
            async with self._world.timeout(patience_seconds):
                await self._wake.wait()
        oldest = next(iter(self._flying.values()), None)
        if oldest is not None and self._world.monotonic() - oldest.sent_at >= patience_seconds:
            self._setbacks = max(self._setbacks, 1)
            self._doubt(f"no acknowledgement in {patience_seconds:g} s")

    async def _clear_up(self) -> None:
        """Find out what has landed and go on, or say why that cannot be done now."""
        try:
            if self._setbacks:
                self._change("unavailable", self._reason)
                await self._pause()
            await self._resolve()
            await self._send()
        except FencedError as error:
            self._end(error)
        except LogDamagedError as error:
            self._end(error)
        except ClaimletError as error:
            self._setbacks += 1
            self._reason = str(error)

    async def _pause(self) -> None:
        """Wait, longer after each setback; a new connection cuts it short."""
        seconds = min(_BACKOFF_SECONDS_FIRST * 2 ** (self._setbacks - 1), _BACKOFF_SECONDS_MAX)
        self._wake.clear()
        with suppress(TimeoutError):
            async with self._world.timeout(seconds * (0.9 + 0.2 * self._world.random())):
                await self._wake.wait()

    async def _resolve(self) -> None:
        """
        Read on from the last record that was folded, until the log has no more.

        Raises:
            FencedError: A record of somebody else lies where one of ours belongs.
            LogDamagedError: What was acknowledged is not there, or there is a hole.
            LogUnavailableError: The log does not tell.
        """
        await self._find_head()
        is_suspicious = False
        while self._final is None:
            sequence = self._head.sequence + 1
            stored = await self._wire.read(sequence)
            if self._head.sequence >= sequence:
                continue  # its own answer came meanwhile
            if stored is not None:
                self._recognise(sequence, stored)
                is_suspicious = False
                continue
            last = await self._wire.last_sequence()
            if self._head.sequence >= sequence:
                continue
            if last < sequence - 1:
                raise LogDamagedError(
                    f"the log ends at {last}, but {sequence - 1} was acknowledged",
                    sequence=sequence - 1,
                )
            if last < sequence:
                break
            # It may have landed between the two questions; if not, there is a hole.
            if is_suspicious:
                raise LogDamagedError(
                    f"record {sequence} is missing from the log, which goes on to {last}",
                    sequence=sequence,
                )
            is_suspicious = True
        self._send_again()

    async def _find_head(self) -> None:
        """Raise unless the last record that was folded is in the log as it was acknowledged."""
        head = self._head
        if head.sequence == 0:
            return
        stored = await self._wire.read(head.sequence)
        if stored is None or stored.id != head.id or stored.link != head.link:
            what = "missing" if stored is None else "another one"
            raise LogDamagedError(
                f"record {head.sequence} was acknowledged and is {what} now",
                sequence=head.sequence,
                hint="the store was changed or replaced under the running server",
            )

    def _recognise(self, sequence: int, stored: Stored) -> None:
        """Take what lies at *sequence* for ours, or raise."""
        entry = self._flying.get(sequence)
        if entry is None and self._queue and self._queue[0].record.sequence == sequence:
            # It waits to be sent again, and an earlier attempt has landed after all.
            entry = self._queue.popleft()
            self._bytes_queued -= len(entry.data)
            self._bytes_flying += len(entry.data)
            self._flying[sequence] = entry
        if entry is None or stored.id != entry.record.id:
            raise FencedError(
                f"another writer has taken the log over: record {sequence} is not ours",
                hint="stop the other claimlet on this log, then start this one again",
            )
        if stored.link != entry.link or stored.data != entry.data:
            raise LogDamagedError(f"record {sequence} is not stored as sent", sequence=sequence)
        entry.has_landed = True
        self._settle()

    def _send_again(self) -> None:
        """Put what did not land back in front of the queue; nothing is unclear any more."""
        for entry in reversed(self._flying.values()):
            entry.attempt += 1
            self._queue.appendleft(entry)
        self._bytes_queued += self._bytes_flying
        self._bytes_flying = 0
        self._setbacks = self._setbacks + 1 if self._flying else 0
        self._flying.clear()
        self._is_unclear = False
        if self._setbacks == 0:
            self._change("available")

    # --- state ------------------------------------------------------------------------------

    def _doubt(self, reason: str) -> None:
        self._is_unclear = True
        self._reason = reason
        self._wake.set()

    def _change(self, kind: Literal["available", "unavailable"], reason: str = "") -> None:
        if kind == "available":
            self._reason = ""
        self._tell(Condition(kind=kind, reason=reason))

    def _tell(self, condition: Condition) -> None:
        was, self._condition = self._condition, condition
        if was.kind != condition.kind:
            for listener in self._listeners:
                listener(condition)

    def _end(self, error: ClaimletError) -> None:
        """Fail everything that waits, and all that will be asked, with *error*."""
        self._final = error
        for entry in (*self._flying.values(), *self._queue):
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_exception(error)
        self._flying.clear()
        self._queue.clear()
        self._room.set()
        self._wake.set()
        if isinstance(error, FencedError):
            self._tell(Condition(kind="fenced", reason=str(error)))
        elif isinstance(error, LogDamagedError):
            self._tell(Condition(kind="damaged", reason=str(error)))
        else:
            # Whoever closes the log knows; it is no news for listeners.
            self._condition = Condition(kind="unavailable", reason=str(error))
