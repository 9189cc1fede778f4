"""
The log's own server: started, adopted, supervised, ended.

The rule: a server runs on a store only with `server.lock` locked, and the lock's descriptor is the
server's too.  So the lock is held exactly as long as a server lives, whoever started it and whoever
died meanwhile, and there is never a second one; two servers on one store were seen to lose facts
without a word.

A server that outlived its service is adopted if it runs the wanted configuration and answers, else
it is ended and waited for.  Whoever calls `start` for a service holds `service.lock`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ..address import ServerAddress
from ..errors import ClaimletError, LockHeldError, ServerUnavailableError
from ..subjects import node_token
from . import conf, keys
from .child import ServerProcess, start_ticks
from .files import make_private_directory, replace_file, usable
from .locks import FileLock, hold
from .status import Status, forget_ports, greet, read_ports, read_status, write_status

__all__ = ["EmbeddedServer", "ServerSettings", "address_of"]

#: A store of ten million facts takes five seconds to open; damaged ones take longer.
_START_SECONDS = 60.0
_ADOPT_SECONDS = 10.0
#: A server on a full disk may answer all the same: it gets this long.
_FULL_SECONDS = 2.0
_POLL_SECONDS = 0.005
#: What may be left where a small file could not be written.
_FULL_BLOCKS = 2
_RESTART_SECONDS_FIRST = 0.1
_RESTART_SECONDS_MAX = 10.0
#: A server that ran this long did not die of its start.
_SETTLED_SECONDS = 60.0
_OUTPUT_BYTES_MAX = 8 * 1024


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server of its own needs to know."""

    state_dir: Path
    node: str
    #: The nats-server program, see `locate`.
    program: Path
    #: The text of config/nats/server.conf.
    template: str
    max_file_store_bytes: int = 1024**3
    #: Readers of one namespace each: their names, and whose facts they read.
    namespace_readers: Mapping[str, str] = {}
    #: The text of config/nats/namespace-reader.conf.
    reader_template: str = ""

    @property
    def users(self) -> tuple[str, ...]:
        """Return all users of the server."""
        return (*keys.USERS, *map(keys.namespace_reader, sorted(self.namespace_readers)))

    @property
    def lock_file(self) -> Path:
        """Return the lock that lives as long as the server."""
        return self.state_dir / "server.lock"

    @property
    def status_file(self) -> Path:
        """Return where the running server's pid and port are written down."""
        return self.state_dir / "server.json"

    @property
    def conf_file(self) -> Path:
        """Return the configuration as it was written for the server."""
        return self.state_dir / "server.conf"

    @property
    def log_file(self) -> Path:
        """Return the server's own log."""
        return self.state_dir / "server.log"

    @property
    def output_file(self) -> Path:
        """Return what the server says before its log is open, and when it dies."""
        return self.state_dir / "server.err"

    @property
    def keys_dir(self) -> Path:
        """Return the directory of the users' seeds."""
        return self.state_dir / "keys"

    @property
    def server_name(self) -> str:
        """Return the name under which the server greets."""
        return f"claimlet-{node_token(self.node)}"


def address_of(settings: ServerSettings, *, port: int, user: str) -> ServerAddress:
    """Return how to reach the server on *port* as *user*."""
    return ServerAddress(
        url=f"nats://127.0.0.1:{port}",
        seed_file=keys.seed_file(settings.keys_dir, user),
        inbox_prefix=keys.inbox_prefix(user),
    )


