"""What everybody may see: all of it, in order, and nothing private."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.events.helpers import (
    NODE,
    eventually,
    generated,
    node_fact,
    open_writer,
    pod_fact,
    private,
    settings_in,
)

from claimlet.adapters.world import RealWorld
from claimlet.events.errors import LogDamagedError
from claimlet.events.jetstream import public
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.public import PublicReader
from claimlet.events.record import Draft, Record
from claimlet.events.server.process import EmbeddedServer


@asynccontextmanager
async def reader_on(
    server: EmbeddedServer, *, from_sequence: int = 1
) -> AsyncIterator[PublicReader]:
    """Yield a reader with the reader's key."""
    connection = await Connection.open(server.address("reader"), name="test")
    try:
        yield PublicReader(connection, NODE, world=RealWorld(), from_sequence=from_sequence)
    finally:
        await connection.close()


async def round_of(reader: PublicReader) -> list[int]:
    """Return the sequences of one round."""
    return [record.sequence async for record in reader.replay()]


def mixed(count: int) -> list[Draft]:
    """Return facts of all kinds; every fifth is private."""
    kinds = [generated("a"), pod_fact(), node_fact(), generated("b"), private("a")]
    return [kinds[number % 5] for number in range(count)]


class TestReplay:
    async def test_gives_all_but_private_facts_in_order(self, server: EmbeddedServer) -> None:
        """Three kinds from three consumers, in the order of the log."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append(mixed(60))
        async with reader_on(server) as reader:
            records = [record async for record in reader.replay()]

        assert [r.sequence for r in records] == [n for n in range(1, 61) if n % 5]
        assert {r.word for r in records} == {"generated", "pod_finished", "source_synced"}

    async def test_goes_on_where_it_ended(self, server: EmbeddedServer) -> None:
        """Each round gives what came since, also where that is nothing or private."""
        async with (
            open_writer(server.address("writer"), admin=server.address("admin")) as log,
            reader_on(server) as reader,
        ):
            assert await round_of(reader) == []
            await log.append([generated(), private()])
            assert await round_of(reader) == [1]
            assert await round_of(reader) == []
            await log.append([private(), private()])
            assert await round_of(reader) == []
            await log.append([node_fact(), private(), pod_fact()])
            assert await round_of(reader) == [5, 7]
            assert reader.next_sequence == 8

    async def test_can_start_in_the_middle(self, server: EmbeddedServer) -> None:
        """For who has seen the rest already."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append(mixed(20))
            async with reader_on(server, from_sequence=13) as reader:
                assert await round_of(reader) == [13, 14, 16, 17, 18, 19]
                await log.append(mixed(5))
                assert await round_of(reader) == [21, 22, 23, 24]

    async def test_reads_while_facts_come(self, server: EmbeddedServer) -> None:
        """A busy log is read in rounds without a false alarm."""
        found: list[int] = []
        async with (
            open_writer(server.address("writer"), admin=server.address("admin")) as log,
            reader_on(server) as reader,
        ):
            appends = asyncio.gather(*(log.append(mixed(7)) for _ in range(60)))
            while not appends.done():
                found += await round_of(reader)
            await appends
            found += await round_of(reader)

            assert len(found) == log.last_sequence - 60
            assert found == sorted(set(found))

    @pytest.mark.parametrize("lost", [generated(), private()], ids=["public", "private"])
    async def test_finds_a_hole(
        self, server: EmbeddedServer, lost: Draft, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A record that neither came nor is private is missing; so is a private one too many."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append([generated(), lost, node_fact()])
        async with reader_on(server) as reader:
            real = reader._count

            async def miscounted() -> public._Mark:
                mark = await real()
                fewer = 1 if lost == private() else -1
                count = mark.private_max - fewer
                return public._Mark(sequence=mark.sequence, private_min=count, private_max=count)

            monkeypatch.setattr(reader, "_count", miscounted)
            with pytest.raises(LogDamagedError, match="did not come"):
                await round_of(reader)


class TestFollow:
    async def test_gives_what_comes(self, server: EmbeddedServer) -> None:
        """First what is there, then each fact soon after it is stored."""
        found: list[Record] = []
        async with (
            open_writer(server.address("writer"), admin=server.address("admin")) as log,
            reader_on(server) as reader,
        ):
            await log.append([generated("old")])

            async def follow() -> None:
                async for record in reader.follow():
                    found.append(record)  # noqa: PERF401 -- looked at while it grows

            task = asyncio.create_task(follow())
            await eventually(lambda: len(found) == 1)
            for number in range(5):
                await log.append([private(), generated(f"new-{number}")])
            await eventually(lambda: len(found) == 6)
            task.cancel()
            await asyncio.wait([task])

        assert [record.sequence for record in found] == [1, 3, 5, 7, 9, 11]

    async def test_goes_on_over_a_restart_of_the_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is missed and nothing comes twice."""
        monkeypatch.setattr(public, "_LOOK_SECONDS", 0.2)
        found: list[int] = []
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings) as server, reader_on(server) as reader:
            supervisor = asyncio.create_task(server.supervise())
            async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
                await log.append(mixed(10))

                async def follow() -> None:
                    async for record in reader.follow():
                        found.append(record.sequence)  # noqa: PERF401 -- looked at while it grows

                task = asyncio.create_task(follow())
                await eventually(lambda: len(found) == 8)
                os.kill(server.pid, signal.SIGKILL)
                await log.append(mixed(10))
                await eventually(lambda: len(found) == 16)
                task.cancel()
                await asyncio.wait([task])
            supervisor.cancel()
            await asyncio.wait([supervisor])

        assert found == [n for n in range(1, 21) if n % 5]
