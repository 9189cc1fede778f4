"""
How commands reach the node's state: the running service, else the log itself.

A question is answered by the service where one runs, and by replaying the log where none does; the
answer says the same (rule R12) but for what only a running service knows.  Orders need the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...engine.errors import NotReadyError
from .options import Invocation

if TYPE_CHECKING:
    from ..control.client import ControlClient
    from ..control.protocol import StateReply

__all__ = ["NOT_LIVE", "ask", "ordered", "read_state", "service_client"]

#: Said where a question is answered without a service.
NOT_LIVE = "note: no service answers; this is what the log says"

T = TypeVar("T")


def ordered(invocation: Invocation, order: Callable[[ControlClient], Awaitable[T]]) -> T:
    """
    Do *order* with the running service and return what it answers.

    Raises:
        NotReadyError: No service answers.
    """

    async def run() -> T:
        async with service_client(invocation) as client:
            return await order(client)

    return asyncio.run(run())


def ask(invocation: Invocation, verb: str, kind: type[T], *, request: Any = None) -> T:
    """
    Return the running service's answer to one request.

    Raises:
        NotReadyError: No service answers.
    """
    return ordered(invocation, lambda client: client.ask(verb, request, kind))


def read_state(invocation: Invocation) -> StateReply:
    """
    Return all that the node holds: from the service, else from the log.

    Raises:
        ClaimletError: Neither can be read.
    """
    from ..control.protocol import StateReply

    try:
        return ask(invocation, "state", StateReply)
    except NotReadyError:
        click.echo(NOT_LIVE, err=True)
    from ..service.reading import state_from_log

    return asyncio.run(state_from_log(invocation.settings))


@asynccontextmanager
async def service_client(invocation: Invocation) -> AsyncIterator[ControlClient]:
    """
    Connect to the running service.

    Raises:
        NotReadyError: There is none.
    """
    from ..control.client import connect_control
    from ..service.reading import control_address

    settings = invocation.settings
    address = await control_address(settings)
    async with connect_control(address, node=settings.node) as client:
        yield client
