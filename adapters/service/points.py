"""Places in the log, by time, by boot or by sequence, that a question may begin or end at."""

from __future__ import annotations

from datetime import datetime

import msgspec

__all__ = ["BootPoint", "Point", "SequencePoint"]


class BootPoint(msgspec.Struct, frozen=True):
    """The start of a boot: the current one, or the one *back* boots before it."""

    back: int = 0


class SequencePoint(msgspec.Struct, frozen=True):
    """A place in the log."""

    sequence: int


Point = datetime | BootPoint | SequencePoint
