"""
Where third-party peers are built: outside of the repository, once for each state of their sources.

Two test processes that need the same peer at the same time build it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_dir", "digest_of", "locked"]


def cache_dir() -> Path:
    """Return the directory for peers: `CLAIMLET_PEERS_CACHE`, or one in the user's cache."""
    configured = os.environ.get("CLAIMLET_PEERS_CACHE")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "claimlet-peers"


def digest_of(files: Iterable[Path], *more: str) -> str:
    """Return a short digest of the names and contents of *files*, and of *more*."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name}\n{file.stat().st_size}\n".encode() + file.read_bytes())
    digest.update("\n".join(more).encode())
    return digest.hexdigest()[:16]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make *directory* and hold it for this process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
