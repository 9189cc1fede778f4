"""Replaying: every record, in order, with its chain, or an error that says where not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.events.helpers import (
    NODE,
    everything,
    generated,
    node_fact,
    open_writer,
    private,
    settings_in,
)

from claimlet.adapters.world import RealWorld
from claimlet.events.chain import CHAIN_HEADER, genesis, link
from claimlet.events.errors import (
    InvalidRecordError,
    LogDamagedError,
    LogUnavailableError,
    UnknownFactError,
)
from claimlet.events.jetstream import pull
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.reader import replay
from claimlet.events.record import Record
from claimlet.events.server.process import EmbeddedServer

SUBJECT = "dra.node-a_example.node.stopped"


async def fill(server: EmbeddedServer, *, count: int, text: str = "") -> bytes:
    """Append *count* facts and return the last link."""
    async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
        while log.last_sequence < count:
            missing = count - log.last_sequence
            await log.append([generated(f"c-{missing % 7}", text=text)] * min(200, missing))
        return log.head.link


async def publish(server: EmbeddedServer, data: bytes, *, after: bytes) -> None:
    """Store *data* as somebody who knows the writer's key would."""
    connection = await Connection.open(server.address("writer"), name="test")
    headers = {CHAIN_HEADER: link(after, SUBJECT, data).hex()}
    await connection.publish(SUBJECT, data, headers=headers)
    await connection.client.flush()
    await connection.close()


async def consume(records: AsyncIterator[object]) -> None:
    """Read *records* to their end."""
    async for _ in records:
        pass


