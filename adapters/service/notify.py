"""
sd_notify: one datagram to systemd, where it listens.

The protocol is a line or two of text and has not changed in years, so no package is needed for it.
"""

from __future__ import annotations

import contextlib
import os
import socket

__all__ = ["notify"]


def notify(*assignments: str) -> None:
    """Tell systemd *assignments*, like ``READY=1``; nothing happens where it does not listen."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    if path.startswith("@"):
        path = "\0" + path[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto("\n".join(assignments).encode(), path)
