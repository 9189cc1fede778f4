"""A gRPC server on a unix socket, whose calls take and give bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
from grpc import aio

__all__ = ["Ended", "Handle", "serve"]

#: Answers one call.
Handle = Callable[[bytes, Any], Awaitable[bytes]]


class Ended(msgspec.Struct, frozen=True):
    """A call ends with a status instead of an answer."""

    code: grpc.StatusCode
    text: str


async def serve(
    socket: Path, calls: Mapping[str, Handle], options: Sequence[tuple[str, Any]] = ()
) -> aio.Server:
    """Return a server that has started; *calls* are by full path."""
    server = aio.server(options=[("grpc.so_reuseport", 0), *options])
    services: dict[str, dict[str, Any]] = {}
    for path, handle in calls.items():
        _, service, method = path.split("/")
        handler: Any = grpc.unary_unary_rpc_method_handler(handle)
        services.setdefault(service, {})[method] = handler
    handlers = [grpc.method_handlers_generic_handler(s, m) for s, m in services.items()]
    server.add_generic_rpc_handlers(tuple(handlers))
    server.add_insecure_port("unix:" + quote(str(socket), safe="/"))
    await server.start()
    return server
