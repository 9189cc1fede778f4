"""
Drivers that come and go all the time, kept from flooding the log (design.md rule 16).

A driver that went more than a few times within an hour is recorded as registered only after it has
stayed for a while: 2 s, doubling up to 5 minutes.  Until then its pods wait, with that reason.
"""

from __future__ import annotations

from collections import deque

from ...events.values import DriverName

__all__ = ["Flaps"]

_WINDOW_SECONDS = 3600.0
_FREE = 10
_DELAY_SECONDS_MAX = 300.0


class Flaps:
    """When each driver went, within the last hour."""

    def __init__(self) -> None:
        self._gone: dict[DriverName, deque[float]] = {}

    def add(self, driver: DriverName, now: float) -> None:
        """Note that an instance of *driver* went."""
        self._gone.setdefault(driver, deque(maxlen=64)).append(now)

    def delay_seconds(self, driver: DriverName, now: float) -> float:
        """Return how long *driver* must stay before its registration is recorded."""
        recent = sum(1 for moment in self._gone.get(driver, ()) if now - moment < _WINDOW_SECONDS)
        over = recent - _FREE
        return float(min(2.0**over, _DELAY_SECONDS_MAX)) if over > 0 else 0.0
