"""
One pull over a part of the stream: an ephemeral consumer, and messages asked for ahead.

nats-py's own fetch reads 22,000 records a second; asking for batches ahead and taking the messages
in a callback reads more than five times as many.  A consumer that is gone,
as after a restart of the server, is made again where the reading stopped; whoever reads checks the
sequences, so nothing here has to be believed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from nats.aio.msg import Msg

from ..errors import LogSetupError, LogUnavailableError
from ..world import World
from .connection import Answer, Connection, status_of
from .stream import STREAM

__all__ = ["Pulled", "Puller"]

BATCH_LENGTH = 500
#: How many batches are asked for at once.
BATCHES_AHEAD = 2
#: Two batches of the largest records would be half a gigabyte.
BATCH_BYTES_MAX = 16 * 1024**2

#: Nothing for so long, and the consumer is made anew; doubled each time.  A server counts records
#: that it has lost as still to come, so that a short one ends most readings of a damaged log.
_STALL_SECONDS = 0.5
_ATTEMPTS_MAX = 6
_BACKOFF_SECONDS_FIRST = 0.1
_SECOND_NS = 1_000_000_000
_NO_CONSUMER = 10014


class Pulled(NamedTuple):
    """A message of the stream, and how many of this pull come after it."""

    message: Msg
    sequence: int
    pending: int


class _Created(Answer, frozen=True, kw_only=True):
    num_pending: int = 0


class Puller:
    """Reads the records of one filter in order; use `batches` once."""

    def __init__(
        self,
        connection: Connection,
        *,
        world: World,
        consumer: str,
        filter_subject: str = "",
        stalled: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._world = world
        self._consumer = consumer
        self._filter = filter_subject
        #: Looks, where nothing comes any more, why the record at a sequence does not.
        self._stalled = stalled
        self._inbox = ""
        self._end_subscription: Callable[[], Awaitable[None]] | None = None
        self._received: list[Msg] = []
        self._has_more = asyncio.Event()
        #: For each batch that was asked for, how many messages are still to come.
        self._asked: deque[int] = deque()

    async def batches(self, from_sequence: int) -> AsyncGenerator[list[Pulled], None]:
        """
        Yield the records from *from_sequence* on until there are no more at the moment.

        Raises:
            LogSetupError: This user may not read these records.
            LogUnavailableError: The log stopped answering.
        """
        sequence = from_sequence
        setbacks = 0
        while True:
            try:
                pending = await self._create(sequence)
                while pending:
                    batch = await self._next_batch(_STALL_SECONDS * 2**setbacks)
                    if batch:
                        setbacks = 0
                        sequence = batch[-1].sequence + 1
                        pending = batch[-1].pending
                        yield batch
                return
            except LogUnavailableError:
                setbacks += 1
                if self._stalled is not None:
                    await self._stalled(sequence)
                if setbacks >= _ATTEMPTS_MAX:
                    raise
                await self._world.sleep(_BACKOFF_SECONDS_FIRST * 2**setbacks)

    async def close(self) -> None:
        """Remove the consumer; a server that does not answer removes it by itself later."""
        await self._unsubscribe()
        # Nobody waits for the answer: the consumer is gone after its idle time at the latest.
        with suppress(LogUnavailableError):
            await self._connection.publish(
                f"$JS.API.CONSUMER.DELETE.{STREAM}.{self._consumer}", b""
            )

    async def _create(self, from_sequence: int) -> int:
        """Make the consumer anew and return how many records it has to give."""
        await self._unsubscribe()
        await self._connection.api(
            f"CONSUMER.DELETE.{STREAM}.{self._consumer}", None, answer=_Created
        )
        config = {
            "name": self._consumer,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": from_sequence,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60 * _SECOND_NS,
        }
        request = f"CONSUMER.CREATE.{STREAM}.{self._consumer}"
        if self._filter:
            config["filter_subject"] = self._filter
            request += f".{self._filter}"
        body = {"stream_name": STREAM, "config": config, "action": "create"}
        created = await self._connection.api(request, body, answer=_Created)
        if created.error is not None:
            raise LogSetupError(f"the log cannot be read: {created.error.description}")
        self._inbox = self._connection.client.new_inbox()
        self._end_subscription = await self._connection.subscribe(self._inbox, self._take)
        return created.num_pending

    async def _take(self, message: Msg) -> None:
        self._received.append(message)
        self._has_more.set()

    async def _next_batch(self, patience_seconds: float) -> list[Pulled]:
        """Return what has come, at least one record unless a request has ended without one."""
        while len(self._asked) < BATCHES_AHEAD:
            await self._ask()
        if not self._received:
            self._has_more.clear()
            try:
                async with self._world.timeout(patience_seconds):
                    await self._has_more.wait()
            except TimeoutError:
                raise LogUnavailableError(
                    f"the log sent nothing for {patience_seconds:g} s while it was read"
                ) from None
        messages, self._received = self._received, []
        return [pulled for message in messages if (pulled := self._account(message)) is not None]

    async def _ask(self) -> None:
        request = b'{"batch":%d,"max_bytes":%d,"expires":%d}' % (
            BATCH_LENGTH,
            BATCH_BYTES_MAX,
            30 * _SECOND_NS,
        )
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}", request, reply=self._inbox
        )
        self._asked.append(BATCH_LENGTH)

    def _account(self, message: Msg) -> Pulled | None:
        """
        Count *message* against what was asked for; None for a status.

        Raises:
            LogUnavailableError: The consumer is gone.
        """
        if status := status_of(message):
            description = (message.headers or {}).get("Description", "")
            if status == "503" or "consumer" in description.lower():
                raise LogUnavailableError(f"the log stopped while it was read: {description}")
            if status != "100" and self._asked:
                self._asked.popleft()
            return None
        if self._asked:
            self._asked[0] -= 1
            if self._asked[0] <= 0:
                self._asked.popleft()
        sequence, pending = _place(message.reply)
        return Pulled(message, sequence, pending)

    async def _unsubscribe(self) -> None:
        self._asked.clear()
        self._received.clear()
        if self._end_subscription is not None:
            end, self._end_subscription = self._end_subscription, None
            await end()


def _place(reply: str) -> tuple[int, int]:
    """
    Return stream sequence and number of pending messages from a delivery's reply subject.

    Raises:
        LogUnavailableError: This is no delivery of JetStream's.
    """
    tokens = reply.split(".")
    # `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<…>.<time>.<pending>`; a server with a
    # domain puts two tokens in front and may add one at the end.
    first = 5 if len(tokens) == 9 else 7
    try:
        return int(tokens[first]), int(tokens[first + 3])
    except (IndexError, ValueError):
        raise LogUnavailableError(f"a record came with the reply {reply[:80]!r}") from None
