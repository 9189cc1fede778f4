"""
The client of the control interface: what commands ask the running service.

A request that nobody answers says so; while something is waited for, it is asked again until the
caller's own time is up, across a service that is killed and started meanwhile.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import nats
from nats.errors import Error, NoRespondersError

from ...engine.errors import NotReadyError
from ...events.address import ServerAddress
from .protocol import ACTOR_HEADER, HOLD_SECONDS_MAX, Reply, error_of, subject_of

__all__ = ["ControlClient", "connect_control"]

T = TypeVar("T")
_REPLY_SECONDS = 15.0


class ControlClient:
    """Asks the service of *node*."""

    def __init__(self, connection: Any, *, node: str) -> None:
        self._connection = connection
        self._node = node
        self._headers = {ACTOR_HEADER: _actor()}

    async def ask(
        self, verb: str, request: msgspec.Struct | None, kind: type[T], *, hold_seconds: float = 0.0
    ) -> T:
        """
        Return the service's answer to *verb*.

        Raises:
            NotReadyError: Nobody answers.
            ClaimletError: The service's own error.
        """
        data = msgspec.json.encode(request) if request is not None else b"{}"
        timeout = _REPLY_SECONDS + min(hold_seconds, HOLD_SECONDS_MAX)
        try:
            message = await self._connection.request(
                subject_of(self._node, verb), data, timeout=timeout, headers=self._headers
            )
        except (NoRespondersError, TimeoutError):
            raise not_running(self._node) from None
        except Error as error:
            raise NotReadyError(f"the request could not be sent: {error}") from None
        reply = msgspec.json.decode(message.data, type=Reply)
        if reply.fault is not None:
            raise error_of(reply.fault)
        return msgspec.json.decode(reply.result, type=kind)


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
    """

    async def quiet(_: Exception) -> None:
        return None

    try:
        connection = await nats.connect(
            address.url,
            nkeys_seed=str(address.seed_file) if address.seed_file else None,
            inbox_prefix=address.inbox_prefix.encode(),
            connect_timeout=5,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            error_cb=quiet,
            name="claimlet command",
        )
    except (Error, OSError, TimeoutError):
        raise not_running(node) from None
    try:
        yield ControlClient(connection, node=node)
    finally:
        await connection.close()


def _actor() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"user/{name}"
