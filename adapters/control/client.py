"""
The client of the control interface: what commands ask the running service.

A request that nobody answers says so.  While a reply is held back, the client looks whether the
same service is still there: where it was killed or started again it says at once that it is not,
and the caller asks again until its own time is up.
"""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from nats.errors import Error, MaxPayloadError, NoRespondersError

from ...engine.errors import NotReadyError, UsageError
from ...events.address import ServerAddress
from ...events.errors import LogUnavailableError
from ...events.jetstream.connection import Connection, Events
from .protocol import ACTOR_HEADER, HOLD_SECONDS_MAX, Hello, Reply, error_of, subject_of

__all__ = ["ControlClient", "connect_control"]

T = TypeVar("T")
_REPLY_SECONDS = 15.0
#: While a reply is held: how often to look whether its service is still there, and how patiently.
_LOOK_SECONDS = 0.5
#: The first look says who was asked: no service is killed and started again within this time.
_FIRST_LOOK_SECONDS = 0.05
_HELLO_SECONDS = 5.0


class ControlClient:
    """Asks the service of *node*."""

    def __init__(self, connection: Any, *, node: str, lost: asyncio.Event) -> None:
        self._connection = connection
        self._node = node
        self._lost = lost
        self._headers = {ACTOR_HEADER: _actor()}

    async def ask(
        self, verb: str, request: msgspec.Struct | None, kind: type[T], *, hold_seconds: float = 0.0
    ) -> T:
        """
        Return the service's answer to *verb*, which it may hold back for *hold_seconds*.

        Raises:
            NotReadyError: Nobody answers, or not any more.
            UsageError: The request is too large.
            ClaimletError: The service's own error.
        """
        data = msgspec.json.encode(request) if request is not None else b"{}"
        hold = min(hold_seconds, HOLD_SECONDS_MAX)
        if hold > _LOOK_SECONDS:
            reply = await self._held(verb, data, seconds=_REPLY_SECONDS + hold)
        else:
            reply = await self._request(verb, data, seconds=_REPLY_SECONDS + hold)
        if reply.fault is not None:
            raise error_of(reply.fault)
        return msgspec.json.decode(reply.result, type=kind)

    async def _held(self, verb: str, data: bytes, *, seconds: float) -> Reply:
        """Return the reply as long as the service that was asked is there."""
        request = asyncio.ensure_future(self._request(verb, data, seconds=seconds))
        writer, pause = "", _FIRST_LOOK_SECONDS
        try:
            while not (await asyncio.wait({request}, timeout=pause))[0]:
                found = await self._writer()
                if found != (writer or found):
                    raise not_running(self._node)
                writer, pause = found, _LOOK_SECONDS
        finally:
            request.cancel()
        return request.result()

    async def _writer(self) -> str:
        """Return which process answers."""
        reply = await self._request("hello", b"{}", seconds=_HELLO_SECONDS)
        return msgspec.json.decode(reply.result, type=Hello).writer

    async def _request(self, verb: str, data: bytes, *, seconds: float) -> Reply:
        asked = asyncio.ensure_future(
            self._connection.request(
                subject_of(self._node, verb), data, timeout=seconds, headers=self._headers
            )
        )
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            # A reply that a lost connection took with it comes no more.
            await asyncio.wait({asked, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise not_running(self._node)
            message = await asked
        except (NoRespondersError, TimeoutError):
            raise not_running(self._node) from None
        except MaxPayloadError:
            raise UsageError(
                f"the request has {len(data)} bytes, more than the log's server takes at once",
                hint="give fewer objects at once",
            ) from None
        except Error as error:
            raise NotReadyError(f"the request could not be sent: {error}") from None
        finally:
            asked.cancel()
            lost.cancel()
        return msgspec.json.decode(message.data, type=Reply)


def not_running(node: str) -> NotReadyError:
    """Return the error that says that no service answers."""
    return NotReadyError(
        f"no claimlet service answers for node {node}",
        hint="is `claimlet run` running? --state-dir and --node must be those of the service",
    )


@asynccontextmanager
async def connect_control(address: ServerAddress, *, node: str) -> AsyncIterator[ControlClient]:
    """
    Connect to the service's server as its operator.

    Raises:
        NotReadyError: The server does not answer.
        LogSetupError: It does not let the operator in.
    """
    lost = asyncio.Event()
    events = Events(lost=lambda _: lost.set(), back=lost.clear)
    try:
        connection = await Connection.open(address, name="claimlet command", events=events)
    except LogUnavailableError:
        raise not_running(node) from None
    try:
        yield ControlClient(connection.client, node=node, lost=lost)
    finally:
        await connection.close()


def _actor() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"user/{name}"
