"""Moves the log's anchor forward while the service works, beside whatever goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

import structlog

from ...events.errors import ClaimletError, InvalidAnchorError
from ...events.log import Head
from ...events.server.anchor import anchor_file, read_anchor, write_anchor
from ...events.world import World

__all__ = ["AnchorKeeper", "known_anchor"]

#: How much acknowledged tail may be lost without a trace, at the most.
_MOVE_SECONDS = 0.5

_log: Any = structlog.get_logger()


class _Log(Protocol):
    """What is asked of the log."""

    @property
    def head(self) -> Head:
        """Return the place of the last record that was folded."""
        ...


def known_anchor(state_dir: Path) -> Head | None:
    """
    Return the anchor of the log in *state_dir*; one that cannot be read is said, and made anew.

    Raises:
        LogSetupError: The file system refused.
    """
    try:
        return read_anchor(anchor_file(state_dir))
    except InvalidAnchorError as error:
        _log.warning("anchor_unreadable", reason=str(error), hint="it is made anew from the log")
        return None


class AnchorKeeper:
    """Writes down where the log ends; `run` goes on until it is cancelled."""

    def __init__(self, log: _Log, state_dir: Path, *, world: World) -> None:
        self._log = log
        self._path = anchor_file(state_dir)
        self._world = world
        self._written = 0
        self._has_failed = False

    async def run(self) -> None:
        """Move the anchor whenever the log has grown."""
        while True:
            await self.move()
            await self._world.sleep(_MOVE_SECONDS)

    async def move(self) -> None:
        """Move the anchor to the last record, unless it is there."""
        head = self._log.head
        if head.sequence == self._written:
            return
        try:
            # Two fsyncs, which nobody has to wait for.
            await asyncio.to_thread(write_anchor, self._path, head)
        except ClaimletError as error:
            if not self._has_failed:
                _log.warning("anchor_not_written", reason=str(error))
            self._has_failed = True
        else:
            self._written = head.sequence
            self._has_failed = False
