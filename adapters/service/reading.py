"""
Reading the log from a command: as the reader, from the running server or one started for it.

A replay here is the same fold as the service's (rule R12); private facts stay closed to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from ...config.settings import Settings
from ...engine.errors import NotReadyError
from ...engine.node import Node
from ...events.address import ServerAddress
from ...events.errors import LogSetupError, LogUnavailableError
from ...events.jetstream.connection import Connection, Events
from ...events.jetstream.public import PublicReader
from ...events.record import Record
from ...events.server import keys
from ...events.server.process import address_of
from ...events.server.reading import reading_server
from ...events.server.status import greet, read_status
from ..control.protocol import StateReply
from ..control.state import of_node
from ..world import RealWorld
from .addresses import external_address, server_settings
from .archive import archive_dir
from .policy import policy_of

__all__ = [
    "control_address",
    "follow_log",
    "log_reader",
    "reader_address",
    "records_of_log",
    "state_from_log",
]

#: How often a server that is away is looked for.
_LOOK_SECONDS = 0.5


async def control_address(settings: Settings) -> ServerAddress:
    """
    Return how to reach the service as its operator.

    Raises:
        NotReadyError: There is no server that could know it.
        LogSetupError: It is another node's.
    """
    address = await _running_server(settings, keys.OPERATOR)
    if address is None:
        raise NotReadyError(
            f"no claimlet service runs on {settings.state_dir}",
            hint="claimlet run starts it; --state-dir names another directory",
        )
    return address


async def records_of_log(settings: Settings) -> list[Record]:
    """
    Return all public records of the log.

    Raises:
        ClaimletError: The log cannot be read.
    """
    async with log_reader(settings) as reader, aclosing(reader.replay()) as records:
        return [record async for record in records]


async def state_from_log(settings: Settings) -> StateReply:
    """
    Return what the node holds, from a replay.

    Raises:
        ClaimletError: The log cannot be read.
    """
    node = Node(settings.node, policy_of(settings))
    for record in await records_of_log(settings):
        node.fold(record)
    return of_node(node)


async def follow_log(
    settings: Settings, *, from_sequence: int, received: Callable[[Record], None]
) -> None:
    """
    Call *received* with each record from *from_sequence* on, as it is stored, until cancelled.

    It goes on when the service is back: a server is waited for and never started, since whoever
    starts one holds the log for as long as it runs.

    Raises:
        ClaimletError: The log cannot be read, and waiting will not change that.
    """
    while True:
        if address := await _running_server(settings, keys.READER):
            try:
                async with (
                    _connected(settings, address, from_sequence=from_sequence) as reader,
                    aclosing(reader.follow()) as records,
                ):
                    async for record in records:
                        from_sequence = record.sequence + 1
                        received(record)
            except LogUnavailableError:
                pass  # it is looked for again
        await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def log_reader(settings: Settings) -> AsyncIterator[PublicReader]:
    """
    Give a reader of the log; the server is started where none runs.

    Raises:
        ClaimletError: The log cannot be read.
    """
    async with reader_address(settings) as address, _connected(settings, address) as reader:
        yield reader


@asynccontextmanager
async def _connected(
    settings: Settings, address: ServerAddress, *, from_sequence: int = 1
) -> AsyncIterator[PublicReader]:
    readers: list[PublicReader] = []

    def back() -> None:
        for reader in readers:
            reader.wake()

    connection = await Connection.open(address, name="claimlet reader", events=Events(back=back))
    try:
        readers.append(
            PublicReader(
                connection,
                settings.node,
                world=RealWorld(),
                from_sequence=from_sequence,
                archive=archive_dir(settings),
            )
        )
        yield readers[0]
    finally:
        await connection.close()


async def _running_server(settings: Settings, user: str) -> ServerAddress | None:
    """
    Return how to reach the log's server as *user*, if it runs.

    Raises:
        LogSetupError: It is another node's.
    """
    if settings.log.url:
        return external_address(settings, user)
    own = server_settings(settings)
    status = read_status(own.status_file)
    greeting = await greet(status.port) if status is not None and status.port else None
    if status is None or greeting is None:
        return None
    if greeting.server_name != own.server_name:
        raise LogSetupError(
            f"the log's server in {settings.state_dir} is {greeting.server_name or 'unknown'},"
            f" not {own.server_name}",
            hint="--node must be that of the service; --state-dir names another directory",
        )
    return address_of(own, port=status.port, user=user)


@asynccontextmanager
async def reader_address(settings: Settings) -> AsyncIterator[ServerAddress]:
    """
    Yield how to reach the log as its reader, on a server that is started if none runs.

    Raises:
        ClaimletError: There is no log, or its server does not answer.
    """
    if settings.log.url:
        yield external_address(settings, keys.READER)
        return
    if not settings.state_dir.exists():
        raise LogSetupError(
            f"there is no log in {settings.state_dir}",
            hint="claimlet run makes one; --state-dir names another directory",
        )
    async with reading_server(server_settings(settings)) as address:
        yield address
