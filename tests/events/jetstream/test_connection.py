"""A connection: ends when it is told to, and says what went wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests.events.helpers import settings_in

from claimlet.events.address import ServerAddress
from claimlet.events.errors import LogUnavailableError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.server.process import EmbeddedServer

INFO = "$JS.API.STREAM.NAMES"


async def ask_for_ever(connection: Connection) -> None:
    """Send requests until cancelled."""
    while True:
        await connection.request(INFO)


class TestCancellation:
    async def test_is_never_lost(self, server: EmbeddedServer) -> None:
        """Whenever it comes, also together with an answer, the task ends."""
        connection = await Connection.open(server.address("reader"), name="test")
        for turns in range(150):
            task = asyncio.create_task(ask_for_ever(connection))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=5)

            assert done
            assert task.cancelled()
        await connection.close()


class TestOpen:
    async def test_says_that_nobody_is_there(self) -> None:
        """A wrong address is an error soon, not a wait."""
        with pytest.raises(LogUnavailableError, match="cannot connect"):
            await Connection.open(ServerAddress(url="nats://127.0.0.1:1"), name="test")

    async def test_says_that_something_else_is_there(self) -> None:
        """A port where no NATS server answers."""

        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH\r\n")
            writer.close()

        other = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(LogUnavailableError, match="empty response"):
            await Connection.open(ServerAddress(url=f"nats://127.0.0.1:{port}"), name="test")
        other.close()

    async def test_says_that_the_client_lost_its_way(
        self, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        An assertion of nats-py about its own state is a connection that failed, not a bug of ours.

        Seen once when a server was killed in the middle of its greeting, which no test can time.
        """

        async def lost(_: Client) -> None:
            raise AssertionError("Client.connect must be called first")

        monkeypatch.setattr(Client, "_process_connect_init", lost)
        with pytest.raises(LogUnavailableError, match="cannot connect"):
            await Connection.open(server.address("reader"), name="test")


class TestRequest:
    async def test_says_why_the_server_refuses(self, server: EmbeddedServer) -> None:
        """The client sees a timeout; the error has the server's words."""
        connection = await Connection.open(server.address("reader"), name="test")
        with pytest.raises(LogUnavailableError, match="permissions violation for publish"):
            await connection.request("$JS.API.STREAM.DELETE.EVENTS", timeout_seconds=0.2)
        await connection.close()

    async def test_fails_at_once_where_there_is_no_server(self, tmp_path: Path) -> None:
        """Nothing is kept to be sent later."""
        async with EmbeddedServer(settings_in(tmp_path / "state")) as server:
            connection = await Connection.open(server.address("reader"), name="test")
            await server.stop()
            for _ in range(3):
                with pytest.raises(LogUnavailableError, match=r"no answer|cannot publish"):
                    await connection.request(INFO, timeout_seconds=0.1)
            await connection.close()
