"""Fixtures of the log's tests: a real server in a directory of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.events.helpers import settings_in

from claimlet.events.server.process import EmbeddedServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Yield a running server."""
    async with EmbeddedServer(settings_in(tmp_path / "state")) as server:
        yield server
