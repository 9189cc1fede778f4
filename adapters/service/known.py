"""
Whether there has been a log: noted outside of it, so that one that vanished is not made anew.

A server whose store was damaged, moved or restored empty shows no stream; so does one that is used
for the first time.  Only the second may get a new one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...config.settings import Settings
from ...events.server.files import replace_file

__all__ = ["is_known", "remember"]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The log that this state directory belongs to."""

    node: str
    #: The server's address; empty: the state directory's own.
    url: str = ""


def is_known(settings: Settings) -> bool:
    """Return whether the log that *settings* lead to was there before."""
    try:
        found = msgspec.json.decode(_file(settings).read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return False
    return found == _Known(node=settings.node, url=settings.log.url)


def remember(settings: Settings) -> None:
    """
    Note that the log is there.

    Raises:
        LogSetupError: The file system refused.
    """
    if not is_known(settings):
        content = msgspec.json.encode(_Known(node=settings.node, url=settings.log.url))
        replace_file(_file(settings), content + b"\n")


def _file(settings: Settings) -> Path:
    return settings.state_dir / "log.json"
