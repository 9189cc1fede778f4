"""
Replay the whole log, and believe nothing: each record is the next one, each link follows the last.

JetStream was seen to skip a damaged record, or the rest of a block, without a word, and its ordered
consumers do not notice.  So a replay ends at a sequence that is known before
it starts, and everything up to there must come, in order, with a chain that holds; else it raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from nats.aio.msg import Msg

from ..chain import CHAIN_HEADER, genesis, link
from ..errors import LogDamagedError
from ..record import Record, decode
from ..world import World
from .connection import Connection
from .pull import Puller
from .stream import StreamState, stream_info

__all__ = ["WRITER_CONSUMER", "check_state", "follow_link", "link_of", "replay", "state_of_log"]

#: The only consumer without a filter; the reader's permissions shut it out by this name.
WRITER_CONSUMER = "writer"


async def state_of_log(connection: Connection) -> StreamState:
    """
    Return how much the log holds.

    Raises:
        LogDamagedError: It is gone, or it says itself that records are missing.
        LogUnavailableError: The server does not tell.
    """
    info = await stream_info(connection)
    if info is None:
        raise LogDamagedError("the log's stream is gone", sequence=0)
    check_state(info.state)
    return info.state


def check_state(state: StreamState) -> None:
    """
    Raise where the log says itself that records are missing.

    Raises:
        LogDamagedError: It does.
    """
    if state.last_seq and (
        state.num_deleted or state.messages != state.last_seq - state.first_seq + 1
    ):
        missing = state.last_seq - state.first_seq + 1 - state.messages
        raise LogDamagedError(
            f"the log has holes: {missing} of the records {state.first_seq} to {state.last_seq}"
            " are missing",
            sequence=state.first_seq,
            hint="the store is damaged; nothing is decided on it until the hole is acknowledged",
        )


async def replay(
    connection: Connection,
    node: str,
    *,
    world: World,
    from_sequence: int = 1,
    previous_link: bytes | None = None,
    to_sequence: int | None = None,
) -> AsyncGenerator[tuple[Record, bytes], None]:
    """
    Yield each record of *node*'s log with its chain link, up to the last one at this moment.

    From the first record on the chain starts at its genesis; for a later start give the link before
    it as *previous_link*, else the first record's own link is taken as it is.

    Raises:
        LogDamagedError: A record is missing, or a link does not follow.
        InvalidRecordError: A record cannot be read.
        UnknownFactError: A critical fact is of a newer version.
        LogSetupError: This user may not read the log.
        LogUnavailableError: The log stopped answering.
    """
    state = await state_of_log(connection)
    last = state.last_seq if to_sequence is None else min(to_sequence, state.last_seq)
    if last < from_sequence:
        return
    if state.first_seq > from_sequence:
        raise LogDamagedError(
            f"the log starts at {state.first_seq}, not at {from_sequence}", sequence=from_sequence
        )
    if from_sequence == 1:
        previous_link = genesis(node)
    expected = from_sequence
    puller = Puller(connection, world=world, consumer=WRITER_CONSUMER)
    async with AsyncExitStack() as undo:
        undo.push_async_callback(puller.close)
        batches = await undo.enter_async_context(aclosing(puller.batches(from_sequence)))
        async for batch in batches:
            for message, sequence, _ in batch:
                if sequence != expected:
                    raise _hole(expected, sequence)
                previous_link = follow_link(previous_link, message, sequence)
                yield decode(message.data, sequence=sequence), previous_link
                expected += 1
                if sequence == last:
                    return
    raise LogDamagedError(
        f"the log ended at {expected - 1} while it was read, before {last}", sequence=expected
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
        )
    return found


def _hole(expected: int, found: int) -> LogDamagedError:
    return LogDamagedError(
        f"the log has a hole: record {expected} is missing, {found} came instead",
        sequence=expected,
        hint="the store is damaged; nothing is decided on it until the hole is acknowledged",
    )
