"""
Lend the log's server to a command that only reads.

A running server is used as it is; where none runs, one is started for as long as the command reads,
under the same lock as always.  Nothing is made where there was no log before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..address import ServerAddress
from ..errors import LockHeldError, LogSetupError, ServerUnavailableError
from .keys import READER
from .locks import hold
from .process import EmbeddedServer, ServerSettings, address_of
from .status import greet, read_status

__all__ = ["reading_server"]

_POLL_SECONDS = 0.05


@asynccontextmanager
async def reading_server(
    settings: ServerSettings, *, user: str = READER, patience_seconds: float = 5.0
) -> AsyncIterator[ServerAddress]:
    """
    Yield how to reach the log in the state directory, as *user*; start its server if none runs.

    Raises:
        LogSetupError: There is no log, or it cannot be used.
        ServerUnavailableError: A server has the log and does not answer.
    """
    if not settings.status_file.exists():
        raise LogSetupError(
            f"there is no log in {settings.state_dir}",
            hint="`claimlet run` makes one; --state-dir names another directory",
        )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    while True:
        status = read_status(settings.status_file)
        greeting = await greet(status.port) if status is not None and status.port else None
        if status is not None and greeting and greeting.server_name == settings.server_name:
            yield address_of(settings, port=status.port, user=user)
            return
        try:
            lock = hold(settings.lock_file, owns=f"the log in {settings.state_dir}")
        except LockHeldError as error:
            if loop.time() > deadline:
                raise ServerUnavailableError(
                    f"the log's server does not answer: {error}",
                    hint=f"its own words are in {settings.log_file}",
                ) from error
            await asyncio.sleep(_POLL_SECONDS)
            continue
        server = EmbeddedServer(settings)
        await server.start(lock)
        try:
            yield server.address(user)
        finally:
            await server.stop()
        return
