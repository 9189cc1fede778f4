"""
Replay the whole log, and believe nothing: each record is the next one, each link follows the last.

JetStream was seen to skip a damaged record, or the rest of a block, without a word, and its ordered
consumers do not notice.  So a replay ends at a sequence that is known before
it starts, and everything up to there must come, in order, with a chain that holds; else it raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path

from nats.aio.msg import Msg

from ..chain import CHAIN_HEADER, genesis, link
from ..errors import LogDamagedError, LogUnavailableError
from ..record import Record, decode
from ..world import World
from .connection import Connection
from .gaps import Gap, copied, gaps_of_log
from .pull import Puller
from .stored import message_at
from .stream import STREAM, StreamState, stream_info

__all__ = [
    "DAMAGE_HINT",
    "WRITER_CONSUMER",
    "check_state",
    "follow_link",
    "link_of",
    "replay",
    "state_of_log",
]

#: The only consumer without a filter; the reader's permissions shut it out by this name.
WRITER_CONSUMER = "writer"

DAMAGE_HINT = "nothing is decided on it until then: `claimlet doctor` says what to do"


async def state_of_log(connection: Connection, gaps: Sequence[Gap] = ()) -> StreamState:
    """
    Return how much the log holds.

    Raises:
        LogDamagedError: It is gone, or it says itself that more is missing than *gaps* tell.
        LogUnavailableError: The server does not tell.
    """
    info = await stream_info(connection)
    if info is None:
        raise LogDamagedError("the log's stream is gone", sequence=0, hint=DAMAGE_HINT)
    check_state(info.state, gaps)
    return info.state


def check_state(state: StreamState, gaps: Sequence[Gap] = ()) -> None:
    """
    Raise where the log says itself that more records are missing than *gaps* tell.

    Raises:
        LogDamagedError: It does.
    """
    if not state.last_seq:
        return
    missing = state.last_seq - state.first_seq + 1 - state.messages
    known = sum(gap.fact.missing for gap in gaps if gap.last >= state.first_seq)
    if max(missing, state.num_deleted) > known:
        raise LogDamagedError(
            f"the log has holes: {missing} of the records {state.first_seq} to {state.last_seq}"
            " are missing" + (f", {known} of them acknowledged" if known else ""),
            sequence=state.first_seq,
            hint=DAMAGE_HINT,
        )


async def replay(
    connection: Connection,
    node: str,
    *,
    world: World,
    from_sequence: int = 1,
    previous_link: bytes | None = None,
    to_sequence: int | None = None,
    archive: Path | None = None,
) -> AsyncGenerator[tuple[Record, bytes], None]:
    """
    Yield each record of *node*'s log with its chain link, up to the last one at this moment.

    From the first record on the chain starts at its genesis; for a later start give the link before
    it as *previous_link*, else the first record's own link is taken as it is.  In the place of an
    acknowledged gap come its records, from *archive*, or one that says so (`GAP_WORD`).

    Raises:
        LogDamagedError: A record is missing, or a link does not follow.
        InvalidRecordError: A record cannot be read.
        UnknownFactError: A critical fact is of a newer version.
        LogSetupError: This user may not read the log.
        LogUnavailableError: The log stopped answering.
    """
    gaps = await gaps_of_log(connection, node)
    state = await state_of_log(connection, gaps)
    last = state.last_seq if to_sequence is None else min(to_sequence, state.last_seq)
    stretch = _Stretch(connection, world, genesis(node) if from_sequence == 1 else previous_link)
    expected = from_sequence
    while expected <= last:
        gap = next((gap for gap in gaps if gap.last >= expected), None)
        if gap is not None and gap.first <= expected:
            for pair in stretch.over(gap, archive):
                if expected <= pair[0].sequence <= last:
                    yield pair
            expected = gap.last + 1
            continue
        if state.first_seq > expected:
            raise LogDamagedError(
                f"the log starts at {state.first_seq}, not at {expected}",
                sequence=expected,
                hint=DAMAGE_HINT,
            )
        end = last if gap is None else min(last, gap.first - 1)
        async with aclosing(stretch.read(expected, end)) as records:
            async for pair in records:
                yield pair
        expected = end + 1


class _Stretch:
    """Reads one stretch after another, each without a gap, with the chain between them."""

    def __init__(self, connection: Connection, world: World, previous_link: bytes | None) -> None:
        self._connection = connection
        self._world = world
        self._previous = previous_link
        #: What the next record must carry, where the records before it were not read.
        self._wanted = b""

    def over(self, gap: Gap, archive: Path | None) -> list[tuple[Record, bytes]]:
        """Pass over *gap* and return what comes in its place."""
        if self._previous is not None and self._previous != gap.link_before:
            raise LogDamagedError(
                f"the acknowledged gap {gap.first} to {gap.last} does not follow the record"
                " before it",
                sequence=gap.first,
                hint=DAMAGE_HINT,
            )
        if gap.fact.copy:
            pairs = [
                (decode(line.data.encode(), sequence=line.sequence), link)
                for line, link in copied(gap, archive)
            ]
            self._previous, self._wanted = pairs[-1][1], b""
            return pairs
        self._previous, self._wanted = gap.link_before, gap.link_after
        return [(gap.placeholder(), gap.link_before)]

    async def read(self, first: int, last: int) -> AsyncGenerator[tuple[Record, bytes], None]:
        """Yield the records *first* to *last*."""
        expected = first
        puller = Puller(
            self._connection, world=self._world, consumer=WRITER_CONSUMER, stalled=self._look
        )
        async with AsyncExitStack() as undo:
            undo.push_async_callback(puller.close)
            batches = await undo.enter_async_context(aclosing(puller.batches(first)))
            async for batch in batches:
                for message, sequence, _ in batch:
                    if sequence != expected:
                        raise _hole(expected, sequence)
                    link = self._follow(message, sequence)
                    yield decode(message.data, sequence=sequence), link
                    expected += 1
                    if sequence == last:
                        return
        raise LogDamagedError(
            f"the log ended at {expected - 1} while it was read, before {last}",
            sequence=expected,
            hint=DAMAGE_HINT,
        )

    def _follow(self, message: Msg, sequence: int) -> bytes:
        if self._wanted:
            found = link_of(message, sequence)
            if found != self._wanted:
                raise LogDamagedError(
                    f"record {sequence} is not the one that came after the acknowledged gap",
                    sequence=sequence,
                    hint=DAMAGE_HINT,
                )
            self._previous, self._wanted = found, b""
        else:
            self._previous = follow_link(self._previous, message, sequence)
        return self._previous

    async def _look(self, sequence: int) -> None:
        """Raise where the server answers and has no record at *sequence*, which it counts."""
        with suppress(LogUnavailableError):
            if await message_at(self._connection, STREAM, sequence) is None:
                raise LogDamagedError(
                    f"the log has a hole: its server has lost record {sequence}",
                    sequence=sequence,
                    hint=DAMAGE_HINT,
                )


def link_of(message: Msg, sequence: int) -> bytes:
    """
    Return the chain link that the record at *sequence* carries.

    Raises:
        LogDamagedError: It carries none.
    """
    try:
        return bytes.fromhex((message.headers or {})[CHAIN_HEADER])
    except (KeyError, ValueError):
        raise LogDamagedError(
            f"record {sequence} carries no link of the chain: it is not claimlet's",
            sequence=sequence,
            hint=DAMAGE_HINT,
        ) from None


def follow_link(previous_link: bytes | None, message: Msg, sequence: int) -> bytes:
    """
    Return the link of *message*, which must follow *previous_link* where that is known.

    Raises:
        LogDamagedError: It carries none, or it does not follow.
    """
    found = link_of(message, sequence)
    if previous_link is not None and link(previous_link, message.subject, message.data) != found:
        raise LogDamagedError(
            f"the chain breaks at record {sequence}: it, or what lies before it, was changed",
            sequence=sequence,
            hint=DAMAGE_HINT,
        )
    return found


def _hole(expected: int, found: int) -> LogDamagedError:
    return LogDamagedError(
        f"the log has a hole: record {expected} is missing, {found} came instead",
        sequence=expected,
        hint=DAMAGE_HINT,
    )
