"""Snapshots in their stream: a start from one, and every way in which one costs time only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from tests.events.helpers import NODE, generated, open_writer

from claimlet.events.errors import InvalidSnapshotError, LogDamagedError, LogUnavailableError
from claimlet.events.facts import SnapshotTaken
from claimlet.events.jetstream.connection import Answer, Connection
from claimlet.events.jetstream.log import JetStreamLog
from claimlet.events.jetstream.snapshots import (
    CHUNK_BYTES_MAX,
    SNAPSHOT_STREAM,
    Slot,
    SnapshotStore,
    has_snapshot_stream,
)
from claimlet.events.jetstream.stored import NotShownError, message_last
from claimlet.events.log import Head
from claimlet.events.record import Draft, Record
from claimlet.events.server.process import EmbeddedServer

PREFIX = "snapshots.node-a_example"


class _Content(msgspec.Struct):
    head: Head
    ids: list[str]
    padding: str = ""


class Tally:
    """A fold that knows the ids of all records, and how many it was given one by one."""

    fold_version = 1

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.folded = 0
        self.taken = 0
        #: The fact of the last snapshot.
        self.fact_sequence = 0

    def fold(self, record: Record) -> None:
        self.ids.append(record.id)
        self.folded += 1

    def dump(self, head: Head, *, padding: str = "") -> bytes:
        return msgspec.json.encode(_Content(head=head, ids=self.ids, padding=padding))

    def place(self, content: bytes) -> Head:
        try:
            return msgspec.json.decode(content, type=_Content).head
        except msgspec.DecodeError as error:
            raise InvalidSnapshotError(f"it cannot be read: {error}") from None

    def restore(self, content: bytes) -> Head:
        head = self.place(content)
        self.ids = msgspec.json.decode(content, type=_Content).ids
        return head

    async def take(
        self, log: JetStreamLog, *, content: bytes | None = None, **changes: Any
    ) -> SnapshotTaken:
        """Take a snapshot as the service does; *content* and *changes* are what is wrong."""
        head = log.head
        slots: tuple[Slot, Slot] = ("a", "b")
        content = self.dump(head) if content is None else content
        fact = SnapshotTaken(
            sequence=head.sequence,
            digest="",
            fold_version=self.fold_version,
            slot=slots[self.taken % 2],
            chunks=await log.snapshots.write(slots[self.taken % 2], content),
            size_bytes=len(content),
            content_digest=sha256(content).hexdigest(),
            previous=self.fact_sequence,
        )
        fact = msgspec.structs.replace(fact, **changes)
        self.fact_sequence = await log.append([Draft(fact=fact)])
        self.taken += 1
        return fact


@asynccontextmanager
async def opened(
    server: EmbeddedServer, tally: Tally, *, whole: bool = False
) -> AsyncIterator[JetStreamLog]:
    """Open the log with *tally* as its fold; a *whole* replay is made of small logs."""
    async with open_writer(
        server.address("writer"),
        admin=server.address("admin"),
        fold=tally.fold,
        snapshots=tally,
        full_replay_facts_max=1000 if whole else 0,
    ) as log:
        yield log


async def filled(server: EmbeddedServer) -> list[str]:
    """Have a log with two snapshots, at 10 and at 16, that ends at 22; return all its ids."""
    tally = Tally()
    async with opened(server, tally) as log:
        await log.append([generated(f"c{n}") for n in range(10)])
        await tally.take(log)
        await log.append([generated(f"d{n}") for n in range(5)])
        await tally.take(log)
        await log.append([generated(f"e{n}") for n in range(5)])
    return tally.ids


@asynccontextmanager
async def user(server: EmbeddedServer, name: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(server.address(name), name="test")
    try:
        yield connection
    finally:
        await connection.close()


async def admin_does(server: EmbeddedServer, request: str, body: object = None) -> None:
    async with user(server, "admin") as admin:
        assert (await admin.api(request, body, answer=Answer)).error is None


async def purge(server: EmbeddedServer) -> None:
    await admin_does(server, f"STREAM.PURGE.{SNAPSHOT_STREAM}")


async def delete(server: EmbeddedServer) -> None:
    await admin_does(server, f"STREAM.DELETE.{SNAPSHOT_STREAM}")


def overwrite(*slots: Slot, data: bytes) -> Callable[[EmbeddedServer], Awaitable[None]]:
    async def do(server: EmbeddedServer) -> None:
        async with user(server, "writer") as writer:
            for slot in slots:
                await writer.request(f"{PREFIX}.{slot}.0", data)

    return do


class TestStart:
    async def test_reads_the_tail_only(self, server: EmbeddedServer) -> None:
        """From the newest snapshot on, and what is folded is what the whole log gives."""
        ids = await filled(server)
        async with opened(server, tally := Tally()) as log:
            assert tally.ids == ids
            assert (tally.folded, log.start.facts) == (6, 6)
            assert (log.start.kind, log.start.snapshot_sequence) == ("snapshot", 16)
            assert (log.start.problem, log.start.mismatch) == ("", "")
            assert await log.append([generated()]) == 23

    async def test_needs_no_tail(self, server: EmbeddedServer) -> None:
        """A log that ends with a snapshot is folded with the one fact that names it."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()] * 3)
            await first.take(log)
        async with opened(server, tally := Tally()):
            assert (tally.ids, tally.folded) == (first.ids, 1)

    async def test_reads_chunks(self, server: EmbeddedServer) -> None:
        """What is larger than a message is cut and put together again."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()])
            padding = "x" * (2 * CHUNK_BYTES_MAX)
            fact = await first.take(log, content=first.dump(log.head, padding=padding))
        async with opened(server, tally := Tally()) as log:
            assert fact.chunks == 3
            assert (log.start.kind, tally.ids) == ("snapshot", first.ids)

    async def test_without_any_snapshot(self, server: EmbeddedServer) -> None:
        """A log that tells of none is replayed whole, and nothing is wrong with that."""
        async with opened(server, Tally()) as log:
            await log.append([generated()] * 3)
        async with opened(server, tally := Tally()) as log:
            assert (tally.folded, log.start.kind, log.start.problem) == (3, "full", "")

    async def test_checks_the_chain_from_the_snapshot_on(self, server: EmbeddedServer) -> None:
        """The tail's first record must follow the link that the snapshot knows."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()] * 3)
            await first.take(log)
        async with user(server, "writer") as writer:
            headers = {"Claimlet-Chain": "00" * 32}
            await writer.publish("dra.node-a_example.node.stopped", b"{}", headers=headers)
            await writer.client.flush()
        with pytest.raises(LogDamagedError, match="chain breaks at record 5"):
            async with opened(server, Tally()):
                pass


