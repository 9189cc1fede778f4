"""
Intent before effect, watched from outside: which calls the stored records allow right now.

It reads the stored bytes and nothing of the engine's state, so that a mistake in the fold cannot
hide a call that no acknowledged fact announced (rule 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from claimlet.engine.ports import Claim
from claimlet.events import facts as f
from claimlet.events.record import Record, decode

from .memory_log import Storage

__all__ = ["Intents"]


class Intents:
    """The open intents of a storage, and the calls that none of them announced."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read = 0
        #: claim uid → method and the drivers that may be called.
        self._open: dict[str, tuple[str, set[str]]] = {}
        self.violations: list[str] = []

    def watch(self, driver: str, method: str, claims: Sequence[Claim]) -> None:
        """Note a call of *driver* that no stored fact allows."""
        self._catch_up()
        for claim in claims:
            allowed, drivers = self._open.get(claim.uid, ("", set()))
            if allowed != method or driver not in drivers:
                self.violations.append(
                    f"{method} of {driver} for {claim.ref}: the log allows {allowed} {drivers}"
                )

    def _catch_up(self) -> None:
        for number in range(self._read, len(self._storage.records)):
            self._take(decode(self._storage.records[number], sequence=number + 1))
        self._read = len(self._storage.records)

    def _take(self, record: Record) -> None:
        if record.claim is None:
            return
        uid = record.claim.uid
        match record.fact:
            case f.PrepareStarted(calls=calls):
                self._open[uid] = ("prepare", {call.driver for call in calls})
            case f.UnprepareStarted(calls=calls):
                self._open[uid] = ("unprepare", {call.driver for call in calls})
            case f.DriverPrepared(driver=driver) | f.DebtWaived(driver=driver):
                self._open[uid][1].discard(driver)
            case f.DriverUnprepared(driver=driver, final=True):
                self._open[uid][1].discard(driver)
            case f.Prepared() | f.Unprepared() | f.ReprepareNeeded() | f.Restored():
                self._open.pop(uid, None)
