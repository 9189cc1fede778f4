"""
One kept-open connection to a socket of a driver.

It tells whether the peer is there *now* (a killed driver is seen within milliseconds), and sorts a
call that went wrong by what may have happened: never sent, perhaps done, refused, unreadable.
It never redials for a call and never repeats one: an outage is to be seen, not hidden.
"""

from __future__ import annotations

import stat
from asyncio import timeout
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grpc import ChannelConnectivity, StatusCode, aio

from ...engine.ports import DriverCallError
from ...engine.texts import cut
from ...events.values import FailureOutcome

__all__ = ["FRAME_BYTES_MAX", "DriverChannel", "SocketKey", "socket_key"]

#: The largest answer that is read; upstream's node manager has the same limit.
FRAME_BYTES_MAX = 4 * 1024 * 1024

#: A connection that the peer closed for being idle is back within this time, or it is lost.
IDLE_GRACE_SECONDS = 0.5

#: How long a call may wait for a connection that is just being made.
CONNECT_SECONDS = 10.0

_NEVER = 2**31 - 1
_OPTIONS = (
    # "localhost" as upstream's clients send it; the default would be the escaped path.
    ("grpc.default_authority", "localhost"),
    # Two connections to one path must not share a back-off or a peer that is gone.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.client_idle_timeout_ms", _NEVER),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    # Status texts travel as metadata; larger ones would hide what the driver said.
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.absolute_max_metadata_size", 256 * 1024),
)

#: What gRPC itself says of a frame over the limit; drivers use the same status for other things.
_FRAME_TOO_LARGE = "Received message larger than max"

_READY = ChannelConnectivity.READY
_HOPELESS = (ChannelConnectivity.TRANSIENT_FAILURE, ChannelConnectivity.SHUTDOWN)
_UNKNOWN_CODES = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)

SocketKey = tuple[int, int, int]


def socket_key(path: str | Path) -> SocketKey | None:
    """Return what identifies the socket at *path*, or None; a socket that was replaced differs."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


class DriverChannel:
    """The connection to the socket at *path*; the first attempt may take `connect_seconds`."""

    def __init__(self, path: str, *, connect_seconds: float = 0.1) -> None:
        self.path = path
        options = dict(_OPTIONS) | {"grpc.min_reconnect_backoff_ms": int(connect_seconds * 1000)}
        target = "unix:" + quote(path, safe="/")
        self._channel = aio.insecure_channel(target, options=list(options.items()))
        self._key: SocketKey | None = None
        self._is_closing = False

    @property
    def is_connected(self) -> bool:
        """Return whether the peer is there now."""
        return self._channel.get_state() is _READY

    async def wait_connected(self) -> None:
        """Wait until the peer is there, for as long as it takes."""
        while (state := self._channel.get_state(try_to_connect=True)) is not _READY:
            await self._channel.wait_for_state_change(state)
        self._key = socket_key(self.path)

    async def try_to_connect(self, *, within_seconds: float) -> bool:
        """Return whether the peer is there; a refused attempt ends it before the time is over."""
        try:
            async with timeout(within_seconds):
                while (state := self._channel.get_state(try_to_connect=True)) is not _READY:
                    if state in _HOPELESS:
                        return False
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        return True

    async def wait_lost(self) -> str:
        """Wait until the peer that was there is gone, and return how that was seen."""
        while True:
            await self._channel.wait_for_state_change(_READY)
            if not await self.try_to_connect(within_seconds=IDLE_GRACE_SECONDS):
                return "connection lost"
            if socket_key(self.path) != self._key:
                return "socket replaced"

    async def call(self, method: str, request: bytes, *, timeout_seconds: float) -> bytes:
        """
        Return the peer's answer to *request*.

        Raises:
            DriverCallError: There was no answer; its outcome tells what may have happened.
        """
        if not await self._can_send(min(CONNECT_SECONDS, timeout_seconds)):
            text = f"nobody answers on {self.path}"
            raise DriverCallError(text, outcome="unreachable", code=StatusCode.UNAVAILABLE.name)
        invoke: Any = self._channel.unary_unary(method)
        call = invoke(request, timeout=timeout_seconds)
        try:
            # Not `await call`: that raises CancelledError where the channel is closed meanwhile.
            code: StatusCode = await call.code()
            if code is StatusCode.OK:
                return bytes(await call)
            raise _call_error(code, str(await call.details() or ""))
        finally:
            call.cancel()

    async def close(self, *, grace_seconds: float = 0.0) -> None:
        """Close the connection; calls in flight that do not end in time are cancelled."""
        self._is_closing = True
        await self._channel.close(grace_seconds)

    async def _can_send(self, within_seconds: float) -> bool:
        # Who still holds the adapter of an instance that was let go reaches nobody.
        if self._is_closing:
            return False
        is_there = self.is_connected or await self.try_to_connect(within_seconds=within_seconds)
        return is_there and not self._is_closing


def _call_error(code: StatusCode, text: str) -> DriverCallError:
    outcome: FailureOutcome = "refused"
    if code in _UNKNOWN_CODES:
        outcome = "unknown"
    elif code is StatusCode.RESOURCE_EXHAUSTED and _FRAME_TOO_LARGE in text:
        outcome = "invalid"
    return DriverCallError(cut(text) or "no text", outcome=outcome, code=code.name)
