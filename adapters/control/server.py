"""
The control service on NATS: a micro service in the CONTROL account, found by ``nats micro ls``.

One task per request, so that a held reply holds up nobody; requests are bounded in number, and none
of them can end the service.  The connection reconnects by itself when the server was away.
"""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from nats.errors import Error, MaxPayloadError
from nats.micro import add_service
from nats.micro.service import EndpointConfig, ServiceConfig

from claimlet import __version__

from ...engine.texts import cut
from ...events.world import World
from .handlers import Handlers
from .protocol import ACTOR_HEADER, VERBS, Fault, Reply, subject_of

__all__ = ["ControlService"]

_ACTOR_CHARACTERS_MAX = 128
_REQUESTS_MAX = 512

_log: Any = structlog.get_logger()


class ControlService:
    """Answers commands on *connection*, which it is given connected."""

    def __init__(self, handlers: Handlers, *, node: str, world: World) -> None:
        self._handlers = handlers
        self._node = node
        self._world = world
        self._running = 0
        self._service: Any = None

    async def start(self, connection: Any) -> None:
        """Add the service to *connection*."""
        self._service = await add_service(
            connection,
            ServiceConfig(
                name="claimlet",
                version=__version__,
                description="node manager for DRA claims",
                metadata={"node": self._node},
            ),
        )
        for verb in VERBS:
            await self._service.add_endpoint(
                EndpointConfig(
                    name=verb, subject=subject_of(self._node, verb), handler=self._handler(verb)
                )
            )

    async def stop(self) -> None:
        """Take the service off the connection."""
        if self._service is not None:
            await self._service.stop()
            self._service = None

    def _handler(self, verb: str) -> Any:
        async def handle(request: Any) -> None:
            # Handlers of one endpoint run one after another in the client; ours may wait.
            self._world.spawn(self._answer(verb, request), name=f"control {verb}")

        return handle

    async def _answer(self, verb: str, request: Any) -> None:
        if self._running >= _REQUESTS_MAX:
            data = _fault("too many requests at once", hint="try again", exit_code=4)
            await self._respond(request, data, verb)
            return
        self._running += 1
        try:
            data = await self._handled(verb, request)
        finally:
            self._running -= 1
        await self._respond(request, data, verb)

    async def _handled(self, verb: str, request: Any) -> bytes:
        try:
            return await self._handlers.handle(verb, request.data, actor=_actor(request.headers))
        except Exception as error:  # noqa: BLE001 -- it is told and logged whole
            # A bug that one request meets must not take the drivers' manager down.
            _log.exception("request_failed", verb=verb)
            text = f"internal error: {type(error).__name__}: {error}"
            return _fault(text, hint="this is a bug; the service's log shows where")

    async def _respond(self, request: Any, data: bytes, verb: str) -> None:
        try:
            await request.respond(data)
        except MaxPayloadError:
            _log.warning("reply_too_large", verb=verb, size_bytes=len(data))
            text = f"the reply has {len(data)} bytes, more than the log's server takes at once"
            await self._respond(request, _fault(text), verb)
        except (Error, TimeoutError, OSError) as error:
            # The client asks again; what it asked for is in the log.
            _log.warning("reply_lost", verb=verb, error=str(error))


def _fault(message: str, *, hint: str = "", exit_code: int = 1) -> bytes:
    fault = Fault(message=cut(message), hint=hint, exit_code=exit_code)
    return msgspec.json.encode(Reply(fault=fault))


def _actor(headers: Any) -> str:
    """Return who asks, as the client says it, fit to be shown and stored."""
    said = str((headers or {}).get(ACTOR_HEADER) or "operator")[:_ACTOR_CHARACTERS_MAX]
    return "".join(c if c.isprintable() else "?" for c in said)
