"""
The service's log: its own server or a configured one, opened, watched over, closed last.

The locks are taken before anything else: of the state directory and of the root (rule
11). When the log goes away nothing new is called; when it is back the loop plans the whole node
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from typing import Any, Self

import structlog

from ...config.settings import Settings
from ...engine.errors import RefusedError
from ...engine.loop import NodeLoop
from ...events.address import ServerAddress
from ...events.errors import (
    ClaimletError,
    FencedError,
    LogDamagedError,
    LogSetupError,
)
from ...events.jetstream.connection import Connection
from ...events.jetstream.log import JetStreamLog, LogSettings, open_log
from ...events.jetstream.pipe import PipeSettings
from ...events.jetstream.wire import Condition
from ...events.log import Fold, Snapshots
from ...events.record import Stamp
from ...events.server import keys
from ...events.server.files import make_private_directory
from ...events.server.locks import hold
from ...events.server.process import EmbeddedServer
from ...events.world import World
from .addresses import chosen_users, external_address, server_settings
from .anchor import AnchorKeeper, known_anchor
from .room import Room, RoomSettings

__all__ = ["NodeLog"]

#: For the reply to a rotation of keys, which ends the connection that it goes through.
_REPLY_SECONDS = 0.1

_log: Any = structlog.get_logger()


def make_root(root: Path) -> None:
    """
    Make the directory that drivers register in.

    Raises:
        LogSetupError: It cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogSetupError(
            f"{root}: {error.strerror or error}", hint="--root names the directory for drivers"
        ) from None


class NodeLog:
    """The log's server and the log; use it as `async with`, then `open`."""

    def __init__(self, settings: Settings, *, world: World) -> None:
        self._settings = settings
        self._world = world
        self._stack = AsyncExitStack()
        self._server: EmbeddedServer | None = None
        self._connections: list[Connection] = []
        self.log: JetStreamLog

    async def __aenter__(self) -> Self:
        """
        Take the locks and have a server that answers.

        Raises:
            LockHeldError: Another service holds the state directory or the root.
            LogSetupError: The state directory, a key or the program cannot be used.
            ServerUnavailableError: The server does not come up.
        """
        async with self._stack:
            settings = self._settings
            make_private_directory(settings.state_dir)
            self._hold(settings.state_dir / "service.lock", owns=f"{settings.state_dir}")
            make_root(settings.root)
            self._hold(settings.root / "claimlet.lock", owns=f"the drivers of {settings.root}")
            if not settings.log.url:
                self._server = EmbeddedServer(server_settings(settings), changed=self._changed)
                await self._stack.enter_async_context(self._server)
                self._world.spawn(self._server.supervise(), name="nats-server")
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _hold(self, path: Path, *, owns: str) -> None:
        self._stack.callback(hold(path, owns=owns).release)

    def address(self, user: str) -> ServerAddress:
        """Return how to reach the server as *user*."""
        if self._server is not None:
            return self._server.address(user)
        return external_address(self._settings, user)

    async def open(self, stamp: Stamp, fold: Fold, loop: NodeLoop, *, snapshots: Snapshots) -> str:
        """
        Have the log folded and make it ready; return the boot that it knew before.

        Raises:
            ClaimletError: The log cannot be opened; see `open_log`.
        """
        # The loop has its own bound for its callers; what is issued is never given up here.
        pipe = PipeSettings(append_timeout_seconds=inf)
        store_bytes = self._settings.log.max_file_store_bytes
        self.log = await open_log(
            self.address(keys.WRITER),
            admin=self.address(keys.ADMIN),
            stamp=stamp,
            fold=fold,
            world=self._world,
            snapshots=snapshots,
            anchor=known_anchor(self._settings.state_dir),
            settings=LogSettings(
                pipe=pipe,
                stream_bytes_max=store_bytes * 3 // 4,
                snapshot_bytes_max=store_bytes // 8,
            ),
        )
        self._stack.push_async_callback(self.log.close)

        def hear(condition: Condition) -> None:
            match condition.kind:
                case "available":
                    _log.info("log_available")
                    loop.wake()
                case "unavailable":
                    _log.warning("log_unavailable", reason=condition.reason)
                case "fenced":
                    loop.fail(FencedError(condition.reason, hint=_FENCED_HINT))
                case "damaged":
                    sequence = self.log.last_sequence
                    loop.fail(LogDamagedError(condition.reason, sequence=sequence))

        self.log.listen(hear)
        self._anchor = AnchorKeeper(self.log, self._settings.state_dir, world=self._world)
        # It is moved for the last time when all is recorded, and before the log is left.
        self._stack.push_async_callback(self._anchor.move)
        self._world.spawn(self._anchor.run(), name="anchor")
        if self._server is not None:
            room = Room(
                RoomSettings(
                    state_dir=self._settings.state_dir,
                    ballast_bytes=self._settings.log.ballast_bytes,
                ),
                world=self._world,
                gate=loop,
                log=self.log,
                server=self._server,
            )
            self._world.spawn(room.watch(), name="room")
        return loop.node.boot

    def rotate_keys(self, users: Sequence[str], actor: str) -> Sequence[str]:
        """
        Begin to give *users* of the log's own server new keys, by default all; return who they are.

        Who asks is answered first: the server then starts anew, and nobody's old key is good.

        Raises:
            RefusedError: The server is not claimlet's own.
            UsageError: There is no such user.
        """
        if self._server is None:
            raise RefusedError(
                [f"the server at {self._settings.log.url} is not claimlet's own"],
                hint="whoever runs that server gives out its keys",
            )
        chosen = chosen_users(server_settings(self._settings), users)
        _log.warning("keys_rotated", users=chosen, actor=actor)
        self._world.spawn(self._rotate(self._server, chosen), name="rotate keys")
        return chosen

    async def _rotate(self, server: EmbeddedServer, users: Sequence[str]) -> None:
        await self._world.sleep(_REPLY_SECONDS)
        try:
            await server.rotate(users)
        except ClaimletError as error:
            _log.error("keys_not_rotated", error=str(error))

    async def control_connection(self) -> Connection:
        """
        Return a connection for the control interface; its user connects it anew if it is closed.

        Raises:
            LogUnavailableError: The server does not answer.
        """
        connection = await Connection.open(self.address(keys.SERVICE), name="claimlet control")
        self._connections.append(connection)
        self._stack.push_async_callback(connection.close)
        return connection

    def _changed(self, text: str) -> None:
        """Hear that the server went or came back, perhaps on another port."""
        _log.warning("log_server", state=text)
        assert self._server is not None
        url = self._server.address(keys.WRITER).url
        if hasattr(self, "log"):
            self.log.retarget(url)
        for connection in self._connections:
            connection.retarget(url)


_FENCED_HINT = "there is one writer per log; this one has stopped calling drivers"
