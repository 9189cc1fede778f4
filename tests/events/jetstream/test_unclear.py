"""Unclear outcomes: every fact lands exactly once, in order, or somebody hears that it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.events.helpers import (
    eventually,
    everything,
    freeze,
    generated,
    open_writer,
    settings_in,
    supervised,
)
from tests.events.jetstream.lossy_proxy import LossyProxy

from claimlet.events.address import ServerAddress
from claimlet.events.errors import FencedError, LogDamagedError, LogUnavailableError
from claimlet.events.facts import WriterStarted
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.pipe import PipeSettings
from claimlet.events.jetstream.stream import StreamInfo
from claimlet.events.jetstream.wire import Condition
from claimlet.events.record import Draft, Record
from claimlet.events.server.process import EmbeddedServer


def is_ack(frame: bytes) -> bool:
    """Return whether *frame* acknowledges a record."""
    return b'"stream":"EVENTS"' in frame and b'"seq":' in frame


def names(records: list[Record]) -> list[str]:
    """Return whose claims *records* are about."""
    return [record.claim.name for record in records if record.claim]


async def at_least(count: int, records: list[Record]) -> None:
    """Wait until there are *count* of *records*."""
    await eventually(lambda: len(records) >= count)


def through(proxy: LossyProxy, address: ServerAddress) -> ServerAddress:
    """Return *address*, by way of *proxy*."""
    return msgspec.structs.replace(address, url=proxy.url)


class TestLostAcknowledgement:
    async def test_is_found_in_the_log(self, server: EmbeddedServer) -> None:
        """The record is there: it counts as landed and is not sent again."""
        folded: list[Record] = []
        async with (
            LossyProxy(server.port) as proxy,
            open_writer(
                through(proxy, server.address("writer")),
                admin=server.address("admin"),
                fold=folded.append,
                pipe=PipeSettings(append_timeout_seconds=20, ack_timeout_seconds=0.1),
            ) as log,
        ):
            proxy.loses = is_ack

            assert await log.append([generated("a"), generated("b")]) == 2
            assert proxy.lost_count == 2
        assert names(folded) == names(list(await everything(server))) == ["a", "b"]

    @pytest.mark.parametrize("every", [2, 3, 7])
    async def test_among_many_changes_nothing(self, server: EmbeddedServer, every: int) -> None:
        """Each fact once, in the order of issue, whichever answers are lost."""
        folded: list[Record] = []
        async with (
            LossyProxy(server.port) as proxy,
            open_writer(
                through(proxy, server.address("writer")),
                admin=server.address("admin"),
                fold=folded.append,
                pipe=PipeSettings(
                    append_timeout_seconds=20, ack_timeout_seconds=0.1, window_length_max=8
                ),
            ) as log,
        ):
            proxy.loses = lambda frame: is_ack(frame) and hash(frame) % every == 0
            sequences = await asyncio.gather(
                *(log.append([generated(f"c-{n}")]) for n in range(60))
            )

        assert sequences == list(range(1, 61))
        assert names(folded) == [f"c-{n}" for n in range(60)]
        assert list(await everything(server)) == folded

    async def test_and_a_cut_connection_change_nothing(self, server: EmbeddedServer) -> None:
        """After each reconnect the log is read, and only then written."""
        folded: list[Record] = []
        async with (
            LossyProxy(server.port) as proxy,
            open_writer(
                through(proxy, server.address("writer")),
                admin=server.address("admin"),
                fold=folded.append,
            ) as log,
        ):
            tasks = []
            for n in range(40):
                tasks.append(asyncio.create_task(log.append([generated(f"c-{n}")] * 3)))
                if n % 10 == 9:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    proxy.cut()
            await asyncio.gather(*tasks)

        assert names(folded) == [f"c-{n}" for n in range(40) for _ in range(3)]
        assert list(await everything(server)) == folded


class TestKilledServer:
    async def test_loses_nothing(self, tmp_path: Path) -> None:
        """Killed again and again under load: what was acknowledged is there, each fact once."""
        folded: list[Record] = []
        conditions: list[Condition] = []
        settings = settings_in(tmp_path / "state")
        async with (
            EmbeddedServer(settings) as server,
            supervised(server),
            open_writer(
                server.address("writer"), admin=server.address("admin"), fold=folded.append
            ) as log,
        ):
            log.listen(conditions.append)
            tasks = [asyncio.create_task(log.append([generated(f"c-{n}")])) for n in range(300)]
            for share in (60, 140, 220):
                await at_least(share, folded)
                await eventually(lambda: log.is_available)
                os.kill(server.pid, signal.SIGKILL)
                await eventually(lambda: not log.is_available)
                tasks += [
                    asyncio.create_task(log.append([generated(f"late-{share}-{n}")]))
                    for n in range(5)
                ]
            sequences = await asyncio.gather(*tasks)

            assert sequences == list(range(1, len(tasks) + 1))
            assert list(await everything(server)) == folded
            assert len(folded) == len(tasks)
            assert {condition.kind for condition in conditions} == {"available", "unavailable"}

    async def test_comes_back_on_another_port(self, tmp_path: Path) -> None:
        """The writer follows its server wherever it listens."""
        settings = settings_in(tmp_path / "state")
        async with (
            EmbeddedServer(settings) as first,
            open_writer(first.address("writer"), admin=first.address("admin")) as log,
        ):
            await log.append([generated("a")])
            await first.stop()
            status = msgspec.json.decode(settings.status_file.read_bytes())
            settings.status_file.write_bytes(msgspec.json.encode({**status, "port": 0}))
            async with EmbeddedServer(settings) as second:
                assert second.port != first.port
                log.retarget(second.address("writer").url)

                assert await log.append([generated("b")]) == 2


@contextmanager
def writer_process(state_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield another process that has the log open."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.events.jetstream.writer", str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
        process.kill()


class TestKilledWriter:
    async def test_is_no_foreign_one_for_its_successor(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        """What it had sent is stored before the next one reads, so that nobody is fenced."""
        folded: list[Record] = []
        with writer_process(tmp_path / "state") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            await freeze(server.pid)
            process.stdin.write(b"go\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"issued\n"
            process.kill()
            process.wait()
            os.kill(server.pid, signal.SIGCONT)
            async with open_writer(server.address("writer"), fold=folded.append) as log:
                last = await log.append([generated("mine")])

        assert last == len(folded) > 1
        assert names(folded[:-1]) == [f"k-{n}" for n in range(last - 1)]
        assert list(await everything(server)) == folded


class TestForeignWriter:
    async def test_fences_the_first_one(self, server: EmbeddedServer) -> None:
        """Who finds a record that is not its own stops for good, and exits with 6."""
        conditions: list[Condition] = []
        admin = server.address("admin")
        async with (
            open_writer(server.address("writer"), admin=admin) as first,
            open_writer(server.address("writer"), writer="writer-2") as second,
        ):
            first.listen(conditions.append)
            assert await second.append([generated("theirs")]) == 1

            with pytest.raises(FencedError, match="record 1 is not ours") as caught:
                await first.append([generated("mine")])
            with pytest.raises(FencedError):
                await first.append([generated("again")])
            assert caught.value.exit_code == 6
            assert [condition.kind for condition in conditions] == ["fenced"]
            assert await second.append([generated("theirs")]) == 2
        assert names(list(await everything(server))) == ["theirs", "theirs"]

    async def test_is_noticed_when_it_announces_itself(self, server: EmbeddedServer) -> None:
        """`writer_started` of another one stops a writer that appends nothing at the moment."""
        conditions: list[Condition] = []
        admin = server.address("admin")
        started = Draft(fact=WriterStarted(writer="writer-2", boot="boot-1"))
        async with (
            open_writer(server.address("writer"), admin=admin) as first,
            open_writer(server.address("writer"), writer="writer-2") as second,
        ):
            first.listen(conditions.append)
            await second.append([started])
            await eventually(lambda: bool(conditions))

            assert conditions[0].kind == "fenced"
            assert not first.is_available
            assert second.is_available

    async def test_is_not_seen_in_ones_own_announcement(self, server: EmbeddedServer) -> None:
        """One's own `writer_started` fences nobody."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append([Draft(fact=WriterStarted(writer="writer-1", boot="boot-1"))])

            assert await log.append([generated("a")]) == 2
            assert log.is_available

    async def test_with_an_old_fence_is_refused_by_the_server(self, server: EmbeddedServer) -> None:
        """Several writers at once: who is fenced has left nothing behind, and no chain breaks."""
        admin = server.address("admin")
        async with open_writer(server.address("writer"), admin=admin):
            pass

        async def write(writer: str) -> bool:
            async with open_writer(server.address("writer"), writer=writer) as log:
                try:
                    await asyncio.gather(*(log.append([generated()]) for _ in range(5)))
                except FencedError:
                    return False
                return True

        results = await asyncio.gather(*(write(f"w-{n}") for n in range(4)), return_exceptions=True)
        writers = {record.writer for record in await everything(server)}

        # A writer that opened the log later has folded what was there and goes on after it.
        assert any(result is True for result in results)
        assert len(writers) == sum(result is True for result in results)


