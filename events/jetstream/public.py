"""
Read what everybody may see: claim, pod and node facts, in order, without private ones.

Whoever may not read private facts cannot check the chain across them.  The check is by numbers:
what is missing between the records that came must be exactly as many as the stream has private
ones.  What is announced under `live.>` comes at most once; here it only says when to look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path

import msgspec
from nats.aio.msg import Msg

from ..errors import LogDamagedError, LogUnavailableError
from ..facts import ConfigRecorded
from ..record import Record, decode
from ..subjects import LIVE_PREFIX, node_token
from ..world import World
from .connection import Connection, status_of
from .gaps import Gap, copied, effective, gap_of, gap_subject
from .pull import Pulled, Puller
from .reader import DAMAGE_HINT, check_state, follow_link
from .stream import STREAM, stream_info

__all__ = ["PublicReader"]

_KINDS = ("claim", "pod", "node")

#: Looks at the log even where nothing was announced: announcements can be missed.
_LOOK_SECONDS = 5.0
_STEADY_ATTEMPTS_MAX = 5
#: Some six seconds in all: a server that is started again is back long before.
_SETBACKS_MAX = 6
_BACKOFF_SECONDS_FIRST = 0.1


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence, and how many private records lie up to it: at least, at most."""

    sequence: int
    private_min: int
    private_max: int