class TestTwoAreKept:
    async def test_and_no_more(self, server: EmbeddedServer) -> None:
        """The slots are written in turn: after five snapshots the last two lie there."""
        async with opened(server, tally := Tally()) as log:
            facts = []
            for _ in range(5):
                await log.append([generated()])
                facts.append(await tally.take(log))
            newest = await log.snapshots.newest()
            assert newest is not None
            before = await log.snapshots.before(newest)
            assert before is not None
            assert [before.fact, newest.fact] == facts[-2:]
            assert tally.place(await log.snapshots.read(before)).sequence == 7
            oldest = await log.snapshots.before(before)
            assert oldest is not None
            with pytest.raises(InvalidSnapshotError, match="not what was written"):
                await log.snapshots.read(oldest)

    @pytest.mark.parametrize(
        "harm",
        [overwrite("b", data=b"half"), overwrite("b", data=b"")],
        ids=["torn", "empty"],
    )
    async def test_the_other_one_serves(
        self, server: EmbeddedServer, harm: Callable[[EmbeddedServer], Awaitable[None]]
    ) -> None:
        """Where the newest is broken the one before it is taken, with a longer tail."""
        ids = await filled(server)
        await harm(server)
        async with opened(server, tally := Tally()) as log:
            assert tally.ids == ids
            assert (log.start.kind, log.start.snapshot_sequence) == ("snapshot", 10)
            assert "not what was written" in log.start.problem

    async def test_a_half_written_one_is_not_seen(self, server: EmbeddedServer) -> None:
        """Until its fact is stored a snapshot is none; the one before it is whole."""
        ids = await filled(server)
        await overwrite("a", data=b"half")(server)
        async with opened(server, tally := Tally()) as log:
            assert tally.ids == ids
            assert (log.start.snapshot_sequence, log.start.problem) == (16, "")