class TestChangedLog:
    async def test_a_deleted_stream_is_damage(self, server: EmbeddedServer) -> None:
        """What was acknowledged is gone: nothing is appended to whatever comes instead."""
        conditions: list[Condition] = []
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            log.listen(conditions.append)
            await log.append([generated("a")])
            admin = await Connection.open(server.address("admin"), name="test")
            await admin.api("STREAM.DELETE.EVENTS", None, answer=StreamInfo)
            await admin.close()

            with pytest.raises(LogDamagedError, match="stream is gone"):
                await log.append([generated("b")])
            assert conditions[-1].kind == "damaged"

    async def test_an_older_store_is_damage(self, server: EmbeddedServer, tmp_path: Path) -> None:
        """A server that comes back with less than it acknowledged is not written to."""
        settings = settings_in(tmp_path / "other")
        async with (
            EmbeddedServer(settings) as other,
            open_writer(other.address("writer"), admin=other.address("admin")) as log,
            LossyProxy(other.port) as proxy,
        ):
            await log.append([generated("a"), generated("b")])
            address = through(proxy, other.address("writer"))
            async with open_writer(address) as victim:
                assert victim.last_sequence == 2
                admin = other.address("admin")
                connection = await Connection.open(admin, name="test")
                await connection.api("STREAM.DELETE.EVENTS", None, answer=StreamInfo)
                await connection.close()
                async with open_writer(other.address("writer"), admin=admin) as new:
                    await new.append([generated("x")])
                proxy.cut()

                with pytest.raises(LogDamagedError, match="2 was acknowledged and is missing"):
                    await victim.append([generated("c")])


class TestFullStream:
    async def test_is_unavailable_with_the_reason(self, server: EmbeddedServer) -> None:
        """A full store refuses; the fact waits, and the condition says why."""
        async with open_writer(
            server.address("writer"),
            admin=server.address("admin"),
            pipe=PipeSettings(append_timeout_seconds=0.5),
            stream_bytes_max=20_000,
        ) as log:
            await log.append([generated(text="x" * 10_000)])
            with pytest.raises(LogUnavailableError, match="maximum bytes exceeded"):
                await log.append([generated(text="x" * 10_000)])

            assert "maximum bytes exceeded" in log.condition.reason
            assert not log.is_available
