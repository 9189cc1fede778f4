"""
The composition root: everything that a node's service is made of, started and stopped in order.

Locks first, then the log's server, the log with its replay, the loop, the drivers, and last whoever
may ask for something.  Stopping goes the other way round: nobody asks any more, calls in flight
end, `stopped` is recorded, the server goes last (engine/README.md).  Here alone
settings become objects; here alone a signal is heard.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import structlog

from claimlet import __version__

from ...config.settings import Settings
from ...engine.loop import LoopSettings, NodeLoop
from ...engine.node import Node
from ...engine.ports import Drivers
from ...engine.snapshot import NodeSnapshots
from ...events import facts as f
from ...events.errors import ClaimletError
from ...events.jetstream.connection import Connection
from ...events.record import Draft, Record, Stamp
from ..control.handlers import Handlers
from ..control.server import ControlService
from ..gateway.server import ClaimsGateway
from ..manifest import ManifestSource
from ..plugins.cdi import CdiFiles, CheckedDrivers
from ..plugins.kubelet import check_no_kubelet
from ..plugins.registry import DriverRegistry
from ..world import RealWorld
from .boot import read_boot_id
from .claims_view import NodeClaims
from .log import NodeLog
from .logs import log_fact, write_facts
from .notify import notify
from .policy import policy_fields, policy_of
from .snapshots import SnapshotKeeper, replay_view, tell_start

__all__ = ["Service", "run_service"]

#: How long calls in flight may take to end when the service stops.
_DRAIN_SECONDS = 20.0

#: How often to look whether the control connection is there.
_KEEP_SECONDS = 0.5
#: So often in a row it was away, before it is made anew.
_MISSED_COUNT_MAX = 3

#: Objects made and not freed until they are looked through for cycles; Python's default is 700.
_COLLECT_AFTER = 10_000

_log: Any = structlog.get_logger()


class Service:
    """A running node service; `async with` starts and stops it."""

    def __init__(self, settings: Settings, world: RealWorld) -> None:
        self.settings = settings
        self.world = world
        self.boot = read_boot_id(settings.boot_id_file)
        self.stamp = Stamp(node=settings.node, boot=self.boot, writer=world.new_id())
        self.node = Node(settings.node, policy_of(settings))
        self._stack = AsyncExitStack()
        self._is_quiet = True
        self.loop: NodeLoop
        self.registry: DriverRegistry
        self.snapshots: SnapshotKeeper

    async def __aenter__(self) -> Self:
        async with self._stack:
            await self._start()
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        settings, enter = self.settings, self._stack.enter_async_context
        self._stack.callback(write_facts)
        await check_no_kubelet(settings.root, world=self.world)
        log = await enter(NodeLog(settings, world=self.world))
        self.registry = DriverRegistry(
            settings.root,
            world=self.world,
            listener=_Listener(self),
            endpoint_map=settings.drivers.endpoint_map,
            rescan_seconds=settings.drivers.rescan_seconds,
        )
        self.loop = NodeLoop(
            self.node,
            self.stamp,
            world=self.world,
            drivers=self._checked(self.registry),
            settings=loop_settings(settings),
        )
        before = await log.open(
            self.stamp, self._fold, self.loop, snapshots=NodeSnapshots(self.node)
        )
        tell_start(log.log.start)
        self.snapshots = SnapshotKeeper(
            self.loop, log.log, world=self.world, every=settings.log.snapshot_every_facts
        )
        await self.loop.start(log.log, self._started(before))
        self._is_quiet = False
        self.world.spawn(self.loop.run(), name="loop")
        self.world.spawn(self.snapshots.run(), name="snapshots")
        await enter(self.registry)
        if settings.gateway.enabled:
            await enter(
                ClaimsGateway(
                    NodeClaims(self.node),
                    state_dir=settings.state_dir,
                    node=settings.node,
                    world=self.world,
                    port=settings.gateway.port,
                )
            )
        # Calls in flight end before the drivers, and the claims that they read, are let go.
        await enter(self._stopping())
        await enter(self._control(log))
        if settings.manifest.directory is not None:
            await enter(ManifestSource(settings, self.loop, world=self.world))

    def _checked(self, drivers: Drivers) -> Drivers:
        """Return *drivers*, their answers looked up in the CDI files where these are known."""
        directories = [Path(directory) for directory in self.settings.drivers.cdi_dirs]
        return CheckedDrivers(drivers, CdiFiles(directories)) if directories else drivers

    def _fold(self, record: Record) -> None:
        self.loop.fold(record)
        if not self._is_quiet:
            log_fact(record)
            self.snapshots.folded(record.sequence)

    def _started(self, before: str) -> Sequence[Draft]:
        """Return the facts that begin a process: who writes, whether the node has booted."""
        facts: list[f.Fact] = [
            f.WriterStarted(
                writer=self.stamp.writer,
                boot=self.boot,
                claimlet_version=__version__,
                pid=os.getpid(),
            )
        ]
        if before != self.boot:
            facts.append(f.Booted(boot=self.boot, previous=before))
        if self.node.recorded_policy != (policy := policy_fields(self.node.policy)):
            facts.append(f.SettingsChanged(settings=policy))
        # Silence of the control interface means nothing: what it knows, it has told (rule 9).
        facts.append(f.SourceSynced(source="control"))
        return [Draft(fact=fact) for fact in facts]

    @asynccontextmanager
    async def _stopping(self) -> AsyncIterator[None]:
        """On the way out: let calls end, say that the process stops."""
        yield
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.loop.drain()
                await self.snapshots.take()
                await self.loop.stopped("asked to stop")
        except (TimeoutError, ClaimletError) as error:
            _log.warning("stopped_unclean", reason=str(error) or "calls are still in flight")

    @asynccontextmanager
    async def _control(self, log: NodeLog) -> AsyncIterator[None]:
        handlers = Handlers(
            self.loop,
            world=self.world,
            honour_skips=self.settings.prepare.skip_node_operations,
            rotate_keys=log.rotate_keys,
            replay=replay_view(log.log.start),
        )
        control = ControlService(handlers, node=self.settings.node, world=self.world)
        connection = await log.control_connection()
        await control.start(connection.client)
        keeper = self.world.spawn(self._keep(control, connection), name="control connection")
        try:
            yield
        finally:
            keeper.cancel()
            await control.stop()

    async def _keep(self, control: ControlService, connection: Connection) -> None:
        """Connect anew where the client does not come back by itself: a new key is one reason."""
        missed_count = 0
        while True:
            await self.world.sleep(_KEEP_SECONDS)
            missed_count = 0 if connection.is_connected else missed_count + 1
            if missed_count < _MISSED_COUNT_MAX:
                continue
            try:
                await connection.revive()
                await control.start(connection.client)
            except ClaimletError as error:
                _log.warning("control_unavailable", reason=str(error))


class _Listener:
    """Passes drivers on to the loop, which exists only after the registry."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def registered(self, instance: Any) -> None:
        self._service.loop.registered(instance)

    def gone(self, driver: Any, instance: str, reason: str) -> None:
        self._service.loop.gone(driver, instance, reason)


async def run_service(settings: Settings) -> None:
    """
    Run the service until SIGTERM or SIGINT.

    Raises:
        ClaimletError: It cannot start, or cannot go on.
    """
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    async with RealWorld() as world, Service(settings, world) as service:
        _log.info(
            "ready",
            node=settings.node,
            boot=service.boot,
            sequence=service.node.sequence,
            claims=len(service.node.claims),
            state_dir=str(settings.state_dir),
            root=str(settings.root),
        )
        # What there is by now stays: no collection need walk over it again, and of what one pod
        # leaves behind next to nothing is cyclic.
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER)
        notify("READY=1", f"STATUS={len(service.node.claims)} claims")
        await stop.wait()
        notify("STOPPING=1")


def loop_settings(settings: Settings) -> LoopSettings:
    """Return how the loop calls drivers and waits for the log."""
    return LoopSettings(
        call_timeout_seconds=settings.prepare.call_timeout_seconds,
        retry_first_seconds=settings.prepare.retry_first_seconds,
        retry_max_seconds=settings.prepare.retry_max_seconds,
        append_timeout_seconds=settings.log.append_timeout_seconds,
    )
