"""
Room for the log: new pods are turned away before it is gone, and ballast keeps some for the rest.

What is prepared must be unprepared, and each step of that is a fact.  So prepares are refused while
the disk is nearly full; where it is full after all the ballast, a file that holds nothing, makes
way, and the server, which does not get over a full disk by itself, starts anew.  The stream's own
bound is watched in the same way.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from ...events.errors import ClaimletError
from ...events.jetstream.log import Usage
from ...events.world import World

__all__ = ["Room", "RoomSettings"]

_log: Any = structlog.get_logger()

_LOOK_SECONDS = 2.0
#: The stream is asked only at every so many looks.
_LOOKS_PER_QUESTION = 15
#: Less than this and the server cannot write; ext4 keeps some blocks for itself.
_FULL_BYTES = 256 * 1024
#: A share of the stream's bound, beyond which new pods are turned away.
_STREAM_SHARE_MAX = 0.9


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store lies, and how large its ballast is; 0: there is none."""

    state_dir: Path
    ballast_bytes: int


class _Log(Protocol):
    """What is asked of the log."""

    @property
    def is_available(self) -> bool:
        """Return whether an append can be expected to succeed now."""
        ...

    async def usage(self) -> Usage:
        """Return how full the stream is."""
        ...


class _Gate(Protocol):
    """What turns new pods away."""

    #: Why no new pod is taken, where that is so.
    no_room: str


class _Server(Protocol):
    """What is asked of the log's server."""

    async def restart(self) -> None:
        """Start it anew."""
        ...


class Room:
    """Watches the room of one log with a server of its own."""

    def __init__(
        self, settings: RoomSettings, *, world: World, gate: _Gate, log: _Log, server: _Server
    ) -> None:
        self._settings = settings
        self._world = world
        self._gate = gate
        self._log = log
        self._server = server
        self._stream_problem = ""
        self._looks = 0

    @property
    def ballast(self) -> Path:
        """Return the file that holds nothing but room."""
        return self._settings.state_dir / "ballast"

    async def watch(self) -> None:
        """Look again and again, for as long as the service runs."""
        while True:
            await self.look()
            await self._world.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Turn new pods away or let them in, and give the ballast up where nothing else helps."""
        if self._looks % _LOOKS_PER_QUESTION == 0 and self._log.is_available:
            await self._ask_stream()
        self._looks += 1
        try:
            free_bytes = self._free_bytes()
            if free_bytes < _FULL_BYTES and not self._log.is_available:
                await self._give_ballast_up()
            elif free_bytes > 2 * self._settings.ballast_bytes:
                self._make_ballast()
        except OSError as error:
            _log.warning("room_unknown", reason=error.strerror or str(error))
            return
        self._tell(self._stream_problem or self._disk_problem(free_bytes))

    def _tell(self, problem: str) -> None:
        if bool(problem) != bool(self._gate.no_room):
            if problem:
                _log.warning("log_nearly_full", reason=problem)
            else:
                _log.info("log_has_room")
        self._gate.no_room = problem

    def _disk_problem(self, free_bytes: int) -> str:
        wanted = self._settings.ballast_bytes * (2 if self._gate.no_room else 1)
        if free_bytes >= wanted:
            return ""
        return f"the disk of {self._settings.state_dir} has {free_bytes // 1024} KiB left"

    async def _ask_stream(self) -> None:
        try:
            usage = await self._log.usage()
        except ClaimletError:
            return  # the log says by itself that it does not answer
        full = usage.bytes_max > 0 and usage.used_bytes > _STREAM_SHARE_MAX * usage.bytes_max
        share = usage.used_bytes / usage.bytes_max if full else 0.0
        self._stream_problem = (
            f"the log has used {share:.0%} of its {usage.bytes_max // 1024**2} MiB" if full else ""
        )

    def _free_bytes(self) -> int:
        status = os.statvfs(self._settings.state_dir)
        return status.f_bavail * status.f_frsize

    def _make_ballast(self) -> None:
        """Make the ballast, unless it is there."""
        size = self._settings.ballast_bytes
        if not size or (self.ballast.exists() and self.ballast.stat().st_size == size):
            return
        descriptor = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            self.ballast.unlink()
            raise
        finally:
            os.close(descriptor)

    async def _give_ballast_up(self) -> None:
        if not self.ballast.exists():
            return
        with suppress(FileNotFoundError):
            self.ballast.unlink()
        _log.warning("ballast_given_up", reason="the disk is full", file=str(self.ballast))
        await self._server.restart()
