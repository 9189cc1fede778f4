"""Lending the log's server to a command that reads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.events.helpers import freeze, open_writer, settings_in

from claimlet.events.errors import LogSetupError, ServerUnavailableError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.server import status
from claimlet.events.server.locks import hold
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.server.reading import reading_server


class TestReadingServer:
    async def test_uses_the_server_that_runs(self, server: EmbeddedServer, tmp_path: Path) -> None:
        """The command connects as the reader and leaves the server running."""
        pid = server.pid
        async with reading_server(settings_in(tmp_path / "state")) as address:
            connection = await Connection.open(address, name="test")
            await connection.close()

            assert address == server.address("reader")
        os.kill(pid, 0)

    async def test_starts_one_where_none_runs(self, tmp_path: Path) -> None:
        """As long as the command reads, and not longer."""
        settings = settings_in(tmp_path / "state")
        async with (
            EmbeddedServer(settings) as server,
            open_writer(server.address("writer"), admin=server.address("admin")),
        ):
            pass
        async with reading_server(settings) as address:
            connection = await Connection.open(address, name="test")
            await connection.close()

        hold(settings.lock_file, owns="the log").release()

    async def test_makes_nothing_where_there_is_no_log(self, tmp_path: Path) -> None:
        """A mistyped directory stays as it is."""
        with pytest.raises(LogSetupError, match="there is no log") as caught:
            async with reading_server(settings_in(tmp_path / "nothing")):
                pass

        assert caught.value.exit_code == 4
        assert not (tmp_path / "nothing").exists()

    async def test_says_that_the_server_does_not_answer(
        self, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Locked and silent: exit code 4, and the store is left alone."""
        monkeypatch.setattr(status, "_GREETING_SECONDS", 0.2)
        await freeze(server.pid)
        try:
            with pytest.raises(ServerUnavailableError, match="does not answer") as caught:
                async with reading_server(settings_in(tmp_path / "state"), patience_seconds=0.1):
                    pass
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert caught.value.exit_code == 4
