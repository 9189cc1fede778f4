"""
Where a log's server is and as whom to speak to it.

The seed itself is never held here: the client reads the file when it connects, so that no log line,
error or dump of an address can show a secret.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["ServerAddress"]


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server as one of its users; without a seed file: a server that asks nobody."""

    url: str
    #: The file with the user's nkey seed.
    seed_file: Path | None = None
    #: Answers to this user go under this prefix and nobody else's; its permissions say so.
    inbox_prefix: str = "_INBOX"
