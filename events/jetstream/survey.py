"""
Find everything that is wrong with a log, where a replay stops at the first thing.

Each damage is a range of records between two that can be trusted: what is missing, what does not
follow the chain, what cannot be read.  After it the chain is taken up again at the first record
that follows the one before it; past a hole, at the first one there.  Nothing is folded here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

import msgspec
from nats.aio.msg import Msg

from ..chain import genesis, link
from ..errors import InvalidRecordError, LogDamagedError, LogUnavailableError
from ..record import decode
from ..world import World
from .connection import Connection
from .gaps import Gap, gaps_of_log
from .pull import Pulled, Puller
from .reader import WRITER_CONSUMER, link_of
from .stored import message_at
from .stream import STREAM, stream_info

__all__ = ["Damage", "Survey", "survey"]

#: Of the damaged records that are there, so many are named.
_SUBJECTS_MAX = 8


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Records that cannot be used, exactly these."""

    first: int
    last: int
    #: How many of them are not there at all.
    missing: int
    problem: str
    link_before: bytes
    #: The link that the record after them carries; nothing where they are the log's end.
    link_after: bytes = b""
    #: Where the damaged ones that are there were published.
    subjects: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A log as it was found."""

    first: int
    last: int
    damages: tuple[Damage, ...]
    gaps: tuple[Gap, ...]
    #: The link that the next record follows.
    link: bytes


async def survey(connection: Connection, node: str, *, world: World) -> Survey:
    """
    Return what is wrong with *node*'s log, for its writer, while nobody appends.

    Raises:
        LogDamagedError: There is no log any more.
        UnknownFactError: A critical fact is of a newer version.
        LogUnavailableError: The log stopped answering.
    """
    info = await stream_info(connection)
    if info is None:
        raise LogDamagedError("the log's stream is gone", sequence=0)
    gaps = await gaps_of_log(connection, node)
    surveyor = _Surveyor(genesis(node), gaps)
    last = info.state.last_seq
    async with aclosing(_present(connection, world, last)) as messages:
        async for pulled in messages:
            surveyor.take(pulled.message, pulled.sequence)
    surveyor.end(last)
    return Survey(
        first=info.state.first_seq,
        last=last,
        damages=tuple(surveyor.damages),
        gaps=gaps,
        link=surveyor.link,
    )


async def _present(connection: Connection, world: World, last: int) -> AsyncGenerator[Pulled, None]:
    """Yield every record up to *last* that the server still gives."""
    following = 1

    async def look(sequence: int) -> None:
        with suppress(LogUnavailableError):
            if await message_at(connection, STREAM, sequence) is None:
                raise LogDamagedError("lost", sequence=sequence)

    while following <= last:
        puller = Puller(connection, world=world, consumer=WRITER_CONSUMER, stalled=look)
        try:
            async with aclosing(puller.batches(following)) as batches:
                async for batch in batches:
                    for pulled in batch:
                        if pulled.sequence > last:
                            return
                        yield pulled
                        following = pulled.sequence + 1
            return
        except LogDamagedError as error:
            following = error.sequence + 1
            while following <= last and not await message_at(connection, STREAM, following):
                following += 1
        finally:
            await puller.close()


class _Open(msgspec.Struct, kw_only=True):
    """A damage whose end is not known yet."""

    first: int
    link_before: bytes
    problem: str
    missing: int = 0
    subjects: list[str] = []


class _Surveyor:
    """Judges one record after another."""

    def __init__(self, start: bytes, gaps: Sequence[Gap]) -> None:
        self.damages: list[Damage] = []
        #: The link of the last record that can be trusted.
        self.link = start
        self._gaps = list(gaps)
        self._expected = 1
        #: What the link of the record just before may be; none: it is not known.
        self._before: tuple[bytes, ...] = (start,)
        #: The acknowledged gap just before, and what the next record must carry.
        self._passed: Gap | None = None
        self._open: _Open | None = None

    def take(self, message: Msg, sequence: int) -> None:
        """Judge the next record that is there."""
        self._reach(sequence)
        if sequence < self._expected:
            return  # a record that was given up
        problem, found = self._judge(message, sequence)
        if problem:
            self._damaged(problem, first=sequence)
            assert self._open is not None
            if len(self._open.subjects) < _SUBJECTS_MAX:
                self._open.subjects.append(message.subject)
        else:
            self._close(sequence - 1, found)
            self.link = found
        self._passed = None
        self._expected = sequence + 1

    def end(self, last: int) -> None:
        """Take note of what is wrong with the log's end."""
        self._reach(last + 1)
        if self._open is not None:
            self.link = self._open.link_before
        self._close(last, b"")

    def _reach(self, sequence: int) -> None:
        """Take note of what is missing before *sequence*, and of the gaps that are known."""
        while self._gaps and self._gaps[0].first <= sequence:
            gap = self._gaps.pop(0)
            self._miss(gap.first)
            if gap.link_before != self.link:
                self._damaged("an acknowledged gap does not fit", first=gap.first)
            if self._open is not None:
                self._open.missing += gap.fact.missing
                self._before = ()
            else:
                self._passed = gap
                is_end = not gap.fact.link_after and not gap.fact.copy
                self._before = (gap.link_before,) if is_end else ()
            self._expected = gap.last + 1
        self._miss(sequence)

    def _miss(self, sequence: int) -> None:
        missing = sequence - self._expected
        if missing > 0:
            self._damaged(f"{missing} records are missing", first=self._expected)
            assert self._open is not None
            self._open.missing += missing
            self._before = ()
            self._expected = sequence

    def _judge(self, message: Msg, sequence: int) -> tuple[str, bytes]:
        """Return what is wrong with the record, and its link."""
        follows = [link(each, message.subject, message.data) for each in self._before]
        found, problem = b"", ""
        try:
            found = link_of(message, sequence)
            wanted = self._passed.link_after if self._passed and self._open is None else b""
            if (wanted and found != wanted) or (follows and found not in follows):
                problem = f"the chain breaks at record {sequence}"
            else:
                follows = []
                decode(message.data, sequence=sequence)
        except (LogDamagedError, InvalidRecordError) as error:
            problem = str(error)
        # Of a changed record, either its content or its link may be what it was.
        self._before = tuple(each for each in (found, *follows[:1]) if each)
        return problem, found

    def _damaged(self, problem: str, *, first: int) -> None:
        if self._open is not None:
            return
        before, missing = self.link, 0
        if self._passed is not None:
            # Only what follows a gap vouches for its end: the two are one from now on.
            first, before = self._passed.first, self._passed.link_before
            missing, self._passed = self._passed.fact.missing, None
        self._open = _Open(first=first, link_before=before, problem=problem, missing=missing)

    def _close(self, last: int, link_after: bytes) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        self.damages.append(
            Damage(
                first=opened.first,
                last=last,
                missing=opened.missing,
                problem=opened.problem,
                link_before=opened.link_before,
                link_after=link_after,
                subjects=tuple(opened.subjects),
            )
        )
