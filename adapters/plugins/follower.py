"""
One registration socket, from when it is seen until it is gone.

Ask, register, notify, wait for the connection, hold it, and start over when it is lost: for ever,
with back-off, as long as the socket is there.  Each socket has a follower of its own, so that one
that never answers holds up nobody.  A socket is never removed: it is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import structlog

from ...engine.ports import DriverInstance, DriverListener
from ...events.values import DriverName
from ...events.world import World
from .channel import DriverChannel
from .dra import DraAdapter
from .registration import (
    DIAL_SECONDS,
    NotRegisteredError,
    Offer,
    OtherTypeError,
    ask,
    examine,
    notify,
)
from .roster import Entry, Roster
from .sockets import SocketPathError, check_socket_path
from .wire import RegistrationStatus

__all__ = ["RETRY_FIRST_SECONDS", "RETRY_MAX_SECONDS", "Follower", "SocketStatus"]

RETRY_FIRST_SECONDS = 0.5
RETRY_MAX_SECONDS = 122.0

#: A connection that holds this long is no flap: what follows starts without a delay.
STEADY_SECONDS = 10.0

#: Calls that are in flight when a driver leaves may end for so long; drivers stop gracefully.
DRAIN_SECONDS = 60.0

_log: Any = structlog.get_logger()


class SocketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one registration socket, for people."""

    path: str
    state: Literal["asking", "waiting", "connected", "lost", "failed", "ignored"]
    driver: str = ""
    #: Attempts to register since the last success.
    attempts: int = 0
    error: str = ""
    retry_seconds: float = 0.0


class _Backoff:
    """Doubling delays; `failures` counts since the last reset."""

    def __init__(self) -> None:
        self.failures = 0

    def next(self) -> float:
        delay = RETRY_FIRST_SECONDS * 2.0 ** min(self.failures, 16)
        self.failures += 1
        return min(delay, RETRY_MAX_SECONDS)

    def reset(self) -> None:
        self.failures = 0


class Follower:
    """Follows the socket at *path*; `run` ends when it is cancelled or the socket is not for us."""

    def __init__(
        self,
        path: str,
        *,
        world: World,
        roster: Roster,
        listener: DriverListener,
        endpoint_map: Mapping[str, str],
        next_order: Callable[[], int],
    ) -> None:
        self.status = SocketStatus(path=path, state="asking")
        #: Why the instance is gone when `run` is cancelled; empty: it is not, only we are leaving.
        self.reason = ""
        self._path = path
        self._world = world
        self._roster = roster
        self._listener = listener
        self._endpoint_map = endpoint_map
        self._next_order = next_order
        self._order = 0
        self._entry: Entry | None = None
        self._failures = _Backoff()
        self._flaps = _Backoff()
        self._log = _log.bind(socket=path)

    async def run(self) -> None:
        """Register the driver behind the socket again and again."""
        try:
            check_socket_path(self._path)
            while True:
                await self._world.sleep(await self._round())
        except (OtherTypeError, SocketPathError) as error:
            self.status = SocketStatus(path=self._path, state="ignored", error=str(error))
            self._log.info("registration_socket_ignored", reason=str(error))
        finally:
            await self._leave()

    async def _round(self) -> float:
        """Register once and hold the connection; return how long to wait before the next time."""
        try:
            entry = await self._register()
        except NotRegisteredError as error:
            return self._failed(error)
        self._failures.reset()
        self._show("waiting")
        await entry.channel.wait_connected()
        started = self._world.monotonic()
        self._connected(entry)
        self._lost(entry, await entry.channel.wait_lost())
        if self._world.monotonic() - started >= STEADY_SECONDS:
            self._flaps.reset()
            return 0.0
        return self._flaps.next()

    async def _register(self) -> Entry:
        channel = DriverChannel(self._path, connect_seconds=DIAL_SECONDS)
        try:
            info = await ask(channel)
            try:
                offer = examine(info, socket=self._path, endpoint_map=self._endpoint_map)
                self._roster.make_room(self._path, offer)
            except NotRegisteredError as error:
                await self._refuse(channel, str(error))
                raise
            entry = await self._enter(offer)
            try:
                await notify(channel, RegistrationStatus(registered=True))
            except NotRegisteredError:
                await self._forget()
                raise
            return entry
        finally:
            await channel.close()

    async def _refuse(self, channel: DriverChannel, text: str) -> None:
        await self._forget()
        try:
            await notify(channel, RegistrationStatus(registered=False, error=text))
        except NotRegisteredError as error:
            # Upstream's helper answers a refusal with an error; it has heard it all the same.
            self._log.debug("refusal_answered", error=str(error))

    async def _forget(self) -> None:
        if self._entry is not None:
            entry, self._entry = self._entry, None
            self._roster.remove(self._path, entry)
            await entry.channel.close()

    async def _enter(self, offer: Offer) -> Entry:
        channel = None
        if self._entry is not None:
            if self._entry.instance.endpoint == offer.endpoint:
                channel = self._entry.channel
            else:
                await self._entry.channel.close()
        channel = channel or DriverChannel(offer.endpoint)
        instance = DriverInstance(
            driver=DriverName(offer.driver),
            instance=self._world.new_id(),
            endpoint=offer.endpoint,
            adapter=DraAdapter(offer.driver, channel=channel, api=offer.api),
            api=offer.api.name,
            supported_versions=offer.supported_versions,
        )
        # A driver that was there before keeps its place among the instances.
        self._order = self._order or self._next_order()
        self._entry = Entry(instance, channel=channel, order=self._order)
        self._roster.put(self._path, self._entry)
        return self._entry

    def _failed(self, error: NotRegisteredError) -> float:
        delay = self._failures.next()
        attempts = self._failures.failures
        self._show("failed", error=str(error), retry_seconds=delay)
        # A stale socket stays for ever: its line must not come back with each attempt.
        tell = self._log.debug if attempts & (attempts - 1) else self._log.warning
        tell("registration_failed", error=str(error), attempts=attempts, retry_seconds=delay)
        return delay

    def _connected(self, entry: Entry) -> None:
        entry.state = "connected"
        self._show("connected")
        found = entry.instance
        self._log.info("driver_connected", driver=found.driver, api=found.api)
        self._listener.registered(found)

    def _lost(self, entry: Entry, reason: str) -> None:
        entry.state = "lost"
        self._show("lost", error=reason)
        self._log.warning("driver_lost", driver=entry.instance.driver, reason=reason)
        self._listener.gone(entry.instance.driver, entry.instance.instance, reason)

    async def _leave(self) -> None:
        entry = self._entry
        if entry is None:
            return
        self._entry = None
        self._roster.remove(self._path, entry)
        try:
            if self.reason and entry.state == "connected":
                self._lost(entry, self.reason)
            if self.reason:
                await entry.channel.close(grace_seconds=DRAIN_SECONDS)
        finally:
            await entry.channel.close()

    def _show(
        self,
        state: Literal["waiting", "connected", "lost", "failed"],
        *,
        error: str = "",
        retry_seconds: float = 0.0,
    ) -> None:
        self.status = SocketStatus(
            path=self._path,
            state=state,
            driver=self._entry.instance.driver if self._entry else "",
            attempts=self._failures.failures,
            error=error,
            retry_seconds=retry_seconds,
        )
