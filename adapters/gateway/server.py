"""
The claims gateway: a small API server on loopback for drivers that want to read their claims.

It speaks TLS because upstream's clients send their token over nothing else (`certificate`).

It is fed from the node's state through `ClaimsView` and holds nothing that is missed when it ends.
Importing this module loads the web server; importing the package does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...events.errors import ClaimletError
from ...events.world import World
from .app import build_app
from .claims import ClaimsView
from .credentials import Credentials
from .limits import Limits
from .slices import SliceStore

__all__ = ["ClaimsGateway"]

#: Longer than Go's clients keep an idle connection, so that they close it and lose no request.
_KEEP_ALIVE_SECONDS = 120
#: A new connection that has not asked for anything by then is closed.
FIRST_REQUEST_SECONDS = 10.0
#: What still runs after this at the end is cut off.
_END_SECONDS = 2


class ClaimsGateway:
    """Serve a view of claims on loopback while entered: to each driver, what names it."""

    def __init__(
        self,
        view: ClaimsView,
        *,
        state_dir: Path,
        node: str,
        world: World,
        port: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self._view = view
        self._state_dir = state_dir
        self._node = node
        self._world = world
        self._port = port
        self._limits = limits or Limits()
        self._running: tuple[Credentials, SliceStore, _Server] | None = None

    async def __aenter__(self) -> Self:
        """
        Listen, with the key of the state directory, on the port given or else kept there.

        Raises:
            GatewayError: The key or the port is not usable.
            LogSetupError: The directory is not.
        """
        credentials = Credentials(self._state_dir, port=self._port)
        listener = credentials.listen()
        try:
            credentials.refresh()
            tls_file = credentials.tls_file()
        except ClaimletError:
            listener.close()
            raise
        listener = _BoundedListener(listener, limit=self._limits.connections)
        store = SliceStore(self._world, node=self._node, limits=self._limits)
        app = build_app(self._view, store, credentials)
        server = _Server(_config(app, tls_file, limit=self._limits.connections))
        self._running = credentials, store, server
        self._world.spawn(server.run_on(listener), name="claims gateway")
        await server.is_up.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._running is not None
        _, store, server = self._running
        self._running = None
        store.close()
        server.leave.set()
        await server.is_down.wait()

    @property
    def url(self) -> str:
        """Return where drivers find the gateway."""
        return f"https://127.0.0.1:{self._credentials.port}"

    def kubeconfig_for(self, driver: str) -> Path:
        """
        Return the kubeconfig of *driver*, written if need be.

        Raises:
            InvalidDriverNameError: No driver can be called that.
        """
        return self._credentials.kubeconfig_for(driver)

    @property
    def _credentials(self) -> Credentials:
        assert self._running is not None, "the gateway is used outside of `async with`"
        return self._running[0]


class _Server(uvicorn.Server):
    """A server inside of a service: it leaves signals to the service, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.leave = asyncio.Event()
        self.is_up = asyncio.Event()
        self.is_down = asyncio.Event()

    async def run_on(self, listener: socket) -> None:
        """Serve on *listener* until told to leave."""
        try:
            await self.serve(sockets=[listener])
        finally:
            self.is_up.set()
            self.is_down.set()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def main_loop(self) -> None:
        # The original looks ten times a second whether it shall exit.
        await self.leave.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """HTTP that cuts off who connects and asks for nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(FIRST_REQUEST_SECONDS, self._expire)

    def _expire(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _BoundedListener(socket):
    """A listening socket that hangs up on who comes when too many are there already."""

    def __init__(self, listener: socket, *, limit: int) -> None:
        super().__init__(fileno=listener.detach())
        self._limit = limit
        self._accepted: WeakSet[socket] = WeakSet()

    def accept(self) -> tuple[socket, Any]:
        connection, address = super().accept()
        if sum(other.fileno() != -1 for other in self._accepted) >= self._limit:
            connection.close()
            # What a listening socket says when nobody waits; asyncio then waits for the next.
            raise BlockingIOError
        self._accepted.add(connection)
        return connection, address


def _config(app: ASGIApp, tls_file: Path, *, limit: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ssl_certfile=tls_file,
        ssl_keyfile=tls_file,
        limit_concurrency=limit,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_END_SECONDS,
    )
