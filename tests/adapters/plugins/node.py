"""A registry with what it told its listener, and claims to call drivers with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.adapters.plugins.driver_process import DRIVER, eventually

from claimlet.adapters.plugins.follower import SocketStatus
from claimlet.adapters.plugins.registry import DriverRegistry
from claimlet.adapters.world import RealWorld
from claimlet.engine.ports import Claim, DriverInstance, Failed, Prepared
from claimlet.events.values import Allocation, ClaimRef, ClaimUid, DriverName, PreparedDevice

__all__ = [
    "CALL_SECONDS",
    "HastyWorld",
    "Node",
    "claim",
    "claims",
    "devices_of",
    "short_directory",
    "text_of",
]

CALL_SECONDS = 20.0


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a root directory: pytest's own are too long for the sockets of drivers."""
    with tempfile.TemporaryDirectory(prefix="claimlet-") as directory:
        yield Path(directory)


def claim(name: str, *, uid: str | None = None) -> Claim:
    """Return a claim called *name*, with the UID `uid-NAME`."""
    claim_uid = ClaimUid(f"uid-{name}" if uid is None else uid)
    ref = ClaimRef(uid=claim_uid, namespace="default", name=name)
    return Claim(ref=ref, allocation=Allocation(digest="sha256:0"))


def claims(*names: str) -> list[Claim]:
    """Return claims called *names*."""
    return [claim(name) for name in names]


def devices_of(outcome: Prepared | Failed) -> tuple[PreparedDevice, ...]:
    """Return the devices of a success."""
    assert isinstance(outcome, Prepared)
    return outcome.devices


def text_of(outcome: Prepared | Failed | None) -> str:
    """Return the text of a failure."""
    assert isinstance(outcome, Failed)
    return outcome.text


class HastyWorld(RealWorld):
    """A world whose delays are noted and a thousand times shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.delays.append(seconds)
        await super().sleep(seconds / 1000)


class Node:
    """A node's registry below *root*, which remembers what it heard; `async with` runs it."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.world = HastyWorld()
        #: `registered` and `gone` with the instance, in order.
        self.heard: list[tuple[str, str]] = []
        self.connected: dict[str, DriverInstance] = {}
        self.reasons: list[str] = []
        self._options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.world)
        registry = DriverRegistry(self.root, world=self.world, listener=self, **self._options)
        self.registry = await self._stack.enter_async_context(registry)
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: PYI036 -- passed on
        await self._stack.__aexit__(*error)

    def registered(self, instance: DriverInstance) -> None:
        self.heard.append(("registered", instance.instance))
        self.connected[instance.instance] = instance

    def gone(self, driver: DriverName, instance: str, reason: str) -> None:
        assert self.connected.pop(instance).driver == driver
        self.heard.append(("gone", instance))
        self.reasons.append(reason)

    def find(self, driver: str = DRIVER) -> DriverInstance:
        """Return the instance of *driver* to call."""
        found = self.registry.find(DriverName(driver))
        assert found is not None
        return found

    async def instance(self, driver: str = DRIVER, *, count: int = 1) -> DriverInstance:
        """Wait for *count* connected instances of *driver* and return the one to call."""

        def is_there() -> bool:
            return [i.driver for i in self.connected.values()].count(DriverName(driver)) == count

        await eventually(is_there, f"{count} instances of {driver} are registered")
        return self.find(driver)

    async def is_gone(self, instance: DriverInstance) -> None:
        """Wait until the registry has told that *instance* is gone."""
        await eventually(
            lambda: instance.instance not in self.connected, f"{instance.instance} is gone"
        )

    async def status(self, state: str, *, path: Path | None = None) -> SocketStatus:
        """Wait until the socket at *path*, or any, is in *state*; return what is known of it."""

        def found() -> list[SocketStatus]:
            return [
                status
                for status in self.registry.sockets()
                if status.state == state and path in {None, Path(status.path)}
            ]

        return (await eventually(found, f"a socket is {state}"))[0]

    async def prepare(self, *wanted: Claim) -> Mapping[ClaimUid, Prepared | Failed]:
        """Let the driver prepare the claims."""
        return await self.find().adapter.prepare(wanted, timeout_seconds=CALL_SECONDS)

    async def unprepare(self, *wanted: Claim) -> Mapping[ClaimUid, Failed | None]:
        """Let the driver unprepare the claims."""
        return await self.find().adapter.unprepare(wanted, timeout_seconds=CALL_SECONDS)
