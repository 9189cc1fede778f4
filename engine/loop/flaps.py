"""
Drivers that come and go all the time, kept from flooding the log (rule 16).

A driver may register many times in a row, as a rollout or a test does; who goes on like that is
recorded as registered a few times an hour only, and must stay until its turn.  Until then its pods
wait, with that reason.  A driver that comes and goes for a month costs fewer than 12,000 facts.
"""

from __future__ import annotations

from ...events.values import DriverName

__all__ = ["Flaps"]

#: So many registrations in a row are recorded at once …
_BURST = 64
#: … and after that one in each of these spans.
_INTERVAL_SECONDS = 450.0


class Flaps:
    """How much of its share of the log each driver has used."""

    def __init__(self) -> None:
        #: driver → when its share is whole again.
        self._whole_at: dict[DriverName, float] = {}

    def delay_seconds(self, driver: DriverName, now: float) -> float:
        """Return how long *driver* must stay before its registration is recorded."""
        used = self._whole_at.get(driver, now) - now
        return max(0.0, used - (_BURST - 1) * _INTERVAL_SECONDS)

    def add(self, driver: DriverName, now: float) -> None:
        """Note that a registration of *driver* is recorded."""
        whole_at = max(self._whole_at.get(driver, now), now)
        self._whole_at[driver] = whole_at + _INTERVAL_SECONDS
