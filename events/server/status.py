"""
What is known of a running server: its status file, its ports file, and what it says of itself.

`server.json` is written as soon as the process exists, so that a kill of the service a moment later
leaves nobody unknown; the port in it stays across starts.  A server answers if it greets under its
own name: on a port that was ours once, somebody else may answer now.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from .files import replace_file, usable

__all__ = [
    "Greeting",
    "Ports",
    "Status",
    "forget_ports",
    "greet",
    "read_ports",
    "read_status",
    "write_status",
]

_STATUS_BYTES_MAX = 16 * 1024
_GREETING_BYTES_MAX = 64 * 1024
_GREETING_SECONDS = 2.0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was started last."""

    pid: int
    start_ticks: int
    digest: str
    #: 0 until the server has chosen one.
    port: int = 0


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, as it says in its ports file."""

    nats: tuple[str, ...]
    monitoring: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """Return the port for clients."""
        return urlsplit(self.nats[0]).port or 0


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that a server sends to every client."""

    server_name: str = ""
    version: str = ""
    jetstream: bool = False


def read_status(path: Path) -> Status | None:
    """Return what the status file says, or None where it says nothing that can be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_STATUS_BYTES_MAX), type=Status)
    except (OSError, msgspec.DecodeError):
        return None


def write_status(path: Path, status: Status) -> None:
    """
    Put *status* in the status file.

    Raises:
        LogSetupError: The file system refused.
    """
    replace_file(path, msgspec.json.encode(status) + b"\n")


def read_ports(directory: Path, pid: int) -> Ports | None:
    """Return where the server *pid* listens, or None as long as it does not say."""
    for path in directory.glob(f"*_{pid}.ports"):
        try:
            ports = msgspec.json.decode(path.read_bytes(), type=Ports)
        except (OSError, msgspec.DecodeError):
            continue
        if ports.nats and ports.port:
            return ports
    return None


def forget_ports(directory: Path) -> None:
    """Remove the ports files that killed servers left behind."""
    with usable(directory):
        for path in directory.glob("*.ports"):
            path.unlink(missing_ok=True)


async def greet(port: int) -> Greeting | None:
    """Return what the server on the loopback's *port* says of itself; None: no such server."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, limit=_GREETING_BYTES_MAX
            )
            line = await reader.readuntil(b"\r\n")
        if not line.startswith(b"INFO "):
            return None
        return msgspec.json.decode(line[5:], type=Greeting)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.DecodeError):
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
