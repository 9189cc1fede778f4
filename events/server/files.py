"""
Files of the state directory: made atomically, kept private, never half-written.

Every failure of the file system leaves here as a `LogSetupError` that names the path, because for
whoever runs claimlet a read-only and a full directory are the same kind of trouble.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import LogSetupError

__all__ = ["make_private_directory", "replace_file", "sync_directory", "usable"]


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """
    Translate what the file system refuses inside the block.

    Raises:
        LogSetupError: It refused; the text names *path* and why.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LogSetupError(
            f"the state directory cannot be used: {error.filename or path}: {reason}",
            hint="claimlet needs to write here and to have some space; --state-dir names another"
            " directory",
        ) from error


def make_private_directory(path: Path) -> None:
    """
    Make *path* and its parents if need be, for its owner only.

    A directory that is there already keeps its mode: it may have been named by mistake.

    Raises:
        LogSetupError: It cannot be made, or others can write to it.
    """
    with usable(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    if mode & 0o022:
        raise LogSetupError(
            f"others can write to {path} (mode {mode & 0o777:04o})",
            hint=f"name a directory of claimlet's own, or chmod 700 {path}",
        )


def replace_file(path: Path, data: bytes) -> None:
    """
    Put *data* at *path* in one step, on disk before this returns, readable by its owner only.

    Raises:
        LogSetupError: The file system refused.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with usable(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Put the names in *path* on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