class EmbeddedServer:
    """
    The node's own nats-server, from `start` to `stop`.

    `changed` is called by `supervise` with a line for people whenever the server went or came back;
    the port may be another one then.
    """

    def __init__(
        self, settings: ServerSettings, *, changed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._lock: FileLock | None = None
        self._process: ServerProcess | None = None
        self._port = 0
        self._monitor_url = ""
        self._digest = ""
        self._is_stopping = False
        #: `stop` waits for a start that is under way, which then gives up.
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int:
        """Return the port for clients."""
        return self._port

    @property
    def monitor_url(self) -> str:
        """Return where the server answers about its health, or nothing where it does not say."""
        return self._monitor_url

    @property
    def pid(self) -> int:
        """Return the server's process id; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_adopted(self) -> bool:
        """Return whether the server was started by somebody else."""
        return self._process is not None and self._lock is None

    def address(self, user: str) -> ServerAddress:
        """Return how to reach the server as *user* (see `keys`)."""
        return address_of(self._settings, port=self._port, user=user)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, lock: FileLock | None = None) -> None:
        """
        Start the server, or adopt the one that runs; return when it answers.

        A caller that has taken `server.lock` already hands it over.

        Raises:
            LockHeldError: Somebody unknown holds the store.
            LogSetupError: The state directory or a key cannot be used.
            ServerUnavailableError: The server does not come up.
        """
        self._lock = lock
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.stop)
            settings = self._settings
            make_private_directory(settings.state_dir)
            make_private_directory(settings.state_dir / "js")
            self._digest = self._wanted_digest()
            await self._bring_up()
            undo.pop_all()

    async def supervise(self) -> None:
        """Start the server again whenever it dies; return after `stop`."""
        loop = asyncio.get_running_loop()
        delay_seconds = _RESTART_SECONDS_FIRST
        while self._process is not None:
            since = loop.time()
            await self._process.wait()
            if loop.time() - since > _SETTLED_SECONDS:
                delay_seconds = _RESTART_SECONDS_FIRST
            if not self._is_stopping:
                self._changed("the log's server has ended and is started again")
            while not self._is_stopping:
                try:
                    await self._bring_up()
                except ClaimletError as error:
                    self._changed(str(error))
                    await asyncio.sleep(delay_seconds)
                    delay_seconds = min(2 * delay_seconds, _RESTART_SECONDS_MAX)
                else:
                    self._changed(f"the log's server answers on port {self._port}")
                    break
            if self._is_stopping:
                return

    async def rotate(self, users: Sequence[str]) -> None:
        """
        Give *users* new keys; the server ends, and `supervise` starts it with them.

        Raises:
            LogSetupError: A key cannot be written; those before it in the list are new.
        """
        async with self._turn:
            try:
                keys.renew(self._settings.keys_dir, users)
            finally:
                self._digest = self._wanted_digest()
                if self._process is not None:
                    await self._process.end()

    async def restart(self) -> None:
        """End the server, so that `supervise` starts it anew."""
        async with self._turn:
            if self._process is not None:
                await self._process.end()

    async def stop(self) -> None:
        """End the server, also an adopted one, and wait until it is gone."""
        self._is_stopping = True
        async with self._turn:
            if self._process is not None:
                await self._process.end()
                self._process = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    async def _bring_up(self) -> None:
        """Have a server that answers: the survivor, else a new one."""
        async with self._turn:
            await self._find_or_launch()

    async def _find_or_launch(self) -> None:
        settings = self._settings
        if self._lock is None and await self._adopt():
            return
        kept = read_status(settings.status_file)
        port = kept.port if kept is not None else 0
        if port:
            try:
                await self._launch(port)
            except ServerUnavailableError:
                # Somebody else took the kept port while no server ran?  Anything else fails again.
                if _is_free(port):
                    raise
            else:
                return
        await self._launch(conf.ANY_PORT)

    async def _adopt(self) -> bool:
        """
        Take the lock, or adopt whom it belongs to and return True.

        Raises:
            LockHeldError: The holder is no server of ours.
        """
        settings = self._settings
        deadline = asyncio.get_running_loop().time() + _ADOPT_SECONDS
        while True:
            try:
                self._lock = hold(settings.lock_file, owns=f"the log in {settings.state_dir}")
            except LockHeldError:
                is_late = asyncio.get_running_loop().time() > deadline
                survivor = self._survivor()
                if survivor is None:
                    if is_late:
                        raise
                else:
                    status, process = survivor
                    if status.digest == self._digest and await self._take_over(status, process):
                        return True
                    if status.digest != self._digest or is_late:
                        await process.end()
                    process.forget()
            else:
                return False
            await asyncio.sleep(10 * _POLL_SECONDS)

    def _survivor(self) -> tuple[Status, ServerProcess] | None:
        status = read_status(self._settings.status_file)
        if status is None:
            return None
        process = ServerProcess.adopt(
            status.pid, started_at_ticks=status.start_ticks, conf=self._settings.conf_file
        )
        return (status, process) if process is not None else None

    async def _take_over(self, status: Status, process: ServerProcess) -> bool:
        """Use *process* as this server if it answers under its name."""
        ports = read_ports(self._settings.state_dir, status.pid)
        if ports is None or not await self._answers(ports.port):
            return False
        self._process = process
        self._use(ports.port, ports.monitoring)
        return True

    async def _launch(self, port: int) -> None:
        """
        Start a server on *port* and wait until it answers.

        Raises:
            ServerUnavailableError: It does not.
        """
        settings = self._settings
        assert self._lock is not None
        public_keys = keys.ensure_keys(settings.keys_dir, settings.users)
        text = _configuration(settings, public_keys, port=port)
        replace_file(settings.conf_file, text.encode())
        forget_ports(settings.state_dir)
        process = ServerProcess.spawn(
            [
                str(settings.program),
                "--config",
                str(settings.conf_file),
                "--ports_file_dir",
                str(settings.state_dir),
            ],
            keep=self._lock.descriptor,
            output=settings.output_file,
        )
        async with AsyncExitStack() as undo:
            undo.push_async_callback(process.end)
            status = Status(
                pid=process.pid,
                start_ticks=start_ticks(process.pid),
                digest=self._digest,
                port=max(port, 0),
            )
            write_status(settings.status_file, status)
            await self._wait_for(process)
            write_status(settings.status_file, msgspec.structs.replace(status, port=self._port))
            undo.pop_all()
        self._process = process

    async def _wait_for(self, process: ServerProcess) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                given_up_at = asyncio.get_running_loop().time() + _FULL_SECONDS
                while not process.has_ended and not self._is_stopping:
                    ports = read_ports(self._settings.state_dir, process.pid)
                    if ports is not None and await self._answers(ports.port):
                        return self._use(ports.port, ports.monitoring)
                    if asyncio.get_running_loop().time() > given_up_at and _is_full(self._settings):
                        break  # it cannot say on which ports it listens, nor why
                    await asyncio.sleep(_POLL_SECONDS)
        state = "ended at once" if process.has_ended else "does not answer"
        settings = self._settings
        words = "no space left on device" if _is_full(settings) else _last_words(settings)
        raise ServerUnavailableError(
            f"the log's server {state}: {words}",
            hint=f"its own words are in {settings.log_file}; --state-dir names another directory",
        )

    def _wanted_digest(self) -> str:
        settings = self._settings
        public_keys = keys.ensure_keys(settings.keys_dir, settings.users)
        return conf.digest(
            _configuration(settings, public_keys, port=conf.ANY_PORT),
            program=_fingerprint(settings.program),
        )

    async def _answers(self, port: int) -> bool:
        greeting = await greet(port)
        return greeting is not None and greeting.server_name == self._settings.server_name

    def _use(self, port: int, monitoring: tuple[str, ...]) -> None:
        self._port = port
        self._monitor_url = monitoring[0] if monitoring else ""


def _configuration(settings: ServerSettings, public_keys: Mapping[str, str], *, port: int) -> str:
    readers = "".join(
        conf.render(
            settings.reader_template,
            {
                "user": keys.namespace_reader(name),
                "namespace": namespace,
                "node": node_token(settings.node),
                "public_key": public_keys[keys.namespace_reader(name)],
            },
        )
        for name, namespace in sorted(settings.namespace_readers.items())
    )
    return conf.render(
        settings.template,
        {
            **public_keys,
            "namespace_readers": conf.Block(readers.rstrip("\n")),
            "server_name": settings.server_name,
            "node": node_token(settings.node),
            "port": port,
            "store_dir": str(settings.state_dir / "js"),
            "log_file": str(settings.log_file),
            "max_file_store_bytes": settings.max_file_store_bytes,
        },
    )


def _fingerprint(program: Path) -> str:
    """Return what changes when the program is another one, as after an upgrade."""
    with usable(program):
        stat = program.stat()
    return f"{program.resolve()} {stat.st_size} {stat.st_mtime_ns}"


def _is_full(settings: ServerSettings) -> bool:
    """Return whether there is no room at all beside the log."""
    with usable(settings.state_dir):
        return os.statvfs(settings.state_dir).f_bavail < _FULL_BLOCKS


def _last_words(settings: ServerSettings) -> str:
    """Return the last thing that the server said was wrong."""
    for path in (settings.output_file, settings.log_file):
        with suppress(OSError), path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _OUTPUT_BYTES_MAX))
            lines = file.read(_OUTPUT_BYTES_MAX).decode(errors="replace").splitlines()
            bad = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
            if words := (bad or (lines if path == settings.output_file else [])):
                return words[-1].strip()
    return "it said nothing"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: what only lingers after a close is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