class TestCostsTimeOnly:
    @pytest.mark.field(55, 56, 57)
    @pytest.mark.parametrize(
        ("harm", "problem"),
        [
            (purge, "chunk 0 of 1 is not there"),
            (delete, "chunk 0 of 1 is not there"),
            (overwrite("a", "b", data=b""), "not what was written"),
            (overwrite("a", "b", data=b"{}\0\0"), "not what was written"),
        ],
        ids=["purged", "deleted", "emptied", "torn"],
    )
    async def test_a_stream_that_was_harmed(
        self,
        server: EmbeddedServer,
        harm: Callable[[EmbeddedServer], Awaitable[None]],
        problem: str,
    ) -> None:
        """Missing or broken: the log is replayed whole, one warning says why."""
        ids = await filled(server)
        await harm(server)
        async with opened(server, tally := Tally()) as log:
            assert (tally.ids, tally.folded) == (ids, len(ids))
            assert log.start.kind == "full"
            assert problem in log.start.problem
            await tally.take(log)
        async with opened(server, Tally()) as log:
            assert (log.start.kind, log.start.problem) == ("snapshot", "")

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"fold_version": 7}, "made by version 7 of the fold; this is 1"),
            ({"content": b'{"head":{"sequence":3}}'}, "cannot be read"),
            ({"size_bytes": 2**40}, "more than a snapshot takes"),
            ({"chunks": 10**9}, "more than a snapshot takes"),
            ({"chunks": 0}, "not what was written"),
            ({"sequence": 2}, "not the one that its fact tells"),
            ({"sequence": 90}, "not the one that its fact tells"),
        ],
        ids=["fold", "content", "large", "many", "few", "earlier", "later"],
    )
    async def test_a_snapshot_that_does_not_fit(
        self, server: EmbeddedServer, changes: dict[str, Any], problem: str
    ) -> None:
        """Another fold's, or not what its fact says: the log is replayed whole."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()] * 3)
            await first.take(log, **changes)
        async with opened(server, tally := Tally()) as log:
            assert (tally.ids, log.start.kind) == (first.ids, "full")
            assert problem in log.start.problem

    async def test_one_of_another_log(self, server: EmbeddedServer) -> None:
        """The record at its place must be the one that it knows, with its link."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()] * 3)
            other = msgspec.structs.replace(log.head, link=b"\1" * 32)
            await first.take(log, content=first.dump(other))
        async with opened(server, tally := Tally()) as log:
            assert (tally.ids, log.start.kind) == (first.ids, "full")
            assert "record 3 of the log is not the one it names" in log.start.problem

    async def test_its_stream_is_made_again(self, server: EmbeddedServer) -> None:
        """A start without the stream for snapshots makes it."""
        await filled(server)
        await delete(server)
        async with opened(server, Tally()), user(server, "writer") as writer:
            assert await has_snapshot_stream(writer)

    async def test_one_that_cannot_be_written(self, server: EmbeddedServer) -> None:
        """While there is no stream, or no room, taking one fails and nothing else does."""
        async with opened(server, tally := Tally()) as log:
            with pytest.raises(InvalidSnapshotError, match="more than a snapshot may take"):
                await log.snapshots.write("a", bytes(65 * 1024**2))
            await delete(server)
            with pytest.raises(LogUnavailableError):
                await tally.take(log)
            assert await log.append([generated()]) == 1


class TestSmallLog:
    async def test_is_replayed_whole_and_compared(self, server: EmbeddedServer) -> None:
        """A small log costs next to nothing to read: its snapshot is only checked."""
        ids = await filled(server)
        async with opened(server, tally := Tally(), whole=True) as log:
            assert (tally.ids, tally.folded) == (ids, len(ids))
            assert (log.start.kind, log.start.snapshot_sequence) == ("full", 16)
            assert (log.start.problem, log.start.mismatch) == ("", "")

    async def test_tells_of_a_snapshot_that_differs(self, server: EmbeddedServer) -> None:
        """A sound snapshot that is not what the log says is an alarm, and the log stands."""
        async with opened(server, first := Tally()) as log:
            await log.append([generated()] * 3)
            wrong = msgspec.json.decode(first.dump(log.head)) | {"ids": ["forged"] * 3}
            await first.take(log, content=msgspec.json.encode(wrong))
        async with opened(server, tally := Tally(), whole=True) as log:
            assert tally.ids == first.ids
            assert "the snapshot of 3 is not what the log says" in log.start.mismatch

    async def test_a_broken_one_is_a_problem_and_no_alarm(self, server: EmbeddedServer) -> None:
        """What is not sound proves nothing about the log."""
        await filled(server)
        await overwrite("a", "b", data=b"{}")(server)
        async with opened(server, Tally(), whole=True) as log:
            assert "not what was written" in log.start.problem
            assert log.start.mismatch == ""


class TestStore:
    async def test_a_fact_that_is_none_tells_of_nothing(self, server: EmbeddedServer) -> None:
        """Bytes that are no record are for the replay to name."""
        async with opened(server, tally := Tally()) as log:
            await log.append([generated()])
            await tally.take(log)
            async with user(server, "writer") as writer:
                await writer.request("dra.node-a_example.node.snapshot_taken", b"junk")
                assert await SnapshotStore(writer, NODE).newest() is None

    async def test_knows_a_message_from_a_stream_that_is_not_there(
        self, server: EmbeddedServer
    ) -> None:
        """No such message is an answer; no such stream is an error."""
        async with opened(server, Tally()), user(server, "admin") as admin:
            assert await message_last(admin, SNAPSHOT_STREAM, f"{PREFIX}.a.0") is None
            with pytest.raises(NotShownError, match="stream not found"):
                await message_last(admin, "OTHER", f"{PREFIX}.a.0")