class PublicReader:
    """Reads one node's log from *from_sequence* on; each round goes on where the last one ended."""

    def __init__(
        self,
        connection: Connection,
        node: str,
        *,
        world: World,
        from_sequence: int = 1,
        archive: Path | None = None,
    ) -> None:
        self._connection = connection
        self._world = world
        self._archive = archive
        self._gap_subject = gap_subject(node)
        #: The gaps that were acknowledged, and by how many facts.
        self._gaps: tuple[Gap, ...] = ()
        self._acknowledgements = 0
        self._prefix = f"dra.{node_token(node)}"
        self._next = from_sequence
        self._link: bytes | None = None
        #: Up to where the numbers were found right; unknown for a start in the middle.
        self._mark = _Mark(sequence=0, private_min=0, private_max=0) if from_sequence == 1 else None
        self._seen = 0
        self._announced = asyncio.Event()

    def wake(self) -> None:
        """Let `follow` look now: announcements may have been missed, as over a reconnect."""
        self._announced.set()

    @property
    def next_sequence(self) -> int:
        """Return from where the next round reads on."""
        return self._next

    async def replay(self) -> AsyncGenerator[Record, None]:
        """
        Yield the records up to the last one at this moment.

        Raises:
            LogDamagedError: Records are missing, or a link does not follow.
            InvalidRecordError: A record cannot be read.
            UnknownFactError: A critical fact is of a newer version.
            LogSetupError: This user may not read the log.
            LogUnavailableError: The log stopped answering.
        """
        await self._learn_gaps()
        mark = await self._look()
        async with AsyncExitStack() as undo:
            streams = []
            for kind in _KINDS:
                puller = self._puller(f"{self._prefix}.{kind}.>")
                undo.push_async_callback(puller.close)
                records = _until(puller, self._next, mark.sequence)
                streams.append(await undo.enter_async_context(aclosing(records)))
            async with aclosing(_merge(streams)) as merged:
                async for message, sequence, _ in merged:
                    for record in self._before(sequence):
                        yield record
                    if self._is_read(sequence):
                        yield self._take(message, sequence)
                    else:
                        self._seen += 1
        self._account(mark)

    def _puller(self, subject: str) -> Puller:
        return Puller(
            self._connection,
            world=self._world,
            consumer=f"public-{self._world.new_id()}",
            filter_subject=subject,
        )

    async def _learn_gaps(self) -> None:
        """Read the acknowledgements of gaps, if there are more of them than before."""
        info = await stream_info(self._connection, subjects=self._gap_subject)
        count = sum(info.state.subjects.values()) if info is not None else 0
        if count == self._acknowledgements:
            return
        found: list[Gap] = []
        async with AsyncExitStack() as undo:
            puller = self._puller(self._gap_subject)
            undo.push_async_callback(puller.close)
            batches = await undo.enter_async_context(aclosing(puller.batches(1)))
            async for batch in batches:
                found += [gap for m, n, _ in batch if (gap := gap_of(m.data, n)) is not None]
        self._gaps, self._acknowledgements = effective(found), count

    def _is_read(self, sequence: int) -> bool:
        return not any(gap.first <= sequence <= gap.last for gap in self._gaps)

    def _before(self, sequence: int) -> list[Record]:
        """Return what comes in the place of acknowledged gaps between the last record and this."""
        return [
            record
            for gap in self._gaps
            if self._next <= gap.last < sequence
            for record in self._instead(gap)
        ]

    def _instead(self, gap: Gap) -> list[Record]:
        if not gap.fact.copy:
            return [gap.placeholder()]
        records = [
            decode(line.data.encode(), sequence=line.sequence)
            for line, _ in copied(gap, self._archive)
        ]
        return [record for record in records if not isinstance(record.fact, ConfigRecorded)]

    async def follow(self) -> AsyncGenerator[Record, None]:
        """
        Yield the records that are there and then those that come, without end.

        Raises:
            LogDamagedError: Records are missing, or a link does not follow.
            InvalidRecordError: A record cannot be read.
            UnknownFactError: A critical fact is of a newer version.
            LogSetupError: This user may not read the log.
            LogUnavailableError: The log stopped answering.
        """

        async def hear(_: Msg) -> None:
            self._announced.set()

        async with AsyncExitStack() as undo:
            for kind in _KINDS:
                subject = f"{LIVE_PREFIX}.{self._prefix}.{kind}.>"
                undo.push_async_callback(await self._connection.subscribe(subject, hear))
            setbacks = 0
            while True:
                self._announced.clear()
                try:
                    async with aclosing(self.replay()) as records:
                        async for record in records:
                            yield record
                except LogUnavailableError:
                    setbacks += 1
                    if setbacks >= _SETBACKS_MAX:
                        raise
                    await self._world.sleep(_BACKOFF_SECONDS_FIRST * 2**setbacks)
                    continue
                setbacks = 0
                with suppress(TimeoutError):
                    async with self._world.timeout(_LOOK_SECONDS):
                        await self._announced.wait()

    async def last_of_node(self, word: str) -> Record | None:
        """
        Return the newest fact *word* about the node, without reading the log up to there.

        Raises:
            InvalidRecordError: It cannot be read.
            UnknownFactError: It is critical and of a newer version.
            LogUnavailableError: The log does not answer.
        """
        subject = f"{self._prefix}.node.{word}"
        message = await self._connection.request(f"$JS.API.DIRECT.GET.{STREAM}.{subject}")
        if status_of(message):
            return None
        sequence = (message.headers or {}).get("Nats-Sequence", "")
        return decode(message.data, sequence=int(sequence) if sequence.isdecimal() else 0)

    def _take(self, message: Msg, sequence: int) -> Record:
        if sequence < self._next:
            raise LogDamagedError(f"record {sequence} came out of order", sequence=sequence)
        previous = self._link if sequence == self._next else None
        self._link = follow_link(previous, message, sequence)
        record = decode(message.data, sequence=sequence)
        self._next = sequence + 1
        self._seen += 1
        return record

    async def _look(self) -> _Mark:
        """Return where the log ends now and how many private records it has up to there."""
        mark = await self._count()
        for _ in range(_STEADY_ATTEMPTS_MAX):
            again = await self._count()
            if again.sequence == mark.sequence:
                return mark
            mark = again
        # Facts come all the time: whatever came while we counted may be private or not.
        grown = (await self._count()).sequence - mark.sequence
        return msgspec.structs.replace(mark, private_min=max(0, mark.private_max - grown))

    async def _count(self) -> _Mark:
        subjects = f"{self._prefix}.private.>"
        info = await stream_info(self._connection, subjects=subjects)
        if info is None:
            raise LogDamagedError("the log's stream is gone", sequence=0, hint=DAMAGE_HINT)
        check_state(info.state, self._gaps)
        counts = dict(info.state.subjects)
        while len(counts) < info.total:
            page = await stream_info(self._connection, subjects=subjects, offset=len(counts))
            if page is None or not page.state.subjects:
                break
            counts.update(page.state.subjects)
        private = sum(counts.values())
        return _Mark(sequence=info.state.last_seq, private_min=private, private_max=private)

    def _account(self, mark: _Mark) -> None:
        """Raise unless what did not come, up to *mark*, is private."""
        before = self._mark
        missing = mark.sequence - (before.sequence if before else self._next - 1) - self._seen
        if before is not None:
            fewest = mark.private_min - before.private_max
            # A record that is lost may still be counted as a private one.
            most = mark.private_max - before.private_min + self._lost_between(before, mark)
            if not fewest <= missing <= most:
                raise LogDamagedError(
                    f"{missing} records up to {mark.sequence} did not come, {most} are private:"
                    f" {STREAM} has a hole after {before.sequence}",
                    sequence=before.sequence + 1,
                    hint=DAMAGE_HINT,
                )
        self._mark, self._seen = mark, 0
        if mark.sequence >= self._next:
            # The records in between are private; the link before the next one is not known.
            self._next, self._link = mark.sequence + 1, None

    def _lost_between(self, before: _Mark, after: _Mark) -> int:
        gaps = (g for g in self._gaps if before.sequence < g.last <= after.sequence)
        return sum(gap.fact.missing for gap in gaps)


async def _until(puller: Puller, from_sequence: int, last: int) -> AsyncGenerator[Pulled, None]:
    if from_sequence > last:
        return
    async with aclosing(puller.batches(from_sequence)) as batches:
        async for batch in batches:
            for pulled in batch:
                if pulled.sequence > last:
                    return
                yield pulled


async def _merge(streams: Sequence[AsyncIterator[Pulled]]) -> AsyncGenerator[Pulled, None]:
    """Yield from all of *streams* in the order of their sequences."""
    heads = [(await anext(stream, None), stream) for stream in streams]
    while True:
        waiting = [(head.sequence, place) for place, (head, _) in enumerate(heads) if head]
        if not waiting:
            return
        _, place = min(waiting)
        head, stream = heads[place]
        if head is not None:
            yield head
        heads[place] = (await anext(stream, None), stream)
