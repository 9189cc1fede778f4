"""
Sockets in the registry directory: which there are, and which paths can be dialled at all.

A socket is known by its path and by what lies there, because a driver that starts again replaces
its socket in place, sometimes without a moment in which it is missing.  Nothing here removes one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ...events.errors import PermanentError
from .channel import SocketKey, socket_key

__all__ = [
    "PATH_BYTES_MAX",
    "SocketPathError",
    "check_directory",
    "check_socket_path",
    "find_sockets",
    "rewrite",
]

#: The kernel's limit of 108 bytes for the path of a unix socket, without the byte that ends it.
PATH_BYTES_MAX = 107

#: A registry is shallow and small; what lies beyond is not looked at.
DEPTH_MAX = 4
SOCKETS_MAX = 256


class SocketPathError(PermanentError):
    """A path at which no socket can be dialled."""

    exit_code = 2


def check_socket_path(path: str) -> None:
    """
    Raise unless a socket at *path* could be dialled.

    Raises:
        SocketPathError: It is too long, or holds what gRPC or the kernel cannot take.
    """
    length = len(os.fsencode(path))
    if length > PATH_BYTES_MAX:
        raise SocketPathError(
            f"the socket path {_shown(path)} has {length} bytes, at most {PATH_BYTES_MAX} work",
            hint="use a shorter root directory",
        )
    if not path.startswith("/"):
        raise SocketPathError(f"the socket path {_shown(path)} is not absolute")
    if "," in path or not path.isprintable():
        raise SocketPathError(f"the socket path {_shown(path)} has a comma or a control character")


def check_directory(directory: Path) -> None:
    """
    Raise unless sockets of drivers can lie in *directory*.

    Raises:
        SocketPathError: No driver's socket would have a path that works.
    """
    check_socket_path(str(directory / "d-reg.sock"))


def find_sockets(directory: Path) -> dict[str, SocketKey]:
    """
    Return the sockets below *directory* and what identifies them; dot names are not looked at.

    Raises:
        OSError: The directory itself cannot be read.
    """
    found: dict[str, SocketKey] = {}
    for path in _walk(directory, depth=0):
        if len(found) >= SOCKETS_MAX:
            break
        if (key := socket_key(path)) is not None:
            found[path] = key
    return found


def rewrite(endpoint: str, endpoint_map: Mapping[str, str]) -> str:
    """Return *endpoint* as it lies on this host: its longest mapped prefix replaced."""
    for prefix in sorted(endpoint_map, key=len, reverse=True):
        inside = prefix.rstrip("/")
        if endpoint == inside or endpoint.startswith(inside + "/"):
            return endpoint_map[prefix].rstrip("/") + endpoint[len(inside) :]
    return endpoint


def _walk(directory: str | Path, *, depth: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        visible = sorted(
            (entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name
        )
    for entry in visible:
        if not entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif depth < DEPTH_MAX:
            with suppress(OSError):  # removed meanwhile, or not for us
                yield from _walk(entry.path, depth=depth + 1)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")
