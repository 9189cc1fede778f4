"""
Where the machine's clock went back, as the times of the log's facts tell.

Nothing depends on it: order is the sequence, and times are only shown (rule 15).  Whoever reads
them should know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from ...events.record import Record

__all__ = ["ClockWatch", "turned_back"]

_log: Any = structlog.get_logger()


class ClockWatch:
    """Follows the times of the log, and says where one is before the last."""

    def __init__(self) -> None:
        self._last: Record | None = None
        self._is_told = False

    def fold(self, record: Record) -> tuple[Record, Record] | None:
        """Take the next record; return it with the one before if the clock went back between."""
        before, self._last = self._last, record
        return (before, record) if before is not None and record.time < before.time else None

    def tell(self, record: Record) -> None:
        """Take the next record of this process, and log it once if the clock went back."""
        step = self.fold(record)
        if step is not None and not self._is_told:
            self._is_told = True
            before, after = step
            _log.warning(
                "clock_went_back", sequence=after.sequence, before=before.time, after=after.time
            )


def turned_back(records: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Return each record whose time is before that of the one before it, with that one."""
    watch = ClockWatch()
    return [step for record in records if (step := watch.fold(record)) is not None]
