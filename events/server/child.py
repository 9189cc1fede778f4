"""
One nats-server process, ours or a survivor of an earlier service.

A process is held by a pidfd, so that a signal can never reach another one that got its number, and
the end of a process that is not our child can be awaited like that of one that is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ..errors import ServerUnavailableError

__all__ = ["ServerProcess", "start_ticks"]

#: How long a server may take to flush and go after SIGTERM.
_STOP_SECONDS = 10.0


class ServerProcess:
    """A running server; it is there until `wait` returns."""

    def __init__(self, pid: int, pidfd: int, *, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._loop.add_reader(pidfd, self._notice_end)

    @classmethod
    def spawn(cls, arguments: Sequence[str], *, keep: int, output: Path) -> Self:
        """
        Start a server that keeps the descriptor *keep* open and writes what it says to *output*.

        It gets a session of its own, so that a Ctrl-C at the terminal reaches the service alone,
        which ends the server last.

        Raises:
            ServerUnavailableError: The program cannot be run.
        """
        try:
            with output.open("wb") as file:
                child = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    pass_fds=(keep,),
                    start_new_session=True,
                    env={},
                )
        except OSError as error:
            raise ServerUnavailableError(f"{arguments[0]} cannot be run: {error}") from error
        return cls(child.pid, os.pidfd_open(child.pid), child=child)

    @classmethod
    def adopt(cls, pid: int, *, started_at_ticks: int, conf: Path) -> Self | None:
        """Return the process *pid* if it still is the server that was started with *conf*."""
        try:
            pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, ValueError, OverflowError):
            return None
        # Looked at after the pidfd is open: what it shows is what the pidfd holds.
        if start_ticks(pid) != started_at_ticks or str(conf) not in _arguments(pid):
            os.close(pidfd)
            return None
        return cls(pid, pidfd, child=None)

    @property
    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        return self._ended.done()

    async def wait(self) -> None:
        """Wait until the process is gone."""
        await asyncio.shield(self._ended)

    async def end(self) -> None:
        """Ask the process to stop, make it stop if it does not, and wait until it is gone."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self.wait()

    def forget(self) -> None:
        """Let go of the process and leave it running."""
        if not self._ended.done():
            self._close()

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            signal.pidfd_send_signal(self._pidfd, number)

    def _notice_end(self) -> None:
        self._close()
        if self._child is not None:
            self._child.wait()
        self._ended.set_result(None)

    def _close(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)


def start_ticks(pid: int) -> int:
    """Return when *pid* started, in the kernel's ticks since the boot; -1 where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name in brackets may hold anything; what follows it is the third field and on.
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