def damage(state_dir: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the store's block files, and let the server find out by itself."""
    blocks = sorted(state_dir.glob("js/jetstream/LOG/streams/EVENTS/msgs/*.blk"))
    assert blocks
    blocks[0].write_bytes(change(blocks[0].read_bytes()))


class TestReplay:
    @pytest.mark.parametrize("count", [1, 499, 500, 501, 1500])
    async def test_gives_every_record(self, server: EmbeddedServer, count: int) -> None:
        """Whatever the number of batches, none is missed and none comes twice."""
        head = await fill(server, count=count)
        connection = await Connection.open(server.address("writer"), name="test")
        found = [pair async for pair in replay(connection, NODE, world=RealWorld())]
        await connection.close()

        assert [record.sequence for record, _ in found] == list(range(1, count + 1))
        assert found[-1][1] == head

    async def test_of_an_empty_log_gives_nothing(self, server: EmbeddedServer) -> None:
        """A new log is whole."""
        async with open_writer(server.address("writer"), admin=server.address("admin")):
            assert list(await everything(server)) == []

    async def test_can_start_in_the_middle(self, server: EmbeddedServer) -> None:
        """With the link before it the chain is checked from there."""
        await fill(server, count=20)
        connection = await Connection.open(server.address("writer"), name="test")
        world = RealWorld()
        whole = [pair async for pair in replay(connection, NODE, world=world)]
        part = [
            pair
            async for pair in replay(
                connection, NODE, world=world, from_sequence=11, previous_link=whole[9][1]
            )
        ]
        upto = [pair async for pair in replay(connection, NODE, world=world, to_sequence=5)]

        assert part == whole[10:]
        assert upto == whole[:5]
        with pytest.raises(LogDamagedError, match="chain breaks at record 11"):
            await anext(
                replay(connection, NODE, world=world, from_sequence=11, previous_link=b"other")
            )
        await connection.close()

    async def test_reads_large_records(self, server: EmbeddedServer) -> None:
        """Batches are bounded in bytes too."""
        await fill(server, count=80, text="x" * 400_000)

        assert len(await everything(server)) == 80

    async def test_goes_on_over_a_restart_of_the_server(self, tmp_path: Path) -> None:
        """A consumer that is gone is made again where the reading stopped."""
        found: list[Record] = []
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings) as server:
            await fill(server, count=4000)
            connection = await Connection.open(server.address("writer"), name="test")
            async for record, _ in replay(connection, NODE, world=RealWorld()):
                found.append(record)
                if record.sequence == 100:
                    os.kill(server.pid, signal.SIGKILL)
                    await server.stop()
                    server = EmbeddedServer(settings)  # noqa: PLW2901 -- the next one
                    await server.start()
            await connection.close()
            await server.stop()

        assert [record.sequence for record in found] == list(range(1, 4001))

    async def test_gives_up_on_a_server_that_stays_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error that says so, after some attempts."""
        monkeypatch.setattr(pull, "_STALL_SECONDS", 0.05)
        monkeypatch.setattr(pull, "_BACKOFF_SECONDS_FIRST", 0.001)
        async with EmbeddedServer(settings_in(tmp_path / "state")) as server:
            await fill(server, count=2500)
            connection = await Connection.open(server.address("writer"), name="test")
            records = replay(connection, NODE, world=RealWorld())
            await anext(records)
            await server.stop()
            with pytest.raises(LogUnavailableError):
                await consume(records)
            await connection.close()


class TestDamage:
    async def test_one_flipped_bit_is_found(self, tmp_path: Path) -> None:
        """The server skips the record without a word; the replay does not."""
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings) as server:
            await fill(server, count=50)

        def flip(block: bytes) -> bytes:
            place = block.index(b'"generated"', len(block) // 2)
            return block[:place] + bytes([block[place] ^ 1]) + block[place + 1 :]

        damage(settings.state_dir, flip)
        async with EmbeddedServer(settings) as server:
            with pytest.raises(LogDamagedError, match=r"hole|missing|ended at") as caught:
                await everything(server)

            assert caught.value.exit_code == 4

    async def test_a_foreign_record_is_found(self, server: EmbeddedServer) -> None:
        """Something without a link of the chain is not claimlet's."""
        await fill(server, count=3)
        connection = await Connection.open(server.address("writer"), name="test")
        await connection.publish(SUBJECT, b"{}")
        await connection.client.flush()
        await connection.close()

        with pytest.raises(LogDamagedError, match="record 4 carries no link") as caught:
            await everything(server)

        assert caught.value.sequence == 4

    async def test_a_record_with_another_link_is_found(self, server: EmbeddedServer) -> None:
        """A link that does not follow breaks the chain there."""
        await fill(server, count=3)
        await publish(server, b"{}", after=genesis(NODE))

        with pytest.raises(LogDamagedError, match="chain breaks at record 4"):
            await everything(server)

    async def test_a_log_without_its_stream_is_found(self, server: EmbeddedServer) -> None:
        """No stream is not an empty log for whoever only reads."""
        with pytest.raises(LogDamagedError, match="stream is gone"):
            await everything(server)


class TestUnreadable:
    async def test_bytes_that_are_no_record_are_named(self, server: EmbeddedServer) -> None:
        """The chain holds, the content does not: the sequence is in the error."""
        head = await fill(server, count=3)
        await publish(server, b"{nonsense", after=head)

        with pytest.raises(InvalidRecordError, match="record 4 cannot be read") as caught:
            await everything(server)

        assert caught.value.sequence == 4

    async def test_a_fact_of_a_newer_version_is_named(self, server: EmbeddedServer) -> None:
        """A critical word that is not known stops here, with what to do."""
        head = await fill(server, count=3)
        envelope = dict.fromkeys(("t", "id", "ts", "boot", "node", "writer"), "from_the_future")
        data = json.dumps({**envelope, "v": 1, "body": {}}).encode()
        await publish(server, data, after=head)

        with pytest.raises(UnknownFactError, match="record 4 is a 'from_the_future'") as caught:
            async with open_writer(server.address("writer")):
                pass

        assert "version that wrote it" in caught.value.hint

    async def test_private_facts_are_the_writers(self, server: EmbeddedServer) -> None:
        """The writer folds what nobody else may see."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append([private(), node_fact()])

        assert [record.word for record in await everything(server)] == [
            "config_recorded",
            "source_synced",
        ]
