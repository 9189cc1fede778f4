"""What drivers may take of the gateway; more is refused with a clear text."""

from __future__ import annotations

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds for each driver, and one for all of them together."""

    #: As large as an object in a cluster's API server can be.
    body_bytes: int = 1536 * 1024
    slices: int = 256
    slices_bytes: int = 16 * 1024 * 1024
    #: Changes that a watch can catch up on.
    history: int = 256
    history_bytes: int = 16 * 1024 * 1024
    watches: int = 16
    watch_seconds: float = 3600.0
    #: Of all drivers together.
    connections: int = 512
