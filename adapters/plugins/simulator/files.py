"""Files that are never half written: whoever kills the driver finds the old one or the new one."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Put *data* at *path* in one step; another instance, or a runtime, may be reading it."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.replace(path)
