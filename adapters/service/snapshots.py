"""
Taking snapshots of the fold while the service works: every so many facts, and when it stops.

What is held is frozen at one sequence, written beside whatever goes on, and named by a fact at the
end.  A snapshot that fails costs a warning; the log needs none.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import structlog

from ...engine.loop import NodeLoop
from ...engine.snapshot import FOLD_VERSION, freeze, pieces
from ...events.errors import InvalidSnapshotError, LogUnavailableError, TemporaryError
from ...events.facts import SnapshotTaken
from ...events.jetstream.log import JetStreamLog
from ...events.jetstream.snapshots import Slot
from ...events.jetstream.start import Start
from ...events.world import World
from ..control.protocol import ReplayView

__all__ = ["SnapshotKeeper", "replay_view", "tell_start"]

#: A snapshot that failed is tried again after this.
_RETRY_SECONDS = 60.0

_log: Any = structlog.get_logger()


class SnapshotKeeper:
    """Takes the snapshots of one node's fold; `run` goes on until it is cancelled."""

    def __init__(self, loop: NodeLoop, log: JetStreamLog, *, world: World, every: int) -> None:
        self._loop = loop
        self._node = loop.node
        self._log = log
        self._world = world
        self._every = every
        self._due = asyncio.Event()
        self._is_taking = asyncio.Lock()
        start = log.start
        # One that could not be used, or is wrong, is replaced at once.
        is_wrong = bool(start.problem or start.mismatch)
        taken = self._node.last_snapshot
        #: The fact of the last snapshot that can be used.
        self._base = taken.fact_sequence if taken and not is_wrong else 0
        if is_wrong:
            self._due.set()

    def folded(self, sequence: int) -> None:
        """Hear that the fold has reached *sequence*."""
        if sequence - self._base >= self._every:
            self._due.set()

    async def run(self) -> None:
        """Take a snapshot whenever one is due."""
        while True:
            await self._due.wait()
            if not await self.take():
                await self._world.sleep(_RETRY_SECONDS)
            self._due.clear()
            self.folded(self._node.sequence)

    async def take(self) -> bool:
        """Take one now, unless nothing was stored since the last; return whether it is there."""
        async with self._is_taking:
            if self._base and self._base == self._node.sequence:
                return True
            try:
                await self._loop.note(await self._take())
            except (InvalidSnapshotError, TemporaryError) as error:
                _log.warning("snapshot_failed", reason=str(error))
                return False
            taken = self._node.last_snapshot
            self._base = taken.fact_sequence if taken else 0
        return True

    async def _take(self) -> SnapshotTaken:
        """Write what is held now, and return the fact that names it."""
        if not self._loop.is_log_available:
            raise LogUnavailableError("the log does not answer")
        taken = self._node.last_snapshot
        snapshot, digested = freeze(self._node, self._log.head), self._node.digested()
        digest = sha256()
        for piece in digested:
            digest.update(piece)
            await self._world.sleep(0)
        content = bytearray()
        for piece in pieces(snapshot):
            content += piece
            await self._world.sleep(0)
        slot: Slot = "b" if taken and taken.slot == "a" else "a"
        chunks = await self._log.snapshots.write(slot, bytes(content))
        return SnapshotTaken(
            sequence=snapshot.sequence,
            digest=digest.hexdigest(),
            fold_version=FOLD_VERSION,
            slot=slot,
            chunks=chunks,
            size_bytes=len(content),
            content_digest=sha256(content).hexdigest(),
            previous=taken.fact_sequence if taken else 0,
        )


def tell_start(start: Start) -> None:
    """Say how the log was folded; a snapshot that differs from it is an alarm."""
    if start.problem:
        _log.warning("snapshot_not_used", reason=start.problem)
    if start.mismatch:
        _log.error("snapshot_mismatch", reason=start.mismatch)
    _log.info("replayed", kind=start.kind, facts=start.facts, snapshot=start.snapshot_sequence)


def replay_view(start: Start) -> ReplayView:
    """Return *start* as commands are told of it."""
    return ReplayView(
        kind=start.kind,
        facts=start.facts,
        snapshot_sequence=start.snapshot_sequence,
        problem=start.problem,
        mismatch=start.mismatch,
    )
