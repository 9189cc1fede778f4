"""
Watching the node: what it holds now, and again whenever that changes, until Ctrl-C.

The service is asked how far its log is, which costs little, and for its state only when that moved.
It is waited for while it is away; nothing here starts a server, since whoever does holds the log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from ...engine.errors import NotReadyError
from .options import Invocation
from .service import NOT_LIVE, service_client

if TYPE_CHECKING:
    from ...engine.views import ClaimView
    from ..control.protocol import StateReply

__all__ = ["Painter", "watch_state"]

_LOOK_SECONDS = 0.5
#: The cursor home, and nothing below it.
_CLEAR = "\x1b[H\x1b[2J"


def watch_state(invocation: Invocation, received: Callable[[StateReply], None]) -> None:
    """
    Call *received* with what the node holds, now and whenever that changes, without end.

    Raises:
        ClaimletError: Neither the service nor the log can be read at the start.
    """
    asyncio.run(_watch(invocation, received))


async def _watch(invocation: Invocation, received: Callable[[StateReply], None]) -> None:
    seen: tuple[str, int] | None = None
    while True:
        try:
            async with service_client(invocation) as client:
                from ..control.protocol import Hello, StateReply

                while True:
                    hello = await client.ask("hello", None, Hello)
                    if (hello.writer, hello.sequence) != seen:
                        state = await client.ask("state", None, StateReply)
                        seen = state.boot.writer, state.sequence
                        received(state)
                    await asyncio.sleep(_LOOK_SECONDS)
        except NotReadyError:
            if seen is None:
                await _show_log(invocation, received)
                seen = ("", 0)
        await asyncio.sleep(_LOOK_SECONDS)


async def _show_log(invocation: Invocation, received: Callable[[StateReply], None]) -> None:
    """Show what the log says as long as there is no service."""
    from ..service.reading import state_from_log

    state = await state_from_log(invocation.settings)
    click.echo(f"{NOT_LIVE}; waiting for one", err=True)
    received(state)


class Painter:
    """
    Shows lists of claims, each instead of the one before: on a terminal in its place.

    Elsewhere a blank line is between them; as jsonl only the claims that changed are written.
    """

    def __init__(self, write: Callable[[Sequence[ClaimView]], None], *, is_screen: bool) -> None:
        self._write = write
        self._is_screen = is_screen
        self._shown: Sequence[ClaimView] | None = None

    def paint(self, claims: Sequence[ClaimView]) -> None:
        """Show *claims*, if they are not what is shown already."""
        before, self._shown = self._shown, claims
        if before is not None and list(before) == list(claims):
            return
        if not self._is_screen:
            self._write([claim for claim in claims if claim not in (before or ())])
        elif sys.stdout.isatty():
            click.echo(_CLEAR, nl=False)
            self._write(claims)
        else:
            if before is not None:
                click.echo()
            self._write(claims)
