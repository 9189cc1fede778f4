"""
Locks that live as long as a process: one owner of a state directory, a root, a store.

A lock is an flock, so that a kill -9 frees it and nothing stale is left.  Who holds it stands in
the file, for the error's text only.  A child that inherits the descriptor keeps the lock when its
parent dies: that is how a store stays locked exactly as long as a server runs on it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import LockHeldError
from .files import usable

__all__ = ["FileLock", "hold"]

_PID_BYTES_MAX = 32


class FileLock:
    """A lock that this process holds; leaving it, or ending, gives it up."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """Return the open file, for a child that is to keep the lock."""
        return self._descriptor

    def release(self) -> None:
        """Give the lock up; a child that inherited it keeps it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def hold(path: Path, *, owns: str) -> FileLock:
    """
    Take the lock at *path*, which stands for *owns*, or say who has it.

    Raises:
        LockHeldError: Another process holds it.
        LogSetupError: The file cannot be made.
    """
    with ExitStack() as undo, usable(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, descriptor)
        _lock(descriptor, path, owns=owns)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        undo.pop_all()
    return FileLock(path, descriptor)


def _lock(descriptor: int, path: Path, *, owns: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _PID_BYTES_MAX, 0).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise LockHeldError(
            f"{who} owns {owns} ({path} is locked)",
            hint="stop that process, or give this one a directory of its own",
        ) from None
