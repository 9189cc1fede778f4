"""The demo's stage: what it starts it also ends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.adapters.cli.test_demo import running
from tests.adapters.service_process import short_directory

from claimlet.adapters.demo.stage import DemoError, Stage, demo_directory
from claimlet.events.server.locate import locate


class TestStage:
    async def test_ends_a_server_whose_service_was_killed(self) -> None:
        """The log's server outlives a killed service, but not the stage."""
        with short_directory() as directory:
            async with Stage(directory, nats_server=locate(environ=os.environ)) as stage:
                stage.boot("11111111-1111-4111-8111-111111111111")
                stage.start_service()
                await stage.service_answers()
                stage.kill_service()

                assert any("nats-server" in line for line in running(directory))
            assert not running(directory)

    async def test_says_why_a_service_does_not_come_up(self) -> None:
        """The service's own error is passed on."""
        with short_directory() as directory:
            async with Stage(directory, nats_server=locate(environ=os.environ)) as stage:
                stage.boot("no boot id!")
                stage.start_service()

                with pytest.raises(DemoError, match="holds no boot id"):
                    await stage.service_answers()


class TestDirectory:
    def test_is_short_enough_for_sockets(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It is made where temporary files belong, unless no socket could be dialled there."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
        directory = demo_directory()
        directory.rmdir()

        assert directory.parent == Path("/tmp")
