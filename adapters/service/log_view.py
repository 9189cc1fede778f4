"""What the log holds and how it is, for whoever looks at the log itself."""

from __future__ import annotations

import msgspec

from ...config.settings import Settings
from ...engine.node import Node
from ...events.errors import InvalidRecordError, LogDamagedError, LogSetupError
from ...events.facts import LogGapAcknowledged
from ...events.jetstream.connection import Connection
from ...events.jetstream.stream import STREAM, StreamInfo, check_stream, stream_info
from ...events.record import GAP_WORD
from .archive import archive_dir
from .policy import policy_of
from .reading import reader_address, records_of_log

__all__ = ["LogView", "view_log"]


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """The log."""

    node: str
    stream: str
    server: str
    server_version: str
    first_sequence: int
    last_sequence: int
    facts: int
    bytes: int
    bytes_max: int
    percent: float
    #: When a fact is on disk.
    sync: str
    #: The last one that the log tells of, in words.
    snapshot: str
    archive: list[str]
    #: How many were acknowledged.
    gaps: int
    #: whole, or what is wrong.
    condition: str


async def view_log(settings: Settings) -> LogView:
    """
    Return the log as it is, all of it read and checked.

    Raises:
        ClaimletError: There is none, or its server does not answer.
    """
    node, gaps, condition = Node(settings.node, policy_of(settings)), 0, "whole"
    async with reader_address(settings) as address:
        connection = await Connection.open(address, name="claimlet log")
        try:
            info = await stream_info(connection)
            version = connection.client.connected_server_version
        finally:
            await connection.close()
        if info is None:
            raise LogDamagedError("the log's stream is gone", sequence=0)
        try:
            check_stream(info, settings.node)
            for record in await records_of_log(settings):
                node.fold(record)
                is_stored = record.word != GAP_WORD
                gaps += is_stored and isinstance(record.fact, LogGapAcknowledged)
        except (LogDamagedError, InvalidRecordError, LogSetupError) as error:
            condition = str(error)
        return _view(
            settings,
            info,
            server=address.url,
            version=f"{version.major}.{version.minor}.{version.patch}",
            node=node,
            gaps=gaps,
            condition=condition,
        )


def _view(
    settings: Settings,
    info: StreamInfo,
    *,
    server: str,
    version: str,
    node: Node,
    gaps: int,
    condition: str,
) -> LogView:
    state, bytes_max = info.state, int(info.config.get("max_bytes", 0))
    own = "with each fact, before it is acknowledged"
    taken = node.last_snapshot
    directory = archive_dir(settings)
    return LogView(
        node=settings.node,
        stream=STREAM,
        server=server,
        server_version=version,
        first_sequence=state.first_seq,
        last_sequence=state.last_seq,
        facts=state.messages,
        bytes=state.bytes,
        bytes_max=bytes_max,
        percent=100 * state.bytes / bytes_max if bytes_max > 0 else 0.0,
        sync="as that server is configured" if settings.log.url else own,
        snapshot=f"of {taken.sequence}, taken {taken.time}" if taken else "",
        archive=sorted(file.name for file in directory.glob("*")) if directory.is_dir() else [],
        gaps=gaps,
        condition=condition,
    )
