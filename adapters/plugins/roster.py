"""
Which driver instances are known, and which of them is called.

Per driver there may be several, as during a rolling update: the newest that is connected is the one
to call, else the newest, so that the caller sees its error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ...engine.ports import DriverInstance
from ...events.values import DriverName
from .channel import DriverChannel
from .registration import NotRegisteredError, Offer

__all__ = ["Entry", "Roster"]


class Entry:
    """An instance with its connection; `state` says whether its peer is there."""

    def __init__(self, instance: DriverInstance, *, channel: DriverChannel, order: int) -> None:
        self.instance = instance
        self.channel = channel
        self.order = order
        #: `waiting` until the peer is there for the first time, `lost` after it was.
        self.state: Literal["waiting", "connected", "lost"] = "waiting"


class Roster:
    """The known instances, one for each registration socket."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def make_room(self, socket: str, offer: Offer) -> None:
        """
        Let *socket* have the offered endpoint; a lost instance that had it is forgotten.

        Raises:
            NotRegisteredError: Another socket's instance has this endpoint and is not lost.
        """
        for other, entry in list(self._entries.items()):
            known = (entry.instance.driver, entry.instance.endpoint)
            if other == socket or known != (offer.driver, offer.endpoint):
                continue
            if entry.state != "lost":
                raise NotRegisteredError(
                    f"{offer.driver} is registered with the endpoint {offer.endpoint} already"
                )
            del self._entries[other]

    def put(self, socket: str, entry: Entry) -> None:
        """Know *entry* as the instance behind *socket*, instead of any earlier one."""
        self._entries[socket] = entry

    def remove(self, socket: str, entry: Entry) -> None:
        """Forget *entry*; once more, or after another took its place, changes nothing."""
        if self._entries.get(socket) is entry:
            del self._entries[socket]

    def find(self, driver: DriverName) -> DriverInstance | None:
        """Return the newest connected instance of *driver*, else the newest, else None."""
        entries = [entry for entry in self if entry.instance.driver == driver]
        newest = max(entries, key=lambda e: (e.state == "connected", e.order), default=None)
        return None if newest is None else newest.instance
